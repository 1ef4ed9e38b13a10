"""Scalars as written: what text, numbers and switches look like in the two files.

YAML 1.1 turns `off`, `010`, `1:30:00` and dates into something else without a word. Here a plain (unquoted)
YAML scalar stays the text it is, `Plain`, and only the key that takes it decides what it means. JSON brings
its own types; a number there is no text.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([Tt ].*)?")
_NULL_WORDS = ("", "~", "null", "Null", "NULL")
_BOOL_WORDS = ("true", "false", "yes", "no", "on", "off", "y", "n")


class Plain(str):
    """A YAML scalar written without quotes, character by character."""

    __slots__ = ()


def is_null(value: object) -> bool:
    """Whether the file says `null` here."""
    return value is None or (isinstance(value, Plain) and value in _NULL_WORDS)


def _null(value: Any) -> Any:
    return None if is_null(value) else value


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if isinstance(value, Plain):
        return f"`{value}`"
    return repr(value) if value is not None else "null"


def _integer(value: Any) -> Any:
    if isinstance(value, Plain) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{_shown(value)} is no whole number (digits only, no quotes)")


def _number(value: Any) -> Any:
    if isinstance(value, Plain) and _DECIMAL.fullmatch(value):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{_shown(value)} is no plain number (digits and a point, no quotes)")


def _switch(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, Plain) and value in ("true", "false"):
        return value == "true"
    raise ValueError(f"{_shown(value)} is neither true nor false (without quotes)")


def _text(value: Any) -> Any:
    if isinstance(value, Plain):
        if value in _NULL_WORDS or value.lower() in _BOOL_WORDS or _DATE.fullmatch(value):
            raise ValueError(f"{_shown(value)} is not read as text; write it in quotes")
        return str(value)
    if isinstance(value, str):
        return value
    raise ValueError(f"{_shown(value)} is no text; write it in quotes")


def _override(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Plain) and value in ("true", "false"):
        return str(value)
    return _text(value)


Text = Annotated[str, BeforeValidator(_text)]
"""Quoted or plain text, as written: `03` stays `03`."""
OverrideValue = Annotated[str, BeforeValidator(_override)]
"""Text, where true and false stand for themselves."""
Integer = Annotated[int, BeforeValidator(_integer)]
Number = Annotated[float, BeforeValidator(_number)]
Switch = Annotated[bool, BeforeValidator(_switch)]

OptionalText = Annotated[Text | None, BeforeValidator(_null)]
OptionalInteger = Annotated[Integer | None, BeforeValidator(_null)]

Limit = Annotated[Annotated[Number, Field(ge=0)] | None, BeforeValidator(_null)]
"""A limit that is at least 0, or null: none set."""
RatioLimit = Annotated[Annotated[Number, Field(ge=0, le=1)] | None, BeforeValidator(_null)]
"""A limit on a ratio 0..1, or null: none set."""
