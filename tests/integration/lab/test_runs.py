"""The main job on several nodes: over SSH, in containers, with torchrun, and with scripts in its place."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from lab import faults
from lab.cluster import Lab
from lab.faults import WORK, heal
from lab.jobs import (
    AORTA,
    INTERPRETER,
    TALKS,
    TELLS,
    TRAINS_FOR_EVER,
    ClusterFile,
    benchmark_file,
    container_of,
    folder_of,
    lay_out,
    own,
    rooted,
    run,
    started,
    wait_for_line,
)
from lab.node import Node

pytestmark = pytest.mark.lab


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


@pytest.mark.full
def test_cvs_on_the_head_itself(lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path) -> None:
    """The head's folder is here, too, by the same path: it gets a link, and nothing is collected by that."""
    nodes = lab.nodes[:2]
    here = nodes[0].root / AORTA.lstrip("/")
    lay_out(nodes, TELLS)
    made = [seen_as(here, node) for node in nodes]
    try:
        bench = benchmark_file(tmp_path, tiny_image, aorta_path=str(here))
        for _ in range(2):
            done = run(tmp_path, cluster_file(), bench, "-k", "run_benchmark")
            assert done.returncode == 0, done.stdout
            folder = folder_of(tmp_path)
            assert (here / "combined_traces").resolve() == folder.traces
            assert [file.path for file in folder.load_manifest().run.files] == [
                f"node_{rank}/artifacts/torch_profiler/rank0/x.pt.trace.json" for rank in (0, 1)
            ]
    finally:
        for node, path in zip(nodes, made, strict=True):
            node.run("rm", "-r", path)


def seen_as(path: Path, node: Node) -> Path:
    """Has the node's workload there, by a path of this machine; what has to be removed there afterwards."""
    ways = [*reversed(path.parents), path]
    made = next(way for way in ways if not (node.root / way.relative_to("/")).exists())
    node.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && ln -s "$2" "$1"', "sh", path, AORTA)
    return made


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


@pytest.mark.full
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


@pytest.mark.full
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


WRITES = TRAINS_FOR_EVER.replace("while", "mkdir -p of/root\nwhile", 1)


@pytest.mark.full
@pytest.mark.parametrize(
    "act", ["rename $(docker ps -q) other", pytest.param("pause $(docker ps -q)", marks=pytest.mark.full)]
)
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
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
