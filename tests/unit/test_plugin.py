"""The plugin, in a pytest of its own, on saved runs: no job is started here."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import PACKAGE, Files, SaveRun, holder, report_of
from cvs.errors import ConfigError
from cvs.models import Failure, RunStatus
from cvs.plugin import parse_overrides
from cvs.transport.local import LocalTransport

SUITE = PACKAGE / "tests" / "benchmark" / "test_aorta.py"


Judge = Callable[..., pytest.RunResult]


@pytest.fixture
def judge(pytester: pytest.Pytester, tmp_path: Path, files: Files) -> Judge:
    """Runs the suite on what is on disk; without test_run_benchmark unless it is named."""

    def run(*options: str, cases: str = "not run_benchmark") -> pytest.RunResult:
        return pytester.runpytest_inprocess(
            str(SUITE),
            *files.options,
            f"--runs_dir={tmp_path / 'cvs_runs'}",
            "-k",
            cases,
            *("-p", "no:cacheprovider"),
            *("-p", "no:hypothesispytest"),  # as a user has it; it takes two seconds to sum up
            *options,
        )

    return run


def test_a_saved_run_is_parsed_judged_and_reported(judge: Judge, save_run: SaveRun) -> None:
    folder = save_run()
    outcome = judge()
    outcome.assert_outcomes(passed=6, deselected=1)
    outcome.stdout.fnmatch_lines(["*basis cpu*", "*verdict: good*", f"report: {folder.path}/*"])
    report = report_of(folder.path)
    assert report["verdict"] == "good"
    assert report["status"] == "completed"
    assert report["missing_ranks"] == []
    assert [rank["rank"] for rank in report["per_rank_summary"]] == [0, 1, 2, 3]  # type: ignore[attr-defined]
    # Steps 2 to 4 of rank 0 in the golden: 42679146 + 58681817 + 29652608 ns.
    assert report["per_rank_summary"][0]["total_time_us"] == 131013.571  # type: ignore[index]


def test_each_case_runs_alone(judge: Judge, save_run: SaveRun) -> None:
    save_run()
    for case, passed in {
        "test_validate_runner_config": 1,
        "test_parse_results": 1,
        "test_validate_thresholds": 3,
        "test_generate_report": 1,
    }.items():
        judge(cases=case).assert_outcomes(passed=passed, deselected=7 - passed)


def test_validate_needs_no_saved_metrics(judge: Judge, save_run: SaveRun) -> None:
    folder = save_run()
    assert not folder.has_result
    judge(cases="validate").assert_outcomes(passed=4, deselected=3)
    assert folder.has_result


def test_no_run_is_red(judge: Judge) -> None:
    outcome = judge()
    outcome.assert_outcomes(passed=1, failed=5, deselected=1)
    outcome.stdout.fnmatch_lines(["no run of test_aorta below *cvs_runs: run test_run_benchmark first*"])
    assert "Traceback" not in outcome.stdout.str()


def test_a_missing_rank_is_named(judge: Judge, save_run: SaveRun) -> None:
    save_run(without=("rank1", "rank2"))
    outcome = judge()
    outcome.assert_outcomes(passed=4, failed=2, deselected=1)
    outcome.stdout.fnmatch_lines(
        [
            "2 of 4 ranks left a trace; missing: ranks 1-2",
            "coverage: 2 of 4 ranks, 3 of 3 steps",
            "max_avg_iteration_ms 2000 ms: * holds (measured on 2 of 4 ranks, 3 of 3 steps)",
            "verdict: red",
        ]
    )


def test_a_failed_run_is_red_though_every_rank_is_there(judge: Judge, save_run: SaveRun) -> None:
    failure = Failure(reason="rank 3 on node-1 (node rank 1) was ended by signal 9", node_rank=1, ranks=(3,))
    folder = save_run(status=RunStatus.FAILED, failure=failure)
    outcome = judge(cases="validate")
    outcome.assert_outcomes(passed=3, failed=1, deselected=3)
    outcome.stdout.fnmatch_lines([f"run {folder.run_id} did not end well (failed): rank 3 on node-1*"])


def test_a_failed_run_ends_in_numbers(judge: Judge, save_run: SaveRun, files: Files) -> None:
    """Collected, parsed, checked and reported on what exists; red all the same."""
    failure = Failure(reason="rank 3 on node-1 (node rank 1) was ended by signal 9", node_rank=1, ranks=(3,))
    files.edit("min_compute_ratio: 0.02", "min_overlap_ratio: 0.9")
    folder = save_run(status=RunStatus.FAILED, failure=failure, without=("rank3",))
    outcome = judge()
    outcome.assert_outcomes(passed=3, failed=3, deselected=1)
    part = "3 of 4 ranks, 3 of 3 steps"
    outcome.stdout.fnmatch_lines([f"min_overlap_ratio: * expected at least 0.9 (measured on {part})"])
    report = report_of(folder.path)
    assert (report["verdict"], report["status"]) == ("red", "failed")
    assert report["coverage"] == {"ranks": 3, "world_size": 4, "steps": 3, "of_steps": 3}
    assert [limit["measured_on"] for limit in report["limits"]] == [part, part]  # type: ignore[attr-defined]


def test_a_run_that_was_killed_with_cvs_is_red(judge: Judge, save_run: SaveRun) -> None:
    save_run(status=RunStatus.RUNNING)
    outcome = judge(cases="evidence")
    outcome.assert_outcomes(failed=1, deselected=6)
    outcome.stdout.fnmatch_lines(["run * has not ended, or cvs was killed while it ran"])


def test_a_changed_trace_is_red_and_not_counted(judge: Judge, save_run: SaveRun) -> None:
    folder = save_run()
    trace = next(folder.traces.rglob("rank3/*.gz"))
    trace.write_bytes(next(folder.traces.rglob("rank2/*.gz")).read_bytes())
    outcome = judge(cases="evidence")
    outcome.assert_outcomes(failed=1, deselected=6)
    outcome.stdout.fnmatch_lines(
        [
            "node_1/*rank3/*.pt.trace.json.gz was changed after it was collected",
            "3 of 4 ranks left a trace; missing: rank 3",
        ]
    )


def test_a_file_of_no_run_is_left_out(judge: Judge, save_run: SaveRun) -> None:
    folder = save_run()
    stale = folder.traces / "node_0" / "artifacts" / "torch_profiler" / "rank7" / "old.pt.trace.json"
    stale.parent.mkdir()
    stale.write_text('{"traceEvents": []}')
    outcome = judge()
    outcome.assert_outcomes(passed=6, deselected=1)
    outcome.stdout.fnmatch_lines(["left out: *rank7/old.pt.trace.json: not in the manifest*"])


@pytest.mark.parametrize("started", ["2026-11-30T02:10:00+00:00", "2026-11-29T01:52:30+00:00"])
def test_a_trace_of_another_time_is_red(judge: Judge, save_run: SaveRun, started: str) -> None:
    """Made to look new by the job, or by a clock that is far off."""
    save_run(started=started)
    outcome = judge(cases="evidence")
    outcome.assert_outcomes(failed=1, deselected=6)
    outcome.stdout.fnmatch_lines(
        ["rank 0: its trace was recorded at 2026-11-30 01:52 UTC, not during this run"]
    )


@pytest.mark.parametrize(
    ("started", "ended"),
    [
        pytest.param("2026-11-29T23:00:00+00:00", "2026-11-30T01:52:40+00:00", id="forward_at_the_start"),
        pytest.param("2026-11-30T01:52:30+00:00", "2026-11-30T05:00:00+00:00", id="forward_at_the_end"),
        pytest.param("2026-11-30T05:00:00+00:00", "2026-11-30T01:52:40+00:00", id="back_at_the_start"),
        pytest.param("2026-11-30T01:52:30+00:00", "2026-11-29T23:00:00+00:00", id="back_at_the_end"),
    ],
)
def test_a_clock_that_was_set_during_the_run_costs_nothing(
    judge: Judge, save_run: SaveRun, started: str, ended: str
) -> None:
    save_run(started=started, ended=ended)
    judge(cases="evidence").assert_outcomes(passed=1, deselected=6)


def test_a_missed_limit_names_value_limit_and_unit(judge: Judge, save_run: SaveRun, files: Files) -> None:
    save_run()
    files.edit("max_avg_iteration_ms: 2000", "max_avg_iteration_ms: 1.5")
    files.edit("min_compute_ratio: 0.02", "min_overlap_ratio: 0.9")
    outcome = judge(cases="thresholds")
    outcome.assert_outcomes(passed=1, failed=2, deselected=4)
    outcome.stdout.re_match_lines(
        [
            r"max_avg_iteration_ms: average iteration time is \d+\.\d+ ms; expected at most 1\.5 ms",
            r"min_overlap_ratio: average overlap ratio is 0\.\d+; expected at least 0\.9",
        ]
    )


def test_the_newest_run_must_be_of_these_files(judge: Judge, save_run: SaveRun, files: Files) -> None:
    folder = save_run()
    files.edit("timeout_seconds: 300", "timeout_seconds: 301")
    outcome = judge(cases="evidence")
    outcome.assert_outcomes(failed=1, deselected=6)
    outcome.stdout.fnmatch_lines(
        [
            f"the newest run {folder.path} was not made with these files*",
            "  made with the same files, with other values:",
            "*timeout_seconds: 300 then, 301 now",
            "To judge it: run the benchmark again, or name a run with --run_dir",
        ]
    )
    judge(f"--run_dir={folder.path}", cases="evidence").assert_outcomes(passed=1, deselected=6)


def test_how_a_run_is_looked_at_may_differ(judge: Judge, save_run: SaveRun, files: Files) -> None:
    save_run()
    files.edit("min_compute_ratio: 0.02", "min_compute_ratio: 0.01")
    files.edit("enable_tracelens: false", "enable_tracelens: false\n  host_tracelens: check")
    judge(cases="evidence").assert_outcomes(passed=1, deselected=6)


def test_traces_are_read_as_the_file_says(judge: Judge, save_run: SaveRun, files: Files) -> None:
    folder = save_run()
    named = f"--run_dir={folder.path}"
    with files.config_file.open("a") as text:
        text.write("traces: {rank_pattern: 'worker(?P<rank>[0-9]+)/'}\n")
    outcome = judge(cases="parse")
    outcome.assert_outcomes(failed=1, deselected=6)
    outcome.stdout.fnmatch_lines(
        ["*traces.rank_pattern: not set then, 'worker(?P<rank>[[]0-9]+)/' now"],
    )
    outcome = judge(named, cases="parse or report")
    outcome.assert_outcomes(failed=2, deselected=5)
    outcome.stdout.fnmatch_lines(["*no trace among 4 files*"])
    left_out = report_of(folder.path)["left_out"]
    assert [left["why"] for left in left_out] == ["traces.rank_pattern finds no rank in its path"] * 4  # type: ignore[attr-defined]
    files.edit("worker(?P", "rank(?P")
    judge(named, cases="parse or report").assert_outcomes(passed=2, deselected=5)


def test_a_run_of_other_overrides_is_told_once(judge: Judge, save_run: SaveRun) -> None:
    folder = save_run()
    outcome = judge("--training_overrides=inject.kind=kill", cases="validate_thresholds or report")
    outcome.assert_outcomes(failed=4, deselected=3)
    told = (
        "To judge it: give the --training_overrides of that run, run the benchmark again, or name a run with*"
    )
    outcome.stdout.fnmatch_lines(["    training_overrides.inject.kind: not set then, 'kill' now", told])
    failures, _, _ = outcome.stdout.str().partition("short test summary info")  # which repeats them in CI
    assert failures.count("To judge it: ") == 1
    short = f"nothing to judge: the newest run {folder.run_id} was not made with these files"
    assert outcome.outlines.count(short) == 3


def test_a_run_of_other_files_names_both(judge: Judge, save_run: SaveRun, files: Files) -> None:
    save_run()
    other = files.config_file.rename(files.config_file.with_name("other.yaml"))
    files.config_file.write_text(other.read_text())
    files.edit("timeout_seconds: 300", "timeout_seconds: 301")
    outcome = judge(f"--config_file={files.config_file}", cases="evidence")
    assert "  made with the same files, with other values:" in outcome.outlines
    other.write_text(files.config_file.read_text())
    outcome = judge(f"--config_file={other}", cases="evidence")
    outcome.stdout.fnmatch_lines(
        [
            f"  made with {files.cluster_file} and {files.config_file},",
            f"  now given {files.cluster_file} and {other}; they differ in",
            "    timeout_seconds: 300 then, 301 now",
        ]
    )


def test_a_name_with_an_escape_reaches_no_terminal(judge: Judge, save_run: SaveRun) -> None:
    folder = save_run()
    manifest = folder.load_manifest()
    named = manifest.run.files[0].model_copy(update={"path": "node_0/torch_profiler/rank0/esc\033[31m.json"})
    run = manifest.run.model_copy(update={"files": (*manifest.run.files, named)})
    folder.save_manifest(manifest.model_copy(update={"run": run}))
    outcome = judge("--color=no")
    outcome.stdout.fnmatch_lines(["*esc�[[]31m.json was collected and is missing now*"])
    assert "\033" not in outcome.stdout.str()


def test_a_run_dir_that_cannot_be_looked_into(judge: Judge, tmp_path: Path) -> None:
    outcome = judge(f"--run_dir={tmp_path / ('n' * 300)}", cases="evidence")
    outcome.assert_outcomes(failed=1, deselected=6)
    outcome.stdout.fnmatch_lines(["--run_dir *: cannot be looked into: File name too long; name another"])
    assert "Traceback" not in outcome.stdout.str()


def test_a_run_dir_that_is_none_is_named(judge: Judge, tmp_path: Path) -> None:
    outcome = judge(f"--run-dir={tmp_path}", cases="evidence")
    outcome.assert_outcomes(failed=1, deselected=6)
    outcome.stdout.fnmatch_lines([f"--run_dir {tmp_path}: is no folder of a run*"])


def test_bad_files_are_told_without_a_traceback(judge: Judge, files: Files) -> None:
    files.edit("min_compute_ratio: 0.02", "min_compute_ration: 0.02")
    outcome = judge()
    outcome.assert_outcomes(failed=4, deselected=1)
    outcome.stdout.fnmatch_lines(
        [
            f"{files.config_file}:31:3: expected_results.min_compute_ration: unknown key"
            " (did you mean min_compute_ratio?)"
        ]
    )
    assert "Traceback" not in outcome.stdout.str()


def test_what_cannot_be_started_is_told_by_every_case_that_needs_it(judge: Judge, tmp_path: Path) -> None:
    with closing(LocalTransport("another")) as other:
        for node in ("node-0", "node-1"):
            other.hold(str(tmp_path / "cvs_runs" / "test_aorta" / "nodes" / node / "aorta"), holder("run-a"))
        outcome = judge(cases="run_benchmark or evidence")
    outcome.assert_outcomes(failed=2, deselected=5)
    outcome.stdout.fnmatch_lines(["*in use by run run-a of *", "this call's run could not be started*"])


def test_unknown_cluster_keys_are_warned_about(judge: Judge, files: Files) -> None:
    data = json.loads(files.cluster_file.read_text())
    files.cluster_file.write_text(json.dumps({**data, "racks": 2, "usernam": "x"}))
    outcome = judge(cases="runner_config")
    outcome.assert_outcomes(passed=1, deselected=6, warnings=1)
    outcome.stdout.fnmatch_lines(["*no effect here: racks, usernam (did you mean username?)*"])


def test_metrics_are_junit_properties(judge: Judge, save_run: SaveRun, tmp_path: Path) -> None:
    save_run()
    junit = tmp_path / "junit.xml"
    judge(f"--junitxml={junit}", f"--html={tmp_path / 'r.html'}", "--self-contained-html")
    cases = {case.get("name"): case for case in ElementTree.parse(junit).iter("testcase")}
    properties = {p.get("name"): p.get("value") for p in cases["test_parse_results"].iter("property")}
    assert properties["basis"] == "cpu"
    assert properties["coverage"] == "4 of 4 ranks, 3 of 3 steps"
    assert 0 < float(properties["avg_compute_ratio"] or 0) < 1
    assert {f"rank_{rank}.iteration_time_us" for rank in range(4)} < properties.keys()
    assert "test_validate_thresholds[evidence]" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    "words", [["-n2"], ["-n2", "--dist=loadgroup"], ["-n2", "--dist=each"]], ids=" ".join
)
def test_the_cases_stay_in_one_process_under_xdist(judge: Judge, save_run: SaveRun, words: list[str]) -> None:
    save_run()
    outcome = judge(*words, "-v")
    outcome.assert_outcomes(passed=6)
    workers = {line.split("]")[0] for line in outcome.outlines if line.startswith("[gw")}
    assert len(workers) == 1
    outcome.stdout.fnmatch_lines(["*verdict: good*"])


def test_a_pytest_run_without_a_cluster_file_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_one(): pass")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_overrides_are_split_as_in_a_shell() -> None:
    assert parse_overrides("a.b=1 'c=x y' d=") == {"a.b": "1", "c": "x y", "d": ""}


@pytest.mark.parametrize("text", ["'a=1", 'a="1', "a=1\\", "a", "a=1 =2"])
def test_overrides_that_cannot_be_read_name_their_option(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--training_overrides: "):
        parse_overrides(text)
