"""Workbooks as users have them, of several makers and versions, and broken ones."""

from __future__ import annotations

import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import openpyxl  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from traces.workbooks import write_workbook

from cvs.parsers.workbooks import (
    LARGEST_BYTES,
    MOST_COLLECTIVES,
    TIMELINE_ROWS,
    CollectiveReport,
    Content,
    RankReport,
    TimelineSummary,
    Unreadable,
    is_rocprof,
    read_workbook,
)

DATA = Path(__file__).parents[2] / "data"
SINGLE = DATA / "workbooks" / "single" / "tracelens_analysis"
SWEEP = DATA / "workbooks" / "sweep" / "tracelens_analysis" / "256thread" / "individual_reports"
REPORT = SINGLE / "individual_reports" / "perf_rank0.xlsx"

Table = Sequence[Sequence[Any]]


def golden(rank: int) -> dict[str, float]:
    path = DATA / "traces" / "multirank" / "mr4" / f"rank{rank}_trace.golden.json"
    rows: dict[str, float] = json.loads(path.read_text())["gpu_timeline"]["all"]
    return rows


def timeline(**changes: Any) -> Table:
    times = (1.0, 2.0, 3.0, 6.0, 4.0, 10.0, 5.0, 3.5)
    rows = dict(zip(TIMELINE_ROWS, times, strict=True)) | changes
    return [("type", "time ms", "percent"), *((name, value, 1) for name, value in rows.items())]


def content_of(path: Path) -> Content:
    return read_workbook(lambda: path.open("rb"))


def rows_of(content: Content) -> dict[str, float]:
    assert isinstance(content, RankReport), content
    return dict(content.rows)


def why(content: Content) -> str:
    assert isinstance(content, Unreadable), content
    return content.why


# --- of several makers and versions -----------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(4))
def test_a_report_has_tracelens_own_doubles(rank: int) -> None:
    report = content_of(SINGLE / "individual_reports" / f"perf_rank{rank}.xlsx")
    assert rows_of(report) == golden(rank)


def test_a_report_of_an_older_tracelens() -> None:
    rows = rows_of(content_of(SWEEP / "perf_28ch_rank0.xlsx"))
    assert tuple(rows) == TIMELINE_ROWS
    assert (rows["total_time"], rows["total_comm_time"]) == (2754.977083007812, 1285.513173828125)
    assert not is_rocprof(rows)


def test_a_report_of_rocprof_is_known_by_its_rows() -> None:
    rows = rows_of(content_of(SWEEP / "perf_56ch_rank7.xlsx"))
    assert is_rocprof(rows)
    assert rows["idle_time"] == rows["idle"] == 35308.28845776367
    assert (rows["total_time"], rows["busy_time"]) == (66505.86705303955, 31197.57859527588)
    assert "computation_time" not in rows


def test_a_summary_has_the_rows_of_every_rank_and_their_means() -> None:
    summary = content_of(SINGLE / "gpu_timeline_summary_mean.xlsx")
    assert isinstance(summary, TimelineSummary)
    assert summary.ranks == {rank: golden(rank) for rank in range(4)}
    for row in TIMELINE_ROWS:
        assert summary.means[row] == pytest.approx(fmean(golden(rank)[row] for rank in range(4)), rel=1e-14)


def test_a_collective_report_has_the_communication_of_every_rank() -> None:
    report = content_of(SINGLE / "collective_reports" / "collective_all_ranks.xlsx")
    assert isinstance(report, CollectiveReport)
    assert report.comm_ms == {rank: golden(rank)["total_comm_time"] for rank in range(4)}


def test_columns_are_found_by_their_headers(tmp_path: Path) -> None:
    table: list[Sequence[Any]] = [("is_recompute", "percent", " time ms ", "note", "type")]
    times = {str(name): time for name, time, _ in timeline()[1:]}
    table += [(False, 1, time, None, name) for name, time in times.items()]
    path = write_workbook(tmp_path / "r.xlsx", notes=[("a",)], gpu_timeline=table)
    assert rows_of(content_of(path)) == times


def test_idle_time_in_two_parts(tmp_path: Path) -> None:
    table = [row for row in timeline() if row[0] != "idle_time"]
    table += [("micro_idle_time", 0.25, 1), ("macro_idle_time", 3.75, 1)]
    rows = rows_of(content_of(write_workbook(tmp_path / "r.xlsx", gpu_timeline=table)))
    assert (rows["micro_idle_time"], rows["macro_idle_time"], rows["idle_time"]) == (0.25, 3.75, 4.0)


def test_what_stands_for_nothing_in_geometric_means_is_nothing(tmp_path: Path) -> None:
    ranks = [("type", "time ms", "percent", "rank"), *((*row, 0) for row in timeline()[1:])]
    means = timeline(total_comm_time=1e-10, exposed_comm_time=1e-10)
    summary = content_of(write_workbook(tmp_path / "s.xlsx", Summary=means, All_Ranks_Combined=ranks))
    assert isinstance(summary, TimelineSummary)
    assert (summary.means["total_comm_time"], summary.means["exposed_comm_time"]) == (0.0, 0.0)
    assert summary.means["computation_time"] == 1.0


def test_overlapping_collectives_of_a_rank_count_once(tmp_path: Path) -> None:
    stamp = 4458676417038.25
    events = [(0.0, stamp, 100), (0.0, stamp + 50, 100), (0.0, stamp + 1000, 10.5), (3.0, stamp, 1)]
    path = write_workbook(tmp_path / "c.xlsx", nccl_long=[("rank", "ts", "dur"), *events])
    assert content_of(path) == CollectiveReport({0: 0.1605, 3: 0.001})


def test_a_time_may_be_written_as_text(tmp_path: Path) -> None:
    table = timeline(busy_time=" 3.5 ", idle_time="5e-1")
    rows = rows_of(content_of(write_workbook(tmp_path / "r.xlsx", gpu_timeline=table)))
    assert (rows["busy_time"], rows["idle_time"]) == (3.5, 0.5)


def test_unknown_rows_and_an_idle_time_below_0_by_a_rounding_do_no_harm(tmp_path: Path) -> None:
    table = [*timeline(idle_time=-1e-9, busy_time=10.0), ("new_time", None, None), (None, None, None)]
    rows = rows_of(content_of(write_workbook(tmp_path / "r.xlsx", gpu_timeline=table)))
    assert rows["idle_time"] == 0.0
    assert tuple(rows) == TIMELINE_ROWS


# --- what cannot be read ----------------------------------------------------------------------------------

EVENTS = ("rank", "ts", "dur")


@pytest.mark.parametrize(
    ("sheets", "expected"),
    [
        ({"notes": [("a", "b")]}, "has none of the sheets that cvs reads (gpu_timeline,"),
        ({"gpu_timeline": []}, "sheet gpu_timeline is empty"),
        ({"gpu_timeline": [("type", "time us")]}, "sheet gpu_timeline has no column time ms"),
        (
            {"gpu_timeline": timeline()[:-2]},
            "lacks the rows total_comm_time, total_memcpy_time",
        ),
        ({"gpu_timeline": timeline(kernel=1)}, "sheet gpu_timeline lacks the rows memory, idle"),
        ({"gpu_timeline": [*timeline(), *timeline()[1:]]}, "has the row computation_time twice"),
        ({"gpu_timeline": timeline(busy_time=None)}, "row busy_time: nothing is no time in ms"),
        ({"gpu_timeline": timeline(busy_time="3,98")}, "row busy_time: '3,98' is no time in ms"),
        ({"gpu_timeline": timeline(busy_time=True)}, "row busy_time: True is no time in ms"),
        ({"gpu_timeline": timeline(busy_time="1_0")}, "row busy_time: '1_0' is no time in ms"),
        ({"gpu_timeline": timeline(busy_time="\u0663")}, "row busy_time: '\u0663' is no time in ms"),
        ({"gpu_timeline": timeline(busy_time=-1)}, "row busy_time: -1 is no time in ms"),
        ({"gpu_timeline": timeline(busy_time="inf")}, "row busy_time: 'inf' is no time in ms"),
        ({"gpu_timeline": timeline(busy_time=1e300)}, "row busy_time: 1e+300 is no time in ms"),
        (
            {"gpu_timeline": timeline(**dict.fromkeys(TIMELINE_ROWS, 0))},
            "total_time is 0, so nothing was measured",
        ),
        ({"gpu_timeline": timeline(busy_time="=A1")}, "row busy_time: nothing is no time in ms"),
        ({"All_Ranks_Combined": [("rank", "type", "time ms")]}, "has no sheet Summary"),
        (
            {"All_Ranks_Combined": [("rank", "type", "time ms"), ("0a", "busy_time", 1)]},
            "sheet All_Ranks_Combined: '0a' is no rank",
        ),
        ({"nccl_long": []}, "sheet nccl_long is empty"),
        (
            {"nccl_long": [EVENTS, (0, 5, 1), (3, None, 1)]},
            "sheet nccl_long, row 3, rank 3: ts nothing is no time in us",
        ),
        (
            {"nccl_long": [EVENTS, (None, None, None), (1, 5, -3)]},
            "sheet nccl_long, row 3, rank 1: dur -3 is no time in us",
        ),
        ({"nccl_long": [EVENTS, (0, 1e300, 1)]}, "rank 0: ts 1e+300 is no time in us"),
        ({"nccl_long": [EVENTS, (0, True, 1)]}, "rank 0: ts True is no time in us"),
        ({"nccl_long": [EVENTS, (0, 1, False)]}, "rank 0: dur False is no time in us"),
        ({"nccl_long": [EVENTS, (1e30, 1, 1)]}, "sheet nccl_long: 1e+30 is no rank"),
        ({"nccl_long": [EVENTS, (0, "x", 1)]}, "rank 0: ts 'x' is no time in us"),
        ({"nccl_long": [EVENTS, (0.5, 1, 1)]}, "sheet nccl_long: 0.5 is no rank"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_workbook_that_says_something_else(sheets: dict[str, Table], expected: str, tmp_path: Path) -> None:
    assert expected in why(content_of(write_workbook(tmp_path / "w.xlsx", **sheets)))


def _with_members(path: Path, **changes: bytes | None) -> None:
    """A report with some of its parts changed or left out."""
    named = {"types": "[Content_Types].xml", "sheet": "xl/worksheets/sheet1.xml", "styles": "xl/styles.xml"}
    with zipfile.ZipFile(REPORT) as report:
        parts = {name: report.read(name) for name in report.namelist()}
    for key, content in changes.items():
        if content is None:
            del parts[named[key]]
        else:
            parts[named[key]] = content
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def _encrypted(path: Path) -> None:
    path.write_bytes(_flagged(REPORT.read_bytes()))


def _flagged(data: bytes) -> bytes:
    """The archive with its first member said to be encrypted."""
    at = data.index(b"PK\x01\x02") + 8
    return data[:at] + struct.pack("<H", 1) + data[at + 2 :]


def _larger_than_it_claims(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", b" " * (1 << 20))
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02") + 24
    path.write_bytes(data[:at] + struct.pack("<I", 10) + data[at + 4 :])


def _bomb(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("[Content_Types].xml", "w") as member,
    ):
        for _ in range((LARGEST_BYTES >> 20) + 1):
            member.write(bytes(1 << 20))


def _entities(path: Path) -> None:
    """A sheet of few bytes, and 10^12 once its entities are put in."""
    names = "abcdefghijklm"
    entities = '<!ENTITY a "lol">' + "".join(
        f'<!ENTITY {name} "{f"&{names[number]};" * 10}">' for number, name in enumerate(names[1:])
    )
    sheet = f"<!DOCTYPE worksheet [{entities}]><worksheet><sheetData>&m;</sheetData></worksheet>"
    _with_members(path, sheet=sheet.encode())


def _of_another_kind(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "no workbook")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: path.write_text("type,time ms\n"), "not a zip archive"),
        (lambda path: path.write_bytes(REPORT.read_bytes()[:-500]), "not a zip archive"),
        (lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)), "by a password"),
        (_encrypted, "protected by a password"),
        (_of_another_kind, "a zip archive, but no workbook"),
        (lambda path: _with_members(path, types=None), "a zip archive, but no workbook"),
        (lambda path: _with_members(path, sheet=None), "has none of the sheets that cvs reads"),
        (lambda path: _with_members(path, sheet=b"<worksheet><sheetData><row>"), "damaged"),
        (lambda path: _with_members(path, sheet=b'{"no": "xml"}'), "damaged"),
        (lambda path: _with_members(path, styles=b"<styleSheet"), "damaged"),
        (_larger_than_it_claims, "wrong checksum"),
        (_bomb, "too large: it unpacks to 257 MiB, and cvs reads up to 256 MiB"),
        (_entities, "damaged"),
        (Path.mkdir, "cannot be read: Is a directory"),
        (Path.exists, "cannot be read: No such file or directory"),
    ],
)
def test_a_file_that_is_no_workbook(
    make: Callable[[Path], object], expected: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "w.xlsx"
    make(path)
    told = why(content_of(path))
    assert expected in told
    assert "\n" not in told
    assert not recwarn.list


def test_a_report_that_is_too_long_to_compare(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.title = "nccl_long"
    book.active.append(EVENTS)
    book.active.cell(MOST_COLLECTIVES + 2, 1, 0)
    book.save(tmp_path / "w.xlsx")
    assert why(content_of(tmp_path / "w.xlsx")) == "has more than 20,000 collectives, too many to compare"


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_no_damage_raises(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    with zipfile.ZipFile(REPORT) as report:
        parts = {name: report.read(name) for name in report.namelist()}
    read = sorted(name for name in parts if "/sheet" not in name or "sheet1" in name)
    name = data.draw(st.sampled_from(read))
    start = data.draw(st.integers(0, len(parts[name])))
    end = data.draw(st.integers(start, min(start + 40, len(parts[name]))))
    parts[name] = parts[name][:start] + data.draw(st.binary(max_size=8)) + parts[name][end:]
    path = tmp_path_factory.getbasetemp() / "damaged.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        for part, content in parts.items():
            archive.writestr(part, content)
    assert isinstance(content_of(path), RankReport | Unreadable)
