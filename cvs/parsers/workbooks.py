"""One workbook as numbers: a file in, times in ms out, or why it cannot be read.

Of the many sheets only those are read that say of a rank what its trace says, too. Columns are found by their
header and rows by their name, since positions changed between versions of TraceLens.

Source: TraceLens `gpu_timeline` and `nccl_long`; Aorta's summary of the GPU timelines of all ranks.
"""

from __future__ import annotations

import math
import re
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from cvs import metrics
from cvs.errors import TraceError
from cvs.models import Timeline

Rows = Mapping[str, float]
"""Times in ms by the name of their row."""

TIMELINE_ROWS = tuple(Timeline.model_fields)
ROCPROF_ROWS = ("total_time", "kernel", "memory", "busy_time", "idle")
_IDLE_PARTS = ("micro_idle_time", "macro_idle_time")
_KNOWN_ROWS = {*TIMELINE_ROWS, *ROCPROF_ROWS, *_IDLE_PARTS}

NOTHING_MS = 1e-10
"""What stands for 0 in geometric means."""
_ROUNDING_MS = 1e-3
"""Idle time is a difference of doubles, and may come out below 0 by so much."""
_LONGEST_MS = 1e12
_LATEST_US = 1e16
_MOST_RANKS = 1_000_000_000
"""What is more is no time of a job, no stamp of a clock since 1970, and no rank."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
"""As text."""

LARGEST_BYTES = 256 * 1024 * 1024
"""Of a workbook, unpacked."""
MOST_COLLECTIVES = 20_000
"""Rows of a collective report; openpyxl takes 0.3 ms for each, and they only serve a comparison."""
_LAST_ROW, _LAST_COLUMN = 1_048_576, 64


@dataclass(frozen=True, slots=True)
class RankReport:
    """TraceLens's report on one rank."""

    rows: Rows


@dataclass(frozen=True, slots=True)
class TimelineSummary:
    """Aorta's summary of the reports on all ranks."""

    means: Rows
    ranks: Mapping[int, Rows]


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """TraceLens's report on the collectives of all ranks."""

    comm_ms: Mapping[int, float]
    """Time in which at least one collective ran, by rank."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that tells nothing, and why."""

    why: str


Content = RankReport | TimelineSummary | CollectiveReport | Unreadable


def is_rocprof(rows: Rows) -> bool:
    """Whether the rows are of what rocprof recorded, which nobody told computation from communication in."""
    return "kernel" in rows


_MOST_SAID = 120


def read_workbook(open_it: Callable[[], BinaryIO]) -> Content:
    """What a workbook tells of ranks; of a file that cannot be read, why, never an exception."""
    try:
        with open_it() as stream:
            return _content(_sheets(stream))
    except TraceError as error:
        return Unreadable(str(error))
    except OSError as error:
        return Unreadable(f"cannot be read: {error.strerror or error}")
    except Exception as error:  # openpyxl raises whatever it stumbles over in a damaged file
        said = " ".join(str(error).split())[:_MOST_SAID]
        return Unreadable(f"damaged ({type(error).__name__}{': ' if said else ''}{said})")


# --- the file ---------------------------------------------------------------------------------------------

_OLE_SIGNATURE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


def _sheets(stream: BinaryIO) -> dict[str, Any]:
    """Worksheets by name; nothing of them is read yet.

    Raises: TraceError: the file is no workbook, or one that had better not be unpacked.
    """
    _refuse(stream)
    import openpyxl  # type: ignore[import-untyped]  # here, as it takes 0.2 s and most sets have no workbook

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of styles and extensions, which do not matter here
        book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
    return {sheet.title: sheet for sheet in book.worksheets}


def _refuse(stream: BinaryIO) -> None:
    start = stream.read(len(_OLE_SIGNATURE))
    if not start:
        raise TraceError("the file is empty")
    if start == _OLE_SIGNATURE:
        raise TraceError("protected by a password, or of a spreadsheet program before 2007: save it as .xlsx")
    if not zipfile.is_zipfile(stream):
        raise TraceError("no workbook, or one that was cut off: not a zip archive")
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        if any(member.flag_bits & 1 for member in members):
            raise TraceError("protected by a password")
        if "[Content_Types].xml" not in archive.namelist():
            raise TraceError("a zip archive, but no workbook")
        size = sum(member.file_size for member in members)
        if size > LARGEST_BYTES:
            most = f"{LARGEST_BYTES >> 20} MiB"
            raise TraceError(f"too large: it unpacks to {size >> 20} MiB, and cvs reads up to {most}")
        # What is larger than it claims has a wrong checksum, found here without unpacking more than claimed.
        broken = archive.testzip()
        if broken:
            raise TraceError(f"damaged: {broken} in it has a wrong checksum")


# --- the sheets -------------------------------------------------------------------------------------------

_TIMELINE, _PER_RANK, _MEANS, _COLLECTIVES = "gpu_timeline", "All_Ranks_Combined", "Summary", "nccl_long"


def _content(sheets: Mapping[str, Any]) -> Content:
    if _TIMELINE in sheets:
        return RankReport(_rank_rows(_TIMELINE, _table(sheets, _TIMELINE, ("type", "time ms"))))
    if _PER_RANK in sheets:
        return _summary(sheets)
    if _COLLECTIVES in sheets:
        if (sheets[_COLLECTIVES].max_row or 0) > MOST_COLLECTIVES + 1:
            raise TraceError(f"has more than {MOST_COLLECTIVES:,} collectives, too many to compare")
        return CollectiveReport(_comm_ms(_numbered(sheets, _COLLECTIVES, ("rank", "ts", "dur"))))
    known = ", ".join((_TIMELINE, _PER_RANK, _COLLECTIVES))
    raise TraceError(f"has none of the sheets that cvs reads ({known})")


def _table(sheets: Mapping[str, Any], name: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The cells below these headers, row by row.

    Raises: TraceError: there is no such sheet, or it lacks a column.
    """
    return (cells for _, cells in _numbered(sheets, name, columns))


def _numbered(
    sheets: Mapping[str, Any], name: str, columns: Sequence[str]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """The same, with the number that the row has in a spreadsheet program."""
    if name not in sheets:
        raise TraceError(f"has no sheet {name}")
    # With bounds of its own: those that a sheet claims for itself may be wrong.
    rows = sheets[name].iter_rows(max_row=_LAST_ROW, max_col=_LAST_COLUMN, values_only=True)
    header = [_text(cell) for cell in next(rows, ())]
    lacking = [column for column in columns if column not in header]
    if not any(header):
        raise TraceError(f"sheet {name} is empty")
    if lacking:
        raise TraceError(f"sheet {name} has no column {' and no column '.join(lacking)}")
    positions = [header.index(column) for column in columns]
    for number, row in enumerate(rows, start=2):
        cells = tuple(row[position] for position in positions)
        if any(cell is not None for cell in cells):
            yield number, cells


def _shown(cell: Any) -> str:
    return "nothing" if cell is None else repr(cell)[:_MOST_SAID]


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell).strip()


def _rows(sheet: str, cells: Iterable[tuple[Any, Any]]) -> Rows:
    """The rows that are known, all of them there, and `idle_time` whatever the sheet calls it.

    Raises: TraceError: a row lacks, is there twice or has no time.
    """
    rows: dict[str, float] = {}
    for name, value in ((_text(name), value) for name, value in cells):
        if name in rows:
            # So does a report with recomputation told apart: of two parts of a window, which do not add up.
            raise TraceError(f"sheet {sheet} has the row {name} twice")
        if name in _KNOWN_ROWS:
            rows[name] = _milliseconds(sheet, name, value)
    if all(part in rows for part in _IDLE_PARTS):
        rows.setdefault("idle_time", sum(rows[part] for part in _IDLE_PARTS))
    lacking = [row for row in (ROCPROF_ROWS if is_rocprof(rows) else TIMELINE_ROWS) if row not in rows]
    if lacking:
        raise TraceError(f"sheet {sheet} lacks the row{'s' * (len(lacking) > 1)} {', '.join(lacking)}")
    if is_rocprof(rows):
        rows["idle_time"] = rows["idle"]
    return rows


def _rank_rows(sheet: str, cells: Iterable[tuple[Any, Any]]) -> Rows:
    """The rows of one rank.

    Raises: TraceError: as above, or they are of no time at all.
    """
    rows = _rows(sheet, cells)
    if not rows["total_time"]:
        raise TraceError(f"sheet {sheet}: total_time is 0, so nothing was measured")
    return rows


def _milliseconds(sheet: str, row: str, value: Any) -> float:
    time = float(value) if isinstance(value, str) and _NUMBER.fullmatch(value.strip()) else _number(value)
    if not -_ROUNDING_MS <= time <= _LONGEST_MS:  # nor is NaN
        raise TraceError(f"sheet {sheet}, row {row}: {_shown(value)} is no time in ms")
    return 0.0 if time <= NOTHING_MS else float(time)


def _number(cell: Any) -> float:
    """The number in a cell; NaN where it holds anything else."""
    return cell if isinstance(cell, int | float) and not isinstance(cell, bool) else math.nan


def _summary(sheets: Mapping[str, Any]) -> TimelineSummary:
    by_rank: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
    for rank, name, value in _table(sheets, _PER_RANK, ("rank", "type", "time ms")):
        by_rank[_rank(_PER_RANK, rank)].append((name, value))
    return TimelineSummary(
        means=_rows(_MEANS, _table(sheets, _MEANS, ("type", "time ms"))),
        ranks={rank: _rank_rows(_PER_RANK, cells) for rank, cells in sorted(by_rank.items())},
    )


def _rank(sheet: str, cell: Any) -> int:
    is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
    if not is_number or not 0 <= cell < _MOST_RANKS or cell != int(cell):
        raise TraceError(f"sheet {sheet}: {_shown(cell)} is no rank")
    return int(cell)


def _comm_ms(events: Iterable[tuple[int, tuple[Any, Any, Any]]]) -> dict[int, float]:
    """Length of the union of each rank's collectives; `ts` and `dur` are in microseconds."""
    spans: dict[int, list[metrics.Interval]] = defaultdict(list)
    for row, (cell, start, duration) in events:
        rank = _rank(_COLLECTIVES, cell)
        for column, value, least in (("ts", start, -_LATEST_US), ("dur", duration, 0)):
            if not least <= _number(value) <= _LATEST_US:
                where = f"sheet {_COLLECTIVES}, row {row}, rank {rank}"
                raise TraceError(f"{where}: {column} {_shown(value)} is no time in us")
        start_ns = round(start * 1000)
        spans[rank].append((start_ns, start_ns + round(duration * 1000)))
    return {rank: metrics.length(metrics.union(found)) / 1e6 for rank, found in sorted(spans.items())}
