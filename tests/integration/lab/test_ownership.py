"""Whose a container on a node is: what a run refuses, what it removes, and what `cvs cleanup` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Done, run_cvs
from cvs.config.account import user_name
from cvs.hosts import folded
from cvs.models import Holder, RunResult
from cvs.runtime._owned import EXPIRES, HOLDER, NODE
from lab import faults
from lab.cluster import Lab
from lab.jobs import (
    AORTA,
    INTERPRETER,
    TALKS,
    TRAINS_FOR_EVER,
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
from lab.leftovers import clear
from lab.node import Node
from lab.root_folder import ROOT

pytestmark = pytest.mark.lab

WRITES = TRAINS_FOR_EVER.replace("echo", "mkdir -p of/root\necho", 1)
AHEAD = "#!/bin/sh\necho $(($(/bin/date +%s) + 600))\n"
"""A clock that is ten minutes ahead."""
PAST = "2026-11-30T08:00:00+00:00"
FUTURE = "2226-11-30T08:00:00+00:00"


def containers(node: Node) -> dict[str, str]:
    """State of each, by its name."""
    said = node.run("docker", "ps", "--all", "--format", "{{.Names}} {{.State}}").stdout
    return dict(line.split() for line in said.splitlines())


def put(node: Node, name: str, *options: str, verb: str = "run -d") -> None:
    """A container of somebody's."""
    words = ("--network", "none", "--name", name, *options, "cvs-lab/tiny", "sleep", "600")
    node.run("docker", *verb.split(), *words)


def of_run(run_id: str, user: str = "", expires: str = FUTURE) -> list[str]:
    """Options that make it one of cvs."""
    whose = Holder(run_id=run_id, user=user or user_name(), host="h", since="2026-11-30T08:00:00+00:00")
    labels = {HOLDER: whose.model_dump_json(), NODE: "n", EXPIRES: expires}
    return [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]


def run_of(home: Path) -> RunResult:
    """The newest run below `home`."""
    return folder_of(home).load_manifest().run


def both(lab: Lab) -> str:
    """The first two nodes, as they are called where they say the same."""
    return f"{folded(node.address for node in lab.nodes[:2])} (2 nodes)"


def cleanup(cluster: Path, *words: str) -> Done:
    return run_cvs("cleanup", f"--cluster_file={cluster}", *words, cwd=cluster.parent)


@pytest.fixture
def guests(lab: Lab) -> Iterator[None]:
    """Takes away what tests have put onto the nodes, and cvs has to leave there."""
    yield
    for node in lab.nodes[:2]:
        clear(node)


# --- before a run -----------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("wait", [0, 60])
def test_two_users_on_the_same_nodes_at_the_same_time(
    wait: int, lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], TALKS)
    processes = {}
    for user, login in {"alice": ROOT.name, "bob": "cvs"}.items():
        home = tmp_path / user
        home.mkdir()
        cluster = cluster_file(username=login).rename(home / "cluster.json")
        files = (f"--cluster_file={cluster}", f"--config_file={benchmark_file(home, tiny_image)}")
        processes[user] = subprocess.Popen(
            [
                *(sys.executable, "-m", "cvs.cli", "run", "test_aorta", *files),
                *("-k", "run_benchmark", "--wait", str(wait)),
            ],
            cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, "LOGNAME": user},
        )  # fmt: skip
    said = {user: process.communicate(timeout=140)[0] for user, process in processes.items()}
    good = [user for user, process in processes.items() if process.returncode == 0]
    assert len(good) == (2 if wait else 1), said
    for user in good:
        assert folder_of(tmp_path / user).node_log(1).read_text().count("line") == 40
    first, *others = sorted(good, key=lambda user: run_of(tmp_path / user).started)
    [last] = others or {*processes} - {first}
    assert f": in use by run {run_of(tmp_path / first).run_id} of {first}@" in said[last]
    if wait:
        assert run_of(tmp_path / last).started >= str(run_of(tmp_path / first).ended)
    else:
        assert not list((tmp_path / last / "cvs_runs").glob("*/*")), said[last]


@pytest.mark.usefixtures("guests")
@pytest.mark.parametrize("verb", ["run -d", pytest.param("create", marks=pytest.mark.full)])
def test_a_namesake_that_is_not_of_cvs_is_refused_and_still_there(
    verb: str, lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], TALKS)
    put(lab.nodes[1], "aorta-benchmark", verb=verb)
    before = containers(lab.nodes[1])
    done = run(tmp_path, cluster_file(), benchmark_file(tmp_path, tiny_image), "-k", "run_benchmark")
    assert done.returncode == 1
    told = (
        f"{lab.nodes[1].address}: container aorta-benchmark ({before['aorta-benchmark']}, image {tiny_image}"
    )
    assert told in done.stdout
    assert containers(lab.nodes[1]) == before
    assert containers(lab.nodes[0]) == {}


@pytest.mark.full
@pytest.mark.usefixtures("guests")
def test_who_has_the_gpus_too_is_in_the_report(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], "#!/bin/sh\n")
    put(node, "trains", "--device", "/dev/kfd")
    put(node, "serves")
    done = run(tmp_path, cluster_file(1), benchmark_file(tmp_path, tiny_image), "-k", "run_benchmark")
    assert done.returncode == 0, done.stdout
    warnings = folder_of(tmp_path).load_manifest().run.warnings
    [told] = [warning for warning in warnings if "not alone with the GPUs" in warning]
    assert told.startswith(f"{node.address}: ")
    assert "container trains (running, " in told
    assert "serves" not in told
    assert containers(node) == {"trains": "running", "serves": "running"}


@pytest.mark.full
@pytest.mark.usefixtures("guests")
def test_a_container_that_was_never_started_is_in_use_for_a_while_and_then_removed(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], "#!/bin/sh\n")
    put(node, "x-1", *of_run("earlier"), verb="create")
    cluster, bench = cluster_file(1), benchmark_file(tmp_path, tiny_image)
    refused = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert f"{node.address}: in use by run earlier of " in refused.stdout
    assert containers(node) == {"x-1": "created"}
    (node.root / "opt/node/bin/date").write_text(AHEAD)
    (node.root / "opt/node/bin/date").chmod(0o755)
    done = run(tmp_path, cluster, bench, "-k", "run_benchmark")
    assert (
        f"{node.address}: removed the container, which was never started, of run earlier of " in done.stdout
    )
    assert done.returncode == 0, done.stdout
    assert containers(node) == {}


# --- cvs cleanup ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_what_a_killed_cvs_left_running_goes_by_the_name_of_its_run(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    lay_out(lab.nodes[:2], WRITES)
    cluster, bench = cluster_file(), benchmark_file(tmp_path, tiny_image)
    with started(tmp_path, cluster, bench) as process:
        wait_for_line(process, "trains")
        run_id = folder_of(tmp_path).run_id
        alive = cleanup(cluster, "--run", run_id)
        assert alive.returncode == 1
        container = f"container aorta-benchmark-{run_id} of run {run_id} of "
        assert alive.stdout.startswith(f"{both(lab)}: left {container}")
        assert f"its cvs is alive, process {process.pid} here" in alive.stdout
        process.kill()
        process.wait()
    unnamed = cleanup(cluster)
    assert unnamed.returncode == 0
    assert unnamed.stdout.startswith(f"{both(lab)}: left {container}")
    assert f": in use; if its cvs is gone: cvs cleanup --run {run_id}" in unnamed.stdout
    tried = cleanup(cluster, "--run", run_id, "--dry-run")
    assert tried.returncode == 0
    assert tried.stdout.startswith(f"{both(lab)}: would remove {container}")
    for node in lab.nodes[:2]:
        assert containers(node) == {f"aorta-benchmark-{run_id}": "running"}
        assert "of/root" in rooted(node)
    done = cleanup(cluster, "--run", run_id)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{both(lab)}: removed {container}")
    assert done.stdout.endswith(": its cvs is gone\n")
    for node in lab.nodes[:2]:
        assert rooted(node) == "", "given back to the login user"
    assert cleanup(cluster, "--run", run_id).stdout == f"{both(lab)}: nothing of run {run_id}\n"


@pytest.mark.full
def test_what_has_ended_goes_without_a_name_and_what_root_wrote_is_given_back(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], WRITES)
    cluster, bench = cluster_file(1), benchmark_file(tmp_path, tiny_image)
    with started(tmp_path, cluster, bench) as process:
        wait_for_line(process, "trains")
        process.kill()
        process.wait()
    node.run("sh", "-c", "docker kill $(docker ps -q)")  # as its time would
    assert "of/root" in rooted(node)
    done = cleanup(cluster)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{node.address}: removed container aorta-benchmark-")
    assert done.stdout.endswith(": it had ended\n")
    assert rooted(node) == ""


@pytest.mark.full
@pytest.mark.usefixtures("guests")
def test_what_is_not_ours_stays_whatever_is_asked_for(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    put(node, "aorta-benchmark")
    put(node, "bobs-old", *of_run("bobs", "bob", expires=PAST))
    put(node, "ours-old", *of_run("ours", expires=PAST))
    put(node, "ours-paused", *of_run("paused", expires=PAST))
    node.run("docker", "pause", "ours-paused")
    cluster, bench = cluster_file(1), benchmark_file(tmp_path, tiny_image)
    done = cleanup(cluster, "--config_file", str(bench))
    assert done.returncode == 0
    assert containers(node) == {"aorta-benchmark": "running", "bobs-old": "running"}
    assert "left container aorta-benchmark (running, image cvs-lab/tiny, made " in done.stdout
    assert done.stdout.count("it had outlived its time") == 2
    named = cleanup(cluster, "--run", "bobs")
    assert (named.returncode, named.stdout.count("another user's")) == (1, 1)
    assert containers(node) == {"aorta-benchmark": "running", "bobs-old": "running"}


@pytest.mark.full
def test_a_node_that_cannot_be_reached_costs_no_other(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile
) -> None:
    assert tiny_image
    for node in lab.nodes[:2]:
        put(node, "old", *of_run("old", expires=PAST))
    faults.stop_sshd(lab.nodes[0])
    faults.stop_dockerd(lab.nodes[1])
    cluster = cluster_file()
    none = cleanup(cluster)
    first, second = none.stdout.splitlines()
    assert first.startswith(f"{lab.nodes[0].address}: {lab.nodes[0].address}:22 refuses connections")
    assert second.startswith(
        f"{lab.nodes[1].address}: left whatever containers there are: Docker cannot list"
    )
    assert none.returncode == 1
    faults.heal(lab.nodes[1])
    done = cleanup(cluster)
    assert done.returncode == 1
    assert f"{lab.nodes[1].address}: removed container old of run old of " in done.stdout
    faults.heal(lab.nodes[0])
    assert [json.loads(cleanup(cluster, "--json").stdout)[0]["found"][0]["fate"]] == ["removed"]
    assert cleanup(cluster).stdout == f"{both(lab)}: nothing is left\n"


@pytest.mark.full
@pytest.mark.parametrize("by", ["name", "lock"])
def test_plain_processes_go_by_the_name_of_their_run_or_the_lock_of_their_folder(
    by: str, lab: Lab, cluster_file: ClusterFile, tmp_path: Path
) -> None:
    node = lab.nodes[0]
    lay_out([node], TRAINS_FOR_EVER)
    python = node.root / f"{AORTA}/bin/python".lstrip("/")
    python.write_text(INTERPRETER)
    python.chmod(0o755)
    own(node)
    keys = {"runtime": "process", "accelerator": "none", "environment": "{}"}
    bench = benchmark_file(tmp_path, "none", **keys)
    cluster = cluster_file(1, env_vars={"TORCH_PYTHON": f"{AORTA}/bin/python"})
    with started(tmp_path, cluster, bench) as process:
        wait_for_line(process, "trains")
        run_id = folder_of(tmp_path).run_id
        words = ("--config_file", str(bench), *(("--run", run_id) if by == "name" else ()))
        alive = cleanup(cluster, *words)
        assert f"its cvs is alive, process {process.pid} here; end that first" in alive.stdout
        assert alive.returncode == int(by == "name")
        process.kill()
        process.wait()
    done = cleanup(cluster, *words)
    assert done.stdout.startswith(f"{node.address}: ended processes ")
    assert done.stdout.endswith(": its cvs is gone\n")
    assert done.returncode == 0
    nothing = f"nothing of run {run_id}" if by == "name" else "nothing is left"
    assert cleanup(cluster, *words).stdout == f"{node.address}: {nothing}\n"
