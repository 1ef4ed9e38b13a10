"""Every key that is accepted has an effect: changing it changes the plan or the verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from conftest import PACKAGE
from cvs.config import AortaConfig, ClusterConfig
from cvs.config.loader import read_aorta, read_cluster
from cvs.kernels import Bucket, KernelClasses
from cvs.launch import plan_aorta
from cvs.models import Aggregates, BenchmarkResult, ParseResult, RunStatus
from cvs.parsers.rank_pattern import rank_names
from cvs.pipeline import parse_options
from cvs.thresholds import check

CLUSTER: dict[str, Any] = {
    "username": "alice",
    "env_vars": {"X": "1"},
    "node_dict": {"a": {"vpc_ip": "10.0.0.1", "env_vars": {"Y": "1"}}, "b": {"vpc_ip": "10.0.0.2"}},
}
AORTA: dict[str, Any] = {
    "aorta_path": "/a",
    "analysis": {"enable_gemm_analysis": True, "host_tracelens": "check"},
}

AORTA_CHANGES: dict[str, Any] = {
    "aorta_path": "/b",
    "aorta_auto_clone": {"aorta_auto_clone": True, "aorta_clone_url": "https://example.com/a.git"},
    "aorta_clone_url": {"aorta_auto_clone": True, "aorta_clone_url": "https://example.com/b.git"},
    "aorta_revision": "v1",
    "container_mount_path": "/workspace",
    "base_config": "config/x.yaml",
    "training_overrides": {"a.b": "1"},
    "build_script": "b.sh",
    "experiment_script": "e.sh",
    "gpus_per_node": 4,
    "timeout_seconds": 60,
    "stall_seconds": 60,
    "accelerator": "cuda",
    "runtime": "process",
    "skip_rccl_build": True,
    "docker.image": "i",
    "docker.container_name": "n",
    "docker.shm_size": "1G",
    "docker.network_mode": "bridge",
    "docker.privileged": False,
    "docker.pull": "always",
    "docker.image_tar": "/i.tar",
    "docker.devices": ["/dev/infiniband"],
    "docker.volumes": ["/data:/data:ro"],
    "docker.group_add": ["rdma"],
    "rccl.clone_url": "u",
    "rccl.branch": "b",
    "rccl.build_path": "/r",
    "environment.NCCL_MAX_NCHANNELS": 3,
    "environment.NCCL_MAX_P2P_NCHANNELS": 3,
    "environment.NCCL_DEBUG": "INFO",
    "environment.TORCH_NCCL_HIGH_PRIORITY": "0",
    "environment.OMP_NUM_THREADS": "2",
    "environment.RCCL_MSCCL_ENABLE": "1",
    "environment.*": {"FURTHER": "1"},
    "analysis.enable_tracelens": False,
    "analysis.enable_gemm_analysis": False,
    "analysis.tracelens_script": "t.sh",
    "analysis.gemm_script": "g.sh",
    "analysis.skip_if_exists": True,
    "analysis.host_tracelens": "off",
    "analysis.host_tracelens_seconds": 60,
    "analysis.host_tracelens_python": "/opt/venv/bin/python",
    "multi_node.master_launch_mode": "script",
    "multi_node.nproc_per_node": 2,
    "multi_node.master_port": 2000,
    "multi_node.master_addr": "h",
    "multi_node.train_script": "t.py",
    "multi_node.extra_torchrun_args": ["--x"],
    "multi_node.extra_train_args": ["--y"],
    "multi_node.join_timeout_seconds": 7,
    "multi_node.grace_seconds": 7,
    "multi_node.extra_env": {"Z": "1"},
    "multi_node.on_node_failure": {"on_node_failure": "exclude", "min_nodes": 1},
    "multi_node.min_nodes": {"on_node_failure": "exclude", "min_nodes": 2},
    "multi_node.collect_traces": False,
    "traces.rank_pattern": r"worker(?P<rank>\d+)",
    "traces.communication_kernels": ["one_shot"],
    "expected_results.max_avg_iteration_ms": 1.0,
    "expected_results.min_compute_ratio": 0.9,
    "expected_results.min_overlap_ratio": 0.9,
    "expected_results.max_time_variance_ratio": 0.01,
}
CLUSTER_CHANGES: dict[str, Any] = {
    "username": "bob",
    "priv_key_file": "/k",
    "password": "p",
    "head_node_dict.mgmt_ip": "b",
    "node_dict": {"a": {"vpc_ip": "10.0.0.1"}},
    "node_dict.*.vpc_ip": "10.0.0.9",
    "node_dict.*.env_vars": {"Y": "2"},
    "env_vars": {"X": "2"},
    "home_mount_dir_name": "mnt",
    "node_dir_name": "nodes",
    "transport": "local",
    "ssh_port": 2222,
    "jump_host": "j",
    "ssh_config": "/c",
    "known_hosts": "/h",
    "host_key_policy": "accept-new",
    "priv_key_passphrase": "p",
    "max_parallel": 3,
}
WITHOUT_EFFECT = {"node_dict.*.bmc_ip": "kept for other suites"}
ONE_NODE = {"experiment_script", "multi_node.master_launch_mode"}
"""Keys of `script` mode, which runs on one node."""


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of a model, those of the models in it and of maps of models included."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        values = get_args(kind)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys_of(kind, f"{prefix}{name}.")
        else:
            yield prefix + name
            if values and isinstance(values[-1], type) and issubclass(values[-1], BaseModel):
                yield from keys_of(values[-1], f"{prefix}{name}.*.")
    if model.__name__ == "Environment":
        yield f"{prefix}*"


def test_no_key_is_forgotten() -> None:
    assert set(keys_of(AortaConfig)) == set(AORTA_CHANGES)
    assert set(keys_of(ClusterConfig)) == {*CLUSTER_CHANGES, *WITHOUT_EFFECT}


def changed(base: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`base` with another value under a dotted key; `*`: the first node, or keys beside the model's."""
    if isinstance(value, dict) and key in value:
        return {**base, **value}
    first, _, rest = key.partition(".")
    if first == "*":
        if not rest:
            return {**base, **value}
        first = next(iter(base))
    return {**base, first: changed(base.get(first, {}), rest, value) if rest else value}


def plan_of(cluster: dict[str, Any], bench: dict[str, Any]) -> str:
    plan = plan_aorta(ClusterConfig.model_validate(cluster), AortaConfig.model_validate(bench))
    return plan.model_dump_json()


@pytest.mark.parametrize("key", [key for key in AORTA_CHANGES if not key.startswith(("expected", "traces"))])
def test_a_key_of_the_benchmark_file_changes_the_plan(key: str) -> None:
    nodes = dict(list(CLUSTER["node_dict"].items())[: 1 if key in ONE_NODE else 2])
    cluster = {**CLUSTER, "node_dict": nodes}
    base = changed(AORTA, "multi_node.master_launch_mode", "torchrun") if key not in ONE_NODE else AORTA
    if key == "multi_node.master_launch_mode":
        base = changed(AORTA, key, "torchrun")
    if key == "aorta_clone_url":
        base = {**base, "aorta_auto_clone": True, "aorta_clone_url": "https://example.com/a.git"}
    assert plan_of(cluster, changed(base, key, AORTA_CHANGES[key])) != plan_of(cluster, base)


def verdict(limits: dict[str, float]) -> list[str]:
    bench = AortaConfig.model_validate({"aorta_path": "/a", "expected_results": limits})
    aggregates = Aggregates(
        avg_iteration_time_us=5000.0, time_variance_ratio=0.5, avg_compute_ratio=0.5, avg_overlap_ratio=0.5
    )
    result = BenchmarkResult(
        benchmark="aorta",
        run_id="r",
        run_status=RunStatus.COMPLETED,
        duration_seconds=1.0,
        num_nodes=1,
        gpus_per_node=1,
        accelerator="none",
        parse=ParseResult(parser="p", basis="cpu", world_size=0, missing_ranks=()),
        aggregates=aggregates,
    )
    return [violation.name for violation in check(result, bench.expected_results)]


@pytest.mark.parametrize("key", [key for key in AORTA_CHANGES if key.startswith("expected")])
def test_a_limit_changes_the_verdict_and_the_plan(key: str) -> None:
    name = key.partition(".")[2]
    assert name in verdict({name: AORTA_CHANGES[key]})
    assert name not in verdict({})
    assert plan_of(CLUSTER, changed(AORTA, key, AORTA_CHANGES[key])) != plan_of(CLUSTER, AORTA)


def read_from_traces(bench: dict[str, Any]) -> tuple[object, Bucket]:
    """What the path of a trace tells of its rank, and where a kernel counts."""
    options = parse_options(AortaConfig.model_validate(bench))
    path = "worker3/trace.json"
    kinds = KernelClasses(options.communication_kernels)
    return rank_names(options.rank_pattern, [path]).place(path), kinds.bucket_of("kernel", "one_shot_reduce")


@pytest.mark.parametrize("key", [key for key in AORTA_CHANGES if key.startswith("traces")])
def test_a_key_for_traces_changes_how_they_are_read(key: str) -> None:
    assert read_from_traces(changed(AORTA, key, AORTA_CHANGES[key])) != read_from_traces(AORTA)


PLACEHOLDERS = {"home_mount_dir_name", "node_dir_name"}


@pytest.mark.parametrize("key", [key for key in CLUSTER_CHANGES if key not in PLACEHOLDERS])
def test_a_key_of_the_cluster_file_changes_the_plan(key: str) -> None:
    base = {**AORTA, "runtime": "process"} if key == "transport" else AORTA
    assert plan_of(changed(CLUSTER, key, CLUSTER_CHANGES[key]), base) != plan_of(CLUSTER, base)


@pytest.mark.parametrize("key", sorted(PLACEHOLDERS))
def test_a_placeholder_changes_what_the_benchmark_file_says(key: str, tmp_path: Path) -> None:
    (tmp_path / "aorta.yaml").write_text('aorta_path: "{home}/{node-dir-name}"\n')
    paths = []
    for cluster in (CLUSTER, changed(CLUSTER, key, CLUSTER_CHANGES[key])):
        (tmp_path / "cluster.json").write_text(json.dumps(cluster))
        config = read_cluster(tmp_path / "cluster.json").config
        paths.append(read_aorta(tmp_path / "aorta.yaml", config).config.aorta_path)
    assert paths[0] != paths[1]


@pytest.mark.parametrize("key", WITHOUT_EFFECT)
def test_the_named_exception_has_none(key: str) -> None:
    assert plan_of(changed(CLUSTER, key, "10.9.9.9"), AORTA) == plan_of(CLUSTER, AORTA)


SAMPLES = {AortaConfig: "config_file/aorta/aorta_benchmark.yaml", ClusterConfig: "cluster_file/cluster.json"}


@pytest.mark.parametrize("model", SAMPLES)
def test_every_key_stands_in_the_commented_sample(model: type[BaseModel]) -> None:
    text = (PACKAGE / "input" / SAMPLES[model]).read_text("utf-8")
    keys = [key for key in keys_of(model) if not key.endswith("*")]
    missing = [key for key in keys if not re.search(rf"\b{key.rpartition('.')[2]}\b", text)]
    assert missing == []
