"""A job that may do without some of its nodes goes on without those that are unfit, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import report_of
from cvs.run_folder import RunFolder
from lab import faults
from lab.cluster import Lab
from lab.jobs import AORTA, TELLS, ClusterFile, benchmark_file, folder_of, lay_out, run

pytestmark = pytest.mark.lab


def exclude(least: int, **keys: str) -> str:
    words = {"master_launch_mode": "torchrun", "grace_seconds": "2", "on_node_failure": "exclude", **keys}
    return "{" + ", ".join(f"{key}: {value}" for key, value in words.items()) + f", min_nodes: {least}}}"


def words_of(folder: RunFolder, node_rank: int) -> str:
    """What the launcher of a node was given."""
    lines = folder.node_log(node_rank).read_text().splitlines()
    return next(line for line in lines if line.startswith("words: "))


@pytest.mark.full
def test_ranks_and_world_are_those_of_the_nodes_that_are_left(
    lab4: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    nodes = lab4.nodes[:4]
    lay_out(nodes, TELLS)
    faults.stop_sshd(nodes[0])
    nodes[2].run("rm", f"{AORTA}/train.py")
    bench = benchmark_file(tmp_path, tiny_image, multi_node=exclude(2))
    done = run(tmp_path, cluster_file(4), bench)
    folder = folder_of(tmp_path)
    result = folder.load_manifest().run
    assert result.status.value == "completed", done.stdout
    assert list(result.excluded) == [nodes[0].address, nodes[2].address]
    assert "refuses connections" in result.excluded[nodes[0].address]
    assert "train.py: not found below aorta_path" in result.excluded[nodes[2].address]
    assert [node.node for node in result.nodes] == [nodes[1].address, nodes[3].address]
    for rank in (0, 1):
        assert f"--nnodes=2 --node_rank={rank} " in words_of(folder, rank)
        assert f"--master_addr={nodes[1].address} " in words_of(folder, rank)
    assert {file.node_rank for file in result.files} == {0, 1}
    assert f"going on without {nodes[0].address}: " in done.stdout
    assert f", without {nodes[0].address}, {nodes[2].address}" in done.stdout
    report = report_of(folder.path)
    assert (report["cluster"], report["excluded"]) == (
        {"nodes": 2, "gpus_per_node": 2, "total_gpus": 4},
        result.excluded,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("least", "keys", "says"),
    [
        (2, {}, "; 1 nodes are left, and min_nodes is 2"),
        (1, {"master_addr": "head"}, "; the head, which multi_node.master_addr names, is not left out"),
    ],
)
def test_without_enough_nodes_or_the_named_head_the_run_fails(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path,
    least: int, keys: dict[str, str], says: str,
) -> None:  # fmt: skip
    lay_out(lab.nodes[:2], TELLS)
    faults.stop_sshd(lab.nodes[0])
    bench = benchmark_file(tmp_path, tiny_image, multi_node=exclude(least, **keys))
    done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
    assert done.returncode == 1
    failure = folder_of(tmp_path).load_manifest().run.failure
    assert failure is not None
    assert says in failure.reason
    assert "ranks start on" not in done.stdout


@pytest.mark.full
def test_a_container_on_a_node_that_is_left_out_is_gone(
    lab: Lab, cluster_file: ClusterFile, tiny_image: str, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], TELLS)
    # Seen in the container only, after it was started.
    (lab.nodes[1].root / AORTA.lstrip("/") / "bin/python3").write_text("#!/bin/sh\nexit 3\n")
    bench = benchmark_file(tmp_path, tiny_image, multi_node=exclude(1))
    done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
    result = folder_of(tmp_path).load_manifest().run
    assert result.status.value == "completed", done.stdout
    assert list(result.excluded) == [lab.nodes[1].address]
    assert lab.nodes[1].run("docker", "ps", "-aq").stdout == ""
    assert lab.nodes[1].run("find", AORTA, "-user", "0", "-o", "-path", "*/.cvs/*").stdout == ""
