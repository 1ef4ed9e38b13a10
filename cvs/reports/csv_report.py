"""Measured traces for spreadsheets: CSV, a row per rank, or per rank and step.

The columns are the fields of the models, so that none is forgotten: `ratios.overlap` is what the JSON has as
`overlap` in `ratios`. They are the same whatever was measured.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from io import StringIO
from typing import Any, get_args, get_origin

from pydantic import BaseModel

from cvs.models import ParseResult, RankMetrics, Step
from cvs.terminal import printable

WHOSE = ("rank", "node", "basis", "quality.status")
"""Columns of a rank that its steps have, too."""

_FORMULA = tuple("=+-@＝＋－＠")
"""What spreadsheets take for the beginning of a formula, even where the cell holds a name."""

Row = dict[str, str]


def traces_csv(parse: ParseResult, *, steps: bool = False) -> str:
    """The ranks, those that are missing too; or the steps of each."""
    columns = _columns(RankMetrics)
    rows = [dict(zip(columns, _cells(RankMetrics, rank), strict=True)) for rank in parse.ranks]
    if not steps:
        missing = ({"rank": str(rank), "quality.status": "missing"} for rank in parse.absent_ranks)
        return _text(columns, [*rows, *missing])
    columns = [f"steps.{column}" for column in _columns(Step)]
    return _text(
        [*WHOSE, *columns],
        [
            {name: row[name] for name in WHOSE} | dict(zip(columns, _cells(Step, step), strict=True))
            for rank, row in zip(parse.ranks, rows, strict=True)
            for step in rank.steps
        ],
    )


def _text(columns: list[str], rows: list[Row]) -> str:
    buffer = StringIO()
    writer = csv.DictWriter(buffer, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _columns(model: type[BaseModel]) -> list[str]:
    """Names of the fields, those of a model within it behind its own."""
    names = []
    for name, field in model.model_fields.items():
        inner = _inner(field.annotation)
        names += [f"{name}.{column}" for column in _columns(inner)] if inner else [name]
    return names


def _cells(model: type[BaseModel], item: BaseModel | None) -> Iterator[str]:
    """A cell for each of its columns, all empty without an item."""
    for name, field in model.model_fields.items():
        inner, value = _inner(field.annotation), getattr(item, name, None)
        if inner:
            yield from _cells(inner, value)
        elif _holds_models(field.annotation):
            yield "" if value is None else str(len(value))
        else:
            yield _cell(value)


def _inner(kind: Any) -> type[BaseModel] | None:
    """The model that a field holds, or may hold; None where it holds anything else, or several."""
    kinds = () if get_origin(kind) is tuple else (kind, *get_args(kind))
    return next(filter(_is_model, kinds), None)


def _holds_models(kind: Any) -> bool:
    return get_origin(kind) is tuple and any(map(_is_model, get_args(kind)))


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return str(value).lower() if isinstance(value, bool) else repr(value)
    if isinstance(value, dict):
        return _words("; ".join(f"{name}: {number}" for name, number in value.items()))
    return _words("; ".join(map(str, value)) if isinstance(value, tuple) else str(value))


def _words(text: str) -> str:
    """Text on one line, which no spreadsheet takes for a formula."""
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text
