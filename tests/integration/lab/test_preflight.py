"""What is wrong with a node is found before a job costs anything: by `cvs doctor`, and by every run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cvs.hosts import folded
from lab import faults
from lab.cluster import Lab
from lab.jobs import AORTA, TALKS, ClusterFile, benchmark_file, doctor, folder_of, lay_out, own, run

pytestmark = pytest.mark.lab

IMAGE = "cvs-lab/here"


def other_config(lab: Lab, _keys: dict[str, str]) -> None:
    lab.nodes[1].run("sh", "-c", f"echo 'model: {{}}' > {AORTA}/config/distributed.yaml")


def small_disk(lab: Lab, _keys: dict[str, str]) -> None:
    faults.small_disk(lab.nodes[1])
    lay_out(lab.nodes[1:2], TALKS)


def other_image(lab: Lab, keys: dict[str, str]) -> None:
    """One name, two images."""
    first, second = lab.nodes[:2]
    first.run("docker", "tag", "cvs-lab/tiny", IMAGE)
    change = "docker create --name made $1 && docker commit made $2 && docker rm made"
    second.run("sh", "-c", change, "sh", "cvs-lab/tiny", IMAGE)
    keys["docker"] = f"{{image: {IMAGE}, pull: never}}"


def ask_for(**keys: str) -> Callable[[Lab, dict[str, str]], None]:
    return lambda _lab, asked: asked.update(keys)


UNFIT: dict[str, tuple[Callable[[Lab, dict[str, str]], None], str, str]] = {
    "gpus": (ask_for(gpus_per_node="3"), "gpus", "2 GPUs in /dev/dri, and gpus_per_node is 3"),
    "config": (
        other_config,
        "files",
        "config/distributed.yaml below aorta_path is not what it is on {0}; make them the same",
    ),
    "disk": (small_disk, "disk", "MiB are free at aorta_path"),
    "nccl": (
        ask_for(environment="{PATH: '/mnt/bin:/bin', NCCL_SOCKET_IFNAME: 'ib,^mlx'}"),
        "interfaces",
        "NCCL_SOCKET_IFNAME=ib,^mlx names no interface of this node, which has",
    ),
    "loopback": (
        ask_for(environment="{PATH: '/mnt/bin:/bin', GLOO_SOCKET_IFNAME: lo}"),
        "interfaces",
        "GLOO_SOCKET_IFNAME=lo leaves only the loopback, over which no other node is reached",
    ),
    "image": (other_image, "image", f"image {IMAGE} is "),
    "daemon": (lambda lab, _keys: faults.stop_dockerd(lab.nodes[1]), "docker", "is it running?"),
    "sshd": (
        lambda lab, _keys: faults.stop_sshd(lab.nodes[1]),
        "reach",
        "refuses connections; does sshd run there",
    ),
}


SEEN_ELSEWHERE = ("nccl", "loopback", "daemon", "sshd")
"""In unit tests, or by other tests of nodes."""


@pytest.fixture
def clean_images(lab: Lab) -> Iterator[None]:
    yield
    for node in lab.nodes[:2]:
        node.run("docker", "rmi", "--force", IMAGE, check=False)


@pytest.mark.usefixtures("clean_images")
@pytest.mark.parametrize(
    "unfit",
    [pytest.param(name, marks=[pytest.mark.full] if name in SEEN_ELSEWHERE else []) for name in UNFIT],
)
def test_a_node_that_is_unfit_is_named_with_what_to_do(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, unfit: str
) -> None:
    spoil, check, says = UNFIT[unfit]
    lay_out(lab.nodes[:2], TALKS)
    keys: dict[str, str] = {}
    spoil(lab, keys)
    done = doctor(cluster_file(), benchmark_file(tmp_path, tiny_image, **keys), "--json")
    assert done.returncode == 1, done.stdout + done.stderr
    answer = json.loads(done.stdout)
    first, second = (node.address for node in lab.nodes[:2])
    told = {
        (each["node"], each["check"]): each["text"] for each in answer["findings"] if each["status"] == "bad"
    }
    assert says.format(first) in told[second, check]
    assert not answer["fit"][second]


def test_sound_nodes_are_fit_and_nothing_is_left_there(
    lab4: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab4.nodes[:4], TALKS)
    bench = benchmark_file(tmp_path, tiny_image, gpus_per_node="1")
    done = doctor(cluster_file(4), bench)
    assert done.returncode == 0, done.stdout + done.stderr
    head, *rows = done.stdout.splitlines()
    checks = "reach docker disk gpus files ready image devices write rendezvous port".split()
    assert head.split() == ["node", *checks]
    assert rows[0].split() == [lab4.nodes[0].address, *"ok ok ok warn ok ok ok ok ok ok ok".split()]
    every = folded(node.address for node in lab4.nodes[:4])
    assert f"warning: {every} (4 nodes): 2 GPUs in /dev/dri, and gpus_per_node is 1" in rows
    assert rows[-1] == "4 of 4 nodes fit"


@pytest.mark.full
def test_what_a_run_would_fetch_is_no_fault(lab: Lab, cluster_file: ClusterFile, tmp_path: Path) -> None:
    lay_out(lab.nodes[:2], TALKS)
    bench = benchmark_file(tmp_path, "cvs-lab/none", docker="{image: cvs-lab/none}")
    done = doctor(cluster_file(), bench)
    assert done.returncode == 0, done.stdout + done.stderr
    both = folded(node.address for node in lab.nodes[:2])
    assert f"warning: {both} (2 nodes): no image cvs-lab/none yet; a run fetches it" in done.stdout


def test_a_run_tells_all_that_is_wrong_at_once_and_starts_nothing(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], TALKS)
    faults.stop_sshd(lab.nodes[0])
    other_config(lab, {})
    bench = benchmark_file(tmp_path, tiny_image, gpus_per_node="4")
    done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
    assert done.returncode == 1
    failure = folder_of(tmp_path).load_manifest().run.failure
    assert failure is not None
    for words in ("set-up failed: ", "refuses connections", "2 GPUs in /dev/dri, and gpus_per_node is 4"):
        assert words in failure.reason
    assert "ranks start on" not in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.full
def test_without_preflight_the_job_is_started_all_the_same(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], TALKS)
    own(lab.nodes[1])
    other_config(lab, {})
    bench = benchmark_file(tmp_path, tiny_image)
    done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark", "--no_preflight")
    assert done.returncode == 0, done.stdout
