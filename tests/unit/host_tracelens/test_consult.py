"""Consultations of a stand-in for TraceLens: workbooks, rows beside ours, and whatever can go wrong."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from conftest import SaveRun
from cvs.host_tracelens.consult import consult, json_bytes
from cvs.launch import TraceLensPlan
from cvs.models import (
    Counts,
    ExactNs,
    ParseResult,
    Quality,
    RankMetrics,
    RowsCompared,
    Timeline,
    TraceLensMode,
    TraceLensResult,
)
from cvs.run_folder import RunFolder
from tracelens_stand_in import StandIn

EXACT = Timeline(
    computation_time=20_000,
    exposed_comm_time=5_000,
    exposed_memcpy_time=0,
    busy_time=25_000,
    idle_time=10_000,
    total_time=35_000,
    total_comm_time=15_000,
    total_memcpy_time=3_000,
)
ROWS_US = {row: ns / 1e3 for row, ns in EXACT.model_dump().items()}
EVENTS = 6
STAMP = 4_458_676_416_788.123
"""Where a double tells microseconds in steps of 1/1024."""
BOUND = (EVENTS + 2) * 1000 / 1024


@pytest.fixture
def folder(save_run: SaveRun) -> RunFolder:
    """A run of 2 ranks per node."""
    return save_run()


def trace(folder: RunFolder, rank: int) -> Path:
    return folder.traces / f"node_0/torch_profiler/rank{rank}/trace.json"


def measured(rank: int | None, **changes: object) -> RankMetrics:
    """A rank as the parser left it."""
    metrics = RankMetrics(
        rank=rank,
        files=(f"node_0/torch_profiler/rank{rank}/trace.json",),
        basis="gpu",
        quality=Quality(status="complete"),
        exact_ns=ExactNs(all=EXACT),
        counts=Counts(all_gpu=EVENTS, computation=3, communication=2, memcpy=1),
    )
    return metrics.model_copy(update=changes)


def parsed(*ranks: RankMetrics, world_size: int | None = None) -> ParseResult:
    size = len(ranks) if world_size is None else world_size
    return ParseResult(parser="p", basis="gpu", world_size=size, ranks=ranks)


Consult = Callable[..., TraceLensResult]


@pytest.fixture
def ask(folder: RunFolder, stand_in: StandIn) -> Consult:
    """Consults the stand-in about these ranks, of which it knows the rows, or does what is given."""

    def ask_about(
        *ranks: RankMetrics,
        mode: TraceLensMode = "check",
        does: Mapping[int, str] | None = None,
        rows: Mapping[int, Mapping[str, float | None]] | None = None,
        world_size: int | None = None,
        python: str | None = None,
        seconds: float = 60,
    ) -> TraceLensResult:
        for number, _ in enumerate(ranks):
            path = trace(folder, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
            known = (rows or {}).get(number, ROWS_US)
            stand_in.knows(path, known, STAMP, (does or {}).get(number, "pass"))
        plan = TraceLensPlan(mode=mode, python=python, seconds=seconds)
        return consult(plan, folder, parsed(*ranks, world_size=world_size))

    return ask_about


def left(folder: RunFolder) -> list[str]:
    """Files of the consultation."""
    return sorted(path.name for path in folder.tracelens.iterdir())


# --- check ------------------------------------------------------------------------------------------------


def test_rows_that_agree(ask: Consult, folder: RunFolder) -> None:
    result = ask(measured(0), measured(1))
    expected = [RowsCompared(rank=rank, bound_ns=BOUND, agree_within_ns=0.0) for rank in (0, 1)]
    assert result == TraceLensResult(
        mode="check", version="0.0.0+stand.in", seconds=result.seconds, compared=tuple(expected)
    )
    assert 0 < result.seconds < 60
    assert left(folder) == []


def test_rows_within_its_rounding_agree_and_no_others(ask: Consult) -> None:
    rows = {0: {**ROWS_US, "busy_time": 25 + BOUND / 1e3}, 1: {**ROWS_US, "idle_time": 10 - BOUND / 999}}
    result = ask(measured(0), measured(1), rows=rows)
    agreeing, differing = result.compared
    assert agreeing.agree_within_ns == pytest.approx(BOUND)
    assert result.agreeing == (agreeing,)
    assert [row.row for row in differing.differences] == ["idle_time"]
    assert result.warnings == (
        "rank 1: idle_time is 10000 ns by cvs and 9992.2 ns by TraceLens, whose rounding explains 7.8 ns",
    )


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_row_that_it_lacks_differs(value: float | None, ask: Consult) -> None:
    rows = {row: us for row, us in ROWS_US.items() if row != "total_time"}
    result = ask(measured(0), rows={0: rows if value is None else {**rows, "total_time": value}})
    [rank] = result.compared
    [difference] = rank.differences
    assert (difference.row, difference.cvs_ns) == ("total_time", 35_000)
    assert rank.agree_within_ns == 0
    assert result.warnings[0].startswith("rank 0: total_time is 35000 ns by cvs and ")


def test_a_rank_that_it_fails_on_costs_that_rank_alone_and_is_a_warning(
    ask: Consult, folder: RunFolder
) -> None:
    result = ask(measured(0), measured(1), measured(2), does={0: "input('install? ')", 2: "sys.exit(0)"})
    assert [rank.rank for rank in result.agreeing] == [1]
    assert result.warnings == (
        "rank 0: not compared: EOFError: EOF when reading a line; log: tracelens/rows_rank0.log",
        "rank 2: not compared: ended without a word, with exit code 0",
    )
    assert left(folder) == ["rows_rank0.log"]


def test_one_that_hangs_is_stopped(ask: Consult) -> None:
    result = ask(measured(0), measured(1), does={1: "time.sleep(600)"}, seconds=5)
    assert [rank.rank for rank in result.agreeing] == [0]
    assert result.warnings == ("rank 1: not compared: was stopped when the 5 s for all of it were up",)


def test_a_rank_without_a_timeline_is_left_out(ask: Consult) -> None:
    cut = measured(1, exact_ns=None, counts=None, quality=Quality(status="unreadable"))
    twice = measured(2, files=("a", "b"), exact_ns=None, quality=Quality(status="duplicate"))
    workbook = measured(3, exact_ns=None, counts=None, source="workbook")
    result = ask(measured(0), cut, twice, workbook, measured(None), measured(4), measured(4))
    assert [rank.rank for rank in result.compared] == [0]
    assert result.warnings == (
        "rank 1: left out: its trace is unreadable",
        "rank 2: left out: its trace is duplicate",
        "rank 3: left out: it left a workbook and no trace",
        "node_0/torch_profiler/rankNone/trace.json: left out: its rank is unknown, or another's, too",
        *["node_0/torch_profiler/rank4/trace.json: left out: its rank is unknown, or another's, too"] * 2,
    )


def test_without_any_timeline_it_is_not_even_looked_for(folder: RunFolder) -> None:
    plan = TraceLensPlan(mode="check", python="/no/python", seconds=60)
    result = consult(plan, folder, parsed(measured(0, exact_ns=None)))
    assert result.warnings == ("no rank has a trace with a GPU timeline",)


# --- report -----------------------------------------------------------------------------------------------


def test_workbooks_of_every_rank_and_of_all_together(ask: Consult, folder: RunFolder) -> None:
    result = ask(measured(0), measured(1), mode="report")
    names = ["perf_rank0.xlsx", "perf_rank1.xlsx", "collective_all_ranks.xlsx"]
    assert result.workbooks == tuple(f"tracelens/{name}" for name in names)
    assert (result.warnings, result.notes, result.compared) == ((), (), ())
    assert left(folder) == sorted(names)
    first, second = trace(folder, 0), trace(folder, 1)
    assert (folder.tracelens / names[0]).read_text() == f"{first}, unlinked kernels: True"
    assert (folder.tracelens / names[2]).read_text() == f"2 2 {first} {second}"


def test_a_workbook_that_is_not_written_is_a_note(ask: Consult, folder: RunFolder) -> None:
    raises = "raise NotImplementedError('MultiIndex')"
    result = ask(measured(0), measured(1), mode="report", does={1: raises})
    assert result.workbooks == ("tracelens/perf_rank0.xlsx",)
    assert result.warnings == ()
    assert result.notes == (
        "rank 1: no workbook: NotImplementedError: MultiIndex; log: tracelens/perf_rank1.log",
        "all ranks: no workbook: NotImplementedError: MultiIndex; log: tracelens/collective_all_ranks.log",
    )
    assert left(folder) == ["collective_all_ranks.log", "perf_rank0.xlsx", "perf_rank1.log"]


def test_one_that_says_it_is_done_and_wrote_nothing(ask: Consult, stand_in: StandIn) -> None:
    module = stand_in.package / "Reporting" / "generate_perf_report_pytorch.py"
    module.write_text("def generate_perf_report_pytorch(*given, **named):\n    pass\n")
    result = ask(measured(0), mode="report")
    assert result.workbooks == ("tracelens/collective_all_ranks.xlsx",)
    assert result.notes == ("rank 0: no workbook: none was written",)


def test_a_missing_rank_leaves_no_workbook_of_all(ask: Consult) -> None:
    """TraceLens takes the place in the list for the rank."""
    result = ask(measured(0), mode="report", world_size=2)
    assert result.workbooks == ("tracelens/perf_rank0.xlsx",)
    assert result.notes == ("all ranks: no workbook: it takes the trace of every rank",)


def test_nor_does_a_job_without_collectives(ask: Consult) -> None:
    """TraceLens would raise `KeyError: 'collective_id'`."""
    counts = Counts(all_gpu=EVENTS, computation=5, communication=0, memcpy=1)
    result = ask(measured(0, counts=counts), mode="report")
    assert result.workbooks == ("tracelens/perf_rank0.xlsx",)
    assert result.notes == ("all ranks: no workbook: no rank has a collective",)


def test_a_workbook_of_an_earlier_time_is_not_left_beside_a_failure(ask: Consult, folder: RunFolder) -> None:
    ask(measured(0), mode="report")
    ask(measured(0), mode="report", does={0: "sys.exit(1)"})
    assert left(folder) == []


# --- none to ask, nowhere to write -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["check", "report"])
def test_where_there_is_none(mode: TraceLensMode, ask: Consult, tmp_path: Path) -> None:
    python = str(tmp_path / "python")
    result = ask(measured(0), mode=mode, python=python)
    told = result.warnings if mode == "check" else result.notes
    assert told == (f"{python}: cannot be asked for TraceLens: cannot be started: No such file or directory",)
    assert len(result.warnings) + len(result.notes) == 1
    assert result.version is None


def test_a_folder_that_cannot_be_used(ask: Consult, folder: RunFolder) -> None:
    folder.tracelens.write_text("in the way")
    result = ask(measured(0))
    assert result.warnings == (f"{folder.tracelens}: File exists",)


# --- how large ---------------------------------------------------------------------------------------------


def test_the_size_of_a_trace_as_json(tmp_path: Path) -> None:
    text = json.dumps([*range(100_000)]).encode()
    plain, packed, random = (tmp_path / name for name in ("a.json", "b.json.gz", "c.json.gz"))
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text * 20))
    assert json_bytes(plain) == len(text)
    assert json_bytes(packed) >= 20 * len(text)
    # More than 4 GiB: the end of the file tells only the rest.
    random.write_bytes(b"\x1f\x8b" + bytes(998))
    assert json_bytes(random) == 10_000
