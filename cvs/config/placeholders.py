"""Placeholders in the two files: `{user-id}`, `{home}`, `{cvs}` and their kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cvs.config.model import HIDDEN, shown, shown_argument
from cvs.config.problem import Key, Problem

_PLACEHOLDER = re.compile(r"(?<!\$)\{[^{}]*\}")  # `${NAME}` is a secret or a shell's
_LEFT_OVER = re.compile(r"<changeme>", re.IGNORECASE)


def fill(data: Any, values: Mapping[str, str]) -> Any:
    """`data` with every known placeholder in its strings replaced; keys and unknown ones stay as they are."""
    if isinstance(data, dict):
        return {key: fill(value, values) for key, value in data.items()}
    if isinstance(data, list):
        return [fill(value, values) for value in data]
    if isinstance(data, str):
        filled = _PLACEHOLDER.sub(lambda found: values.get(found[0][1:-1], found[0]), data)
        return type(data)(filled)
    return data


def leftovers(data: Any, known: Mapping[str, str], key: Key = ()) -> Iterator[Problem]:
    """Each key or string, not filled yet, that holds a placeholder which is not known."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from changeme(str(name), (*key, name), "name")
            yield from leftovers(value, known, (*key, name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from leftovers(value, known, (*key, index))
    elif isinstance(data, str):
        yield from _leftovers_in(data, known, key)


def _leftovers_in(text: str, known: Mapping[str, str], key: Key) -> Iterator[Problem]:
    yield from changeme(text, key)
    names = ", ".join(f"{{{name}}}" for name in known)
    nothing = dict.fromkeys(known, "")
    visible = fill(shown(str(key[-1]), shown_argument(text)), nothing)
    for found in _PLACEHOLDER.findall(fill(text, nothing)):
        name = found if found in visible else HIDDEN
        yield Problem(key, f"unknown placeholder {name} (known here: {names})")


def changeme(text: str, key: Key, kind: str = "value") -> Iterator[Problem]:
    """Whether a `<changeme>` of a sample is still in the text at `key`."""
    if _LEFT_OVER.search(text):
        yield Problem(key, f"<changeme> is still there; write your own {kind}")
