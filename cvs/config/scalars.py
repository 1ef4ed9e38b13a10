"""Scalars as written: what text, numbers and switches look like in the two files.

YAML 1.1 turns `off`, `010`, `1:30:00` and dates into something else without a word. Here a plain (unquoted)
YAML scalar stays the text it is, `Plain`, and only the key that takes it decides what it means. A number in
JSON stays its digits, `Digits`, and is no text.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_DECIMAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([Tt ].*)?")
_NULL_WORDS = ("", "~", "null", "Null", "NULL")
_BOOL_WORDS = ("true", "false", "yes", "no", "on", "off", "y", "n")
_MAX_DIGITS = 300
"""More than any number of ours has, and so few that a float can hold it."""
_MAX_SHOWN = 80
UNSPEAKABLE = re.compile("[\0\ud800-\udfff]")
"""What no argument, environment or file name can hold."""


class Plain(str):
    """A YAML scalar written without quotes, character by character."""

    __slots__ = ()


class Digits(str):
    """A number in JSON, digit by digit."""

    __slots__ = ()


def is_null(value: object) -> bool:
    """Whether the file says `null` here."""
    return value is None or (isinstance(value, Plain) and value in _NULL_WORDS)


def is_misread(value: str) -> bool:
    """Whether YAML 1.1 reads an unquoted word as null, bool or date."""
    return isinstance(value, Plain) and (
        value in _NULL_WORDS or value.lower() in _BOOL_WORDS or _DATE.fullmatch(value) is not None
    )


def shown_value(value: object) -> str:
    """A value as messages show it: what was found in the file."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    if value is None or value == "":
        return "null" if value is None or isinstance(value, Plain) else "''"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Plain, Digits)):
        return f"`{_short(value)}`"
    if isinstance(value, str):
        return repr(_short(value)).replace("\\\\", "\\")  # as it is written in the file
    return repr(value)


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN // 2]}… ({len(text)} characters)"


def native(value: Any) -> Any:
    """What JSON or YAML itself means by a value that no key of ours takes."""
    if isinstance(value, dict):
        return {key: native(item) for key, item in value.items()}
    if isinstance(value, list):
        return [native(item) for item in value]
    if not isinstance(value, (Plain, Digits)):
        return value
    try:
        return json.loads(value) if isinstance(value, Digits) else yaml.safe_load(value)
    except (ValueError, yaml.YAMLError):  # such as 2024-13-01, `=` or 5,000 digits
        return str(value)


def _null(value: Any) -> Any:
    return None if is_null(value) else value


def _written(value: object, pattern: re.Pattern[str]) -> bool:
    if not isinstance(value, (Plain, Digits)) or len(value) > _MAX_DIGITS:
        return False
    return pattern.fullmatch(value) is not None


def _integer(value: Any) -> Any:
    if _written(value, _INTEGER):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{shown_value(value)} is no whole number (digits only, no quotes)")


def _number(value: Any) -> Any:
    if _written(value, _DECIMAL):
        return float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise ValueError(f"{shown_value(value)} is no plain number (digits and a point, no quotes)")


def _switch(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, Plain) and value in ("true", "false"):
        return value == "true"
    raise ValueError(f"{shown_value(value)} is neither true nor false (without quotes)")


def _text(value: Any) -> Any:
    if _is_bare_placeholder(value):
        raise ValueError(f"`{{{next(iter(value))}}}` is a mapping without quotes; write it in quotes")
    if not isinstance(value, str):
        hint = "" if isinstance(value, (dict, list, tuple)) else "; write it in quotes"
        raise ValueError(f"{shown_value(value)} is no text{hint}")
    if isinstance(value, Digits):
        raise ValueError(f"{shown_value(value)} is no text; write it in quotes")
    if is_misread(value):
        raise ValueError(f"{shown_value(value)} is not read as text; write it in quotes")
    if UNSPEAKABLE.search(value):
        raise ValueError("holds a character that no text may hold (a null byte, half a surrogate pair)")
    return str(value)


def _is_bare_placeholder(value: Any) -> bool:
    """Whether this is what YAML makes of `{home}` without quotes."""
    return isinstance(value, dict) and [*map(type, value.values())] == [Plain] and [*value.values()] == [""]


def _not_empty(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty; a value is expected")
    return value


NESTED = "nested"
"""Type of the error about a mapping where keys are written with points."""


def _override(value: Any) -> Any:
    if isinstance(value, dict) and not _is_bare_placeholder(value):
        raise PydanticCustomError(NESTED, "a mapping is no text")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Plain) and value in ("true", "false"):
        return str(value)
    return _text(value)


# The JSON Schema is for editors, which read YAML: there a plain number is as good as text.
Text = Annotated[str, BeforeValidator(_text), WithJsonSchema({"type": ["string", "number"]})]
"""Quoted or plain text, as written: `03` stays `03`."""
Name = Annotated[Text, AfterValidator(_not_empty)]
"""Text that names something: a user, an address, a file."""
OverrideValue = Annotated[
    str, BeforeValidator(_override), WithJsonSchema({"type": ["string", "number", "boolean"]})
]
"""Text, where true and false stand for themselves."""
Integer = Annotated[int, BeforeValidator(_integer)]
Number = Annotated[float, BeforeValidator(_number)]
Switch = Annotated[bool, BeforeValidator(_switch)]

MOST_SECONDS = 30 * 24 * 60 * 60
"""Longer than anybody waits for a validation, and far from what clocks cannot hold."""

MOST_PER_NODE = 1024
Count = Annotated[Integer, Field(ge=1, le=MOST_PER_NODE)]
"""Of ranks and devices of one machine."""
Seconds = Annotated[Integer, Field(ge=1, le=MOST_SECONDS)]
Port = Annotated[Integer, Field(ge=1, le=65535)]
UserPort = Annotated[Integer, Field(ge=1024, le=65535)]
Ratio = Annotated[Number, Field(ge=0, le=1)]
NotNegative = Annotated[Number, Field(ge=0)]

_Value = TypeVar("_Value")
Optional = Annotated[_Value | None, BeforeValidator(_null)]
"""The value, or null as files write it."""
