"""Nodes for the tests of this folder, and the check that no test leaves anything on them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab, lab_folder
from lab.machine import LabError

_SETTLES = 5
"""Seconds in which what has just been ended is gone."""


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A lab of at least two sound nodes that have the image `tiny`.

    It is put to rest after the session, unless it was up before; disks and images stay in its folder.
    """
    lab = _lab()
    try:
        with lab.held():
            yield from _brought_up(lab)
    except LabError as error:
        raise pytest.fail.Exception(f"no lab: {error}", pytrace=False) from None


def _lab() -> Lab:
    """This worker's own, where tests run side by side; images are made once for all."""
    folder, worker = lab_folder(), os.environ.get("PYTEST_XDIST_WORKER")
    return Lab(folder.with_name(f"{folder.name}-{worker}"), folder / "images") if worker else Lab(folder)


def _brought_up(lab: Lab) -> Iterator[Lab]:
    was_up = bool(lab.nodes)
    try:
        lab.up(2)
        lab.load("tiny")
        lab.clear()
        yield lab
    finally:
        if not was_up:
            lab.off()


@pytest.fixture(scope="session")
def lab4(lab: Lab) -> Lab:
    """The same lab, with at least four nodes that have the image `tiny`."""
    lab.up(4)
    lab.load("tiny")
    return lab


@pytest.fixture(scope="session")
def tiny_image(lab: Lab) -> str:
    """Tag of an image of busybox, which all nodes have."""
    return lab.load("tiny")


@pytest.fixture(scope="session")
def torch_image(lab: Lab) -> str:
    """Tag of an image with Python and PyTorch for the CPU, which the first two nodes have.

    It is made once; each node takes some 15 s and 1 GB to load it, once.
    """
    return lab.load("torch", 2)


@pytest.fixture(autouse=True)
def clean_nodes(lab: Lab) -> Iterator[None]:
    """Heals the nodes; fails a test that left a container, process or file, but for the tests' own ground."""
    yield
    lab.heal()
    left = _left_on(lab)
    lab.clear()
    if left:
        pytest.fail("\n".join(["left on the nodes:", *left]), pytrace=False)


def _left_on(lab: Lab) -> list[str]:
    end = time.monotonic() + _SETTLES
    while (left := lab.leftovers()) and time.monotonic() < end:
        time.sleep(0.2)
    return left


@pytest.fixture
def cluster_file(lab: Lab, tmp_path: Path) -> Callable[..., Path]:
    """Writes the cluster file of the first nodes, with these keys besides or instead."""

    def write(nodes: int = 2, **keys: object) -> Path:
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps({**lab.cluster(nodes), **keys}, indent=2))
        return path

    return write
