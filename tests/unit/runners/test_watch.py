"""When a job over all nodes is over, and when it has to be stopped, with real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from cvs.launch import Limits
from cvs.models import RunStatus
from cvs.runners._watch import Watch, Watched
from cvs.transport.local import LocalTransport

RUNS_ON = "exec sleep 60"
DEAF = "trap '' TERM; echo $$ > ready; while :; do sleep 60; done"


class Jobs:
    """Starts one script per node, and watches them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Watched] = []
        self.ends: list[tuple[int, int]] = []

    def watch(self, *scripts: str, seconds: float = 30, **limits: float) -> Watch:
        for script in scripts:
            self.processes.append(self._start(script))
        if DEAF in scripts:
            while not (self.folder / "ready").exists():
                time.sleep(0.01)
        settings = {"total": seconds, "join": 1, "grace": 20, "shutdown": 5, "after_first_end": 20, **limits}
        return Watch(
            dict(enumerate(self.processes)),
            Limits.model_validate(settings),
            deadline=time.monotonic() + seconds,
            on_end=lambda node_rank, code: self.ends.append((node_rank, code)),
        )

    def _start(self, script: str) -> Watched:
        argv = ["sh", "-c", script]
        return Watched(
            LocalTransport("a").start(
                argv, cwd=str(self.folder), environment={}, folder="", sink=lambda _piece: None
            )
        )

    @property
    def exit_codes(self) -> list[int | None]:
        return [job.exit_code for job in self.processes]

    @property
    def stopped(self) -> list[bool]:
        return [job.stopped for job in self.processes]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    jobs = Jobs(tmp_path)
    yield jobs
    for job in jobs.processes:
        job.process.signal(signal.SIGKILL)


def took(call: Callable[[], object]) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def test_all_end_well(jobs: Jobs) -> None:
    assert jobs.watch("exit 0", "sleep 0.2").until_over() == (RunStatus.COMPLETED, None)
    assert jobs.exit_codes == [0, 0]
    assert jobs.stopped == [False, False]


def test_each_end_is_told_once_and_when(jobs: Jobs) -> None:
    jobs.watch("sleep 1; exit 3", "exit 0", "sleep 0.3; exit 0").until_over()
    assert sorted(jobs.ends) == [(0, 3), (1, 0), (2, 0)]
    first, second, third = (job.ended_after for job in jobs.processes)
    assert first is not None
    assert second is not None
    assert third is not None
    assert 0 <= second <= third < first < 5


@pytest.mark.parametrize("code", [1, 2, 137])
def test_a_job_is_good_only_where_every_node_exits_zero(jobs: Jobs, code: int) -> None:
    assert jobs.watch("exit 0", f"exit {code}").until_over() == (RunStatus.FAILED, None)
    assert jobs.exit_codes == [0, code]
    assert jobs.stopped == [False, False]


def test_after_a_failure_the_others_may_end_by_themselves(jobs: Jobs) -> None:
    """They lose their peer and write what they have."""
    assert jobs.watch("exit 1", "sleep 0.4; exit 7", grace=5).until_over() == (RunStatus.FAILED, None)
    assert jobs.exit_codes == [1, 7]
    assert jobs.stopped == [False, False]


def test_but_not_for_ever(jobs: Jobs) -> None:
    """Case D: the other torchrun hangs on a stranger's port."""
    status, why = jobs.watch("exit 1", RUNS_ON, grace=0.2).until_over()
    assert (status, why) == (RunStatus.FAILED, "the other nodes did not end by themselves and were stopped")
    assert jobs.exit_codes == [1, -15]
    assert jobs.stopped == [False, True]


def test_the_grace_counts_from_the_first_failure(jobs: Jobs) -> None:
    watch = jobs.watch("exit 1", "sleep 0.3; exit 1", RUNS_ON, grace=0.5)
    assert 0.4 < took(watch.until_over) < 1.2
    assert jobs.exit_codes == [1, 1, -15]


def test_a_zero_exit_says_that_the_others_are_about_to_end(jobs: Jobs) -> None:
    """A torchrun that has finished waits 300 s for the others; what does not follow soon never will."""
    status, why = jobs.watch("exit 0", RUNS_ON, after_first_end=0.2).until_over()
    assert (status, why) == (RunStatus.FAILED, "some nodes ended well and the others did not end")
    assert jobs.exit_codes == [0, -15]
    assert jobs.stopped == [False, True]


def test_a_slow_end_is_waited_for(jobs: Jobs) -> None:
    watch = jobs.watch("exit 0", "sleep 0.4", after_first_end=5, grace=0)
    assert watch.until_over() == (RunStatus.COMPLETED, None)


def test_while_none_has_ended_neither_limit_counts(jobs: Jobs) -> None:
    watch = jobs.watch("sleep 0.4", "sleep 0.4", after_first_end=0.1, grace=0)
    assert watch.until_over()[0] is RunStatus.COMPLETED


def test_who_is_deaf_to_sigterm_is_killed(jobs: Jobs) -> None:
    """Case H: torchrun in its exit barrier."""
    watch = jobs.watch("exit 1", DEAF, grace=0, shutdown=0.3)
    assert 0.3 <= took(watch.until_over) < 2
    assert jobs.exit_codes == [1, -9]
    assert jobs.stopped == [False, True]


def test_who_listens_is_not_killed(jobs: Jobs) -> None:
    polite = "trap 'echo bye > bye; exit 5' TERM; echo > up; while :; do sleep 0.05; done"
    watch = jobs.watch("while [ ! -e up ]; do sleep 0.02; done; exit 1", polite, grace=0)
    assert watch.until_over()[0] is RunStatus.FAILED
    assert jobs.exit_codes == [1, 5]
    assert (jobs.folder / "bye").exists()


def test_a_stopped_job_that_exits_zero_has_not_succeeded(jobs: Jobs) -> None:
    obliging = "trap 'exit 0' TERM; echo > up; while :; do sleep 0.05; done"
    watch = jobs.watch("while [ ! -e up ]; do sleep 0.02; done; exit 1", obliging, grace=0)
    assert watch.until_over()[0] is RunStatus.FAILED
    assert jobs.exit_codes == [1, 0]


def test_at_the_time_limit_all_are_stopped(jobs: Jobs) -> None:
    status, why = jobs.watch(RUNS_ON, RUNS_ON, seconds=0.3).until_over()
    assert (status, why) == (RunStatus.TIMEOUT, "the time limit of 0 s is over")
    assert jobs.exit_codes == [-15, -15]
    assert jobs.stopped == [True, True]


def test_the_time_limit_comes_before_the_grace(jobs: Jobs) -> None:
    watch = jobs.watch("exit 1", RUNS_ON, seconds=0.3, grace=20)
    assert watch.until_over()[0] is RunStatus.TIMEOUT
    assert jobs.stopped == [False, True]


def test_a_job_that_ended_in_time_did_not_time_out(jobs: Jobs) -> None:
    watch = jobs.watch("exit 0", seconds=0)
    while jobs.processes[0].process.poll() is None:
        time.sleep(0.01)
    assert watch.until_over() == (RunStatus.COMPLETED, None)


def test_an_alarm_stops_all_at_once(jobs: Jobs) -> None:
    watch = jobs.watch(RUNS_ON, RUNS_ON)
    looks: list[str | None] = [None, None, "the disk is full"]
    watch.alarms = [lambda: None, lambda: looks.pop(0)]
    assert watch.until_over() == (RunStatus.FAILED, "the disk is full")
    assert jobs.stopped == [True, True]


def test_an_interrupt_stops_all_and_is_passed_on(jobs: Jobs) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    watch = jobs.watch(RUNS_ON, RUNS_ON)
    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            watch.until_over()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    assert jobs.exit_codes == [-15, -15]
    assert jobs.stopped == [True, True]


def test_stopping_without_patience(jobs: Jobs) -> None:
    watch = jobs.watch(DEAF, RUNS_ON)
    assert took(lambda: watch.stop(0)) < 2
    assert jobs.exit_codes[0] == -9
    assert jobs.exit_codes[1] in (-9, -15)
    assert watch.running() == {}


def test_stopping_reaches_the_children_of_a_launcher(jobs: Jobs) -> None:
    watch = jobs.watch("sleep 60 & echo $! > child; echo > up; wait")
    while not (jobs.folder / "up").exists():
        time.sleep(0.01)
    child = int((jobs.folder / "child").read_text())
    watch.stop(2)
    deadline = time.monotonic() + 2
    while _is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _is_running(child)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_nothing_to_watch_is_over_at_once(jobs: Jobs) -> None:
    assert jobs.watch().until_over() == (RunStatus.COMPLETED, None)
