"""Watching one job over all nodes: when it is over, and when it has to be stopped.

torchrun that has finished waits 300 s for the others, deaf to SIGTERM, and then exits 0. So the first
non-zero exit ends the job after a short grace, and a zero exit says that the others are about to end, too.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cvs.errors import CvsError
from cvs.launch import Limits
from cvs.models import RunStatus
from cvs.transport.base import Process

_POLL_SECONDS = 0.05
_INTERRUPT_SECONDS = 3
"""After Ctrl-C: how long torchrun may take to end its workers before it is killed."""


@dataclass
class Watched:
    """One node's job as it was last seen."""

    process: Process
    exit_code: int | None = None
    ended_after: float | None = None
    """Seconds after the start."""
    stopped: bool = False


@dataclass
class Watch:
    """The jobs of all nodes, by node rank, from their start on."""

    jobs: dict[int, Watched]
    limits: Limits
    deadline: float
    """On the monotonic clock."""
    started: float = field(default_factory=time.monotonic)
    on_end: Callable[[int, int], None] | None = None
    """Told of each end: node rank and exit code."""
    alarms: Sequence[Callable[[], str | None]] = ()
    """Asked again and again: why the job has to end at once, or None."""

    def until_over(self) -> tuple[RunStatus, str | None]:
        """Wait until the job is over, stopping it where it has to be; the status and, if bad, why.

        An interrupt stops it, too, and is passed on.
        """
        try:
            why = self._until_decided()
        except KeyboardInterrupt:
            self.stop(min(_INTERRUPT_SECONDS, self.limits.shutdown))
            raise
        if why is not None:
            self.stop(self.limits.shutdown)
        if why is not None and why[0] is RunStatus.TIMEOUT:
            return why
        failed = why is not None or any(job.exit_code != 0 for job in self.jobs.values())
        return (RunStatus.FAILED, why and why[1]) if failed else (RunStatus.COMPLETED, None)

    def _until_decided(self) -> tuple[RunStatus, str] | None:
        while self._look():
            for alarm in self.alarms:
                if why := alarm():
                    return RunStatus.FAILED, why
            now = time.monotonic()
            if now > self.deadline:
                return RunStatus.TIMEOUT, f"the time limit of {self.limits.total:.0f} s is over"
            first = self._first_end(lambda code: code != 0)
            if first is not None and now - first > self.limits.grace:
                return RunStatus.FAILED, "the other nodes did not end by themselves and were stopped"
            first = self._first_end(lambda code: code == 0)
            if first is not None and now - first > self.limits.after_first_end:
                return RunStatus.FAILED, "some nodes ended well and the others did not end"
            time.sleep(_POLL_SECONDS)
        return None

    def _look(self) -> bool:
        """Note who has ended; whether any still runs."""
        for node_rank, job in self.jobs.items():
            if job.exit_code is None and (code := job.process.poll()) is not None:
                job.exit_code = code
                job.ended_after = time.monotonic() - self.started
                if self.on_end:
                    self.on_end(node_rank, code)
        return any(job.exit_code is None for job in self.jobs.values())

    def _first_end(self, counts: Callable[[int], bool]) -> float | None:
        ends = [
            self.started + job.ended_after
            for job in self.jobs.values()
            if job.exit_code is not None and job.ended_after is not None and counts(job.exit_code)
        ]
        return min(ends, default=None)

    def stop(self, shutdown: float) -> None:
        """End what still runs: SIGTERM, after `shutdown` seconds SIGKILL."""
        for number, seconds in ((signal.SIGTERM, shutdown), (signal.SIGKILL, 5.0)):
            for job in self.running().values():
                job.stopped = True
                # Not one after the other: the way to a node may be slow, or gone.
                threading.Thread(target=_send, args=(job.process, number), daemon=True).start()
            deadline = time.monotonic() + seconds
            while self._look() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)

    def running(self) -> Mapping[int, Watched]:
        """The jobs whose end has not been seen."""
        return {rank: job for rank, job in self.jobs.items() if job.exit_code is None}


def _send(process: Process, number: int) -> None:
    with suppress(CvsError):  # a node that cannot be reached is told where it is cleared up
        process.signal(number)
