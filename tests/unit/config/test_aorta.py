"""The benchmark file, key by key: contract section 3."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from cvs.config import AortaConfig, ClusterConfig, ExpectedResults, load_aorta
from cvs.config.aorta import Environment
from cvs.errors import ConfigError

ONE_NODE = ClusterConfig.model_validate({"username": "alice", "node_dict": {"a": {"vpc_ip": "10.0.0.1"}}})
TWO_NODES = ClusterConfig.model_validate(
    {"username": "alice", "node_dict": {"a": {"vpc_ip": "10.0.0.1"}, "b": {"vpc_ip": "10.0.0.2"}}}
)


def load(tmp_path: Path, text: str, cluster: ClusterConfig = TWO_NODES) -> AortaConfig:
    """The benchmark file with a path, and what else is given."""
    file = tmp_path / "aorta.yaml"
    whole = textwrap.dedent(text)
    file.write_text(whole if "aorta_path" in whole else f"aorta_path: /srv/aorta\n{whole}")
    return load_aorta(file, cluster)


def problem(tmp_path: Path, text: str, cluster: ClusterConfig = TWO_NODES) -> str:
    """The one problem of a file that is wrong in one place."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, cluster)
    [line] = caught.value.problems
    assert line.startswith(f"{tmp_path}/aorta.yaml:")
    assert "\n" not in line
    return line


DEFAULTS: dict[str, Any] = {
    "aorta_path": "/srv/aorta",
    "aorta_auto_clone": False,
    "aorta_clone_url": None,
    "aorta_revision": None,
    "container_mount_path": "/mnt",
    "base_config": "config/distributed.yaml",
    "training_overrides": {},
    "build_script": "scripts/build_rccl.sh",
    "experiment_script": "scripts/rccl_exp.sh",
    "gpus_per_node": 8,
    "timeout_seconds": 10800,
    "stall_seconds": None,
    "accelerator": "rocm",
    "runtime": "docker",
    "skip_rccl_build": False,
    "docker": {
        "image": "jeffdaily/pytorch:torchrec-dlrm-complete",
        "container_name": "aorta-benchmark",
        "shm_size": "17G",
        "network_mode": "host",
        "privileged": True,
        "pull": "missing",
        "image_tar": None,
        "devices": [],
        "volumes": [],
        "group_add": [],
    },
    "rccl": {
        "clone_url": "https://github.com/ROCmSoftwarePlatform/rccl.git",
        "branch": "develop",
        "build_path": "/mnt/rccl",
    },
    "environment": {
        "NCCL_MAX_NCHANNELS": 112,
        "NCCL_MAX_P2P_NCHANNELS": 112,
        "NCCL_DEBUG": "VERSION",
        "TORCH_NCCL_HIGH_PRIORITY": "1",
        "OMP_NUM_THREADS": "1",
        "RCCL_MSCCL_ENABLE": "0",
    },
    "analysis": {
        "enable_tracelens": True,
        "enable_gemm_analysis": False,
        "tracelens_script": "scripts/tracelens_single_config/run_tracelens_single_config.sh",
        "gemm_script": "scripts/gemm_analysis/run_tracelens_analysis.sh",
        "skip_if_exists": False,
        "host_tracelens": "off",
        "host_tracelens_seconds": 1800,
        "host_tracelens_python": None,
    },
    "multi_node": {
        "master_launch_mode": "auto",
        "nproc_per_node": None,
        "master_port": None,
        "master_addr": None,
        "train_script": "train.py",
        "extra_torchrun_args": [],
        "extra_train_args": [],
        "join_timeout_seconds": 120,
        "grace_seconds": 15,
        "extra_env": {},
        "on_node_failure": "fail",
        "min_nodes": None,
        "collect_traces": True,
    },
    "traces": {"rank_pattern": None, "communication_kernels": []},
    "expected_results": {
        "max_avg_iteration_ms": None,
        "min_compute_ratio": None,
        "min_overlap_ratio": None,
        "max_time_variance_ratio": None,
    },
}


def test_a_path_is_all_that_is_needed(tmp_path: Path) -> None:
    assert load(tmp_path, "aorta_path: /srv/aorta").resolved() == DEFAULTS


CHANGED: list[tuple[str, str, Any]] = [
    ("aorta_path: '{home}/aorta'", "aorta_path", "/home/alice/aorta"),
    ("aorta_auto_clone: true\naorta_clone_url: https://example.com/a.git", "aorta_auto_clone", True),
    ("aorta_revision: feature/x_1.2", "aorta_revision", "feature/x_1.2"),
    ("aorta_revision: 0012345", "aorta_revision", "0012345"),
    ("aorta_revision: null", "aorta_revision", None),
    ("container_mount_path: /workspace", "container_mount_path", "/workspace"),
    ("base_config: config/profile_overlap_2gpu.yaml", "base_config", "config/profile_overlap_2gpu.yaml"),
    ("training_overrides: {training.max_steps: 15}", "training_overrides", {"training.max_steps": "15"}),
    ("training_overrides: {a.b: true}", "training_overrides", {"a.b": "true"}),
    ("training_overrides: {lr: 1e-4}", "training_overrides", {"lr": "1e-4"}),
    (
        "training_overrides: {seed: 007, '2024-01-31': x}",
        "training_overrides",
        {"seed": "007", "2024-01-31": "x"},
    ),
    ("gpus_per_node: 1", "gpus_per_node", 1),
    ("timeout_seconds: 60", "timeout_seconds", 60),
    ("accelerator: cuda", "accelerator", "cuda"),
    ("accelerator: none", "accelerator", "none"),
    ("runtime: process", "runtime", "process"),
    ("skip_rccl_build: true", "skip_rccl_build", True),
    ("docker: {image: rocm/pytorch:6.2}", "docker.image", "rocm/pytorch:6.2"),
    ("docker: {image: 'off'}", "docker.image", "off"),
    ("docker: {shm_size: 64G}", "docker.shm_size", "64G"),
    ("docker: {privileged: false}", "docker.privileged", False),
    ("rccl: {branch: 2.20}", "rccl.branch", "2.20"),
    ("environment: {NCCL_MAX_NCHANNELS: 1}", "environment.NCCL_MAX_NCHANNELS", 1),
    ("environment: {NCCL_MAX_NCHANNELS: 256}", "environment.NCCL_MAX_NCHANNELS", 256),
    ("environment: {OMP_NUM_THREADS: 03}", "environment.OMP_NUM_THREADS", "03"),
    ("environment: {MY_FLAG: 'on'}", "environment.MY_FLAG", "on"),
    ("environment: {TIME: 1:30:00}", "environment.TIME", "1:30:00"),
    ("analysis: {enable_tracelens: false}", "analysis.enable_tracelens", False),
    ("analysis: {host_tracelens: off}", "analysis.host_tracelens", "off"),
    ("analysis: {host_tracelens: 'check'}", "analysis.host_tracelens", "check"),
    ("analysis: {host_tracelens_seconds: 60}", "analysis.host_tracelens_seconds", 60),
    ("analysis: {host_tracelens_python: '{home}/p'}", "analysis.host_tracelens_python", "/home/alice/p"),
    ("multi_node: {master_launch_mode: torchrun}", "multi_node.master_launch_mode", "torchrun"),
    ("multi_node: {nproc_per_node: 8}", "multi_node.nproc_per_node", 8),
    ("multi_node: {master_port: 1024}", "multi_node.master_port", 1024),
    ("multi_node: {master_port: 65535}", "multi_node.master_port", 65535),
    ("multi_node: {master_port: null}", "multi_node.master_port", None),
    ("multi_node: {master_addr: ~}", "multi_node.master_addr", None),
    (
        "multi_node: {extra_torchrun_args: [--local_ranks_filter=0]}",
        "multi_node.extra_torchrun_args",
        ["--local_ranks_filter=0"],
    ),
    (
        "multi_node: {extra_torchrun_args: [--role=x, -m, --]}",
        "multi_node.extra_torchrun_args",
        ["--role=x", "-m", "--"],
    ),
    ("multi_node: {extra_env: {NCCL_IB_GID_INDEX: 3}}", "multi_node.extra_env", {"NCCL_IB_GID_INDEX": "3"}),
    ("multi_node: {grace_seconds: 0}", "multi_node.grace_seconds", 0),
    (r"traces: {rank_pattern: 'w(?P<rank>\d{1,3})'}", "traces.rank_pattern", r"w(?P<rank>\d{1,3})"),
    ("traces: {rank_pattern: null}", "traces.rank_pattern", None),
    (r"traces: {communication_kernels: [^x\b]}", "traces.communication_kernels", [r"^x\b"]),
    ("expected_results: {max_avg_iteration_ms: 0}", "expected_results.max_avg_iteration_ms", 0.0),
    ("expected_results: {min_overlap_ratio: 0.85}", "expected_results.min_overlap_ratio", 0.85),
    ("expected_results: {min_compute_ratio: 1}", "expected_results.min_compute_ratio", 1.0),
    ("expected_results: {max_time_variance_ratio: null}", "expected_results.max_time_variance_ratio", None),
]


@pytest.mark.parametrize(("text", "key", "value"), CHANGED, ids=[text for text, _, _ in CHANGED])
def test_a_key_that_is_set(tmp_path: Path, text: str, key: str, value: object) -> None:
    found: Any = load(tmp_path, text).resolved()
    for part in key.split(".", 1):
        found = found[part]
    assert found == value


MISTAKES: list[tuple[str, str, str]] = [
    # unknown keys, at every depth
    ("aorta_pth: /x", "aorta_pth", "unknown key (did you mean aorta_path?)"),
    ("gpus: 8", "gpus", "unknown key"),
    ("docker: {imge: x}", "docker.imge", "unknown key (did you mean image?)"),
    ("rccl: {brunch: x}", "rccl.brunch", "unknown key (did you mean branch?)"),
    ("analysis: {enable_tracelense: true}", "analysis.enable_tracelense", "did you mean enable_tracelens?"),
    ("multi_node: {nprocs_per_node: 2}", "multi_node.nprocs_per_node", "did you mean nproc_per_node?"),
    (
        "expected_results: {min_overlap_ration: 0.5}",
        "expected_results.min_overlap_ration",
        "unknown key (did you mean min_overlap_ratio?)",
    ),
    # text
    ("base_config: null", "base_config", "in quotes"),
    ("base_config: [a]", "base_config", "a list is no text"),
    ("base_config: 2024-01-31", "base_config", "in quotes"),
    ("docker: {image: on}", "docker.image", "in quotes"),
    ("docker: {container_name: ~}", "docker.container_name", "in quotes"),
    ("docker: {network_mode: no}", "docker.network_mode", "in quotes"),
    ("environment: {MY_FLAG: on}", "environment.MY_FLAG", "in quotes"),
    ("environment: {NCCL_DEBUG: true}", "environment.NCCL_DEBUG", "in quotes"),
    ("environment: {MY_EMPTY: }", "environment.MY_EMPTY", "in quotes"),
    ("multi_node: {extra_env: {A: off}}", "multi_node.extra_env.A", "in quotes"),
    ("multi_node: {extra_train_args: [yes]}", "multi_node.extra_train_args.0", "in quotes"),
    ("training_overrides: {a.b: off}", "training_overrides.a.b", "in quotes"),
    ("training_overrides: {a.b: 2024-01-31}", "training_overrides.a.b", "in quotes"),
    ("training_overrides: {a.b: [1, 2]}", "training_overrides.a.b", "a list is no text"),
    # whole numbers
    ("gpus_per_node: 0", "gpus_per_node", "at least 1, found `0`"),
    ("gpus_per_node: '8'", "gpus_per_node", "no quotes"),
    ("gpus_per_node: 010", "gpus_per_node", "no whole number"),
    ("gpus_per_node: 8.0", "gpus_per_node", "no whole number"),
    ("gpus_per_node: null", "gpus_per_node", "no whole number"),
    ("timeout_seconds: 59", "timeout_seconds", "at least 60, found `59`"),
    ("timeout_seconds: 3:00:00", "timeout_seconds", "no whole number"),
    ("timeout_seconds: 1e4", "timeout_seconds", "no whole number"),
    ("timeout_seconds: 10_800", "timeout_seconds", "no whole number"),
    ("environment: {NCCL_MAX_NCHANNELS: 0}", "environment.NCCL_MAX_NCHANNELS", "at least 1"),
    ("environment: {NCCL_MAX_NCHANNELS: 257}", "environment.NCCL_MAX_NCHANNELS", "at most 256"),
    ("environment: {NCCL_MAX_P2P_NCHANNELS: 0x70}", "environment.NCCL_MAX_P2P_NCHANNELS", "no whole number"),
    ("multi_node: {master_port: 1023}", "multi_node.master_port", "at least 1024"),
    ("multi_node: {master_port: 65536}", "multi_node.master_port", "at most 65535"),
    ("multi_node: {nproc_per_node: 0}", "multi_node.nproc_per_node", "at least 1"),
    (
        "multi_node: {join_timeout_seconds: 0}",
        "multi_node.join_timeout_seconds",
        "at least 1",
    ),
    ("multi_node: {grace_seconds: -1}", "multi_node.grace_seconds", "at least 0"),
    # limits
    (
        "expected_results: {max_avg_iteration_ms: -1}",
        "expected_results.max_avg_iteration_ms",
        "at least 0",
    ),
    (
        "expected_results: {max_avg_iteration_ms: .inf}",
        "expected_results.max_avg_iteration_ms",
        "no plain number",
    ),
    (
        "expected_results: {min_overlap_ratio: 85}",
        "expected_results.min_overlap_ratio",
        "at most 1",
    ),
    ("expected_results: {min_overlap_ratio: 85%}", "expected_results.min_overlap_ratio", "no plain number"),
    ("expected_results: {min_compute_ratio: .5}", "expected_results.min_compute_ratio", "no plain number"),
    ("expected_results: {min_compute_ratio: '0.5'}", "expected_results.min_compute_ratio", "no quotes"),
    # switches and words
    ("skip_rccl_build: yes", "skip_rccl_build", "neither true nor false"),
    ("skip_rccl_build: 'true'", "skip_rccl_build", "without quotes"),
    ("skip_rccl_build: 1", "skip_rccl_build", "neither true nor false"),
    ("multi_node: {collect_traces: off}", "multi_node.collect_traces", "neither true nor false"),
    ("docker: {privileged: True}", "docker.privileged", "neither true nor false"),
    ("accelerator: amd", "accelerator", "'rocm', 'cuda' or 'none', found `amd`"),
    ("accelerator: null", "accelerator", "'rocm', 'cuda' or 'none'"),
    ("runtime: podman", "runtime", "'docker' or 'process', found `podman`"),
    (
        "multi_node: {master_launch_mode: mpirun}",
        "multi_node.master_launch_mode",
        "'auto', 'script' or 'torchrun'",
    ),
    # of the wrong shape
    ("docker: rocm/pytorch", "docker", "a mapping"),
    ("multi_node: {extra_torchrun_args: --nnodes=2}", "multi_node.extra_torchrun_args", "a list"),
    ("training_overrides: [a=b]", "training_overrides", "a mapping"),
    # that hold only together
    ("aorta_auto_clone: true", "aorta_auto_clone", "needs aorta_clone_url"),
    (
        "multi_node: {on_node_failure: exclude}",
        "multi_node.on_node_failure",
        "exclude needs min_nodes",
    ),
    (
        "multi_node: {min_nodes: 2}",
        "multi_node.min_nodes",
        "has an effect only with on_node_failure: exclude",
    ),
    (
        "gpus_per_node: 4\nmulti_node: {nproc_per_node: 5}",
        "multi_node.nproc_per_node",
        "5 is more than gpus_per_node (4)",
    ),
    # placeholders
    ("aorta_path: '{hoem}/aorta'", "aorta_path", "unknown placeholder {hoem} (known here: {user-id},"),
    ("aorta_path: /home/<changeme>/aorta", "aorta_path", "<changeme> is still there"),
]


@pytest.mark.parametrize(("text", "key", "hint"), MISTAKES, ids=[text for text, _, _ in MISTAKES])
def test_a_mistake_is_told_with_its_key_and_what_is_expected(
    tmp_path: Path, text: str, key: str, hint: str
) -> None:
    line = problem(tmp_path, text)
    assert f" {key}: " in line
    assert hint in line


def test_the_path_is_required(tmp_path: Path) -> None:
    assert "aorta_path: is required and missing" in problem(tmp_path, "# no aorta_path\ngpus_per_node: 2\n")


@pytest.mark.parametrize("path", ["aorta", "./aorta", "~/aorta"])
def test_the_path_is_absolute(tmp_path: Path, path: str) -> None:
    line = problem(tmp_path, f"aorta_path: {path}")
    assert "aorta_path: " in line
    assert "absolute" in line


@pytest.mark.parametrize("word", ["on", "yes", "null", "true", "2024-01-31"])
@pytest.mark.parametrize("where", ["environment", "training_overrides"])
def test_keys_are_taken_as_written_too(tmp_path: Path, where: str, word: str) -> None:
    """YAML would turn such a key into a bool, null or a date."""
    line = problem(tmp_path, f"{where}: {{{word}: x}}")
    assert word in line
    assert "in quotes" in line


@pytest.mark.parametrize("value", ["^lo", "=eth0"])
@pytest.mark.parametrize("where", ["environment: {%s}", "multi_node: {extra_env: {%s}}"])
def test_gloo_takes_one_interface_name(tmp_path: Path, where: str, value: str) -> None:
    line = problem(tmp_path, where % f"GLOO_SOCKET_IFNAME: {value}")
    assert "GLOO_SOCKET_IFNAME" in line
    assert value in line


def test_script_mode_is_for_one_node(tmp_path: Path) -> None:
    text = "multi_node: {master_launch_mode: script}"
    assert load(tmp_path, text, ONE_NODE).multi_node.master_launch_mode == "script"
    line = problem(tmp_path, text, TWO_NODES)
    assert "multi_node.master_launch_mode: " in line
    assert "2" in line


@pytest.mark.parametrize(
    ("key", "argument"),
    [
        ("extra_torchrun_args", "--nnodes=3"),
        ("extra_torchrun_args", "--node-rank=1"),
        ("extra_torchrun_args", "--max_restarts=2"),
        ("extra_torchrun_args", "--rdzv_conf=timeout=5"),
        ("extra_train_args", "--config=other.yaml"),
        ("extra_train_args", "--override"),
    ],
)
def test_an_option_that_cvs_sets_is_not_to_be_repeated(tmp_path: Path, key: str, argument: str) -> None:
    line = problem(tmp_path, f"multi_node: {{{key}: ['{argument}']}}")
    assert f"multi_node.{key}" in line
    assert argument.split("=")[0] in line


def test_what_holds_only_together_is_told_all_at_once(tmp_path: Path) -> None:
    text = "aorta_auto_clone: true\ngpus_per_node: 2\nmulti_node: {nproc_per_node: 3}\nimage: x\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    told = "\n".join(caught.value.problems)
    assert [key for key in ("aorta_clone_url", "nproc_per_node", "image") if key not in told] == []


# --- what the model tells ---------------------------------------------------------------------------------


def aorta(**keys: Any) -> AortaConfig:
    return AortaConfig.model_validate({"aorta_path": "/srv/aorta", **keys})


@pytest.mark.parametrize(
    ("gpus", "nproc", "ranks"), [(8, None, 8), (8, 2, 2), (1, 1, 1)], ids=["all", "some", "one"]
)
def test_ranks_per_node(gpus: int, nproc: int | None, ranks: int) -> None:
    assert aorta(gpus_per_node=gpus, multi_node={"nproc_per_node": nproc}).local_world_size == ranks


def test_the_limits_that_are_set() -> None:
    limits = ExpectedResults(max_time_variance_ratio=0.1, max_avg_iteration_ms=0.0)
    assert limits.limits() == {"max_avg_iteration_ms": 0.0, "max_time_variance_ratio": 0.1}
    assert ExpectedResults().limits() == {}


def test_every_variable_with_its_text() -> None:
    environment = Environment.model_validate({"ZZZ": "z", "NCCL_MAX_NCHANNELS": 64, "AAA": "03"})
    assert list(environment.variables().items()) == [
        ("NCCL_MAX_NCHANNELS", "64"),
        ("NCCL_MAX_P2P_NCHANNELS", "112"),
        ("NCCL_DEBUG", "VERSION"),
        ("TORCH_NCCL_HIGH_PRIORITY", "1"),
        ("OMP_NUM_THREADS", "1"),
        ("RCCL_MSCCL_ENABLE", "0"),
        ("ZZZ", "z"),
        ("AAA", "03"),
    ]


def test_further_variables_are_recorded_and_secret_ones_hidden() -> None:
    bench = aorta(
        environment={"NCCL_IB_HCA": "mlx5", "HF_TOKEN": "s3cret"},
        multi_node={"extra_env": {"WANDB_API_KEY": "s3cret"}},
    )
    told = bench.resolved()
    assert told["environment"]["NCCL_IB_HCA"] == "mlx5"
    assert told["environment"]["HF_TOKEN"] == told["multi_node"]["extra_env"]["WANDB_API_KEY"] == "**********"
    assert "s3cret" not in str(told)


def test_overrides_of_the_call_come_over_those_of_the_file() -> None:
    bench = aorta(training_overrides={"a": "1", "b": "2"})
    assert bench.with_overrides({"b": "3", "c": "4"}).training_overrides == {"a": "1", "b": "3", "c": "4"}
    assert bench.training_overrides == {"a": "1", "b": "2"}
