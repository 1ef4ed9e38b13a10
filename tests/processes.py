"""Processes of this machine, as tests look at them and wait for them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path


def eventually(holds: Callable[[], object], seconds: float = 10) -> bool:
    """Whether it comes to hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    """Whether the process is there and no zombie, which only waits for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pids: Iterable[int]) -> None:
    """End these processes, of which one may have ended with another."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children_of(parent: int) -> list[int]:
    """Processes below one, all the way down."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                child = int(stat.parent.name)
                found += [child, *children_of(child)]
    return found


def processes_of(run_id: str) -> list[int]:
    """Processes that bear the run's id in their environment."""
    mark = f"RUN_ID={run_id}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue  # it ended while we looked
    return found
