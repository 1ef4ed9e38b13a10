"""Placeholders in the two files: `{user-id}`, `{home}`, `{cvs}` and their kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cvs.config.model import HIDDEN, shown, shown_argument
from cvs.config.problem import Key, Problem

_PLACEHOLDER = re.compile(r"(?<!\$)\{[^{}]*\}")  # `${NAME}` is a secret or a shell's
_LEFT_OVER = re.compile(r"<changeme>", re.IGNORECASE)

Values = Mapping[str, str | None]
"""What placeholders stand for; None: known, but without a value here."""


def fill(data: Any, values: Values) -> Any:
    """`data` with every placeholder in its strings that has a value replaced; keys stay as they are."""
    if isinstance(data, dict):
        return {key: fill(value, values) for key, value in data.items()}
    if isinstance(data, list):
        return [fill(value, values) for value in data]
    if isinstance(data, str):
        return type(data)(_PLACEHOLDER.sub(lambda found: _filled(found[0], values), data))
    return data


def _filled(placeholder: str, values: Values) -> str:
    value = values.get(placeholder[1:-1])
    return placeholder if value is None else value


def leftovers(data: Any, known: Values | None, key: Key = ()) -> Iterator[Problem]:
    """Each key or string, not filled yet, that holds a placeholder which is not known or has no value.

    Args: known: None: braces mean something else here, and only a `<changeme>` is left over.
    """
    if isinstance(data, dict):
        for name, value in data.items():
            yield from changeme(str(name), (*key, name), "name")
            yield from leftovers(value, known, (*key, name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from leftovers(value, known, (*key, index))
    elif isinstance(data, str):
        yield from _leftovers_in(data, known, key)


def _leftovers_in(text: str, known: Values | None, key: Key) -> Iterator[Problem]:
    yield from changeme(text, key)
    if known is None:
        return
    names = ", ".join(f"{{{name}}}" for name in known)
    for found in _PLACEHOLDER.findall(text):
        if known.get(found[1:-1], "") is None:
            yield Problem(key, f"{found} has no value here: no home is known for this user; set HOME")
    nothing = dict.fromkeys(known, "")
    visible = fill(shown(str(key[-1]), shown_argument(text)), nothing)
    for found in _PLACEHOLDER.findall(fill(text, nothing)):
        name = found if found in visible else HIDDEN
        yield Problem(key, f"unknown placeholder {name} (known here: {names})")


def changeme(text: str, key: Key, kind: str = "value") -> Iterator[Problem]:
    """Whether a `<changeme>` of a sample is still in the text at `key`."""
    if _LEFT_OVER.search(text):
        yield Problem(key, f"<changeme> is still there; write your own {kind}")
