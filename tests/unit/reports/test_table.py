"""The report for people: what it shows, and that nothing in it is swallowed."""

from __future__ import annotations

from typing import Any

import pytest

from cvs.collective_tables import collective_report
from cvs.collectives import CommKernel, CommMeta, RankKernels, match
from cvs.config import ExpectedResults
from cvs.models import (
    Aggregates,
    BenchmarkResult,
    CpuSums,
    ExactNs,
    LeftOut,
    LostText,
    ParseResult,
    Quality,
    QualityStatus,
    RankMetrics,
    Ratios,
    RowDifference,
    RowsCompared,
    RunStatus,
    Step,
    Timeline,
    TraceLensResult,
    TraceResult,
)
from cvs.reports.table import text_report, traces_text

NO_LIMITS = ExpectedResults()


def rank_of(rank: int | None, status: QualityStatus = "complete") -> RankMetrics:
    """One step of 50 ms: compute 20, communication 40 of which 10 are hidden."""
    ms = 1_000_000
    return RankMetrics(
        rank=rank,
        node=1,
        files=("f",),
        basis="cpu",
        quality=Quality(status=status),
        cpu_ns=CpuSums(
            step=50 * ms, comm=40 * ms, compute=20 * ms, overlap=10 * ms, exposed_comm=30 * ms, other=0
        ),
        ratios=Ratios(compute=0.4, comm=0.8, exposed_comm=0.6, overlap=0.25),
        steps=(Step(number=2, start_ns=0, duration_ns=50 * ms),),
        iteration_ns=1234.5678 * ms,
    )


def result_of(*ranks: RankMetrics, **keys: Any) -> BenchmarkResult:
    parse: dict[str, Any] = {"parser": "test", "basis": "cpu", "world_size": 2, **keys.pop("parse", {})}
    values: dict[str, Any] = {
        "benchmark": "aorta",
        "run_id": "r1",
        "run_status": RunStatus.COMPLETED,
        "duration_seconds": 9.5,
        "num_nodes": 2,
        "gpus_per_node": 2,
        "accelerator": "none",
        "parse": ParseResult(ranks=ranks, **parse),
        "aggregates": Aggregates(
            avg_iteration_time_us=1_234_567.8,
            time_variance_ratio=0.05,
            avg_compute_ratio=0.4,
            avg_comm_ratio=0.8,
            avg_overlap_ratio=0.25,
        ),
        **keys,
    }
    return BenchmarkResult(**values)


def lines_of(result: BenchmarkResult, limits: ExpectedResults = NO_LIMITS, width: int = 110) -> list[str]:
    return [line.rstrip() for line in text_report(result, limits, width=width).splitlines()]


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.replace("┃", "│").strip("│").split("│")]


def row(lines: list[str], first: str) -> list[str]:
    """Cells of the row of the table that begins so."""
    [line] = [line for line in lines if cells(line)[0] == first and len(cells(line)) > 1]
    return cells(line)


def test_a_row_per_rank() -> None:
    lines = lines_of(result_of(rank_of(0), rank_of(1)))
    heads = [
        "rank",
        "node",
        "steps",
        "iteration ms",
        "total ms",
        "compute",
        "comm",
        "exposed comm",
        "overlap",
        "trace",
    ]
    assert row(lines, "rank") == heads
    for rank in ("0", "1"):
        numbers = ["1", "1,234.568", "50.000", "40.0%", "80.0%", "60.0%", "25.0%"]
        assert row(lines, rank) == [rank, "1", *numbers, "complete"]


def test_what_it_is_about_stands_above() -> None:
    assert lines_of(result_of(rank_of(0)))[0].strip() == "aorta · run r1 · basis cpu"


def test_averages() -> None:
    [line] = [line for line in lines_of(result_of(rank_of(0))) if line.startswith("mean over ranks")]
    assert line == (
        "mean over ranks: iteration 1,234.568 ms (spread 5.0%), compute 40.0%, comm 80.0%, overlap 25.0%"
    )


def test_what_was_not_measured_is_a_dash_and_never_zero() -> None:
    bare = RankMetrics(rank=0, files=(), basis="cpu", quality=Quality(status="unreadable"))
    lines = lines_of(result_of(bare, aggregates=Aggregates()))
    assert row(lines, "0") == ["0", *["–"] * 8, "unreadable"]
    assert "mean over ranks: iteration – ms (spread –), compute –, comm –, overlap –" in lines


def test_missing_ranks_have_a_row_too() -> None:
    lines = lines_of(result_of(rank_of(0), parse={"missing_ranks": (1, 3)}))
    for rank in ("1", "3"):
        assert row(lines, rank) == [rank, *["–"] * 8, "missing"]


def test_neighbours_that_are_missing_share_one() -> None:
    lines = lines_of(result_of(rank_of(0), parse={"world_size": 128, "missing_ranks": (1, *range(3, 128))}))
    for ranks in ("1", "3-127"):
        assert row(lines, ranks) == [ranks, *["–"] * 8, "missing"]


def test_a_rank_that_nobody_knows() -> None:
    assert row(lines_of(result_of(rank_of(None))), "–")[-1] == "complete"


def test_the_state_of_a_trace_in_words() -> None:
    assert row(lines_of(result_of(rank_of(0, "no_gpu_events"))), "0")[-1] == "no gpu events"


def test_each_limit_that_is_set() -> None:
    limits = ExpectedResults(max_avg_iteration_ms=2000, min_compute_ratio=0.5, max_time_variance_ratio=0.05)
    lines = lines_of(result_of(rank_of(0), rank_of(1)), limits)
    assert "max_avg_iteration_ms 2000 ms: 1235 ms holds" in lines
    assert "min_compute_ratio 0.5: 0.4 missed" in lines
    assert "max_time_variance_ratio 0.05: 0.05 holds" in lines
    assert not [line for line in lines if "min_overlap_ratio" in line]
    assert lines[-1] == "verdict: red"


def test_a_limit_on_what_was_not_measured() -> None:
    lines = lines_of(result_of(rank_of(0), aggregates=Aggregates()), ExpectedResults(min_overlap_ratio=0))
    assert "min_overlap_ratio 0: not measured, missed" in lines


def test_coverage_and_limits_that_were_checked_on_a_part_of_the_run() -> None:
    limits = ExpectedResults(min_compute_ratio=0.5, min_overlap_ratio=0.25)
    lines = lines_of(result_of(rank_of(0), rank_of(1, "unreadable")), limits)
    assert "coverage: 1 of 2 ranks, 1 of 1 steps" in lines
    assert "min_compute_ratio 0.5: 0.4 missed (measured on 1 of 2 ranks, 1 of 1 steps)" in lines
    assert "min_overlap_ratio 0.25: 0.25 holds (measured on 1 of 2 ranks, 1 of 1 steps)" in lines
    assert lines[-1] == "verdict: red"


@pytest.mark.parametrize(("limit", "word"), [(0.25, "good"), (0.26, "red")])
def test_verdict(limit: float, word: str) -> None:
    lines = lines_of(result_of(rank_of(0)), ExpectedResults(min_overlap_ratio=limit))
    assert lines[-1] == f"verdict: {word}"


def compared(rank: int, *differences: RowDifference) -> RowsCompared:
    return RowsCompared(rank=rank, bound_ns=60, agree_within_ns=rank + 0.25, differences=differences)


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (
            TraceLensResult(mode="report", version="0.1.0", seconds=10.5, workbooks=("a", "b")),
            "TraceLens 0.1.0, report: 2 workbooks (10.5 s)",
        ),
        (
            TraceLensResult(mode="report", version=None, seconds=10.5, workbooks=("a",)),
            "TraceLens, report: 1 workbook (10.5 s)",
        ),
        (
            TraceLensResult(mode="check", version=None, seconds=1, compared=(compared(0), compared(1))),
            "TraceLens, check: 2 of 2 ranks agree, within 1.25 ns (1 s)",
        ),
        (
            TraceLensResult(
                mode="check",
                version=None,
                seconds=1,
                compared=(compared(0), compared(1, RowDifference(row="r", cvs_ns=1, tracelens_ns=None))),
            ),
            "TraceLens, check: 1 of 2 ranks agree, within 0.25 ns (1 s)",
        ),
        (
            TraceLensResult(mode="check", version=None, seconds=1, warnings=("w",)),
            "TraceLens, check: nothing compared (1 s)",
        ),
    ],
)
def test_what_tracelens_made_of_it(found: TraceLensResult, line: str) -> None:
    lines = lines_of(result_of(rank_of(0), rank_of(1), tracelens=found))
    assert line in lines
    assert ("warning: TraceLens: w" in lines) == bool(found.warnings)


def test_evidence_that_is_lacking_is_told() -> None:
    lines = lines_of(result_of(rank_of(0), parse={"missing_ranks": (1,)}))
    assert "evidence: 1 of 2 ranks left a trace; missing: rank 1" in lines
    assert lines[-1] == "verdict: red"


MARKUP = "node_0/[bold]x[/bold]/rank[0].json: [/red] [link=x] \\[a]"


@pytest.mark.parametrize(
    "keys",
    [
        {"warnings": (MARKUP,)},
        {"parse": {"warnings": (MARKUP,)}},
        {"parse": {"left_out": (LeftOut(file=MARKUP, why="w"),)}},
        {"parse": {"left_out": (LeftOut(file="f", why=MARKUP),)}},
        {"parse": {"problems": (MARKUP,)}},
        {"tracelens": TraceLensResult(mode="check", version=MARKUP, seconds=1)},
        {"tracelens": TraceLensResult(mode="check", version=None, seconds=1, warnings=(MARKUP,))},
        {"tracelens": TraceLensResult(mode="report", version=None, seconds=1, notes=(MARKUP,))},
    ],
    ids=[
        "warning",
        "warning of the parser",
        "file",
        "reason",
        "problem",
        "TraceLens",
        "its warning",
        "its note",
    ],
)
def test_text_from_outside_is_shown_as_it_is(keys: dict[str, Any]) -> None:
    """Square brackets in a name are no colors."""
    assert MARKUP in "\n".join(lines_of(result_of(rank_of(0), **keys), width=200))


def test_traces_of_which_the_same_was_lost_share_a_line() -> None:
    lost = (LostText(start=9, end=12, cause="not JSON"),)
    odd = Quality(status="repaired", cause="1 x not JSON", lost=lost)
    quiet = Quality(status="repaired", cause="1 x negative dur")
    ranks = [rank_of(number).model_copy(update={"quality": odd}) for number in (0, 1)]
    ranks.append(rank_of(None).model_copy(update={"quality": quiet}))
    assert [line for line in lines_of(result_of(*ranks)) if line.startswith("repaired:")] == [
        "repaired: ranks 0-1: 1 x not JSON; the first are bytes 9 to 12 of the text of f",
        "repaired: f: 1 x negative dur",
    ]


def test_so_is_the_name_of_a_run() -> None:
    """It is the name of a folder that the user may have chosen."""
    title = lines_of(result_of(rank_of(0), run_id="tuned[bold]2"))[0].strip()
    assert title == "aorta · run tuned[bold]2 · basis cpu"


@pytest.mark.parametrize("width", [80, 110, 200])
def test_tables_keep_to_its_width_and_lines_stay_whole(width: int) -> None:
    long = "word " * 60
    lines = lines_of(result_of(rank_of(0), warnings=(long,)), ExpectedResults(min_overlap_ratio=0.5), width)
    assert max(len(line) for line in lines if line.startswith(("┃", "│"))) <= width
    assert f"warning: {long}".rstrip() in map(str.rstrip, lines)


def test_colors_only_where_they_are_wanted() -> None:
    result = result_of(rank_of(0, "truncated"))
    assert "\x1b[" not in text_report(result, NO_LIMITS)
    assert "\x1b[" in text_report(result, NO_LIMITS, color=True)


@pytest.mark.parametrize(
    "parts",
    [
        {"warnings": ("esc\033[31m.json",)},
        {"parse": {"warnings": ("esc\033[31m.json",)}},
        {"parse": {"problems": ("esc\033[31m.json",)}},
        {"parse": {"left_out": (LeftOut(file="esc\033[31m.json", why="w"),)}},
        {"parse": {"left_out": (LeftOut(file="f", why="esc\033[31m.json"),)}},
        {"tracelens": TraceLensResult(mode="report", version=None, seconds=1, notes=("esc\033[31m.json",))},
    ],
)
def test_a_terminal_finds_nothing_to_obey(parts: dict[str, Any]) -> None:
    text = text_report(result_of(rank_of(0), **parts), NO_LIMITS)
    assert "esc�[31m.json" in text
    assert "\033" not in text


def test_many_files_that_were_left_out_for_one_reason_share_a_line() -> None:
    left_out = [LeftOut(file=f"{number}.log", why="no trace") for number in range(9)]
    lines = lines_of(result_of(rank_of(0), parse={"left_out": (*left_out, LeftOut(file="b", why="broken"))}))
    assert [line for line in lines if line.startswith("left out")] == [
        "left out: 0.log, 1.log, 2.log and 6 others: no trace",
        "left out: b: broken",
    ]
    lines = lines_of(result_of(rank_of(0), parse={"left_out": tuple(left_out[:4])}))
    assert "left out: 0.log, 1.log, 2.log, 3.log: no trace" in lines


# --- traces without a run ---------------------------------------------------------------------------------


def traces_of(*ranks: RankMetrics, **keys: Any) -> TraceResult:
    whole = result_of(*ranks, **keys)
    return TraceResult(accelerator=None, parse=whole.parse, aggregates=whole.aggregates)


def test_traces_are_shown_like_a_run_under_another_title() -> None:
    limits = ExpectedResults(min_overlap_ratio=0.26)
    ranks = (rank_of(0), rank_of(1, "truncated"))
    parse = {"warnings": ("w",), "left_out": (LeftOut(file="f", why="w"),)}
    title, *rest = traces_text(traces_of(*ranks, parse=parse), limits, name="my [b]/traces").splitlines()
    assert title.strip() == "my [b]/traces · basis cpu"
    assert rest == text_report(result_of(*ranks, parse=parse), limits).splitlines()[1:]


def table_of(result: TraceResult, title: str, **shown: bool) -> list[list[str]]:
    """Rows of the table with this title."""
    lines = [line.strip() for line in traces_text(result, NO_LIMITS, name="traces", **shown).splitlines()]
    assert title not in traces_text(result, NO_LIMITS, name="traces").splitlines()
    below = lines[lines.index(title) + 1 :]
    end = next(index for index, line in enumerate(below) if line.startswith("└"))
    return [cells(line) for line in below[:end] if line[0] in "┃│"]


def test_steps() -> None:
    ms = 1_000_000
    sums = CpuSums(step=8 * ms, comm=6 * ms, compute=4 * ms, overlap=3 * ms, exposed_comm=3 * ms, other=ms)
    steps = (
        Step(number=2, start_ns=7 * ms, duration_ns=8 * ms, cpu_ns=sums),
        Step(number=3, start_ns=17 * ms, duration_ns=9 * ms),
    )
    rank = rank_of(0).model_copy(update={"steps": steps})
    assert table_of(traces_of(rank, rank_of(None)), "steps", steps=True) == [
        ["rank", "node", "step", "start ms", "duration ms", "compute", "comm", "exposed comm", "overlap"],
        ["0", "1", "2", "0.000", "8.000", "50.0%", "75.0%", "37.5%", "50.0%"],
        ["0", "1", "3", "10.000", "9.000", "–", "–", "–", "–"],
        ["–", "1", "2", "0.000", "50.000", "–", "–", "–", "–"],
    ]


TIMELINE = Timeline(
    computation_time=15_000_000,
    exposed_comm_time=10_000_000,
    exposed_memcpy_time=7_000_000,
    busy_time=32_000_000,
    idle_time=13_000_000,
    total_time=45_000_000,
    total_comm_time=15_000_000,
    total_memcpy_time=14_000_000,
)


def test_steps_with_a_gpu_have_its_time() -> None:
    steps = (
        Step(number=2, start_ns=0, duration_ns=1, gpu_ns=TIMELINE),
        Step(number=3, start_ns=0, duration_ns=1),
    )
    rank = rank_of(0).model_copy(update={"steps": steps})
    [head, first, second] = table_of(traces_of(rank), "steps", steps=True)
    assert (head[5], first[5:8], second[5:7]) == ("gpu ms", ["45.000", "33.3%", "33.3%"], ["–", "–"])


def test_the_timeline_of_linked_events() -> None:
    linked = rank_of(0).model_copy(update={"exact_ns": ExactNs(all=TIMELINE, linked=TIMELINE)})
    unlinked = rank_of(1).model_copy(update={"exact_ns": ExactNs(all=TIMELINE)})
    rows = table_of(traces_of(linked, unlinked), "linked GPU events alone, ms", linked=True)
    assert rows[-2:] == [
        ["0", "1", "15.000", "10.000", "7.000", "32.000", "13.000", "45.000", "15.000", "14.000"],
        ["1", "1", *["–"] * 8],
    ]


def test_who_kept_the_others_waiting_where_some_groups_are_in_doubt() -> None:
    """Rank 1 lacks a kernel of group 0; group 1 is sound."""

    def kernels(group: str, *starts: int) -> list[CommKernel]:
        meta = CommMeta("allreduce", "allreduce", group, "[0, 1]", 2, "Float", 1, 1, None, None)
        return [CommKernel(start, 10, 0, meta) for start in starts]

    ranks = [
        RankKernels(0, [*kernels("0", 0, 100), *kernels("1", 200)], 0),
        RankKernels(1, [*kernels("0", 50), *kernels("1", 203)], 0),
    ]
    found = traces_of(rank_of(0), rank_of(1), parse={"collectives": collective_report(match(ranks))})
    lines = traces_text(found, NO_LIMITS, name="t").splitlines()
    [line] = [line for line in lines if line.startswith("kept the others waiting")]
    assert line.startswith(
        "kept the others waiting longest in the groups whose ranks are all here, collectives in doubt apart: "
        "rank 1, last at 1 of its 1 collectives"
    )


def test_idle_time_in_two_parts() -> None:
    parts = {"exact_ns": ExactNs(all=TIMELINE), "micro_idle_ns": 4_000_000, "macro_idle_ns": 9_000_000}
    ranks = (rank_of(0).model_copy(update=parts), rank_of(1))
    assert table_of(traces_of(*ranks), "idle time of the GPU, ms", idle=True) == [
        ["rank", "node", "idle", "micro idle", "macro idle"],
        ["0", "1", "13.000", "4.000", "9.000"],
        ["1", "1", "–", "–", "–"],
    ]
