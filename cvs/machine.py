"""What the machine that runs cvs has to spare."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def cores_here() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_here() -> int:
    """Bytes of memory that are free for processes of ours: on this machine, and in our control groups."""
    return min([_available(), *_left_in_groups()])


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return 0


def _left_in_groups() -> Iterator[int]:
    """By each limit of control groups (version 2) that stands over this process."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            place = line.removeprefix("0::/")
            if place != line:
                group = Path("/sys/fs/cgroup", place)
                for folder in (group, *group.parents):
                    with suppress(OSError, ValueError):  # no limit: the file is not there, or says max
                        most = int((folder / "memory.max").read_text())
                        yield max(0, most - int((folder / "memory.current").read_text()))
