"""`cvs doctor`: what is said of the nodes, and the exit code; a job is never started."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Command, Files, assert_refused, run_cvs, stand_in_python
from cvs.preflight import Finding


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The job's, which starts none; whatever was made for the checks is gone in the end."""
    started, temporary = tmp_path / "started", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TORCH_PYTHON", stand_in_python(tmp_path, f"touch {started}"))
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    yield
    assert not started.exists()
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "cvs_runs").exists()


CHECKS = "reach files interfaces ready write rendezvous port".split()
"""Of plain processes on the nodes of one machine."""


@pytest.mark.usefixtures("interpreter")
def test_the_local_samples_are_fit(command: Command, files: Files) -> None:
    done = command("doctor", *files.options)
    assert (done.returncode, done.stderr) == (0, "")
    head, *rows, last = done.stdout.splitlines()
    assert head.split() == ["node", *CHECKS]
    assert [row.split() for row in rows] == [[name, *("ok" for _ in CHECKS)] for name in ("node-0", "node-1")]
    assert last == "2 of 2 nodes fit"


@pytest.mark.usefixtures("interpreter")
def test_json(command: Command, files: Files) -> None:
    files.edit("GLOO_SOCKET_IFNAME: lo ", "GLOO_SOCKET_IFNAME: lo,none ")
    done = command("doctor", *files.options, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    answer = json.loads(done.stdout)
    assert answer["fit"] == {"node-0": False, "node-1": False}
    findings = [Finding.model_validate(each) for each in answer["findings"]]
    assert {(each.node, each.check) for each in findings if each.status == "bad"} == {
        ("node-0", "interfaces"),
        ("node-1", "interfaces"),
    }
    assert Finding(node="node-1", check="reach") in findings


@pytest.mark.usefixtures("interpreter")
def test_nodes_that_are_not_fit(command: Command, files: Files) -> None:
    files.edit("GLOO_SOCKET_IFNAME: lo ", "GLOO_SOCKET_IFNAME: none ")
    done = command("doctor", *files.options)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[:3] == [
        "node    reach  files  interfaces",
        "node-0  ok     ok     BAD",
        "node-1  ok     ok     BAD",
    ]
    text = "GLOO_SOCKET_IFNAME=none names no interface of this node, which has "
    told = [line.partition(text)[::2] for line in done.stdout.splitlines() if line.startswith("bad: ")]
    assert [before for before, _ in told] == ["bad: node-[0-1] (2 nodes): "]
    assert all("lo" in there.split(", ") for _, there in told)
    assert done.stdout.splitlines()[-1] == "0 of 2 nodes fit"


@pytest.mark.usefixtures("interpreter")
def test_a_trainer_that_is_not_there(command: Command, files: Files, tmp_path: Path) -> None:
    files.edit('"{cvs}/workloads/aorta"', str(tmp_path / "none"))
    done = command("doctor", *files.options)
    assert done.returncode == 1
    assert done.stderr == f"warning: aorta_path {tmp_path}/none: no such folder on this machine\n"
    assert (
        f"bad: node-[0-1] (2 nodes): aorta_path {tmp_path}/none: no such folder on this machine"
        in done.stdout
    )


@pytest.mark.usefixtures("interpreter")
def test_a_clone_that_a_run_would_make_first_is_no_fault(
    command: Command, files: Files, tmp_path: Path
) -> None:
    clone = f"{tmp_path}/none\naorta_auto_clone: true\naorta_clone_url: https://example.org/aorta.git\n"
    files.edit('"{cvs}/workloads/aorta"', clone)
    done = command("doctor", *files.options)
    assert done.returncode == 0
    told = f"warning: node-[0-1] (2 nodes): aorta_path {tmp_path}/none is not there yet; a run clones it"
    assert told in done.stdout.splitlines()
    assert not (tmp_path / "none").exists()


def test_files_that_cannot_be_used(command: Command, files: Files) -> None:
    files.edit("gpus_per_node: 2", "gpus_per_node: two")
    done = command("doctor", *files.options)
    assert_refused(done, 2, f"{files.config_file}:10:1: gpus_per_node: `two` is no whole number")


@pytest.mark.parametrize("given", [0, 1])
def test_both_files_are_wanted(given: int, command: Command, files: Files) -> None:
    missing = ("--config_file", "--cluster_file")[given]
    assert_refused(command("doctor", files.options[given]), 2, missing, "required")


def test_no_interpreter_with_pytorch(command: Command, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_PYTHON", "/no/python")
    assert_refused(command("doctor", *files.options), 3, "TORCH_PYTHON=/no/python: no such file")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """One of this machine that refuses connections."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def test_no_node_can_be_reached(files: Files, tmp_path: Path, silent_port: int) -> None:
    """In a process of its own, where nothing catches what the command does not."""
    nodes = {"127.0.0.1": {"vpc_ip": "10.0.0.1"}, "127.0.0.2": {"vpc_ip": "10.0.0.2"}}
    (tmp_path / "config").touch()
    cluster = {"username": "u", "ssh_port": silent_port, "ssh_config": str(tmp_path / "config")}
    files.cluster_file.write_text(json.dumps({**cluster, "node_dict": nodes}))
    done = run_cvs("doctor", *files.options)
    assert (done.returncode, done.stderr) == (3, "")
    assert [line.split() for line in done.stdout.splitlines()[:3]] == [
        ["node", "reach"],
        ["127.0.0.1", "BAD"],
        ["127.0.0.2", "BAD"],
    ]
    assert f"bad: 127.0.0.2: 127.0.0.2:{silent_port} refuses connections; does sshd run there" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 of 2 nodes fit"
