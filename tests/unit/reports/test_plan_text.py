"""The plan for people: it leaves out nothing that the plan holds, and shows no secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from pydantic import ValidationError

from conftest import PLANS, Files
from cvs.config import AortaConfig, ClusterConfig, load_files
from cvs.config.model import HIDDEN
from cvs.launch import LaunchPlan, Site, plan_aorta
from cvs.reports.plan_text import plan_text

SITE = Site(run_id="r-17", master_port=29511, nodes_dir="/srv/nodes", torch_python="/opt/venv/bin/python")


def in_containers() -> LaunchPlan:
    """Two nodes over SSH, with a build of RCCL and Aorta's own analyses."""
    files = (PLANS / "docker_ssh" / "cluster.json", PLANS / "docker_ssh" / "aorta.yaml")
    return plan_aorta(*load_files(*files), SITE)


def plan_of(bench: dict[str, Any], site: Site = SITE, **cluster: Any) -> LaunchPlan:
    """The plan of one node, by default with processes."""
    one = {"username": "alice", "node_dict": {"solo": {"vpc_ip": "127.0.0.1"}}, **cluster}
    job = {"aorta_path": "/srv/aorta", "runtime": "process", **bench}
    return plan_aorta(ClusterConfig.model_validate(one), AortaConfig.model_validate(job), site)


def text_of(plan: LaunchPlan) -> str:
    """The text, with another way to each node."""
    return plan_text(plan, {node.node: f"on a way to {node.node}" for node in plan.nodes})


def lines_of(plan: LaunchPlan) -> list[str]:
    """The text without its columns."""
    return [" ".join(line.split()) for line in text_of(plan).splitlines()]


# --- what stands there ------------------------------------------------------------------------------------


def test_the_job() -> None:
    assert lines_of(in_containers())[:8] == [
        "aorta: 2 nodes x 8 ranks = 16 ranks",
        "mode torchrun; runtime docker; accelerator rocm, 8 per node",
        "rendezvous 192.168.0.2, port 29500, id r-17",
        "limits set-up and run 3600 s, join 120 s, grace 15 s, stall never, shutdown 15 s,"
        " after the first end 30 s, analysis 1800 s,"
        " collection 600 s, teardown 60 s",
        "side by side 64 nodes",
        "collected torch_profiler/** and beside it rank_*_metrics.jsonl, rank*.log, tracelens_analysis/**",
        "kept in the run's folder [here]; an aorta_path that is here, too, gets a link to it:"
        " combined_traces",
        "checked evidence, min_overlap_ratio 0.5",
    ]


def test_a_node_with_a_container() -> None:
    lines = lines_of(in_containers())
    assert [line for line in lines if ": node rank " in line] == [
        "node-b: node rank 0 (head)",
        "node-a: node rank 1",
    ]
    start = lines.index("node-a: node rank 1")
    assert lines[start : lines.index("environment", start)] == [
        "node-a: node rank 1",
        "reached on a way to node-a; files [here]",
        "vpc_ip 192.168.0.1",
        "aorta_path /home/alice/aorta [on the node]",
        "must exist below aorta_path: train.py, config/profile_overlap_2gpu.yaml, scripts/build_rccl.sh,"
        " scripts/tracelens_single_config/run_tracelens_single_config.sh,"
        " scripts/gemm_analysis/run_tracelens_analysis.sh",
        "container aorta-benchmark-…, image jeffdaily/pytorch:torchrec-dlrm-complete, pull missing",
        "mounts /home/alice/aorta [on the node] at /mnt [in the container]",
        "devices /dev/kfd, /dev/dri; groups video, render",
        "settings user root, privileged true, network host, ipc host, shm 17G, SYS_PTRACE,"
        " seccomp=unconfined, memlock unlimited, stack 64 MiB; ends by itself after 7200 s",
        "builds RCCL https://github.com/ROCmSoftwarePlatform/rccl.git develop in /mnt/rccl"
        " [in the container], which is /home/alice/aorta/rccl [on the node]: bash /mnt/scripts/build_rccl.sh",
        "works in /mnt [in the container]",
        "runs torchrun --nnodes=2 --node_rank=1 --nproc_per_node=8 --master_addr=192.168.0.2"
        " --master_port=29500 --rdzv_id=r-17 --rdzv_conf=timeout=120 --max_restarts=0"
        " --log_dir=/mnt/.cvs/r-17/node-a/torchrun --tee=3 --local_ranks_filter=0 /mnt/train.py"
        " --config /mnt/config/profile_overlap_2gpu.yaml"
        " --override training.max_steps=15 profiling.active=6 --enable-rocm-metrics",
        "analyses tracelens: bash /mnt/scripts/tracelens_single_config/run_tracelens_single_config.sh"
        " '/mnt/<output dir of the job>'",
        "analyses gemm: bash /mnt/scripts/gemm_analysis/run_tracelens_analysis.sh"
        " '/mnt/<output dir of the job>'",
    ]


def test_each_variable_has_its_value_and_source() -> None:
    lines = lines_of(in_containers())
    environment = lines[lines.index("environment", lines.index("node-a: node rank 1")) + 1 :]
    for line in (
        "TENSILE_STREAMK_MAX_CUS=192 [cvs]",
        "HTTPS_PROXY=http://proxy:3128 [cluster env_vars]",
        "RCCL_MSCCL_ENABLE=0 [default]",
        "OMP_NUM_THREADS=03 [environment]",
        "NCCL_IB_HCA=mlx5_2 [multi_node.extra_env]",
    ):
        assert line in environment
    assert len(environment) == len(in_containers().nodes[1].environment)


def test_a_local_node(files: Files) -> None:
    plan = plan_aorta(*files.load(), SITE)
    lines = lines_of(plan)
    node = lines[lines.index("node-1: node rank 1") :]
    assert node[1] == "reached on a way to node-1"
    assert node[3].startswith("aorta_path /srv/nodes/node-1/aorta [here], a copy of /")
    assert node[3].endswith("/workloads/aorta [here]")
    assert node[4] == "must exist below aorta_path: train.py, config/distributed.yaml"
    assert node[5] == "works in /srv/nodes/node-1/aorta [here]"
    assert node[6].startswith("runs /opt/venv/bin/python -m torch.distributed.run --nnodes=2 --node_rank=1")
    for absent in ("container", "builds RCCL", "analyses"):
        assert absent not in text_of(plan)


def test_a_script_on_one_node() -> None:
    lines = lines_of(plan_of({"training_overrides": {"a.b": "1"}, "gpus_per_node": 1}))
    assert lines[0] == "aorta: 1 node x 1 rank = 1 rank"
    assert "rendezvous the script's own" in lines
    assert "runs bash /srv/aorta/scripts/rccl_exp.sh /srv/aorta/config/distributed.yaml" in lines
    assert "AORTA_OVERRIDE_ARGS=--override a.b=1 [cvs]" in lines


TORCHRUN = {"master_launch_mode": "torchrun"}


def test_what_only_a_run_knows_is_said() -> None:
    lines = lines_of(plan_of({"multi_node": TORCHRUN}, Site()))
    assert "rendezvous 127.0.0.1, port a free one on the head, id <run id>" in lines


@pytest.mark.parametrize(
    ("bench", "line"),
    [
        (
            {"multi_node": {"collect_traces": False}},
            "collected nothing (multi_node.collect_traces: false)",
        ),
        (
            {"aorta_auto_clone": True, "aorta_clone_url": "https://example.com/aorta.git"},
            "aorta_path /srv/aorta [on the node], cloned from https://example.com/aorta.git if it is not"
            " there",
        ),
        (
            {"multi_node": {"on_node_failure": "exclude", "min_nodes": 1}},
            "unfit nodes are left out, while at least 1 node can be had",
        ),
        ({"aorta_revision": "v1"}, "aorta_path /srv/aorta [on the node], at v1"),
        ({"runtime": "docker", "accelerator": "cuda"}, "devices none, all GPUs; groups none"),
        (
            {"runtime": "docker", "analysis": {"skip_if_exists": True, "tracelens_script": "t.sh"}},
            "analyses tracelens (unless it is there): bash /mnt/t.sh '/mnt/<output dir of the job>'",
        ),
        (
            {"analysis": {"host_tracelens": "check", "host_tracelens_seconds": 60}},
            "TraceLens check, by the Python that runs cvs [here], at most 60 s",
        ),
        (
            {"analysis": {"host_tracelens": "report", "host_tracelens_python": "/t/bin/python"}},
            "TraceLens report, by /t/bin/python [here], at most 1800 s",
        ),
    ],
)
def test_what_few_ask_for(bench: dict[str, Any], line: str) -> None:
    assert line in lines_of(plan_of(bench))


TAR = {"image": "a", "image_tar": "/data/a.tar", "volumes": ["/data/rccl:/opt/rccl:ro", "/data:/opt"]}


@pytest.mark.parametrize(("transport", "side"), [("ssh", "[on the node]"), ("local", "[here]")])
@pytest.mark.parametrize(
    ("build_path", "lies"),
    [
        ("/mnt/x/rccl", "which is /srv/aorta/x/rccl {side}"),
        ("/opt/rccl", "which is /data/rccl {side}"),
        ("/opt/rccl2", "which is /data/rccl2 {side}"),
        ("/elsewhere/rccl", "and gone with it"),
    ],
)
def test_each_path_is_told_with_its_side(transport: str, side: str, build_path: str, lies: str) -> None:
    bench = {"runtime": "docker", "docker": TAR, "rccl": {"build_path": build_path}}
    lines = lines_of(plan_of(bench, transport=transport, ssh_config="/home/a/ssh"))
    files = ", ssh config /home/a/ssh; files [here]" if transport == "ssh" else ""
    assert f"reached on a way to solo{files}" in lines
    assert f"aorta_path /srv/aorta {side}" in lines
    assert f"container aorta-benchmark-…, image a, pull missing, loaded from /data/a.tar {side}" in lines
    assert (
        f"mounts /srv/aorta {side} at /mnt [in the container],"
        f" /data/rccl {side} at /opt/rccl [in the container] (ro), /data {side} at /opt [in the container]"
    ) in lines
    [built] = [line for line in lines if line.startswith("builds RCCL")]
    assert f" in {build_path} [in the container], {lies.format(side=side)}: bash /mnt/scripts" in built
    assert "works in /mnt [in the container]" in lines


def test_plain_processes_work_on_the_node() -> None:
    assert "works in /srv/aorta [on the node]" in lines_of(plan_of({}))


def test_a_command_can_be_pasted_into_a_shell() -> None:
    many = {**TORCHRUN, "extra_train_args": ["two words", "$HOME"]}
    assert text_of(plan_of({"multi_node": many})).count("'two words' '$HOME'\n") == 1


# --- all of it --------------------------------------------------------------------------------------------

Way = tuple[str | int, ...]
TOLD_BY_OTHERS = {
    "run_id": "id of the rendezvous, and in every command",
    "out_dir": "in the command and the environment",
    "torch_python": "first word of the command",
    "connection": "in the words about the way to the node",
}
"""Values that do not stand there by themselves, and where they are told."""


def leaves(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """Every single value of a plan, and the way to it."""
    if isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from leaves(inner, (*way, key))
    elif value is not None:
        yield way, value


def changed(data: Any, way: Way, value: Any) -> Any:
    copy = deepcopy(data)
    inner = copy
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = value
    return copy


def others(value: Any) -> list[Any]:
    """Other values of the same kind; words of all sets that a plan knows, since one of few may be wanted."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [2 * value + 3]
    words = ("script", "torchrun", "docker", "process", "cuda", "rocm", "ssh", "local", "never")
    return [f"{value}X", *(word for word in words if word != value)]


def other_plan(data: Any, way: Way, value: Any) -> LaunchPlan:
    """The plan with another value at `way`, the first that is valid there."""
    for other in others(value):
        try:
            return LaunchPlan.model_validate(changed(data, way, other))
        except ValidationError:
            continue
    raise AssertionError(f"no other value than {value!r} is known for {way}")


@pytest.mark.parametrize("kind", ["containers", "local"])
def test_another_value_is_another_text(kind: str, files: Files) -> None:
    plan = in_containers() if kind == "containers" else plan_aorta(*files.load(), SITE)
    data, text = json.loads(plan.model_dump_json()), text_of(plan)
    ways = {way: value for way, value in leaves(data) if not TOLD_BY_OTHERS.keys() & way and value != HIDDEN}
    assert len(ways) > 80
    assert [way for way, value in ways.items() if text_of(other_plan(data, way, value)) == text] == []


# --- secrets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["script", "torchrun"])
def test_no_secret_is_shown(mode: str) -> None:
    plan = plan_of(
        {
            "training_overrides": {"logging.wandb_api_key": "hidden-1", "steps": "7"},
            "environment": {"HF_TOKEN": "hidden-2", "PROXY": "http://me:hidden-3@proxy"},
            "multi_node": {
                "master_launch_mode": mode,
                "extra_train_args": ["--password=hidden-4", "--api-key=hidden-8"],
            },
            "aorta_auto_clone": True,
            "aorta_clone_url": "https://me:hidden-5@example.com/aorta.git",
        },
        password="hidden-6",
        priv_key_passphrase="hidden-7",
    )
    text = text_of(plan)
    assert "hidden" not in text
    assert f"HF_TOKEN={HIDDEN}" in text
    assert "steps=7" in text
    assert f"cloned from https://{HIDDEN}@example.com/aorta.git if it is not there" in text
