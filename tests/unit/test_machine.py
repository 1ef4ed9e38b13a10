"""What this very machine has to spare."""

from __future__ import annotations

import os

from cvs.machine import cores_here, memory_here


def test_there_is_memory_and_not_more_than_the_machine_has() -> None:
    assert 0 < memory_here() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_there_are_cores_and_not_more_than_the_machine_has() -> None:
    assert 0 < cores_here() <= (os.cpu_count() or 0)
