"""What is missing on a node is told before anything starts there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab import faults
from lab.cluster import Lab
from lab.faults import WORK
from lab.jobs import AORTA, TALKS, ClusterFile, benchmark_file, lay_out, run
from lab.root_folder import NO_DOCKER

pytestmark = pytest.mark.lab

Spoil = Callable[[Lab, dict[str, str]], object]


def stop_docker(lab: Lab, _keys: dict[str, str]) -> None:
    faults.stop_dockerd(lab.nodes[1])


def remove_script(lab: Lab, _keys: dict[str, str]) -> None:
    lab.nodes[1].run("rm", f"{AORTA}/train.py")


def ask_for(**keys: str) -> Spoil:
    return lambda _lab, asked: asked.update(keys)


def close_folder(lab: Lab, _keys: dict[str, str]) -> None:
    lab.nodes[1].run("sh", "-c", f"chown root {WORK} && chmod 700 {WORK}")


def hide(*programs: str) -> Spoil:
    """Puts what cannot be executed in the place of programs, until the test is over."""

    def spoil(lab: Lab, _keys: dict[str, str]) -> None:
        for program in programs:
            lab.nodes[1].run("mount", "--bind", "/dev/null", f"/usr/bin/{program}")

    return spoil


def docker_with(**keys: object) -> Spoil:
    docker = {"image": "cvs-lab/tiny", "pull": "never", **keys}
    return ask_for(docker=json.dumps(docker))


NO_IMAGE = "cvs-lab/none"
MISSING: dict[str, tuple[Spoil, str]] = {
    "daemon": (stop_docker, "is it running? (systemctl status docker)"),
    "image": (
        ask_for(docker=f"{{image: '{NO_IMAGE}', pull: never}}"),
        f"no image {NO_IMAGE}, and docker.pull is never",
    ),
    "registry": (ask_for(docker=f"{{image: '{NO_IMAGE}'}}"), f"cannot pull {NO_IMAGE}"),
    "workload": (ask_for(aorta_path=f"{WORK}/none"), f"aorta_path {WORK}/none: no such folder on the node"),
    "script": (remove_script, f"train.py: not found below aorta_path {AORTA}"),
    "right": (
        close_folder,
        f"aorta_path {AORTA}: permission denied: it, or a folder above it, is closed to the user of cvs",
    ),
    "programs": (
        hide("timeout", "xargs"),
        "programs missing on the node: timeout, xargs; install coreutils, findutils",
    ),
    "volume": (
        docker_with(volumes=["/nope/x:/y"]),
        "docker.volumes: /nope/x: no such file or folder on the node",
    ),
    "network": (docker_with(network_mode="nonet"), "Docker cannot start container "),
}


@pytest.fixture
def found_again(lab: Lab) -> Iterator[None]:
    """Shows what a test has hidden."""
    yield
    node = lab.nodes[1]
    hidden = [line.split()[4] for line in node.run("cat", "/proc/self/mountinfo").stdout.splitlines()]
    for path in hidden:
        if path.startswith("/usr/bin/"):
            node.run("umount", path)


@pytest.mark.usefixtures("found_again")
@pytest.mark.parametrize(
    "missing",
    [
        pytest.param(name, marks=[] if name in ("image", "script", "programs") else [pytest.mark.full])
        for name in MISSING
    ],
)
def test_what_is_missing_on_a_node_is_named(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, missing: str
) -> None:
    spoil, says = MISSING[missing]
    lay_out(lab.nodes[:2], TALKS)
    keys: dict[str, str] = {}
    spoil(lab, keys)
    done = run(tmp_path, cluster_file(), benchmark_file(tmp_path, tiny_image, **keys), "-k", "run_benchmark")
    assert done.returncode == 1
    assert says in done.stdout
    assert f"{lab.nodes[1].address}: " in done.stdout
    assert "Traceback" not in done.stdout
    assert "restart its container" not in done.stdout
    assert not (lab.nodes[1].root / "nope").exists(), "nothing is made there for what is missing"


def test_a_user_without_rights_for_docker_is_told_how_to_get_them(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], TALKS)
    bench = benchmark_file(tmp_path, tiny_image, aorta_path="/shared")
    done = run(tmp_path, cluster_file(username=NO_DOCKER.name), bench, "-k", "run_benchmark")
    assert done.returncode == 1
    for node in lab.nodes[:2]:
        assert (
            f"{node.address}: Docker cannot list containers: the login user may not use it;"
            " an administrator can: sudo usermod -aG docker USER" in done.stdout
        )
