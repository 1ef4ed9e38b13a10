"""The commands, each as a process of its own: what they print, write and end with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PACKAGE, REPOSITORY, Files
from cvs.config import load_cluster
from cvs.launch import LaunchPlan

PLANS = REPOSITORY / "tests" / "data" / "plans"
BIN = Path(sys.executable).parent


def shell(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with the `cvs` of these tests first in PATH."""
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run(
        argv, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def cvs(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return shell([sys.executable, "-m", "cvs.cli", *words], cwd)


def told(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    assert done.returncode == code, done.stdout + done.stderr
    for text in texts:
        assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == "" or code == 0


# --- check-config -----------------------------------------------------------------------------------------


def test_check_config_shows_every_value_with_its_source(files: Files, tmp_path: Path) -> None:
    done = cvs("check-config", *files.options, cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert f"gpus_per_node = 2  [{files.config_file}:10]" in lines
    assert f"node_dict.node-1.vpc_ip = 127.0.0.1  [{files.cluster_file}:9]" in lines
    assert "ssh_port = null  [default]" in lines
    assert "docker.privileged = true  [default]" in lines


def test_check_config_as_json(files: Files, tmp_path: Path) -> None:
    rows = {
        row["key"]: row
        for row in json.loads(cvs("check-config", *files.options, "--json", cwd=tmp_path).stdout)
    }
    assert rows["timeout_seconds"]["value"] == 300
    assert rows["multi_node.extra_torchrun_args"] == {
        "key": "multi_node.extra_torchrun_args",
        "value": [],
        "source": "default",
    }


def test_check_config_tells_the_mistakes_of_both_files_at_once(files: Files, tmp_path: Path) -> None:
    files.edit("accelerator: none", "accelerator: amd")
    files.cluster_file.write_text('{"username": 3, "node_dict": {"a": {"vpc_ip": "x"}}}')
    done = cvs("check-config", *files.options, cwd=tmp_path)
    told(
        done,
        2,
        f"{files.cluster_file}:1:2: username: `3` is no text",
        f"{files.config_file}:9:1: accelerator: must be",
    )


def test_check_config_wants_both_files(files: Files, tmp_path: Path) -> None:
    told(cvs("check-config", files.options[0], cwd=tmp_path), 2, "--config_file")


# --- copy-config ------------------------------------------------------------------------------------------


def test_copy_config_copies_a_sample_and_its_schema(tmp_path: Path) -> None:
    assert cvs("copy-config", "aorta_local.yaml", "--output", "mine", cwd=tmp_path).returncode == 0
    source = PACKAGE / "input" / "config_file" / "aorta"
    for name in ("aorta_local.yaml", "aorta.schema.json"):
        assert (tmp_path / "mine" / name).read_text() == (source / name).read_text()


def test_copy_config_keeps_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("mine")
    told(
        cvs("copy-config", "cluster.json", cwd=tmp_path),
        2,
        "cluster.json: is there already; --force replaces it",
    )
    assert (tmp_path / "cluster.json").read_text() == "mine"
    assert cvs("copy-config", "cluster.json", "--force", cwd=tmp_path).returncode == 0
    assert "node_dict" in (tmp_path / "cluster.json").read_text()


def test_copy_config_under_another_name(tmp_path: Path) -> None:
    assert (
        cvs("copy-config", "cluster_file/cluster.json", "--output", "rack7.json", cwd=tmp_path).returncode
        == 0
    )
    assert (tmp_path / "rack7.json").is_file()


def test_copy_config_all_is_what_is_listed(tmp_path: Path) -> None:
    listed = cvs("copy-config", "--list", cwd=tmp_path).stdout.split()
    assert cvs("copy-config", "--all", "--output", "in", cwd=tmp_path).returncode == 0
    copied = {path.relative_to(tmp_path / "in").as_posix() for path in (tmp_path / "in").rglob("*.*")}
    assert {name for name in copied if not name.endswith(".schema.json")} == set(listed)
    assert {"config_file/aorta/aorta_benchmark.yaml", "cluster_file/cluster.json"} <= set(listed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cluster.jsn"], "no sample cluster.jsn; did you mean cluster.json?"),
        ([], "name one sample, or say --all"),
        (["cluster.json", "--all"], "name one sample, or say --all"),
    ],
)
def test_copy_config_refuses(words: list[str], message: str, tmp_path: Path) -> None:
    told(cvs("copy-config", *words, cwd=tmp_path), 2, message)


# --- list -------------------------------------------------------------------------------------------------


def test_list(tmp_path: Path) -> None:
    assert cvs("list", cwd=tmp_path).stdout.startswith("test_aorta  Aorta: ")
    cases = [line.split()[0] for line in cvs("list", "test_aorta", cwd=tmp_path).stdout.splitlines()]
    assert cases == [
        "test_validate_runner_config",
        "test_run_benchmark",
        "test_parse_results",
        "test_validate_thresholds",
        "test_generate_report",
    ]
    told(cvs("list", "test_aorte", cwd=tmp_path), 2, "no suite test_aorte; did you mean test_aorta?")


# --- generate ---------------------------------------------------------------------------------------------

GENERATE = ["generate", "cluster_json", "--username", "me", "--output_json_file", "out.json"]


def test_generate_makes_a_file_that_is_accepted(files: Files, tmp_path: Path) -> None:
    hosts = ["--hosts", "a[01-03]-ib,10.0.0.5-7", "--key_file", "~/.ssh/id", "--head_node", "a02-ib"]
    assert cvs(*GENERATE, *hosts, cwd=tmp_path).returncode == 0
    cluster = load_cluster(tmp_path / "out.json")
    assert list(cluster.node_dict) == ["a01-ib", "a02-ib", "a03-ib", "10.0.0.5", "10.0.0.6", "10.0.0.7"]
    assert (cluster.head, cluster.username, cluster.priv_key_file) == ("a02-ib", "me", "~/.ssh/id")
    done = cvs("check-config", "--cluster_file=out.json", files.options[1], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_generate_from_a_file_with_comments(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# rack 7\nn[1-2]  # two\n\nn9 n8\n")
    assert cvs(*GENERATE, "--input_hosts_file", "hosts", cwd=tmp_path).returncode == 0
    assert list(load_cluster(tmp_path / "out.json").node_dict) == ["n1", "n2", "n9", "n8"]


def test_generate_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("edited by hand")
    done = cvs(*GENERATE, "--hosts", "a", cwd=tmp_path)
    assert "the file that was there is now out.json~" in done.stderr
    assert (tmp_path / "out.json~").read_text() == "edited by hand"


def test_generate_prints(tmp_path: Path) -> None:
    done = cvs(*GENERATE[:-1], "-", "--hosts", "a", cwd=tmp_path)
    assert json.loads(done.stdout)["node_dict"] == {"a": {"vpc_ip": "a"}}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts", "a[3-1]"], "the range ends (1) before it begins (3)"),
        (["--hosts", "a[x]"], "[x] is no range"),
        (["--hosts", "a,a"], "a: is named twice"),
        (["--hosts", "a[1"], "a bracket without its partner"),
        (["--hosts", ","], "names no host"),
        (["--hosts", "a b/c"], "'b/c' is no host name"),
        (
            ["--hosts", "a", "--head_node", "b"],
            "mgmt_ip: b is no key of node_dict (did you mean a?)",
        ),
        (["--input_hosts_file", "none"], "none: cannot be read: No such file"),
        (["--hosts", "a", "--input_hosts_file", "x"], "not allowed with"),
        ([], "is required"),
    ],
)
def test_generate_refuses(words: list[str], message: str, tmp_path: Path) -> None:
    told(cvs(*GENERATE, *words, cwd=tmp_path), 2, message)
    assert not list(tmp_path.iterdir())


# --- run --dry-run ----------------------------------------------------------------------------------------

DOCKER = [f"--cluster_file={PLANS}/docker_ssh/cluster.json", f"--config_file={PLANS}/docker_ssh/aorta.yaml"]


def test_dry_run_tells_the_whole_plan_and_touches_nothing(tmp_path: Path) -> None:
    done = cvs("run", "test_aorta", *DOCKER, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in (
        "2 nodes x 8 ranks = 16 ranks",
        "192.168.0.2, port 29500",
        "node-a: node rank 1",
        "by SSH as alice@node-b, port 2222",
        "/home/alice/aorta at /mnt",
        "/dev/kfd, /dev/dri; groups video, render",
        "must exist   train.py, config/profile_overlap_2gpu.yaml, scripts/build_rccl.sh",
        "torchrun --nnodes=2 --node_rank=1 --nproc_per_node=8",
        "grace 15 s",
        "checked      evidence, min_overlap_ratio 0.5",
    ):
        assert text in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["OMP_NUM_THREADS=03", "[environment]"] in lines
    assert ["NCCL_IB_HCA=mlx5_2", "[multi_node.extra_env]"] in lines
    assert "s3cret" not in done.stdout + done.stderr
    assert "transport: ssh can be planned but not started" in done.stderr
    assert not list(tmp_path.iterdir())


def test_dry_run_as_json_is_the_plan(files: Files, tmp_path: Path) -> None:
    overrides = "--training_overrides=training.max_steps=3"
    done = cvs("run", "test_aorta", *files.options, "--dry_run", "--json", overrides, cwd=tmp_path)
    plan = LaunchPlan.model_validate_json(done.stdout)
    assert plan.world_size == 4
    assert plan.head.argv[-2:] == ("--override", "training.max_steps=3")
    assert plan.head.aorta_path == f"{tmp_path}/cvs_runs/test_aorta/nodes/node-0/aorta"


def test_dry_run_tells_every_mistake(files: Files, tmp_path: Path) -> None:
    files.edit("gpus_per_node: 2", "gpus_per_node: two")
    files.edit("runtime: process", "runtime: podman")
    done = cvs("run", "test_aorta", *files.options, "--dry-run", cwd=tmp_path)
    told(
        done,
        2,
        f"{files.config_file}:10:1: gpus_per_node: `two`",
        f"{files.config_file}:8:1: runtime: must be",
    )


def test_dry_run_warns_of_overrides_that_no_script_reads(files: Files, tmp_path: Path) -> None:
    workload = tmp_path / "aorta"
    (workload / "scripts").mkdir(parents=True)
    (workload / "scripts" / "rccl_exp.sh").write_text("torchrun --standalone train.py\n")
    files.edit('"{cvs}/workloads/aorta"', str(workload))
    files.edit("master_launch_mode: torchrun", "master_launch_mode: auto")
    files.cluster_file.write_text(
        '{"username": "me", "transport": "local", "node_dict": {"a": {"vpc_ip": "127.0.0.1"}}}'
    )
    overridden = "--training_overrides=training.max_steps=3"
    done = cvs("run", "test_aorta", *files.options, "--dry-run", overridden, cwd=tmp_path)
    assert done.returncode == 0
    assert "warning: training_overrides have no effect: scripts/rccl_exp.sh does not read" in done.stderr
    assert "multi_node.master_launch_mode: torchrun" in done.stderr
    assert cvs("run", "test_aorta", *files.options, "--dry-run", cwd=tmp_path).stderr == ""


# --- completion, help -------------------------------------------------------------------------------------


def test_completion_in_a_real_bash(tmp_path: Path) -> None:
    words = "COMP_WORDS=(cvs ru); COMP_CWORD=1; _shtab_cvs"
    done = shell(
        ["bash", "-c", f'eval "$(cvs completion bash)"; {words}; echo "${{COMPREPLY[@]}}"'], tmp_path
    )
    assert done.stdout.split() == ["run"], done.stderr


@pytest.mark.parametrize("name", ["zsh", "tcsh"])
def test_completion_for_other_shells(name: str, tmp_path: Path) -> None:
    assert "check-config" in cvs("completion", name, cwd=tmp_path).stdout


COMMANDS = [
    "run",
    "list",
    "check-config",
    "copy-config",
    "generate",
    "generate cluster_json",
    "schema",
    "completion",
]
STARTS_A_JOB = "  cvs run test_aorta --cluster_file local_cluster.json --config_file aorta_local.yaml"
"""Not run here but, as the README's command, in the integration tests."""


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_help_work(command: str, tmp_path: Path) -> None:
    shown = cvs(*command.split(), "--help", cwd=tmp_path).stdout
    example = shown.partition("\nexample")[2].splitlines()[1:]
    lines = [line for line in example if line.strip() and line != STARTS_A_JOB]
    assert lines
    done = shell(["bash", "-ec", "\n".join(lines)], tmp_path)
    assert done.returncode == 0, done.stderr
