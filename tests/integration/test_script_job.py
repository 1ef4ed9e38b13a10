"""Runs whose job is a shell script on one node, for what has nothing to do with PyTorch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import WITH_TORCH, Files, report_of
from cvs.run_folder import RunFolder, newest_run_folder
from processes import eventually, processes_of

pytestmark = pytest.mark.torch  # which the node must have, though nobody loads it

Start = Callable[..., "Run"]


class Run:
    """One call of `cvs run` under way."""

    def __init__(self, home: Path, files: Files, *words: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cvs.cli", "run", "test_aorta", *files.options, *words],
            cwd=home, env={**os.environ, **WITH_TORCH}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def wait_for(self, pattern: str) -> str:
        """Read on to a line that has `pattern`."""
        assert self.process.stdout is not None
        return next(line for line in self.process.stdout if re.search(pattern, line))

    def finish(self) -> tuple[int, str]:
        """Exit code, and the rest of the output."""
        output, _ = self.process.communicate(timeout=60)
        return self.process.returncode, output

    @property
    def folder(self) -> RunFolder:
        return newest_run_folder(self.home / "cvs_runs", "test_aorta")


@pytest.fixture
def start(tmp_path: Path, files: Files, script_as_trainer: Callable[[str], None]) -> Iterator[Start]:
    """Starts a run of a job that is this script, in a folder of its own or in that of the test."""
    runs: list[Run] = []
    script_as_trainer("")
    scripts = tmp_path / "aorta" / "scripts"
    scripts.mkdir()
    files.have_a_script_start_the_job()

    def run(script: str, *words: str, home: Path = tmp_path) -> Run:
        home.mkdir(exist_ok=True)
        (scripts / "rccl_exp.sh").write_text(script)
        runs.append(Run(home, files, *words))
        return runs[-1]

    yield run
    for each in runs:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_who_waits_gets_the_node_when_it_is_free(start: Start, tmp_path: Path) -> None:
    first = start(f"echo begun; while [ ! -e {tmp_path}/stop ]; do sleep 0.1; done")
    first.wait_for("begun")
    second = start("echo mine", "--wait=60")
    assert "node-0: " in second.wait_for(r"^cvs . waiting up to \d+ s for the nodes: ")
    (tmp_path / "stop").touch()
    second.wait_for("mine")
    second.finish()
    runs = [path for path in (first.home / "cvs_runs" / "test_aorta").glob("2*") if path.is_dir()]
    begun, ended = sorted(RunFolder(path).load_manifest().run.started for path in runs)
    assert begun < ended
    assert len(runs) == 2


def test_who_waits_in_vain_is_refused(start: Start) -> None:
    first = start("echo begun; sleep 60")
    first.wait_for("begun")
    code, output = start("echo mine", "--wait=1").finish()
    assert code == 1
    assert f"is in use by run {first.folder.run_id} of " in output
    assert "mine" not in output


def test_who_does_not_want_to_wait_any_longer_leaves_nothing(start: Start) -> None:
    start("echo begun; sleep 60").wait_for("begun")
    second = start("echo mine", "--wait=60")
    second.wait_for("^cvs . waiting up to ")
    second.process.send_signal(signal.SIGINT)
    code, output = second.finish()
    assert code == 2
    assert output.startswith("cvs | interrupted while waiting for the nodes; nothing was started\n")
    assert "mine" not in output
    assert "KeyboardInterrupt" not in output


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT] * 40], ids=["SIGTERM", "a hail"])
def test_what_interrupts_it_leaves_nothing_running(start: Start, signals: list[signal.Signals]) -> None:
    run = start("trap '' INT TERM; echo begun; while :; do sleep 1; done")
    run.wait_for("begun")
    for number in signals:
        run.process.send_signal(number)
        time.sleep(0.05)
    code, output = run.finish()
    assert code == 2
    assert "KeyboardInterrupt" not in output
    assert processes_of(run.folder.run_id) == []
    assert run.folder.load_manifest().run.status.value == "failed"
    if len(signals) == 1:
        assert report_of(run.folder.path)["verdict"] == "red"


def test_two_at_once_do_not_disturb_each_other(start: Start, tmp_path: Path) -> None:
    until_stopped = f"while [ ! -e {tmp_path}/stop ]; do sleep 0.1; done"
    first = start(f"echo the first begins; {until_stopped}; echo the first ends", home=tmp_path / "one")
    first.wait_for("the first begins")
    second = start("echo the second", home=tmp_path / "two")
    second.wait_for("the second")
    second.finish()
    assert eventually(lambda: processes_of(second.folder.run_id) == [])
    assert processes_of(first.folder.run_id) != []
    (tmp_path / "stop").touch()
    assert "the first ends" in first.finish()[1]
    assert first.folder.load_manifest().run.nodes[0].exit_code == 0


def test_steps_without_a_word_are_no_standing_still(start: Start, files: Files) -> None:
    files.edit("stall_seconds: 30", "stall_seconds: 2")
    run = start(
        "echo begun; for i in 1 2 3 4 5 6 7 8 9 10; do echo {} >> rank_00_metrics.jsonl; sleep 0.5; done"
    )
    assert "no line and no step" not in run.finish()[1]
    assert run.folder.load_manifest().run.status.value == "completed"


def test_an_interrupt_at_once_blames_nobody(start: Start) -> None:
    run = start("echo begun; exec sleep 60")
    run.wait_for("ranks start on")
    run.process.send_signal(signal.SIGINT)
    run.finish()
    recorded = run.folder.load_manifest().run
    assert recorded.failure is not None
    assert (recorded.failure.reason, recorded.failure.node) == ("interrupted before its end", None)
    assert processes_of(run.folder.run_id) == []


def test_what_clears_its_environment_and_stays_in_the_session_is_ended(start: Start) -> None:
    run = start("env -i sleep 61.5 & echo begun")
    run.finish()
    assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\x0061.5" in read(path)]


def read(path: Path) -> bytes:
    """Empty where its process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.full
def test_a_progress_bar_is_no_standing_still(start: Start, files: Files) -> None:
    files.edit("stall_seconds: 30", "stall_seconds: 2")
    run = start("echo begun; for i in $(seq 10); do printf '\\rstep %d' $i; sleep 0.5; done")
    assert "no line and no step" not in run.finish()[1]
    assert run.folder.load_manifest().run.status.value == "completed"


def test_a_cvs_that_is_stopped_for_a_while_takes_its_job_for_what_it_is(start: Start, files: Files) -> None:
    files.edit("stall_seconds: 30", "stall_seconds: 2")
    run = start("for i in $(seq 12); do echo step $i; sleep 0.5; done")
    run.wait_for("step 2$")
    run.process.send_signal(signal.SIGSTOP)
    time.sleep(3)
    run.process.send_signal(signal.SIGCONT)
    assert "no line and no step" not in run.finish()[1]
    assert run.folder.load_manifest().run.status.value == "completed"
