"""CSV: which columns and rows there are, and that no cell can do harm."""

from __future__ import annotations

import csv
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.models import (
    Counts,
    CpuSums,
    ExactNs,
    ParseResult,
    Quality,
    RankMetrics,
    Ratios,
    Step,
    Timeline,
)
from cvs.reports.csv_report import traces_csv


def rank_of(rank: int | None, **keys: Any) -> RankMetrics:
    keys = {"files": ("f",), "basis": "gpu", "quality": Quality(status="complete"), **keys}
    return RankMetrics(rank=rank, **keys)


def rows_of(*ranks: RankMetrics, steps: bool = False, **keys: Any) -> list[dict[str, str]]:
    parse = ParseResult(parser="test", basis="gpu", world_size=None, ranks=ranks, **keys)
    return list(csv.DictReader(StringIO(traces_csv(parse, steps=steps)), strict=True))


SUMS = CpuSums(step=10, comm=6, compute=5, overlap=2, exposed_comm=4, other=1)
TIMELINE = Timeline(
    computation_time=15,
    exposed_comm_time=10,
    exposed_memcpy_time=7,
    busy_time=32,
    idle_time=13,
    total_time=45,
    total_comm_time=15,
    total_memcpy_time=14,
)


def test_columns_are_the_keys_of_the_json() -> None:
    [row] = rows_of(
        rank_of(
            3,
            node=1,
            exact_ns=ExactNs(all=TIMELINE),
            counts=Counts(all_gpu=5, computation=2, communication=2, memcpy=1),
            ratios=Ratios(compute=1 / 3, comm=0.5, exposed_comm=0.25, overlap=None),
            iteration_ns=50.5,
            start_ns=-7,
        )
    )
    expected = {
        "rank": "3",
        "node": "1",
        "local_rank": "",
        "files": "f",
        "basis": "gpu",
        "quality.status": "complete",
        "quality.cause": "",
        "exact_ns.all.idle_time": "13",
        "exact_ns.linked.idle_time": "",
        "cpu_ns.step": "",
        "counts.memcpy": "1",
        "ratios.compute": repr(1 / 3),
        "ratios.overlap": "",
        "steps": "0",
        "iteration_ns": "50.5",
        "start_ns": "-7",
    }
    assert {name: row[name] for name in expected} == expected


def test_columns_are_the_same_whatever_was_measured() -> None:
    bare, cpu = rank_of(0), rank_of(1, cpu_ns=SUMS, exact_ns=ExactNs(all=TIMELINE, linked=TIMELINE))
    [one], [other] = rows_of(bare), rows_of(cpu)
    assert list(one) == list(other)
    assert other["exact_ns.linked.total_time"] == "45"
    assert rows_of() == []
    assert list(rows_of(missing_ranks=(0,))[0]) == list(one)


def test_what_was_lost_is_told_in_one_cell() -> None:
    quality = Quality(status="incomplete", cause="c", dropped={"step without usable ts": 2, "x": 1})
    [row] = rows_of(rank_of(0, quality=quality, files=("a", "b")))
    assert (row["quality.dropped"], row["files"]) == ("step without usable ts: 2; x: 1", "a; b")


def test_missing_ranks_have_a_row_too() -> None:
    rows = rows_of(rank_of(1), rank_of(None), missing_ranks=(0, 2))
    assert [(row["rank"], row["quality.status"]) for row in rows] == [
        ("1", "complete"),
        ("", "complete"),
        ("0", "missing"),
        ("2", "missing"),
    ]
    assert {value for name, value in rows[2].items() if name not in ("rank", "quality.status")} == {""}


def test_a_row_per_step() -> None:
    steps = (
        Step(number=4, start_ns=100, duration_ns=10, cpu_ns=SUMS),
        Step(number=5, start_ns=110, duration_ns=9),
    )
    rows = rows_of(rank_of(0, steps=steps), rank_of(1), missing_ranks=(2,), steps=True)
    assert [(row["rank"], row["steps.number"], row["steps.duration_ns"]) for row in rows] == [
        ("0", "4", "10"),
        ("0", "5", "9"),
    ]
    assert list(rows[0])[:7] == [
        "rank",
        "node",
        "basis",
        "quality.status",
        "steps.number",
        "steps.start_ns",
        "steps.duration_ns",
    ]
    assert (rows[0]["steps.cpu_ns.exposed_comm"], rows[1]["steps.cpu_ns.exposed_comm"]) == ("4", "")


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t=", " @", "＝", "\r="])
def test_a_spreadsheet_finds_no_formula(begin: str) -> None:
    cause = f"{begin}cmd|' /C calc'!A0"
    [row] = rows_of(rank_of(-1, files=(cause,), quality=Quality(status="unreadable", cause=cause)))
    assert row["files"] == row["quality.cause"]
    assert row["files"][0] in ("'", "�")
    assert row["rank"] == "-1"


@given(st.text())
def test_any_name_is_one_cell_on_one_line(name: str) -> None:
    parse = ParseResult(parser="test", basis="gpu", world_size=None, ranks=(rank_of(0, files=(name, "b")),))
    text = traces_csv(parse)
    assert text.count("\n") == 2
    [row] = rows_of(rank_of(0, files=(name, "b")))
    assert row["files"].removeprefix("'").endswith("; b")
    assert row["basis"] == "gpu"
