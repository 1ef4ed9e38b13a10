"""Processes that work side by side: as many as cores and memory allow, in bounded time; none is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from cvs.terminal import printable

POLL_SECONDS = 0.05
REAP_SECONDS = 5
"""How long a process that was killed may take to go; one that waits for a dead disk never does."""
_MOST_READ = 4096
_MOST_SHOWN = 200


@dataclass(frozen=True)
class Job:
    """One piece of work for one process."""

    name: str
    """Of its folder and its log."""
    task: str
    arguments: dict[str, Any] = field(default_factory=dict)
    memory: int = 0
    """Bytes that it may need."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job: its answer, or why there is none."""

    answer: dict[str, Any] | None
    why: str = ""


def worked_off(
    jobs: Sequence[Job], python: str, *, work: Path, logs: Path, seconds: float, memory: int, cores: int
) -> dict[str, Outcome]:
    """Each job's outcome, by name; nothing is left running, whatever is raised.

    Args: work: each job has a folder of its own here; logs: where `<name>.log` goes; seconds: for all of them
    together; memory: bytes, and cores: that they may take together.
    """
    deadline = time.monotonic() + seconds
    outcomes = {job.name: _too_large(job, memory) for job in jobs if job.memory > memory}
    waiting = deque(job for job in jobs if job.name not in outcomes)
    running: list[_Worker] = []
    try:
        while waiting or running:
            for worker in [worker for worker in running if worker.has_ended]:
                outcomes[worker.job.name] = worker.outcome()
                running.remove(worker)
            if time.monotonic() > deadline:
                break
            free = memory - sum(worker.job.memory for worker in running)
            if waiting and len(running) < cores and waiting[0].memory <= free:
                job = waiting.popleft()
                try:
                    running.append(_Worker(job, python, work / job.name, logs / f"{job.name}.log"))
                except OSError as error:
                    outcomes[job.name] = Outcome(None, f"cannot be started: {error.strerror}")
            else:
                time.sleep(POLL_SECONDS)
    finally:
        for worker in running:
            worker.stop()
    stopped = Outcome(None, f"was stopped when the {seconds:g} s for all of it were up")
    never = Outcome(None, f"was not begun within the {seconds:g} s for all of it")
    late = {worker.job.name: stopped for worker in running}
    return {**outcomes, **late, **{job.name: never for job in waiting}}


def _too_large(job: Job, memory: int) -> Outcome:
    needed, free = (f"{size / 2**30:.1f} GiB" for size in (job.memory, memory))
    return Outcome(None, f"may need {needed} of memory, and {free} are free")


class _Worker:
    """A process at work on one job, in a group of its own."""

    def __init__(self, job: Job, python: str, folder: Path, log: Path) -> None:
        self.job = job
        self._folder = folder
        self._log = log
        folder.mkdir(parents=True)
        (folder / "order.json").write_text(json.dumps({"task": job.task, "arguments": job.arguments}))
        text = resources.files(__package__).joinpath("_worker.py").read_text("utf-8")
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [python, "-u", "-c", text],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        # Without waiting for it: until then the number of its group is its own.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def stop(self) -> None:
        """End it and whatever it started; of one that said nothing no log remains."""
        if self._process.returncode is not None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(REAP_SECONDS)
        if self._log.stat().st_size == 0:
            self._log.unlink()

    def outcome(self) -> Outcome:
        """What came of the job, now that it has ended."""
        self.stop()
        with suppress(OSError, ValueError):
            answer: dict[str, Any] = json.loads((self._folder / "answer.json").read_text("utf-8"))
            return Outcome(answer)
        return Outcome(None, _ending(self._process.returncode, _last_line(self._log)))


def _ending(code: int | None, said: str) -> str:
    if code is not None and code < 0:
        return f"was ended by signal {-code}{f' after: {said}' if said else ''}"
    return said or f"ended without a word, with exit code {code}"


def _last_line(log: Path) -> str:
    with suppress(OSError):
        with log.open("rb") as file:
            file.seek(-min(_MOST_READ, log.stat().st_size), os.SEEK_END)
            lines = file.read(_MOST_READ).decode("utf-8", "replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return printable(last)[:_MOST_SHOWN]
    return ""
