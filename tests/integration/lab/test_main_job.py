"""The main job for real, with PyTorch in containers of the lab's nodes.

By the commands of the README and of the page on how to prepare a cluster, and started by a script.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import PACKAGE, REPOSITORY, Done, report_of
from cvs.run_folder import RunFolder, newest_run_folder
from lab import faults
from lab.cluster import Lab
from lab.jobs import AORTA, TALKS, ClusterFile, benchmark_file, folder_of, lay_out, own, rooted, run
from lab.node import Node
from lab.root_folder import CVS

pytestmark = pytest.mark.lab

README = (REPOSITORY / "README.md").read_text("utf-8")
PAGE = (REPOSITORY / "docs" / "how-to" / "prepare-a-cluster.rst").read_text("utf-8")
SECTION = README.partition("## On a cluster\n")[2].partition("\n## ")[0]
COMMANDS = re.findall(r"^\$ (.*)$", SECTION, re.MULTILINE)
CHECKS = re.findall(r"^   \$ (.venv/bin/cvs exec .*)$", PAGE, re.MULTILINE)

IMAGE = "jeffdaily/pytorch:torchrec-dlrm-complete"
EDITS = {
    "base_config: config/profile_overlap_2gpu.yaml": "base_config: config/distributed.yaml",
    "# gpus_per_node: 8": "gpus_per_node: 2",
    "# accelerator: rocm": "accelerator: none",
    "  OMP_NUM_THREADS: 1\n": "  OMP_NUM_THREADS: 1\n  GLOO_SOCKET_IFNAME: eth0\n",
}
"""What a user writes into the benchmark file of nodes like these, beside the image."""
NOT_HERE = {"docker pull": "the nodes have no way out", "TORCH_PYTHON": "PyTorch is in the image only"}


@pytest.fixture
def checkout(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """A folder that looks like the repository, of a user whose ssh knows the nodes."""
    for name in (".venv", "cvs"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    scp = tmp_path / "bin" / "scp"
    scp.parent.mkdir()
    scp.write_text(f'#!/bin/sh\nPATH=${{PATH#*:}} exec scp -F {lab.ssh_config} "$@"\n')
    scp.chmod(0o755)
    yield tmp_path
    for node in lab.nodes:
        node.run("rm", "-rf", f"/{CVS.home}/aorta")


def call(command: str, checkout: Path, image: str) -> Done:
    """A command as it stands there, but for the names of nodes, user and image."""
    names = {
        "gpu[01-02]": "node[0-1]",
        "gpu01": "node0",
        "gpu02": "node1",
        "{user-id}": CVS.name,
        IMAGE: image,
    }
    for here, there in names.items():
        command = command.replace(here, there)
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=checkout, env={**os.environ, "PATH": path},
        text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done


def edit(checkout: Path, lab: Lab, image: str) -> None:
    """What the README leaves to the user, in the two files."""
    cluster, bench = (
        checkout / "cvs_runs/cluster" / name for name in ("cluster.json", "aorta_benchmark.yaml")
    )
    keys = json.loads(cluster.read_text())
    cluster.write_text(json.dumps({**keys, "ssh_config": str(lab.ssh_config)}))
    text = bench.read_text()
    for old, new in {**EDITS, IMAGE: image}.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    bench.write_text(text)


def test_the_commands_of_the_readme_work_one_after_the_other(
    lab: Lab, torch_image: str, checkout: Path
) -> None:
    generate = next(command for command in COMMANDS if "generate cluster_json" in command)
    said = {}
    for command in COMMANDS:
        said[command] = call(command, checkout, torch_image).stdout
        if command == generate:
            edit(checkout, lab, torch_image)
    assert "node[0-1] (2 nodes): exit 0" in next(
        said[command] for command in said if "docker version" in command
    )
    assert "verdict: good" in said[COMMANDS[-1]]
    assert_good(lab.nodes[:2], newest_run_folder(checkout / "cvs_runs", "test_aorta"))


def assert_good(nodes: list[Node], folder: RunFolder) -> None:
    """The run was good and complete, with two ranks on each node, and has left nothing of root's there."""
    report, manifest = report_of(folder.path), folder.load_manifest()
    count = len(nodes)
    assert report["cluster"] == {"nodes": count, "gpus_per_node": 2, "total_gpus": 2 * count}
    ranks = report["per_rank_summary"]
    assert isinstance(ranks, list)
    assert [(row["rank"], row["node"], row["quality"]["status"]) for row in ranks] == [
        (rank, rank // 2, "complete") for rank in range(2 * count)
    ]
    for result in manifest.run.nodes:
        assert {"torch", "python", "kernel", "image"} <= result.facts.keys()
        assert (result.exit_code, result.left_running, result.error) == (0, (), None)
    for node in nodes:
        assert rooted(node) == "", "given back to the login user"


@pytest.mark.full
def test_the_checks_of_the_page_are_content_with_sound_nodes(
    lab: Lab, torch_image: str, checkout: Path
) -> None:
    call("scp -qr cvs/workloads/aorta gpu01: && scp -qr cvs/workloads/aorta gpu02:", checkout, torch_image)
    cluster = {**lab.cluster(2), "ssh_config": str(lab.ssh_config)}
    cluster["node_dict"] = {node.name: {"vpc_ip": node.address} for node in lab.nodes[:2]}
    del cluster["head_node_dict"]
    (checkout / "mine").mkdir()
    (checkout / "mine/cluster.json").write_text(json.dumps(cluster))
    checks = [check for check in CHECKS if not any(words in check for words in NOT_HERE)]
    assert len(checks) == len(CHECKS) - len(NOT_HERE)
    said = "".join(call(check, checkout, torch_image).stdout for check in checks)
    for words in ("groups=", "API 1.", "sha256:", "kfd", "renderD129", lab.nodes[0].address, "reached"):
        assert words in said
    for words in ("no setsid", "hidepid"):
        assert words not in said


@pytest.mark.full
def test_a_script_starts_the_job(
    lab: Lab, torch_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    shutil.copytree(PACKAGE / "workloads" / "aorta", node.root / AORTA.lstrip("/"))
    own(node)
    bench = benchmark_file(
        tmp_path,
        torch_image,
        accelerator="none",
        environment="{GLOO_SOCKET_IFNAME: eth0}",
        multi_node="{master_launch_mode: script}",
        timeout_seconds="300",
    )
    done = run(tmp_path, cluster_file(1), bench)
    assert done.returncode == 0, done.stdout
    assert "verdict: good" in done.stdout
    assert "rank 0 | step 0: loss" in done.stdout
    assert_good([node], folder_of(tmp_path))


# --- what only a Python in the container can tell ---------------------------------------------------------


def turn_home(lab: Lab) -> None:
    """The second node takes the head's name for its own."""
    lab.nodes[1].run("sh", "-c", "echo 127.0.0.1 head >> /etc/hosts")
    lab.nodes[0].run("sh", "-c", f"echo {lab.nodes[0].address} head >> /etc/hosts")


UNFIT: dict[str, tuple[Callable[[Lab], None], str, str]] = {
    "hosts": (turn_home, "head", "the rendezvous address head is 127.0.0.1 here, this node itself"),
    "firewall": (
        lambda lab: faults.firewall(lab.nodes[0]),
        "",
        "does not reach the head, {head}, at {head} port",
    ),
}


@pytest.mark.parametrize("unfit", ["hosts", pytest.param("firewall", marks=pytest.mark.full)])
def test_nodes_that_would_not_meet_are_told_before_the_job_starts(
    lab: Lab, torch_image: str, cluster_file: ClusterFile, tmp_path: Path, unfit: str
) -> None:
    spoil, address, says = UNFIT[unfit]
    lay_out(lab.nodes[:2], TALKS)
    for node in lab.nodes[:2]:
        (node.root / AORTA.lstrip("/") / "bin/python3").unlink()
    hosts = [(node.root / "etc/hosts").read_text() for node in lab.nodes[:2]]
    spoil(lab)
    many = f"{{master_launch_mode: torchrun, master_addr: {address or lab.nodes[0].address}}}"
    bench = benchmark_file(tmp_path, torch_image, accelerator="none", multi_node=many)
    try:
        done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
    finally:
        for node, text in zip(lab.nodes, hosts, strict=False):
            (node.root / "etc/hosts").write_text(text)
    assert done.returncode == 1
    failure = folder_of(tmp_path).load_manifest().run.failure
    assert failure is not None
    told = f"{lab.nodes[1].address}: {says.format(head=lab.nodes[0].address)}"
    assert told in failure.reason
    assert "[default0]:line" not in done.stdout
