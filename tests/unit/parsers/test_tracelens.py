"""Workbooks beside traces, and in their place."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import pytest
from traces.workbooks import write_workbook

from conftest import TRACES, SaveRun
from cvs import metrics
from cvs.config import ExpectedResults
from cvs.models import (
    Accelerator,
    ParseOptions,
    ParseResult,
    ParseStatus,
    Timeline,
    TraceFile,
    TraceResult,
)
from cvs.parsers.torch_trace import TorchTraceParser, trace_set_of
from cvs.parsers.trace_files import gave_way
from cvs.parsers.tracelens import TraceLensParser
from cvs.thresholds import check, measured

WORKBOOKS = TRACES.parent / "workbooks"
ANALYSIS = WORKBOOKS / "single" / "tracelens_analysis"
REPORTS = "tracelens_analysis/individual_reports"
SUMMARY = "tracelens_analysis/gpu_timeline_summary_mean.xlsx"
COLLECTIVES = "tracelens_analysis/collective_reports/collective_all_ranks.xlsx"
MR4 = TRACES / "multirank" / "mr4"

AGREES = "the same times as the trace, which counts"

Rows = Mapping[str, float]


def parse(path: Path, accelerator: Accelerator = "rocm", **known: Any) -> ParseResult:
    return TraceLensParser().parse(trace_set_of(path, accelerator, **known))


def golden(rank: int) -> dict[str, float]:
    """Rows of TraceLens in ms."""
    text = (MR4 / f"rank{rank}_trace.golden.json").read_text()
    rows: dict[str, float] = json.loads(text)["gpu_timeline"]["all"]
    return rows


def messages(result: ParseResult, **limits: float) -> list[str]:
    """What makes the verdict on these traces red."""
    told = TraceResult(accelerator="rocm", parse=result, aggregates=metrics.aggregates(result.ranks))
    return [violation.message for violation in check(told, ExpectedResults(**limits))]


def left_out(result: ParseResult) -> dict[str, str]:
    return {left.file: left.why for left in result.left_out}


def report(path: Path, rows: Rows) -> Path:
    return write_workbook(
        path, gpu_timeline=[("type", "time ms", "percent"), *((name, ms, 0) for name, ms in rows.items())]
    )


def summary(path: Path, means: Rows, ranks: Mapping[int, Rows]) -> Path:
    per_rank = [(name, ms, 0, rank) for rank, rows in ranks.items() for name, ms in rows.items()]
    return write_workbook(
        path,
        Summary=[("type", "time ms", "percent"), *((name, ms, 0) for name, ms in means.items())],
        All_Ranks_Combined=[("type", "time ms", "percent", "rank"), *per_rank],
    )


def with_traces(folder: Path, ranks: Iterable[int] = range(4)) -> Path:
    for rank in ranks:
        place = folder / "torch_profiler" / f"rank{rank}"
        place.mkdir(parents=True)
        shutil.copy(MR4 / f"rank{rank}_trace.json.gz", place / "trace.json.gz")
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A run of four ranks, and all that Aorta's analysis of it leaves."""
    shutil.copytree(ANALYSIS, tmp_path / "tracelens_analysis")
    return with_traces(tmp_path)


# --- the same numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "accelerator"),
    [("multirank/mr4", "rocm"), ("mi300_resnet_rccl.json.gz", "rocm"), ("cpu_gloo_2x2", "none")],
)
def test_traces_give_the_numbers_of_the_trace_parser(
    name: str, accelerator: Accelerator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "TraceLens"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    traces = trace_set_of(TRACES / name, accelerator)
    expected = TorchTraceParser().parse(traces)
    assert TraceLensParser().parse(traces) == expected.model_copy(
        update={"parser": TraceLensParser().identity}
    )
    assert "TraceLens" not in sys.modules


def test_options_reach_the_trace_parser() -> None:
    traces = trace_set_of(MR4, "rocm")
    options = ParseOptions(communication_kernels=("Cijk",), workers=1)
    assert TraceLensParser(options).parse(traces).ranks == TorchTraceParser(options).parse(traces).ranks


def test_workbooks_that_agree_change_nothing_and_are_told(
    job: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    bare = with_traces(tmp_path_factory.mktemp("bare"))
    result = parse(job)
    assert result.model_copy(update={"left_out": ()}) == parse(bare)
    assert (result.status, result.warnings) == (ParseStatus.SUCCESS, ())
    reports = (f"{REPORTS}/perf_rank{rank}.xlsx" for rank in range(4))
    assert left_out(result) == dict.fromkeys((*reports, SUMMARY, COLLECTIVES), AGREES)
    assert all(map(gave_way, result.left_out))
    assert {rank.source for rank in result.ranks} == {"trace"}


def test_a_rank_is_measured_from_its_trace_whatever_the_workbook_says(job: Path) -> None:
    for rank in range(4):
        report(job / REPORTS / f"perf_rank{rank}.xlsx", dict.fromkeys(Timeline.model_fields, 1.0))
    found = parse(job)
    exact = [rank.exact_ns and rank.exact_ns.all.total_time for rank in found.ranks]
    assert exact == [17133000] * 4
    assert len(found.warnings) == 4


# --- workbook and trace differ ----------------------------------------------------------------------------


def warning_of(job: Path, changes: Mapping[str, float], name: str = f"{REPORTS}/perf_rank2.xlsx") -> str:
    """The warning where one workbook says something else of rank 2."""
    report(job / name, {**golden(2), **changes})
    result = parse(job)
    [warning] = result.warnings
    assert name not in left_out(result)
    return warning


def test_a_difference_names_rank_row_and_both_values(job: Path) -> None:
    assert warning_of(job, {"computation_time": 4.2, "exposed_comm_time": 6.826}) == (
        f"rank 2: {REPORTS}/perf_rank2.xlsx differs from the trace, which counts:"
        " computation_time 4.2 ms where 4.06691 ms was measured,"
        " exposed_comm_time 6.826 ms where 6.95959 ms was measured;"
        " it may have been made of another trace, or of another window"
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"computation_time": 5.183, "total_memcpy_time": 0.0}, "before 2026-05-05 took copies"),
        ({"computation_time": 5.0, "total_comm_time": 9.5}, "before 2026-05-05 knew fewer names"),
        (
            {"total_memcpy_time": 0.0, "total_comm_time": 9.5},
            "computation, and TraceLens before 2026-05-05 knew",
        ),
        ({"total_comm_time": 11.0}, "it may have been made of another trace"),
        ({"busy_time": 9.0, "idle_time": 8.133}, "it may have been made of another trace"),
        ({"total_time": 20.0, "total_memcpy_time": 0.0}, "it may have been made of another trace"),
    ],
)
def test_the_likely_reason(job: Path, changes: Mapping[str, float], reason: str) -> None:
    assert reason in warning_of(job, changes).rpartition("; ")[2]


def test_a_workbook_of_unknown_mode_may_lack_events(job: Path) -> None:
    name = "torch_profiler/rank2/trace_perf_report.xlsx"
    assert "it may have only events that are linked" in warning_of(job, {"busy_time": 9.0}, name)


def test_a_workbook_of_linked_events_is_recognised(tmp_path: Path) -> None:
    name = "mi300_resnet_rccl"
    shutil.copy(TRACES / f"{name}.json.gz", tmp_path)
    rows = json.loads((TRACES / f"{name}.golden.json").read_text())["gpu_timeline"]["linked"]
    report(tmp_path / f"{name}_perf_report.xlsx", rows)
    traces = trace_set_of(tmp_path, "rocm")
    *_, warning = TraceLensParser(ParseOptions(linked=True)).parse(traces).warnings
    assert warning.endswith("; it has only events that are linked to a runtime call, TraceLens's default")


def test_a_trace_that_is_not_whole_is_the_reason(job: Path) -> None:
    trace = job / "torch_profiler" / "rank2" / "trace.json.gz"
    trace.write_bytes(trace.read_bytes()[:4000])
    found = parse(job)
    assert found.ranks[2].quality.status == "truncated"
    [warning] = [warning for warning in found.warnings if warning.startswith(f"rank 2: {REPORTS}")]
    assert warning.endswith("; the trace is truncated")


def test_roundings_are_no_difference(job: Path) -> None:
    report(job / REPORTS / "perf_rank2.xlsx", {row: value + 0.017 for row, value in golden(2).items()})
    assert parse(job).warnings == ()
    assert "idle_time 6.1245 ms" in warning_of(job, {"idle_time": 6.1065 + 0.018})


def test_a_microsecond_is_no_difference_in_a_short_trace(tmp_path: Path) -> None:
    name = "backward_thread"
    shutil.copy(TRACES / f"{name}.json", tmp_path)
    rows = json.loads((TRACES / f"{name}.golden.json").read_text())["gpu_timeline"]["all"]
    report(tmp_path / f"{name}_perf_report.xlsx", {row: value + 0.0009 for row, value in rows.items()})
    assert parse(tmp_path).warnings == ()
    report(tmp_path / f"{name}_perf_report.xlsx", {row: value + 0.0011 for row, value in rows.items()})
    assert len(parse(tmp_path).warnings) == 1


def test_a_summary_is_compared_where_a_rank_has_no_report(job: Path) -> None:
    ranks = {rank: golden(rank) for rank in range(4)}
    ranks[2]["computation_time"] = 4.2
    summary(job / SUMMARY, {row: fmean(rows[row] for rows in ranks.values()) for row in ranks[0]}, ranks)
    assert len(parse(job).warnings) == 1
    (job / REPORTS / "perf_rank2.xlsx").unlink()
    [warning] = parse(job).warnings
    assert warning.startswith(f"rank 2: {SUMMARY} differs from the trace")


@pytest.mark.parametrize("name", ["mean", "geomean"])
def test_means_of_a_summary_are_compared(job: Path, name: str) -> None:
    path = (job / SUMMARY).with_name(f"gpu_timeline_summary_{name}.xlsx")
    mean = fmean if name == "mean" else lambda values: geometric_mean([max(value, 1e-10) for value in values])
    ranks = {rank: golden(rank) for rank in range(4)}
    means = {row: mean([rows[row] for rows in ranks.values()]) for row in ranks[0]}
    summary(path, means, ranks)
    assert parse(job).warnings == ()
    summary(path, means | {"busy_time": 10.0}, ranks)
    [warning] = parse(job).warnings
    assert warning.startswith(
        f"{path.relative_to(job)} differs from the traces of ranks 0-3 in its means: busy_time 10 ms"
    )


def test_collectives_are_compared(job: Path) -> None:
    write_workbook(
        job / COLLECTIVES, nccl_long=[("rank", "ts", "dur"), (0, 100, 10512), (1, 100, 9000), (9, 0, 1)]
    )
    assert parse(job).warnings == (
        f"rank 1: {COLLECTIVES} differs from the trace in its collectives:"
        " total_comm_time 9 ms where 10.3208 ms was measured",
    )


# --- a rank without a trace, where others have one --------------------------------------------------------


def test_a_rank_without_a_trace_has_the_values_of_its_workbook_and_is_red(job: Path) -> None:
    shutil.rmtree(job / "torch_profiler" / "rank3")
    result = parse(job, world_size=4, local_world_size=2)
    rank = result.ranks[3]
    assert [found.source for found in result.ranks] == ["trace", "trace", "trace", "workbook"]
    assert (rank.rank, rank.node, rank.local_rank) == (3, 1, 1)
    assert (rank.mode, rank.quality.status, rank.files) == (
        "all",
        "complete",
        (f"{REPORTS}/perf_rank3.xlsx",),
    )
    assert rank.gpu_timeline == rank.workbook_ms == golden(3)
    assert (rank.exact_ns, rank.counts, rank.steps, rank.iteration_ns) == (None, None, (), None)
    assert rank.total_time_us == 17133.0
    assert rank.exposed_communication_time_us == golden(3)["exposed_comm_time"] * 1e3
    rows = golden(3)
    assert rank.ratios is not None
    assert rank.ratios.compute == pytest.approx(rows["computation_time"] / rows["total_time"], rel=1e-6)
    assert rank.ratios.overlap == pytest.approx(
        1 - rows["exposed_comm_time"] / rows["total_comm_time"], rel=1e-6
    )
    assert result.missing_ranks == (3,)
    assert result.status is ParseStatus.PARTIAL
    assert messages(result) == [
        f"3 of 4 ranks left a trace; missing: rank 3 (of rank 3 only {REPORTS}/perf_rank3.xlsx)"
    ]
    assert left_out(result)[SUMMARY] == "there are no traces of its ranks to compare it with"


def test_what_is_measured_is_measured_on_the_ranks_that_have_a_trace(job: Path) -> None:
    for rank in (2, 3):
        shutil.rmtree(job / "torch_profiler" / f"rank{rank}")
    (job / REPORTS / "perf_rank2.xlsx").unlink()
    (job / SUMMARY).unlink()
    result = parse(job, world_size=4)
    assert str(metrics.coverage(result)) == "2 of 4 ranks, 3 of 3 steps"
    assert metrics.aggregates(result.ranks) == metrics.aggregates(result.ranks[:2])
    told = TraceResult(accelerator="rocm", parse=result, aggregates=metrics.aggregates(result.ranks))
    assert measured(told, "max_avg_iteration_ms").note == " (measured on 2 of 4 ranks, 3 of 3 steps)"
    assert messages(result) == [
        f"2 of 4 ranks left a trace; missing: ranks 2-3 (of rank 3 only {REPORTS}/perf_rank3.xlsx)"
    ]


def test_it_is_red_too_where_nobody_knows_the_world(tmp_path: Path) -> None:
    shutil.copy(TRACES / "backward_thread.json", tmp_path / "rank0.json")
    report(tmp_path / "perf_rank1.xlsx", golden(1))
    result = parse(tmp_path)
    assert (result.missing_ranks, [rank.rank for rank in result.ranks]) == (None, [0, 1])
    assert messages(result) == ["no trace of rank 1, only perf_rank1.xlsx"]


def test_a_broken_workbook_costs_only_a_rank_without_a_trace(job: Path) -> None:
    for rank in (2, 3):
        (job / REPORTS / f"perf_rank{rank}.xlsx").write_bytes(b"")
    (job / SUMMARY).unlink()
    shutil.rmtree(job / "torch_profiler" / "rank3")
    result = parse(job)
    assert left_out(result)[f"{REPORTS}/perf_rank2.xlsx"] == "the file is empty"
    assert (result.ranks[3].rank, result.ranks[3].gpu_timeline, result.ranks[3].ratios) == (3, None, None)
    assert (
        f"rank 3: workbook is unreadable: no trace, and {REPORTS}/perf_rank3.xlsx: the file is empty"
        in messages(result)
    )


def test_a_summary_stands_in_where_the_report_is_broken(job: Path) -> None:
    (job / REPORTS / "perf_rank3.xlsx").write_bytes(b"")
    shutil.rmtree(job / "torch_profiler" / "rank3")
    result = parse(job)
    assert (result.ranks[3].files, result.ranks[3].workbook_ms) == ((SUMMARY,), golden(3))
    assert left_out(result)[f"{REPORTS}/perf_rank3.xlsx"] == "the file is empty"
    assert SUMMARY not in left_out(result)


def test_a_trace_that_tells_nothing_is_not_replaced(job: Path) -> None:
    (job / "torch_profiler" / "rank3" / "trace.json.gz").write_bytes(b"no gzip")
    result = parse(job)
    assert (result.ranks[3].source, result.ranks[3].quality.status) == ("trace", "unreadable")
    assert left_out(result)[f"{REPORTS}/perf_rank3.xlsx"] == "the trace of rank 3 is unreadable"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "torch_profiler/rank2/trace_perf_report.xlsx",
            "made of torch_profiler/rank2/trace.json.gz, not used",
        ),
        ("torch_profiler/notes_perf_report.xlsx", "nothing tells its rank"),
        (f"{REPORTS}/~$perf_rank2.xlsx", "left by a spreadsheet program that has the workbook open"),
    ],
)
def test_workbooks_of_no_trace_that_counts(job: Path, name: str, why: str) -> None:
    trace = job / "torch_profiler" / "rank2" / "trace.json.gz"
    shutil.copy(trace, trace.with_name("host_1.2.pt.trace.json.gz"))
    report(job / name, dict.fromkeys(Timeline.model_fields, 1.0))
    result = parse(job)
    assert left_out(result)[name] == why
    assert result.warnings == ()


def test_what_rocprof_recorded_is_not_compared_with_a_trace(job: Path) -> None:
    name = f"{REPORTS}/perf_56ch_rank2.xlsx"
    report(job / name, dict.fromkeys(("total_time", "kernel", "memory", "busy_time", "idle"), 1.0))
    result = parse(job)
    assert (result.warnings, result.ranks[2].source) == ((), "trace")
    assert left_out(result)[name] == "of what rocprof recorded, which is not what the trace recorded"


def test_a_workbook_has_no_part_in_a_job_on_the_cpu(tmp_path: Path) -> None:
    shutil.copytree(TRACES / "cpu_gloo_2x2", tmp_path / "job")
    shutil.copy(ANALYSIS / "individual_reports" / "perf_rank0.xlsx", tmp_path / "job")
    result = parse(tmp_path / "job", "none")
    assert result.status is ParseStatus.SUCCESS
    assert left_out(result)["perf_rank0.xlsx"] == "it tells of a GPU, and the metrics are those of the CPU"


# --- workbooks alone --------------------------------------------------------------------------------------


def test_a_folder_of_workbooks_stands_for_itself() -> None:
    result = parse(ANALYSIS, world_size=4)
    assert [(rank.rank, rank.source, rank.mode, rank.workbook_ms) for rank in result.ranks] == [
        (rank, "workbook", "all", golden(rank)) for rank in range(4)
    ]
    assert (result.status, result.missing_ranks) == (ParseStatus.SUCCESS, ())
    assert result.warnings == (
        "there is no trace: the values are those of the workbooks, which tell of no steps",
    )
    assert messages(result, min_compute_ratio=0.2) == []
    assert messages(result, max_avg_iteration_ms=100) == [
        "max_avg_iteration_ms: average iteration time was not measured; expected at most 100 ms"
    ]


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    report(folder / "perf_rank0.xlsx", golden(0))
    [rank] = parse(tmp_path).ranks
    assert (rank.files, rank.workbook_ms) == ((r"caf\xe9/perf_rank0.xlsx",), golden(0))


def test_a_rank_that_lacks_is_missing(tmp_path: Path) -> None:
    for rank in (0, 2, 7):
        report(tmp_path / f"perf_28ch_rank{rank}.xlsx", golden(0))
    assert parse(tmp_path).missing_ranks is None
    result = parse(tmp_path, world_size=4)
    assert (result.missing_ranks, [rank.rank for rank in result.ranks]) == ((1, 3), [0, 2, 7])
    assert result.problems == ("perf_28ch_rank7.xlsx: rank 7 is outside the world of 4",)


def test_a_single_workbook_is_judged_alone(tmp_path: Path) -> None:
    result = parse(report(tmp_path / "trace_perf_report.xlsx", golden(0)))
    [rank] = result.ranks
    assert (rank.rank, rank.mode, rank.quality.status) == (None, "unknown", "incomplete")
    assert messages(result) == [
        "an unknown rank (trace_perf_report.xlsx): workbook is incomplete: no trace, and nothing tells"
        " whether trace_perf_report.xlsx is of every GPU event or only of linked ones"
    ]


def test_ranks_are_told_by_name_or_folder(tmp_path: Path) -> None:
    report(tmp_path / "rank1" / "trace_perf_report.xlsx", golden(1))
    report(tmp_path / "a_rank0_trace_perf_report.xlsx", golden(0))
    report(tmp_path / "b_perf_report.xlsx", golden(2))
    result = parse(tmp_path)
    assert [rank.rank for rank in result.ranks] == [0, 1, None]
    assert result.problems == (
        "b_perf_report.xlsx: rank unknown: neither the workbook's name nor its folder tells it",
    )


def test_rocprof_tells_no_ratio() -> None:
    folder = WORKBOOKS / "sweep" / "tracelens_analysis" / "256thread"
    result = parse(folder)
    old, rocprof = result.ranks
    assert (old.rank, old.mode, old.quality.status, old.total_time_us) == (
        0,
        "all",
        "complete",
        2754977.083007812,
    )
    assert (rocprof.rank, rocprof.mode, rocprof.quality.status) == (7, "rocprof", "incomplete")
    assert (rocprof.ratios, rocprof.compute_time_us, rocprof.communication_time_us) == (None, None, None)
    assert rocprof.total_time_us == 66505.86705303955 * 1e3
    assert rocprof.gpu_timeline == {
        "busy_time": 31197.57859527588,
        "idle_time": 35308.28845776367,
        "total_time": 66505.86705303955,
    }
    assert metrics.aggregates(result.ranks).avg_compute_ratio == old.ratios.compute if old.ratios else False


def test_workbooks_of_one_rank_that_differ_are_no_numbers(tmp_path: Path) -> None:
    for threads, more in ((256, 0.0), (512, 1.0)):
        report(
            tmp_path / f"{threads}thread" / "perf_28ch_rank0.xlsx", golden(0) | {"computation_time": 4 + more}
        )
    result = parse(tmp_path)
    [rank] = result.ranks
    assert (rank.quality.status, rank.workbook_ms, rank.ratios) == ("duplicate", None, None)
    files = "256thread/perf_28ch_rank0.xlsx, 512thread/perf_28ch_rank0.xlsx"
    assert rank.quality.cause == f"rank 0 has 2 workbooks that differ, as of several jobs: {files}"


def test_of_several_that_agree_or_say_less_the_best_is_used(tmp_path: Path) -> None:
    report(tmp_path / "a" / "perf_rank0.xlsx", golden(0))
    report(tmp_path / "b" / "perf_rank0.xlsx", golden(0))
    report(tmp_path / "rank0_perf_report.xlsx", golden(0) | {"computation_time": 1.0})
    result = parse(tmp_path)
    assert [(rank.files, rank.workbook_ms) for rank in result.ranks] == [(("a/perf_rank0.xlsx",), golden(0))]
    assert left_out(result) == dict.fromkeys(
        ["b/perf_rank0.xlsx", "rank0_perf_report.xlsx"], "a/perf_rank0.xlsx is used instead"
    )


def test_workbooks_that_tell_of_no_rank_are_no_evidence(tmp_path: Path) -> None:
    shutil.copy(ANALYSIS.parent / COLLECTIVES, tmp_path)
    write_workbook(tmp_path / "nccl_master_all_configs.xlsx", NCCL_Data=[("a", "b")])
    result = parse(tmp_path)
    assert result.status is ParseStatus.NO_DATA
    assert messages(result)
    assert left_out(result) == {
        "collective_all_ranks.xlsx": "there are no traces of its ranks to compare it with",
        "nccl_master_all_configs.xlsx": "has none of the sheets that cvs reads"
        " (gpu_timeline, All_Ranks_Combined, nccl_long)",
    }


def quality_of(path: Path, rows: Rows) -> tuple[str, str | None]:
    """What a workbook by itself is worth."""
    [rank] = parse(report(path, rows)).ranks
    assert (rank.workbook_ms is None) is (rank.quality.status == "unreadable")
    return rank.quality.status, rank.quality.cause


SELF = {
    **{"computation_time": 5.0, "exposed_comm_time": 2.0, "exposed_memcpy_time": 0.5, "busy_time": 7.5},
    **{"idle_time": 2.5, "total_time": 10.0, "total_comm_time": 4.0, "total_memcpy_time": 1.0},
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"busy_time": 7.6}, "busy_time 7.6 ms and idle_time 2.5 ms do not make total_time 10 ms"),
        ({"computation_time": 10.1}, "computation_time 10.1 ms is above total_time 10 ms"),
        ({"total_memcpy_time": 11.0}, "total_memcpy_time 11 ms is above total_time 10 ms"),
        ({"exposed_comm_time": 4.1}, "exposed_comm_time 4.1 ms is above total_comm_time 4 ms"),
        ({"exposed_memcpy_time": 1.1}, "exposed_memcpy_time 1.1 ms is above total_memcpy_time 1 ms"),
        (
            {"busy_time": 9.0, "total_time": 5.0, "total_comm_time": 100.0, "exposed_comm_time": 200.0},
            "busy_time 9 ms and idle_time 2.5 ms do not make total_time 5 ms,"
            " exposed_comm_time 200 ms is above total_time 5 ms, busy_time 9 ms is above total_time 5 ms,"
            " total_comm_time 100 ms is above total_time 5 ms,"
            " exposed_comm_time 200 ms is above total_comm_time 100 ms",
        ),
    ],
)
def test_rows_that_cannot_be_are_no_evidence(changes: Rows, reason: str, tmp_path: Path) -> None:
    cause = f"no trace, and perf_rank0.xlsx: contradicts itself: {reason}"
    assert quality_of(tmp_path / "perf_rank0.xlsx", {**SELF, **changes}) == ("unreadable", cause)


@pytest.mark.parametrize(
    "changes",
    [
        {"busy_time": 7.509},
        {"exposed_comm_time": 4.009},
        {"exposed_memcpy_time": 1.009},
        {"total_comm_time": 10.009},
    ],
)
def test_roundings_are_no_contradiction(changes: Rows, tmp_path: Path) -> None:
    assert quality_of(tmp_path / "perf_rank0.xlsx", {**SELF, **changes}) == ("complete", None)


def test_of_what_rocprof_recorded_only_the_total_is_shared_out(tmp_path: Path) -> None:
    rows = {"total_time": 10.0, "kernel": 70.0, "memory": 20.0, "busy_time": 6.0, "idle": 4.0}
    path = tmp_path / "perf_rank0.xlsx"
    assert quality_of(path, rows)[0] == "incomplete"
    assert quality_of(path, {**rows, "idle": 5.0}) == (
        "unreadable",
        "no trace, and perf_rank0.xlsx: contradicts itself:"
        " busy_time 6 ms and idle_time 5 ms do not make total_time 10 ms",
    )


def test_rows_that_cannot_be_still_speak_against_another_workbook(tmp_path: Path) -> None:
    report(tmp_path / "a" / "perf_rank0.xlsx", SELF)
    report(tmp_path / "b" / "perf_rank0.xlsx", SELF | {"idle_time": 9.0})
    assert [rank.quality.status for rank in parse(tmp_path).ranks] == ["duplicate"]


# --- workbooks of a run -----------------------------------------------------------------------------------


def file_of(path: str) -> TraceFile:
    return TraceFile(path=path, node_rank=0, size=1, sha256="0")


def test_a_runs_traces_come_with_its_workbooks(save_run: SaveRun) -> None:
    run = save_run().load_manifest().run
    trace, report = "node_0/a/torch_profiler/rank0/t.json", "node_0/a/tracelens_analysis/perf_rank0.xlsx"
    beside = ["node_0/a/rank_00_metrics.jsonl", "node_0/a/tracelens_analysis/plot.png"]

    def handed(*paths: str) -> list[str]:
        with_files = run.model_copy(update={"files": tuple(map(file_of, paths))})
        return [file.path for file in with_files.trace_set("/here").files]

    assert handed(trace, report, *beside) == [trace, report]
    assert handed(report, *beside) == []
    assert handed("node_0/a/torch_profiler/rank0/t_perf_report.xlsx") == []


def test_workbooks_do_not_stand_for_a_job_that_left_no_usable_trace(job: Path) -> None:
    for trace in job.rglob("*.json.gz"):
        trace.rename(trace.with_suffix(".part"))
    result = parse(job, world_size=4)
    assert [rank.source for rank in result.ranks] == ["workbook"] * 4
    assert result.missing_ranks == (0, 1, 2, 3)
    assert len(messages(result)) == 2
    assert metrics.coverage(result).ranks == 0
