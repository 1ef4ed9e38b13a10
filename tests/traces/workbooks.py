"""Workbooks such as TraceLens writes, with whatever cells a test wants."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import openpyxl  # type: ignore[import-untyped]


def write_workbook(path: Path, **sheets: Iterable[Iterable[Any]]) -> Path:
    """Write a workbook of these sheets, row by row."""
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, table in sheets.items():
        sheet = book.create_sheet(name)
        for row in table:
            sheet.append(list(row))
    path.parent.mkdir(parents=True, exist_ok=True)
    book.save(path)
    return path
