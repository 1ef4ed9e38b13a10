"""The main job on several nodes: over SSH, in containers, with torchrun, and with scripts in its place."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import PACKAGE, Done, report_of, run_cvs
from cvs.run_folder import RunFolder, newest_run_folder
from lab import faults
from lab.cluster import Lab
from lab.faults import WORK, heal
from lab.leftovers import clear
from lab.machine import wait_for
from lab.node import Node
from lab.root_folder import CVS, NO_DOCKER

pytestmark = pytest.mark.lab

AORTA = f"{WORK}/aorta"
ClusterFile = Callable[..., Path]

PYTHON = """#!/bin/sh
echo '{"torch": "none"}'
"""
"""Stands in for the image's Python, which only says what the job is made with."""

INTERPRETER = """#!/bin/sh
case "$*" in *torch.distributed.run*) exec sh $(dirname $0)/torchrun;; esac
exec sh $(dirname $0)/python3
"""
TALKS = """#!/bin/sh
for number in $(seq 40); do echo "[default0]:line $number"; sleep 0.1; done
"""
TRAINS_FOR_EVER = """#!/bin/sh
echo '[default0]:trains'
while :; do sleep 0.2; done
"""
TELLS = """#!/bin/sh
echo "words: $*"
echo "who: $(id)"
echo "gpu: $(head -c 1 /dev/kfd | wc -c) $(ls /dev/dri | tr '\\n' ' ')"
echo "place: $(pwd) $(hostname) seccomp $(grep Seccomp: /proc/self/status | tr -d '\\t')"
echo "variables: $EXTRA $HOW_MANY $PER_NODE"
mkdir -p artifacts/torch_profiler/rank0
echo '{}' > artifacts/torch_profiler/rank0/x.pt.trace.json
"""


def lay_out(nodes: list[Node], torchrun: str) -> None:
    """A workload on each node whose `torchrun` is a script."""
    for node in nodes:
        folder = node.root / AORTA.lstrip("/")
        for name, text in {
            "train.py": "",
            "config/distributed.yaml": "{}",
            "bin/python3": PYTHON,
            "bin/torchrun": torchrun,
        }.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        own(node)


def own(node: Node) -> None:
    for path in (node.root / WORK.lstrip("/"), *(node.root / WORK.lstrip("/")).rglob("*")):
        os.chown(path, CVS.uid, CVS.uid, follow_symlinks=False)


def benchmark_file(folder: Path, image: str, **keys: str) -> Path:
    """A benchmark file for the tiny image; `keys` are further lines, by their first word."""
    lines = {
        "aorta_path": AORTA,
        "base_config": "config/distributed.yaml",
        "gpus_per_node": "2",
        "timeout_seconds": "120",
        "skip_rccl_build": "true",
        "docker": f"{{image: '{image}', pull: never}}",
        "environment": "{PATH: '/mnt/bin:/bin:/usr/bin'}",
        "analysis": "{enable_tracelens: false}",
        "multi_node": "{master_launch_mode: torchrun, grace_seconds: 2}",
        **keys,
    }
    path = folder / "aorta.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


def run(home: Path, cluster: Path, bench: Path, *words: str) -> Done:
    files = (f"--cluster_file={cluster}", f"--config_file={bench}")
    return run_cvs("run", "test_aorta", *files, *words, cwd=home)


def folder_of(home: Path) -> RunFolder:
    return newest_run_folder(home / "cvs_runs", "test_aorta")


# --- the whole job ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "nodes"), [("torchrun", 2), pytest.param("script", 1, marks=pytest.mark.full)]
)
def test_the_main_job(
    lab: Lab, torch_image: str, cluster_file: ClusterFile, tmp_path: Path, launcher: str, nodes: int
) -> None:
    for node in lab.nodes[:nodes]:
        shutil.copytree(PACKAGE / "workloads" / "aorta", node.root / AORTA.lstrip("/"))
        own(node)
    bench = benchmark_file(
        tmp_path,
        torch_image,
        accelerator="none",
        environment="{GLOO_SOCKET_IFNAME: eth0}",
        multi_node=f"{{master_launch_mode: {launcher}}}",
        timeout_seconds="300",
    )
    done = run(tmp_path, cluster_file(nodes), bench)
    assert done.returncode == 0, done.stdout
    assert "verdict: good" in done.stdout
    assert "rank 0 | step 0: loss" in done.stdout
    report = report_of(folder_of(tmp_path).path)
    ranks = report["per_rank_summary"]
    assert isinstance(ranks, list)
    assert [(row["rank"], row["node"], row["quality"]["status"]) for row in ranks] == [
        (rank, rank // 2, "complete") for rank in range(2 * nodes)
    ]
    manifest = folder_of(tmp_path).load_manifest()
    for result in manifest.run.nodes:
        assert {"torch", "python", "kernel", "image"} <= result.facts.keys()
        assert (result.exit_code, result.left_running, result.error) == (0, (), None)
    for node in lab.nodes[:nodes]:
        rooted = node.run("find", AORTA, "-user", "0").stdout
        assert rooted == "", "given back to the login user"


def test_what_the_container_is_like(
    lab4: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    nodes = lab4.nodes[:4]
    lay_out(nodes, TELLS)
    cluster = cluster_file(4, env_vars={"HOW_MANY": "4"})
    text = json.loads(cluster.read_text())
    last = nodes[3].address
    text["node_dict"][last]["env_vars"] = {"PER_NODE": "last"}
    cluster.write_text(json.dumps(text))
    bench = benchmark_file(
        tmp_path, tiny_image, environment="{PATH: '/mnt/bin:/bin:/usr/bin', EXTRA: \"it's $HOME\"}"
    )
    done = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    folder = folder_of(tmp_path)
    for rank, node in enumerate(nodes):
        said = dict(line.split(": ", 1) for line in folder.node_log(rank).read_text().splitlines())
        assert (
            f"--nnodes=4 --node_rank={rank} --nproc_per_node=2 --master_addr={nodes[0].address}"
            in said["words"]
        )
        assert said["who"] == "uid=0(root) gid=0(root) groups=0(root),44(video),105(render)"
        assert said["gpu"].startswith("0 card0 card1 renderD128 renderD129")
        assert said["place"] == f"/mnt {node.name} seccomp Seccomp:0"
        assert said["variables"].split() == ["it's", "$HOME", "4", *(["last"] if rank == 3 else [])]
        assert node.run("stat", "-c", "%U", f"{AORTA}/artifacts/torch_profiler").stdout == "cvs\n"
    assert len({file.path for file in folder.load_manifest().run.files}) == 4


# --- when something goes wrong ----------------------------------------------------------------------------


def test_a_node_that_fails_stops_the_others(
    lab4: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab4.nodes[:4], TRAINS_FOR_EVER)
    lay_out(lab4.nodes[1:2], "#!/bin/sh\necho 'OSError: no such rail' >&2\nexit 3\n")
    done = run(tmp_path, cluster_file(4), benchmark_file(tmp_path, tiny_image))
    assert done.returncode == 1
    failure = folder_of(tmp_path).load_manifest().run.failure
    assert failure is not None
    address = lab4.nodes[1].address
    assert failure.reason.startswith(
        f"{address} (node rank 1) ended first, with exit code 3: OSError: no such rail"
    )
    ends = {node.node_rank: node.exit_code for node in folder_of(tmp_path).load_manifest().run.nodes}
    assert ends == {0: -15, 1: 3, 2: -15, 3: -15}


def test_a_dropped_connection_loses_no_line(
    lab4: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab4.nodes[:4], TALKS)
    with started(tmp_path, cluster_file(4), benchmark_file(tmp_path, tiny_image)) as process:
        for _ in range(3):
            wait_for_line(process, f"{lab4.nodes[0].address} rank 0 | line ")
            faults.drop_sessions(lab4.nodes[0])
            time.sleep(0.5)
        output, _ = process.communicate(timeout=120)
    manifest = folder_of(tmp_path).load_manifest()
    assert manifest.run.status.value == "completed", output
    lines = [f"[default0]:line {number}" for number in range(1, 41)]
    assert folder_of(tmp_path).node_log(0).read_text().splitlines() == lines


def test_ctrl_c_stops_everything(
    lab4: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab4.nodes[:4], TRAINS_FOR_EVER)
    cluster, bench = cluster_file(4), benchmark_file(tmp_path, tiny_image)
    with started(tmp_path, cluster, bench) as process:
        wait_for_line(process, "trains")
        second = run(tmp_path, cluster, bench)
        assert f"in use by run {folder_of(tmp_path).run_id} of " in second.stdout
        assert second.returncode == 1
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "interrupted, and stopped on all nodes" in output
    # That nothing is left on the nodes, the fixture `clean_nodes` looks after.


def test_the_others_go_on_where_a_container_is_killed_and_are_stopped(
    lab4: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab4.nodes[:4], TRAINS_FOR_EVER)
    with started(tmp_path, cluster_file(4), benchmark_file(tmp_path, tiny_image)) as process:
        wait_for_line(process, "trains")
        lab4.nodes[1].run("sh", "-c", "docker kill $(docker ps -q)")
        process.communicate(timeout=120)
    run_result = folder_of(tmp_path).load_manifest().run
    assert {node.node_rank: node.exit_code for node in run_result.nodes} == {0: -15, 1: -9, 2: -15, 3: -15}
    assert run_result.failure is not None
    assert run_result.failure.reason.startswith(
        f"{lab4.nodes[1].address} (node rank 1) lost its launcher to signal 9"
    )


def test_what_a_killed_cvs_left_is_in_the_way_until_it_ends_and_is_then_removed(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], TRAINS_FOR_EVER)
    cluster, bench = cluster_file(), benchmark_file(tmp_path, tiny_image)
    with started(tmp_path, cluster, bench) as process:
        wait_for_line(process, "trains")
        process.kill()
        process.wait()
    killed = folder_of(tmp_path).run_id
    lay_out(lab.nodes[:2], "#!/bin/sh\n")
    refused = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert f"{lab.nodes[1].address}: in use by run {killed} of " in refused.stdout
    for node in lab.nodes[:2]:
        node.run("sh", "-c", "docker kill $(docker ps -q)")  # as their time would
    done = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    for node in lab.nodes[:2]:
        told = f"{node.address}: removed the container, which had ended, of run {killed} of "
        assert f"cvs | {told}" in done.stdout
    assert folder_of(tmp_path).load_manifest().run.status.value == "completed"


def container_of(node: Node, template: str = "{{.Name}}") -> str:
    """What `docker inspect` says of the one container that is there."""
    return node.run("sh", "-c", 'docker inspect -f "$1" $(docker ps -aq)', "sh", template).stdout.strip()


def rooted(node: Node) -> str:
    """What the login user could not write."""
    return node.run("find", AORTA, "-user", "0").stdout


WRITES = TRAINS_FOR_EVER.replace("while", "mkdir -p of/root\nwhile", 1)


@pytest.mark.parametrize("act", ["rename $(docker ps -q) other", "pause $(docker ps -q)"])
def test_a_container_that_others_touch_is_cleared_up_all_the_same(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, act: str
) -> None:
    node = lab.nodes[0]
    lay_out([node], WRITES.replace("echo '[default0]:trains'", "").replace("while", "echo trains\nwhile"))
    with started(tmp_path, cluster_file(1), benchmark_file(tmp_path, tiny_image)) as process:
        wait_for_line(process, "trains")
        node.run("sh", "-c", f"docker {act}")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=90)
    assert "interrupted, and stopped on all nodes" in output
    [result] = folder_of(tmp_path).load_manifest().run.nodes
    assert (result.error, result.left_running) == (None, ())
    assert (node.root / AORTA.lstrip("/") / "of/root").is_dir()
    assert rooted(node) == "", "given back to the login user"


def test_an_engine_that_is_killed_is_told_once_and_the_next_run_clears_up(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], WRITES.replace("while", "echo now\nwhile"))
    cluster, bench = cluster_file(1), benchmark_file(tmp_path, tiny_image)
    with started(tmp_path, cluster, bench) as process:
        wait_for_line(process, "now")
        name = container_of(node).lstrip("/")
        faults.kill_dockerd(node)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    killed = folder_of(tmp_path)
    [result] = killed.load_manifest().run.nodes
    assert result.error is not None
    assert result.error.count("Is the docker daemon running?") == 1
    assert f"its container {name} is left there; the next run there removes it" in result.error
    heal(node)
    assert rooted(node) != ""
    (node.root / AORTA.lstrip("/") / "bin/torchrun").write_text("#!/bin/sh\n")
    done = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert f"removed the container, which had ended, of run {killed.run_id} of " in done.stdout
    assert rooted(node) == ""


# --- what the container is made of ------------------------------------------------------------------------


def test_nothing_of_the_users_own_docker_config_reaches_a_node(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = lab.nodes[0]
    lay_out([node], TRAINS_FOR_EVER)
    proxies = {"default": {"httpProxy": "http://u:SECRETPROXY@p:1", "noProxy": "SECRETPROXY"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with started(tmp_path, cluster_file(1), benchmark_file(tmp_path, tiny_image)) as process:
        wait_for_line(process, "trains")
        assert "cvs.holder" in container_of(node, "{{json .Config}}")
        assert "SECRETPROXY" not in container_of(node, "{{json .}}")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_volumes(lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path) -> None:
    node = lab.nodes[0]
    lay_out(
        [node],
        "#!/bin/sh\ncat /data/words\necho more > /scratch/more\n"
        "touch /data/new 2> /dev/null || echo closed\n",
    )
    for name in ("data", "scratch"):
        (node.root / WORK.lstrip("/") / name).mkdir()
    (node.root / WORK.lstrip("/") / "data/words").write_text("some words\n")
    volumes = f"[{WORK}/data:/data:ro, {WORK}/scratch:/scratch]"
    docker = f"{{image: {tiny_image}, pull: never, volumes: {volumes}}}"
    done = run(tmp_path, cluster_file(1), benchmark_file(tmp_path, "", docker=docker), "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    assert folder_of(tmp_path).node_log(0).read_text() == "some words\nclosed\n"
    assert (node.root / WORK.lstrip("/") / "scratch/more").exists()


def test_one_machine_under_two_names(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], TALKS)
    names = {node.address: {"vpc_ip": node.address}, node.name: {"vpc_ip": lab.nodes[1].address}}
    cluster = cluster_file(1, node_dict=names, ssh_config=str(lab.ssh_config))
    done = run(tmp_path, cluster, benchmark_file(tmp_path, tiny_image), "-k", "run_benchmark")
    told = f"{node.address} and {node.name} are one machine (one Docker engine); name it once in node_dict"
    failure = folder_of(tmp_path).load_manifest().run.failure
    assert failure is not None
    assert failure.reason == f"set-up failed: {told}"
    assert "Traceback" not in done.stdout


@contextmanager
def started(home: Path, cluster: Path, bench: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "cvs.cli", "run", "test_aorta"),
            *(f"--cluster_file={cluster}", f"--config_file={bench}"),
        ],
        cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    assert any(text in line for line in process.stdout), f"no line had {text!r}"


# --- what is told before anything starts ------------------------------------------------------------------


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
@pytest.mark.parametrize("missing", MISSING)
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


# --- plain processes on other machines --------------------------------------------------------------------


def test_plain_processes_over_ssh(lab: Lab, cluster_file: ClusterFile, tmp_path: Path) -> None:
    lay_out(lab.nodes[:2], TALKS)
    python = f"{AORTA}/bin/python"
    for node in lab.nodes[:2]:
        # torchrun is this interpreter's module here; the same script stands in for both.
        path = node.root / python.lstrip("/")
        path.write_text(INTERPRETER)
        path.chmod(0o755)
        own(node)
    bench = benchmark_file(tmp_path, "none", runtime="process", accelerator="none", environment="{}")
    done = run(tmp_path, cluster_file(env_vars={"TORCH_PYTHON": python}), bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    lines = [f"[default0]:line {number}" for number in range(1, 41)]
    for rank in (0, 1):
        assert folder_of(tmp_path).node_log(rank).read_text().splitlines() == lines


# --- images -----------------------------------------------------------------------------------------------

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


@pytest.mark.parametrize("policy", ["missing", "always"])
def test_an_image_is_pulled(registry: Node, cluster_file: ClusterFile, tmp_path: Path, policy: str) -> None:
    lay_out([registry], TALKS)
    bench = benchmark_file(tmp_path, PULLED, docker=f"{{image: '{PULLED}', pull: {policy}}}")
    done = run(tmp_path, cluster_file(1), bench, "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    assert f"{registry.address} | cvs: pulling {PULLED}" in done.stdout
    [result] = folder_of(tmp_path).load_manifest().run.nodes
    assert result.facts["image"].startswith("sha256:")


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


@pytest.mark.parametrize("name", ["docker.io/cvs-lab/tiny", "cvs-lab/tiny:latest", "{id}", "{short}"])
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
        ("sleep", f"programs missing in the image {POOR}: sleep; install coreutils"),
        ("timeout", f"programs missing in the image {POOR}: timeout; install coreutils"),
        ("setsid", f"programs missing in the image {POOR}: setsid; install util-linux"),
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


@pytest.mark.full
def test_a_node_that_is_lost_ends_the_run_and_costs_no_other(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(
        lab.nodes[:2],
        TELLS.replace("#!/bin/sh", "#!/bin/sh\n# tells, then") + "while :; do sleep 0.2; done\n",
    )
    with started(tmp_path, cluster_file(), benchmark_file(tmp_path, tiny_image)) as process:
        wait_for_line(process, "variables: ")
        faults.power_off(lab.nodes[1])
        happened = time.monotonic()
        output, _ = process.communicate(timeout=300)
    assert time.monotonic() - happened < 240
    result = folder_of(tmp_path).load_manifest().run
    assert result.failure is not None
    assert lab.nodes[1].address in result.failure.reason
    assert [file.path for file in result.files] == ["node_0/artifacts/torch_profiler/rank0/x.pt.trace.json"]
    assert "Traceback" not in output
    # Nobody could remove its container: that ended with its power.
    heal(lab.nodes[1])
    clear(lab.nodes[1])
