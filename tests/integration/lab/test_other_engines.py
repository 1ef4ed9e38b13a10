"""An engine that gives a job neither the node's network nor its devices is refused, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.engines import ENGINES
from lab.jobs import TALKS, ClusterFile, benchmark_file, doctor, folder_of, lay_out, run

pytestmark = pytest.mark.lab

SAYS = {
    "podman": "the Docker engine there is Podman's, with which cvs is not tested",
    "rootless": "the Docker engine there is rootless, so a job there has neither the node's network nor",
    "remapped": "the Docker engine there maps users, so a job there has neither the node's network nor",
}


SEEN_ELSEWHERE = ("rootless", "remapped")
"""In unit tests, by the words in which an engine says it."""


@pytest.mark.parametrize(
    "engine",
    [pytest.param(name, marks=[pytest.mark.full] if name in SEEN_ELSEWHERE else []) for name in ENGINES],
)
def test_an_engine_of_another_kind_is_refused(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, engine: str
) -> None:
    node = lab.nodes[1]
    lay_out(lab.nodes[:2], TALKS)
    bench = benchmark_file(tmp_path, tiny_image)
    with ENGINES[engine](node):
        told = doctor(cluster_file(), bench)
        done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
    assert told.returncode == 1, told.stdout + told.stderr
    assert f"bad: {node.address}: {SAYS[engine]}" in told.stdout
    assert done.returncode == 1
    failure = folder_of(tmp_path).load_manifest().run.failure
    assert failure is not None
    assert SAYS[engine] in failure.reason
