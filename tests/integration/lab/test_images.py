"""Images: pulled, loaded, found by their names, and what they must have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.faults import WORK
from lab.jobs import TALKS, ClusterFile, benchmark_file, folder_of, lay_out, own, run
from lab.machine import wait_for
from lab.node import Node

pytestmark = pytest.mark.lab

REGISTRY = f"""\
version: 0.1
storage: {{filesystem: {{rootdirectory: {WORK}/registry}}}}
http: {{addr: 127.0.0.1:5000}}
"""
PULLED = "localhost:5000/tiny"


@pytest.fixture
def registry(lab: Lab, tiny_image: str) -> Iterator[Node]:
    """A node with a registry of its own, which has the image `tiny` under another name."""
    node = lab.nodes[0]
    config = node.root / WORK.lstrip("/") / "registry.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(REGISTRY)
    node.run("sh", "-c", f"setsid docker-registry serve {WORK}/registry.yaml > {WORK}/log 2>&1 &")
    try:
        wait_for(
            "the registry",
            lambda: node.run("docker", "pull", PULLED, check=False).stderr.find("refused") < 0,
            20,
        )
        for words in (("tag", tiny_image, PULLED), ("push", PULLED), ("rmi", PULLED)):
            node.run("docker", *words)
        yield node
    finally:
        node.run("pkill", "docker-registry")
        node.run("docker", "rmi", "--force", PULLED, check=False)


@pytest.mark.parametrize("policy", ["missing", pytest.param("always", marks=pytest.mark.full)])
def test_an_image_is_pulled(registry: Node, cluster_file: ClusterFile, tmp_path: Path, policy: str) -> None:
    lay_out([registry], TALKS)
    bench = benchmark_file(tmp_path, PULLED, docker=f"{{image: '{PULLED}', pull: {policy}}}")
    done = run(tmp_path, cluster_file(1), bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    assert f"{registry.address} | cvs: pulling {PULLED}" in done.stdout
    [result] = folder_of(tmp_path).load_manifest().run.nodes
    assert result.facts["image"].startswith("sha256:")


@pytest.mark.full
def test_an_image_is_loaded_from_a_file_on_the_node(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], TALKS)
    node.run("docker", "tag", tiny_image, "from/tar")
    node.run("docker", "save", "--output", f"{WORK}/image.tar", "from/tar")
    node.run("docker", "rmi", "from/tar")
    docker = f"{{image: from/tar, image_tar: {WORK}/image.tar}}"
    try:
        own(node)
        done = run(
            tmp_path, cluster_file(1), benchmark_file(tmp_path, "", docker=docker), "-k", "run_benchmark"
        )
        assert done.returncode == 0, done.stdout
        assert f"{node.address} | cvs: loading {WORK}/image.tar" in done.stdout
    finally:
        node.run("docker", "rmi", "--force", "from/tar", check=False)


@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [
        "docker.io/cvs-lab/tiny",
        "{short}",
        pytest.param("cvs-lab/tiny:latest", marks=pytest.mark.full),
        pytest.param("{id}", marks=pytest.mark.full),
    ],
)
def test_an_image_is_found_by_any_of_its_names(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, name: str
) -> None:
    node = lab.nodes[0]
    lay_out([node], TALKS)
    whole = node.run("docker", "image", "inspect", "-f", "{{.Id}}", tiny_image).stdout.strip()
    image = name.format(id=whole, short=whole.removeprefix("sha256:")[:12])
    done = run(tmp_path, cluster_file(1), benchmark_file(tmp_path, image), "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    [result] = folder_of(tmp_path).load_manifest().run.nodes
    assert result.facts["image"] == whole


@pytest.mark.full
def test_an_image_with_another_tag_is_another(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], TALKS)
    node.run("docker", "tag", tiny_image, "only/tag:v2")
    try:
        bench = benchmark_file(tmp_path, "only/tag")
        done = run(tmp_path, cluster_file(1), bench, "-k", "run_benchmark")
    finally:
        node.run("docker", "rmi", "only/tag:v2")
    assert f"{node.address}: no image only/tag, and docker.pull is never" in done.stdout


POOR = "cvs-lab/poor"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param(
            "sleep", f"programs missing in the image {POOR}: sleep; install coreutils", marks=pytest.mark.full
        ),
        ("timeout", f"programs missing in the image {POOR}: timeout; install coreutils"),
        pytest.param(
            "setsid",
            f"programs missing in the image {POOR}: setsid; install util-linux",
            marks=pytest.mark.full,
        ),
        ("sh", f"the image {POOR} has no sh that runs: "),
    ],
)
def test_a_program_that_an_image_lacks_is_named(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, program: str, says: str
) -> None:
    node = lab.nodes[0]
    lay_out([node], TALKS)
    node.run(
        *("sh", "-c", "docker create --name poor $1 && docker export poor > poor.tar && docker rm poor"),
        *("sh", tiny_image),
    )
    node.run("tar", "--delete", "--file", "poor.tar", f"bin/{program}")
    node.run("docker", "import", "--change", "ENV PATH=/bin", "poor.tar", POOR)
    node.run("rm", "poor.tar")
    try:
        done = run(tmp_path, cluster_file(1), benchmark_file(tmp_path, POOR), "-k", "run_benchmark")
    finally:
        node.run("docker", "rmi", "--force", POOR)
    failure = folder_of(tmp_path).load_manifest().run.failure
    assert failure is not None
    assert failure.reason.startswith(f"set-up failed: {node.address}: {says}")
    assert done.stdout.count(f"{node.address}: ") >= 1
    assert "; Docker" not in failure.reason, "nothing but the cause"
