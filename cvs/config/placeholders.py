"""Placeholders in the two files: `{user-id}`, `{home}`, `{cvs}` and their kind."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

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


def leftovers(data: Any, known: Mapping[str, str], key: str = "") -> Iterator[str]:
    """A line for each string that still holds a placeholder: `key: what is wrong`."""
    if isinstance(data, dict):
        for name, value in data.items():
            inside = f"{key}.{name}" if key else str(name)
            if _LEFT_OVER.search(str(name)):
                yield f"{inside}: <changeme> is still there; write your own name"
            if not str(name).startswith("_"):
                yield from leftovers(value, known, inside)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from leftovers(value, known, f"{key}.{index}")
    elif isinstance(data, str):
        yield from _leftovers_in(data, known, key)


def _leftovers_in(text: str, known: Mapping[str, str], key: str) -> Iterator[str]:
    if _LEFT_OVER.search(text):
        yield f"{key}: <changeme> is still there; write your own value"
    names = ", ".join(f"{{{name}}}" for name in known)
    for found in _PLACEHOLDER.findall(text):
        yield f"{key}: unknown placeholder {found} (known here: {names})"
