"""Regular expressions that users give, and which of them can be asked without a limit of time."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from cvs.config.scalars import Name, shown_value

RANK = "rank"
"""The group that finds a rank."""


def linear(pattern: str) -> Callable[[str], bool]:
    """Whether a text holds what the pattern describes, told in time that grows with the text and no faster.

    By the regular expressions of Rust, which pydantic brings: without look-around and back-references no
    pattern makes them go back and forth.

    Raises: ValueError: no such regular expression, and why.
    """
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = str(error).strip().splitlines()[-1].rpartition("rror: ")[2]
        raise ValueError(f"{shown_value(pattern)} is no regular expression: {reason}") from None


def for_kernels(text: str) -> str:
    """The text itself, if it is a regular expression that tells kernels apart.

    Raises: ValueError: it is none, and why.
    """
    if linear(text)(""):
        raise ValueError(f"{shown_value(text)} fits every kernel; write a part of the names that are meant")
    return text


def with_rank(text: str) -> str:
    """The text itself, if it is a regular expression that can find a rank.

    Raises: ValueError: it is none, and why.
    """
    try:
        groups = re.compile(text).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{shown_value(text)} is no regular expression: {error}") from None
    if RANK not in groups:
        raise ValueError(f"{shown_value(text)} has no group that finds the rank, such as (?P<{RANK}>[0-9]+)")
    return text


KernelPattern = Annotated[Name, AfterValidator(for_kernels)]
"""Fits names of kernels; to be asked by `linear`."""
RankPattern = Annotated[Name, AfterValidator(with_rank)]
"""Fits paths, and finds a rank in them by its group `rank`; it may take forever."""
