"""Runs that know nothing of each other, each contender in turn."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from cvs.config import ClusterConfig
from lab.cluster import Lab, lab_folder

T = TypeVar("T")


def rounds(contenders: Mapping[str, Callable[[], T]], count: int) -> dict[str, list[T]]:
    """What each contender gives in each of so many rounds; it says on stderr who is at work."""
    results: dict[str, list[T]] = {name: [] for name in contenders}
    for number in range(1, count + 1):
        for name, run in contenders.items():
            print(f"round {number} of {count}: {name}", file=sys.stderr)
            results[name].append(run())
    return results


def fresh(work: Callable[..., T], *arguments: object) -> T:
    """What `work` gives in a process of its own, which nothing has warmed up."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


@contextmanager
def one_node() -> Iterator[tuple[Lab, ClusterConfig]]:
    """A lab of at least one sound node, and the first node's cluster file; left as it was found.

    Raises: LabError: this machine cannot carry one.
    """
    lab = Lab(lab_folder())
    with lab.held():
        was_up = bool(lab.nodes)
        try:
            lab.up(1)
            lab.clear()  # of what a run that was killed left
            yield lab, ClusterConfig.model_validate(lab.cluster(1))
        finally:
            lab.heal()
            lab.clear()
            if not was_up:
                lab.off()
