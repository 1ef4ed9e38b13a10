"""The suite on the traces of four GPUs, with a stand-in for TraceLens that knows what the real one said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import PACKAGE, TRACES, Files, SaveRun, report_of
from cvs.models import TraceFile
from cvs.run_folder import RunFolder, digest
from tracelens_stand_in import StandIn

SUITE = PACKAGE / "tests" / "benchmark" / "test_aorta.py"
MR4 = TRACES / "multirank" / "mr4"
RANKS = range(4)
RECORDED = "2025-11-21T11:51:00+00:00"


@pytest.fixture
def run(save_run: SaveRun, files: Files, stand_in: StandIn) -> RunFolder:
    """A run that left these traces; the benchmark file says nothing of TraceLens."""
    files.edit("accelerator: none", "accelerator: rocm")
    files.edit("max_avg_iteration_ms: 2000", "max_avg_iteration_ms: null")
    folder = save_run(started=RECORDED)
    shutil.rmtree(folder.traces)
    listed = [_collect(folder, rank) for rank in RANKS]
    for rank, file in enumerate(listed):
        golden = json.loads((MR4 / f"rank{rank}_trace.golden.json").read_text())
        rows_us = {row: ms * 1e3 for row, ms in golden["gpu_timeline"]["all"].items()}
        stand_in.knows(folder.traces / file.path, rows_us, largest_us=4458676434818.0)
    manifest = folder.load_manifest()
    changed = {"accelerator": "rocm", "files": tuple(listed)}
    folder.save_manifest(manifest.model_copy(update={"run": manifest.run.model_copy(update=changed)}))
    return folder


def _collect(folder: RunFolder, rank: int) -> TraceFile:
    path = f"node_{rank // 2}/artifacts/torch_profiler/rank{rank}/trace.json.gz"
    trace = folder.traces / path
    trace.parent.mkdir(parents=True)
    shutil.copy(MR4 / f"rank{rank}_trace.json.gz", trace)
    return TraceFile(path=path, node_rank=rank // 2, size=trace.stat().st_size, sha256=digest(trace))


Judge = Callable[..., pytest.RunResult]


@pytest.fixture
def judge(pytester: pytest.Pytester, tmp_path: Path, files: Files) -> Judge:
    """Runs cases of the suite on what is on disk, with `analysis.host_tracelens` set to this."""

    def judged(mode: str, cases: str = "not run_benchmark", *, aside: bool = False) -> pytest.RunResult:
        files.edit("enable_tracelens: false", f"enable_tracelens: false\n  host_tracelens: {mode}")
        run = pytester.runpytest_subprocess if aside else pytester.runpytest_inprocess
        outcome = run(
            str(SUITE),
            *files.options,
            f"--runs_dir={tmp_path / 'cvs_runs'}",
            *("-k", cases),
            *("-p", "no:cacheprovider"),
            *("-p", "no:hypothesispytest"),
        )
        files.edit(f"\n  host_tracelens: {mode}", "")
        return outcome

    return judged


def tracelens_of(run: RunFolder) -> dict[str, Any]:
    """What the report tells of it."""
    told: dict[str, Any] = report_of(run.path)["tracelens"]  # type: ignore[assignment]
    return told


def test_without_a_word_it_is_not_asked(judge: Judge, run: RunFolder) -> None:
    outcome = judge("off")
    outcome.assert_outcomes(passed=5, deselected=1)
    outcome.stdout.no_fnmatch_line("*TraceLens*")
    assert report_of(run.path)["tracelens"] is None
    assert not run.tracelens.exists()


def test_its_numbers_agree(judge: Judge, run: RunFolder) -> None:
    outcome = judge("check")
    outcome.assert_outcomes(passed=5, deselected=1)
    outcome.stdout.fnmatch_lines(
        [
            "cvs | TraceLens works on the traces (check, at most 1800 s)",
            "TraceLens 0.0.0+stand.in, check: 4 of 4 ranks agree, within 1.844 ns (* s)",
            "verdict: good",
        ]
    )
    told = tracelens_of(run)
    assert [rank["rank"] for rank in told["compared"]] == list(RANKS)
    assert told["warnings"] == []
    assert list(run.tracelens.iterdir()) == []


def test_a_difference_is_a_warning_and_no_verdict(judge: Judge, run: RunFolder, stand_in: StandIn) -> None:
    [rank2] = run.traces.glob("*/*/*/rank2/*")
    exact = json.loads((MR4 / "rank2_trace.golden.json").read_text())["exact_ns"]["all"]
    rows_us = {row: ns / 1e3 for row, ns in exact.items()}
    stand_in.knows(rank2, {**rows_us, "busy_time": rows_us["busy_time"] + 1}, 4458676434818.0)
    outcome = judge("check")
    outcome.assert_outcomes(passed=5, deselected=1)
    busy = exact["busy_time"]
    differs = f"rank 2: busy_time is {busy} ns by cvs and {busy + 1000}.0 ns by TraceLens, whose rounding"
    outcome.stdout.fnmatch_lines(
        ["TraceLens *, check: 3 of 4 ranks agree*", f"warning: TraceLens: {differs[:40]}*"]
    )
    outcome.stdout.fnmatch_lines(["verdict: good"])
    told = tracelens_of(run)
    assert told["warnings"][0].startswith(differs)
    assert told["compared"][2]["differences"] == [
        {"row": "busy_time", "cvs_ns": busy, "tracelens_ns": pytest.approx(busy + 1000)}
    ]


def test_it_writes_its_workbooks(judge: Judge, run: RunFolder, stand_in: StandIn) -> None:
    [rank1] = run.traces.glob("*/*/*/rank1/*")
    stand_in.knows(rank1, does="raise KeyError('name')")
    outcome = judge("report")
    outcome.assert_outcomes(passed=5, deselected=1)
    failed = "rank 1: no workbook: KeyError: 'name'; log: tracelens/perf_rank1.log"
    outcome.stdout.fnmatch_lines(["TraceLens *, report: 3 workbooks (* s)", f"TraceLens: {failed}"])
    outcome.stdout.fnmatch_lines(["verdict: good"])
    told = tracelens_of(run)
    assert told["workbooks"] == [f"tracelens/perf_rank{rank}.xlsx" for rank in (0, 2, 3)]
    assert all((run.path / workbook).is_file() for workbook in told["workbooks"])
    assert told["notes"][0] == failed


def test_what_it_made_of_the_same_numbers_stands(judge: Judge, run: RunFolder) -> None:
    judge("check")
    judge("check", "generate_report").stdout.no_fnmatch_line("cvs | TraceLens*")
    assert len(tracelens_of(run)["compared"]) == 4
    judge("report", "generate_report").assert_outcomes(passed=1, deselected=5)
    assert len(tracelens_of(run)["workbooks"]) == 5


def test_where_there_is_none_a_check_warns(judge: Judge, run: RunFolder, tmp_path: Path) -> None:
    python = tmp_path / "no python"
    outcome = judge(f'check\n  host_tracelens_python: "{python}"')
    outcome.assert_outcomes(passed=5, deselected=1)
    outcome.stdout.fnmatch_lines(["TraceLens, check: nothing compared*", "warning: TraceLens: *"])
    [warning] = tracelens_of(run)["warnings"]
    assert warning.startswith(f"{python}: cannot be asked for TraceLens: ")


def test_an_interrupt_while_it_works_leaves_the_metrics(
    judge: Judge, run: RunFolder, stand_in: StandIn
) -> None:
    first, *others = sorted(run.traces.glob("*/*/*/rank*/*"))
    stand_in.knows(first, does="os.kill(os.getppid(), 2); time.sleep(600)")
    for trace in others:
        stand_in.knows(trace, does="time.sleep(600)")
    outcome = judge("check", "parse_results", aside=True)
    assert outcome.ret == pytest.ExitCode.INTERRUPTED
    assert run.load_result().tracelens is None
    assert list(run.tracelens.iterdir()) == []
