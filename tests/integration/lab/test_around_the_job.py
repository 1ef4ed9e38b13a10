"""What comes before and after the job on a node: cloning the workload, building RCCL, the analyses."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.faults import WORK
from lab.jobs import (
    AORTA,
    INTERPRETER,
    PYTHON,
    ClusterFile,
    benchmark_file,
    folder_of,
    lay_out,
    own,
    rooted,
    run,
    started,
    wait_for_line,
)
from lab.node import Node
from repositories import PASSWORD, USER, Repository, git, served

pytestmark = pytest.mark.lab

ORIGIN = f"{WORK}/origin"
RCCL = f"{AORTA}/rccl"
TRAINS = """#!/bin/sh
mkdir -p out/torch_profiler/rank0
echo '{}' > out/torch_profiler/rank0/x.pt.trace.json
"""
BUILDS = """\
echo "building in $rccl_path for $LD_LIBRARY_PATH"
mkdir -p $rccl_path/build/release
cat /proc/uptime > $rccl_path/build/release/librccl.so
"""
FAILS_ON_NODE1 = "echo one; [ $(hostname) = node0 ] || { echo 'two: no hipcc' >&2; exit 3; }\n"
ANALYSES = """\
mkdir -p "$1/tracelens_analysis/individual_reports"
echo "looked at $(ls "$1/torch_profiler")"
echo xlsx > "$1/tracelens_analysis/individual_reports/perf_rank0.xlsx"
"""


def bring(origin: Repository, node: Node, path: str) -> None:
    """Puts the repository as it is on the node."""
    place = node.root / path.lstrip("/")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(origin.bare, place)
    own(node)


def put(node: Node, name: str, text: str) -> None:
    """A file of the workload on a node."""
    path = node.root / AORTA.lstrip("/") / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    own(node)


def warnings_of(home: Path) -> list[str]:
    """Those of the newest run, but for what is so on this machine."""
    return [text for text in folder_of(home).load_manifest().run.warnings if "/dev/shm" not in text]


# --- the workload -----------------------------------------------------------------------------------------

WORKLOAD = {"train.py": "", "config/distributed.yaml": "{}", "bin/python3": PYTHON, "bin/torchrun": TRAINS}


@pytest.fixture
def nodes(lab: Lab, tmp_path: Path) -> list[Node]:
    """The first two, with a repository of the workload: a commit tagged v1, and a newer one."""
    origin = Repository(tmp_path)
    git(origin.bare, "tag", "v1", origin.commit(WORKLOAD))
    origin.commit({"train.py": "# newer"})
    for node in lab.nodes[:2]:
        bring(origin, node, ORIGIN)
    return lab.nodes[:2]


CLONED = {"aorta_auto_clone": "true", "aorta_clone_url": ORIGIN}


@pytest.mark.full
@pytest.mark.parametrize("runtime", ["docker", pytest.param("process", marks=pytest.mark.full)])
def test_it_is_cloned_at_its_revision_and_stays(
    runtime: str,
    nodes: list[Node],
    tiny_image: str,
    cluster_file: ClusterFile,
    tmp_path: Path,
) -> None:
    for node in nodes:
        put_interpreter(node)
    keys = {} if runtime == "docker" else {"runtime": "process", "accelerator": "none", "environment": "{}"}
    env = {"TORCH_PYTHON": f"{WORK}/python/python"}
    cluster = cluster_file(env_vars=env)
    bench = benchmark_file(tmp_path, tiny_image, **CLONED, aorta_revision="v1", **keys)
    done = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    assert f"{nodes[0].address} | cvs: cloning {ORIGIN}" in done.stdout
    for node, result in zip(nodes, folder_of(tmp_path).load_manifest().run.nodes, strict=True):
        checkout = node.root / AORTA.lstrip("/")
        assert result.facts["aorta_revision"] == git(tmp_path / "origin.git", "rev-parse", "v1")
        assert (checkout / "train.py").read_text() == ""
        assert rooted(node) == ""
        assert node.run("stat", "-c", "%U", AORTA).stdout == "cvs\n"
    again = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert again.returncode == 0, again.stdout
    assert "cloning" not in again.stdout
    other = benchmark_file(tmp_path, tiny_image, **CLONED, aorta_revision="main", **keys)
    refused = run(tmp_path, cluster, other, "-k", "run_benchmark")
    assert refused.returncode == 1
    assert "not at aorta_revision main (" in refused.stdout, refused.stdout
    assert "cvs changes no checkout" in refused.stdout


def put_interpreter(node: Node) -> None:
    """For plain processes: what answers in the place of Python, from outside the workload."""
    folder = node.root / WORK.lstrip("/") / "python"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"python": INTERPRETER, "python3": PYTHON, "torchrun": TRAINS}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    own(node)


@pytest.mark.full
def test_a_clone_that_fails_on_one_node_leaves_nothing_there(
    nodes: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    shutil.rmtree(nodes[1].root / ORIGIN.lstrip("/") / "objects")
    bench = benchmark_file(tmp_path, tiny_image, **CLONED)
    done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
    assert done.returncode == 1
    told = f"{nodes[1].address}: cannot clone {ORIGIN} into aorta_path {AORTA}: fatal: "
    assert told in done.stdout
    left = nodes[1].run("ls", "-A", WORK).stdout.split()
    assert left == ["origin"]


@pytest.mark.full
def test_ctrl_c_ends_a_clone(
    nodes: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    for node in nodes:
        program = node.root / "opt/node/bin/git"
        program.write_text('#!/bin/sh\ncase "$*" in *clone*) sleep 300;; esac\nexec /usr/bin/git "$@"\n')
        program.chmod(0o755)
    url = "https://me:s3cret@127.0.0.1:1/x.git"
    bench = benchmark_file(tmp_path, tiny_image, aorta_auto_clone="true", aorta_clone_url=f"'{url}'")
    with started(tmp_path, cluster_file(), bench) as process:
        wait_for_line(process, "cvs: cloning https://**********@127.0.0.1:1/x.git")
        wait_for_line(process, "cvs: cloning https://**********@127.0.0.1:1/x.git")
        nodes[0].run("sh", "-c", "until pgrep -f '^sleep 30[0]'; do sleep 0.1; done", timeout=20)
        seen = (
            nodes[0].run("sh", "-c", "ps -ef; cat /proc/[0-9]*/environ 2> /dev/null | tr '\\0' '\\n'").stdout
        )
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert "sleep 300" in seen
    manifest = (folder_of(tmp_path).path / "manifest.json").read_text()
    assert "s3cret" not in seen + output + manifest
    for node in nodes:
        assert node.run("ls", "-A", WORK).stdout.split() == ["origin"]


@pytest.mark.full
def test_a_password_is_seen_nowhere(
    rccl_nodes: list[Node],
    origin: Repository,
    lab: Lab,
    tiny_image: str,
    cluster_file: ClusterFile,
    tmp_path: Path,
) -> None:
    """Neither that of the workload nor that of RCCL, on the nodes while git is at work, nor here after it."""
    node, seen = rccl_nodes[0], list[str]()
    everything = "ps -ef; cat /proc/[0-9]*/environ | tr '\\0' '\\n'; docker inspect $(docker ps -q)"
    workload = Repository(tmp_path)
    workload.commit({**WORKLOAD, "scripts/build_rccl.sh": BUILDS})
    shutil.rmtree(node.root / AORTA.lstrip("/"))

    def look() -> None:
        seen.append(node.run("sh", "-c", everything, check=False).stdout)

    with served(tmp_path, look, str(lab.network.subnet[1])) as address:
        there = f"http://{USER}:{PASSWORD}@{address}"
        bench = builds(
            tmp_path, tiny_image,
            aorta_auto_clone="true", aorta_clone_url=f"'{there}/{workload.bare.name}'",
            rccl=f"{{clone_url: '{there}/{origin.bare.name}', branch: main}}",
        )  # fmt: skip
        done = run(tmp_path, cluster_file(1), bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    assert "git-remote-http" in "".join(seen)
    kept = [
        path.read_text(errors="replace") for path in folder_of(tmp_path).path.rglob("*") if path.is_file()
    ]
    assert [text for text in (*seen, *kept, done.stdout) if PASSWORD in text] == []
    assert node.run("grep", "-rl", PASSWORD, WORK, check=False).stdout == ""


# --- RCCL -------------------------------------------------------------------------------------------------

WITH_GIT = [f"{WORK}/rccl:/srv/rccl:ro", "/usr:/usr:ro", "/lib:/lib:ro", "/lib64:/lib64:ro"]
"""The nodes' own git, for an image that has none."""


@pytest.fixture
def origin(tmp_path: Path) -> Repository:
    """A repository of RCCL."""
    repository = Repository(tmp_path, "rccl.git")
    repository.commit({"install.sh": "one"})
    return repository


@pytest.fixture
def rccl_nodes(lab: Lab, origin: Repository) -> list[Node]:
    """The first two nodes, each with that repository and a workload that builds RCCL."""
    nodes = lab.nodes[:2]
    lay_out(nodes, TRAINS)
    for node in nodes:
        put(node, "scripts/build_rccl.sh", BUILDS)
        bring(origin, node, f"{WORK}/rccl")
    return nodes


def builds(tmp_path: Path, image: str, **keys: str) -> Path:
    docker = {"image": image, "pull": "never", "volumes": WITH_GIT}
    given = {
        "skip_rccl_build": "false",
        "docker": json.dumps(docker),
        "rccl": "{clone_url: /srv/rccl, branch: main}",
        "environment": "{PATH: '/mnt/bin:/bin:/usr/bin', LD_LIBRARY_PATH: '/usr/lib/x86_64-linux-gnu'}",
    }
    return benchmark_file(tmp_path, image, **{**given, **keys})


def built(nodes: list[Node]) -> list[str]:
    return [(node.root / RCCL.lstrip("/") / "build/release/librccl.so").read_text() for node in nodes]


@pytest.mark.full
def test_it_is_built_once(
    rccl_nodes: list[Node], origin: Repository, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    nodes, cluster, bench = rccl_nodes, cluster_file(), builds(tmp_path, tiny_image)
    done = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    head, folder = git(origin.bare, "rev-parse", "main"), folder_of(tmp_path)
    assert folder.load_manifest().run.nodes[0].facts["rccl_revision"] == head
    assert f"{nodes[1].address} | building in /mnt/rccl for " in done.stdout
    assert "building in /mnt/rccl for " in (folder.node_logs(1) / "rccl_build.log").read_text()
    assert rooted(nodes[0]) == ""
    first = built(nodes)

    again = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert again.returncode == 0, again.stdout
    assert f"{nodes[0].address} | cvs: RCCL {head[:12]} is built already, in /mnt/rccl" in again.stdout
    assert built(nodes) == first
    assert not (folder_of(tmp_path).node_logs(1) / "rccl_build.log").exists()

    newer = origin.commit({"install.sh": "two"})
    for node in nodes:
        bring(origin, node, f"{WORK}/rccl")
    run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert [one == other for one, other in zip(built(nodes), first, strict=True)] == [False, False]
    revisions = [node.facts["rccl_revision"] for node in folder_of(tmp_path).load_manifest().run.nodes]
    assert revisions == [newer, newer]


@pytest.mark.full
def test_what_is_there_is_used_where_nobody_answers(
    rccl_nodes: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    nodes, cluster, bench = rccl_nodes, cluster_file(), builds(tmp_path, tiny_image)
    assert run(tmp_path, cluster, bench, "-k", "run_benchmark").returncode == 0
    first = built(nodes)
    for node in nodes:
        shutil.rmtree(node.root / f"{WORK}/rccl/objects".lstrip("/"))
    done = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    assert built(nodes) == first
    told, _ = warnings_of(tmp_path)
    assert told.startswith(f"{nodes[0].address}: whether rccl.branch main has moved cannot be seen: fatal: ")
    assert told.endswith(", which is in /mnt/rccl, is used")


@pytest.mark.full
def test_a_build_that_fails_is_told_by_its_last_lines(
    rccl_nodes: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    for node in rccl_nodes:
        put(node, "scripts/build_rccl.sh", FAILS_ON_NODE1 + BUILDS)
    done = run(tmp_path, cluster_file(), builds(tmp_path, tiny_image), "-k", "run_benchmark")
    assert done.returncode == 1
    assert (
        f"{rccl_nodes[1].address}: the build of RCCL (/mnt/scripts/build_rccl.sh) ended with exit code 3:"
        " one / two: no hipcc; log: logs/node_1/rccl_build.log"
    ) in " ".join(done.stdout.split())
    assert (folder_of(tmp_path).path / "logs/node_1/rccl_build.log").read_text().endswith("two: no hipcc\n")


@pytest.mark.full
def test_ctrl_c_ends_a_build(
    rccl_nodes: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    for node in rccl_nodes:
        put(node, "scripts/build_rccl.sh", "echo begun; (sleep 300); echo never")
    with started(tmp_path, cluster_file(), builds(tmp_path, tiny_image)) as process:
        wait_for_line(process, f"{rccl_nodes[0].address} | begun")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 2
    assert all(rooted(node) == "" for node in rccl_nodes)


@pytest.mark.full
def test_an_image_without_git_is_told(
    rccl_nodes: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    docker = json.dumps({"image": tiny_image, "pull": "never"})
    bench = builds(tmp_path, tiny_image, docker=docker)
    done = run(tmp_path, cluster_file(1), bench, "-k", "run_benchmark")
    told = (
        f"{rccl_nodes[0].address}: programs missing in the image {tiny_image}: bash, git; install bash, git,"
    )
    assert f"{told} or set skip_rccl_build: true to use its own RCCL" in done.stdout


# --- the analyses -----------------------------------------------------------------------------------------

BOTH = "{enable_gemm_analysis: true, tracelens_script: t.sh, gemm_script: g.sh}"
WITH_BASH = '#!/bin/sh\nexec sh "$@"\n'


@pytest.fixture
def analysed(lab: Lab) -> list[Node]:
    """A workload on the first two nodes, with an analysis that works and one that does not."""
    nodes = lab.nodes[:2]
    lay_out(nodes, TRAINS)
    for node in nodes:
        put(node, "t.sh", ANALYSES)
        put(node, "g.sh", "echo 'No module named TraceLens' >&2; exit 1\n")
        put(node, "bin/bash", WITH_BASH)
        (node.root / f"{AORTA}/bin/bash".lstrip("/")).chmod(0o755)
    return nodes


@pytest.mark.full
def test_workbooks_come_home_and_a_failed_analysis_is_a_warning(
    analysed: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    bench = benchmark_file(tmp_path, tiny_image, analysis=BOTH)
    done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    folder = folder_of(tmp_path)
    result = folder.load_manifest().run
    assert result.status.value == "completed"
    workbook = "out/tracelens_analysis/individual_reports/perf_rank0.xlsx"
    assert {file.path for file in result.files if file.path.endswith(".xlsx")} == {
        f"node_{rank}/{workbook}" for rank in (0, 1)
    }
    assert warnings_of(tmp_path) == [
        f"{node.address}: analysis gemm ended with exit code 1: No module named TraceLens; log:"
        f" logs/node_{rank}/gemm.log"
        for rank, node in enumerate(analysed)
    ]
    assert (folder.node_logs(0) / "tracelens.log").read_text() == "looked at rank0\n"
    assert all(rooted(node) == "" for node in analysed)

    once = BOTH.replace("}", ", skip_if_exists: true}")
    run(tmp_path, cluster_file(), benchmark_file(tmp_path, tiny_image, analysis=once), "-k", "run_benchmark")
    assert warnings_of(tmp_path) == []


@pytest.mark.full
def test_ctrl_c_ends_an_analysis(
    analysed: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    put(analysed[0], "t.sh", "sleep 300")
    bench = benchmark_file(tmp_path, tiny_image, analysis="{tracelens_script: t.sh}")
    with started(tmp_path, cluster_file(1), bench) as process:
        wait_for_line(process, "what it left is analysed")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=40)
    assert process.returncode == 2
    assert len(folder_of(tmp_path).load_manifest().run.files) == 1


@pytest.mark.full
def test_a_job_that_failed_is_not_analysed(
    analysed: list[Node], tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(analysed[:1], TRAINS + "exit 1\n")
    bench = benchmark_file(tmp_path, tiny_image, analysis="{tracelens_script: t.sh}")
    done = run(tmp_path, cluster_file(1), bench, "-k", "run_benchmark")
    assert done.returncode == 1
    assert "analysed" not in done.stdout
