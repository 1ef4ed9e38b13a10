"""The main job for real, on local nodes: a torchrun per node, profiler traces, numbers, a verdict, a report.

Each job takes about 8 s on two cores, so tests of one outcome share one job.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from conftest import (
    LOCAL_AORTA,
    LOCAL_CLUSTER,
    PACKAGE,
    WITH_TORCH,
    Files,
    assert_as_planned,
    report_of,
    run_cvs,
)
from cvs.run_folder import RunFolder, newest_run_folder
from processes import processes_of

pytestmark = pytest.mark.torch

OPTIONS = [f"--cluster_file={LOCAL_CLUSTER}", f"--config_file={LOCAL_AORTA}"]
ENVIRONMENT = {**os.environ, **WITH_TORCH}


@dataclass(frozen=True)
class Job:
    """One finished call of `cvs run`."""

    exit_code: int
    output: str
    home: Path

    @property
    def folder(self) -> RunFolder:
        return newest_run_folder(self.home / "cvs_runs", "test_aorta")


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cvs.cli", "run", "test_aorta", *OPTIONS, *words],
        cwd=home, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], home: Path, timeout: float = 150) -> Job:
    output, _ = process.communicate(timeout=timeout)
    return Job(process.returncode, output, home)


def run(home: Path, *words: str) -> Job:
    return finish(start(home, *words), home)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Job:
    home = tmp_path_factory.mktemp("good")
    return run(
        home, f"--junitxml={home / 'junit.xml'}", f"--html={home / 'report.html'}", "--self-contained-html"
    )


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Job:
    overrides = "inject.kind=kill inject.rank=3 inject.step=5"
    return run(tmp_path_factory.mktemp("killed"), f"--training_overrides={overrides}")


class TestGoodRun:
    def test_it_is_green(self, good: Job) -> None:
        assert good.exit_code == 0, good.output
        assert "7 passed" in good.output
        assert "verdict: good" in good.output
        assert f"report: {good.folder.path}/aorta_benchmark_report.json" in good.output

    def test_output_is_seen_live_and_kept(self, good: Job) -> None:
        assert "node-0 rank 0 | step 0: loss" in good.output
        for rank in (0, 1):
            assert "wrote" in good.folder.node_log(rank).read_text()

    def test_every_rank_is_measured(self, good: Job) -> None:
        report = report_of(good.folder.path)
        assert (report["verdict"], report["status"], report["basis"]) == ("good", "completed", "cpu")
        assert report["cluster"] == {"nodes": 2, "gpus_per_node": 2, "total_gpus": 4}
        ranks = report["per_rank_summary"]
        assert isinstance(ranks, list)
        assert [(r["rank"], r["node"], r["local_rank"]) for r in ranks] == [
            (0, 0, 0),
            (1, 0, 1),
            (2, 1, 0),
            (3, 1, 1),
        ]
        for rank in ranks:
            assert rank["quality"]["status"] == "complete"
            assert rank["steps"] == [2, 3, 4]
            sums = rank["cpu_ns"]
            assert sums["compute"] + sums["exposed_comm"] + sums["other"] == sums["step"] > 0
            assert 0 < rank["compute_ratio"] < 1
            assert 0 < rank["comm_ratio"] < 1

    def test_training_is_real(self, good: Job) -> None:
        metrics = sorted(good.folder.traces.rglob("rank_*_metrics.jsonl"))
        assert len(metrics) == 4
        for path in metrics:
            losses = [json.loads(line)["loss"] for line in path.read_text().splitlines()]
            assert losses[-1] < losses[0]

    def test_the_manifest_tells_what_was_run(self, good: Job) -> None:
        manifest = good.folder.load_manifest()
        assert manifest.run.status.value == "completed"
        assert manifest.plan.rendezvous.port is not None
        for node in manifest.run.nodes:
            assert (node.exit_code, node.left_running, node.error) == (0, (), None)
            assert {"torch", "python", "interpreter", "kernel"} <= node.facts.keys()
        for plan in manifest.plan.nodes:
            assert f"--master_port={manifest.plan.rendezvous.port}" in plan.argv
            assert f"--rdzv_id={good.folder.run_id}" in plan.argv
        assert not good.folder.altered(manifest.run.files)
        assert not good.folder.unlisted(manifest.run.files)
        assert sum(file.is_trace for file in manifest.run.files) == 4

    def test_it_ran_as_the_plan_on_paper_says(self, good: Job) -> None:
        paper = run_cvs(
            "run", "test_aorta", *OPTIONS, "--dry-run", "--json", cwd=good.home, **WITH_TORCH
        ).stdout
        assert_as_planned(paper, good.folder)

    def test_each_node_has_only_its_own_files(self, good: Job) -> None:
        for rank, name in enumerate(("node-0", "node-1")):
            aorta = good.folder.nodes_dir / name / "aorta"
            folders = sorted(path.name for path in (aorta / "artifacts" / "torch_profiler").iterdir())
            assert folders == [f"rank{2 * rank}", f"rank{2 * rank + 1}"]
            assert (aorta / "combined_traces").resolve() == good.folder.traces.resolve()
            assert list((aorta / ".cvs").glob("2*")) == []

    def test_the_source_of_the_workload_is_untouched(self, good: Job) -> None:
        assert good.exit_code == 0
        left = {path.name for path in (PACKAGE / "workloads" / "aorta").iterdir()} - {"__pycache__"}
        assert left == {"train.py", "config", "scripts", "README.md"}

    def test_reports_of_pytest(self, good: Job) -> None:
        cases = {
            case.get("name"): case for case in ElementTree.parse(good.home / "junit.xml").iter("testcase")
        }
        names = {item.get("name") for item in cases["test_parse_results"].iter("property")}
        assert {"avg_iteration_time_us", "avg_compute_ratio", "rank_3.iteration_time_us"} <= names
        assert "test_run_benchmark" in (good.home / "report.html").read_text()

    def test_nothing_is_left_running(self, good: Job) -> None:
        assert processes_of(good.folder.run_id) == []

    def test_the_saved_run_is_judged_again_from_both_places(self, good: Job) -> None:
        runs = f"--runs_dir={good.home / 'cvs_runs'}"
        for cwd, suite in (
            (PACKAGE.parent, "cvs/tests/benchmark/test_aorta.py"),
            (PACKAGE, "tests/benchmark/test_aorta.py"),
        ):
            relative = [option.replace(f"{cwd}/", "") for option in OPTIONS]
            done = subprocess.run(
                [sys.executable, "-m", "pytest", suite, *relative, runs, "-k", "validate"],
                cwd=cwd, env=ENVIRONMENT, text=True, capture_output=True, timeout=60, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout
            assert "4 passed" in done.stdout


@pytest.mark.full
class TestKilledRank:
    def test_it_is_red_and_names_rank_node_and_log(self, killed: Job) -> None:
        assert killed.exit_code == 1
        assert "rank 3 on node-1 (node rank 1) was ended by signal 9" in killed.output
        assert f"log: {killed.folder.path}/logs/node_1/torchrun/" in killed.output
        assert "verdict: red" in killed.output
        failure = killed.folder.load_manifest().run.failure
        assert failure is not None
        assert (failure.node, failure.ranks) == ("node-1", (3,))
        assert failure.log is not None
        assert (killed.folder.path / failure.log).is_file()

    def test_the_others_traces_are_parsed(self, killed: Job) -> None:
        report = report_of(killed.folder.path)
        ranks = report["per_rank_summary"]
        assert isinstance(ranks, list)
        assert {0, 1, 2} <= {r["rank"] for r in ranks if r["quality"]["status"] == "complete"}
        assert report["status"] == "failed"
        assert report["verdict"] == "red"

    def test_nothing_is_left_running(self, killed: Job) -> None:
        assert processes_of(killed.folder.run_id) == []


@pytest.mark.full
def test_a_failure_before_the_window_says_that_none_is_complete(tmp_path: Path) -> None:
    job = run(tmp_path, "--training_overrides=inject.kind=raise inject.rank=0 inject.step=0")
    assert job.exit_code == 1
    assert "rank 0 on node-0 (node rank 0) failed: " in job.output
    assert "0 of 4 ranks left a trace" in job.output
    assert "no complete profiler window exists" in job.output


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that would go on for minutes, seen to train."""
    process = start(tmp_path, "--training_overrides=inject.kind=slow_sleep inject.rank=0 inject.ms=60000")
    assert process.stdout is not None
    for line in process.stdout:
        if "profiler_start" in line or "ranks start on" in line:
            break
    deadline = time.monotonic() + 60
    folder = newest_run_folder(tmp_path / "cvs_runs", "test_aorta")
    while len(processes_of(folder.run_id)) < 6 and time.monotonic() < deadline:
        time.sleep(0.1)
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()


def test_an_interrupt_stops_everything_and_leaves_the_record(
    at_work: subprocess.Popen[str], tmp_path: Path
) -> None:
    folder = newest_run_folder(tmp_path / "cvs_runs", "test_aorta")
    second = run(tmp_path)  # while the first runs: refused, and told by whom the nodes are held
    assert second.exit_code == 1
    assert f"is in use by run {folder.run_id} of " in second.output
    assert second.folder.path == folder.path  # a run that is refused leaves nothing
    assert (folder.path.parent / "latest").resolve() == folder.path
    at_work.send_signal(signal.SIGINT)
    job = finish(at_work, tmp_path, timeout=40)
    assert job.exit_code == 2  # pytest's word for an interrupt
    assert processes_of(folder.run_id) == []
    recorded = folder.load_manifest().run
    assert recorded.status.value == "failed"
    assert recorded.failure is not None
    assert recorded.failure.reason == "interrupted before its end"
    assert f"stopped on all nodes; report: {folder.path}/aorta_benchmark_report.json" in job.output
    assert report_of(folder.path)["verdict"] == "red"


def test_a_killed_cvs_is_noticed_by_the_next_run_which_ends_what_it_left(
    at_work: subprocess.Popen[str], tmp_path: Path
) -> None:
    unfinished = newest_run_folder(tmp_path / "cvs_runs", "test_aorta")
    at_work.kill()
    at_work.wait()
    assert processes_of(unfinished.run_id) != []
    job = run(tmp_path)
    assert processes_of(unfinished.run_id) == []
    assert job.exit_code == 0, job.output
    assert f"warning: run {unfinished.run_id} of " in job.output
    assert "did not end: its cvs was killed; what it had left running is ended now" in job.output
    assert job.folder.path != unfinished.path
    judged = run(tmp_path, f"--run_dir={unfinished.path}", "-k", "evidence")
    assert judged.exit_code == 1
    assert "has not ended, or cvs was killed while it ran" in judged.output


@pytest.mark.full
def test_two_jobs_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("one", "two")]
    for home in homes:
        home.mkdir()
    started = [start(home) for home in homes]
    jobs = [finish(process, home) for process, home in zip(started, homes, strict=True)]
    for job in jobs:
        assert job.exit_code == 0, job.output
        assert report_of(job.folder.path)["missing_ranks"] == []
        recorded = job.folder.load_manifest().run.files
        assert sum(file.is_trace for file in recorded) == 4


def test_without_torch_it_says_what_to_install(tmp_path: Path, files: Files) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    interpreter = str(tmp_path / "python3")
    done = run_cvs("run", "test_aorta", *files.options, cwd=tmp_path, TORCH_PYTHON=interpreter)
    assert done.returncode == 1
    assert f"TORCH_PYTHON={interpreter} cannot import torch" in done.stdout
    assert "pip install torch" in done.stdout
    assert "Traceback" not in done.stdout
