"""Nodes that share the folder of the workload: each rank comes home once, and no log is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.jobs import ClusterFile, benchmark_file, folder_of, run, write_workload
from lab.root_folder import CVS

pytestmark = pytest.mark.lab

WRITES = """#!/bin/sh
for word; do case $word in --node_rank=*) node=${word#*=} ;; esac; done
for rank in $((2 * node)) $((2 * node + 1)); do
    mkdir -p artifacts/torch_profiler/rank$rank
    echo "{}" > artifacts/torch_profiler/rank$rank/x.pt.trace.json
    echo "{}" > artifacts/rank_0${rank}_metrics.jsonl
done
echo "words of $node"
[ $node = 1 ] || sleep 2
ls artifacts/torch_profiler > artifacts/torch_profiler/seen_by_$node.txt
"""


@pytest.mark.parametrize("runtime", ["docker", pytest.param("process", marks=pytest.mark.full)])
def test_each_rank_comes_home_once_and_each_node_has_its_own_logs(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, runtime: str
) -> None:
    folder = lab.shared / "aorta"
    write_workload(folder, WRITES)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, CVS.uid, CVS.uid)
    keys = {"aorta_path": "/shared/aorta"}
    if runtime == "process":
        keys |= {"runtime": "process", "accelerator": "none", "environment": "{}"}
    cluster = cluster_file(env_vars={"TORCH_PYTHON": "/shared/aorta/bin/python"})
    done = run(tmp_path, cluster, benchmark_file(tmp_path, tiny_image, **keys), "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    run_folder = folder_of(tmp_path)
    files = sorted(file.path.replace("artifacts/", "") for file in run_folder.load_manifest().run.files)
    assert files == [
        *(f"node_{rank // 2}/rank_0{rank}_metrics.jsonl" for rank in (0, 1)),
        *("node_0/torch_profiler/rank0/x.pt.trace.json", "node_0/torch_profiler/rank1/x.pt.trace.json"),
        *("node_0/torch_profiler/seen_by_0.txt", "node_0/torch_profiler/seen_by_1.txt"),
        *(f"node_{rank // 2}/rank_0{rank}_metrics.jsonl" for rank in (2, 3)),
        *("node_1/torch_profiler/rank2/x.pt.trace.json", "node_1/torch_profiler/rank3/x.pt.trace.json"),
    ]
    for rank in (0, 1):
        assert run_folder.node_log(rank).read_text() == f"words of {rank}\n"
    assert list((folder / ".cvs").glob("*-*")) == [], "the run's own folder"
