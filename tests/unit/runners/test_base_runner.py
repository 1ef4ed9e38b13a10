"""What is known before a run begins: warnings, bad files, and nodes that are not free."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conftest import Files, holder
from cvs.errors import ConfigError, EnvironmentFault, NodeInUse
from cvs.run_folder import RunFolder, make_run_folder, new_run_folder
from cvs.runners import _base_runner
from cvs.runners.aorta import AortaRunner
from cvs.transport.local import LocalTransport


def over_ssh(files: Files, home: Path, text: str = "", **keys: object) -> AortaRunner:
    """A runner for nodes over SSH, with an ssh configuration of its own."""
    (home / "config").write_text(text)
    nodes = {name: {"vpc_ip": f"10.0.0.{number}"} for number, name in enumerate(("node-0", "node-1"))}
    cluster = {"username": "alice", "node_dict": nodes, "ssh_config": str(home / "config"), **keys}
    files.cluster_file.write_text(json.dumps(cluster))
    return AortaRunner(*files.load())


def test_warnings_about_the_ways_to_the_nodes(files: Files, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o640)
    runner = over_ssh(files, tmp_path, priv_key_file=str(key), racks={})
    assert runner.validate_config() == [
        "keys that have no effect here: racks",
        f"{key}: others can read this private key; chmod 600 {key}",
    ]


def test_a_run_that_does_not_know_its_ways_leaves_nothing(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    runner = over_ssh(files, tmp_path, "Host node-1\n  ProxyCommand nc %h %p\n")
    with pytest.raises(ConfigError, match="node-1: the ssh configuration gives node-1 a ProxyCommand"):
        runner.execute(make_run_folder(out))
    assert not out.exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="ssh is missing"):
        runner.execute(make_run_folder(out))
    assert not out.exists()


# --- nodes that another run holds -------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run_folder(tmp_path / "cvs_runs", "test_aorta")


@pytest.fixture
def other(folder: RunFolder) -> Iterator[None]:
    """Another run, which holds the nodes."""
    with closing(LocalTransport("other")) as transport:
        for node in ("node-0", "node-1"):
            transport.hold(str(folder.nodes_dir / node / "aorta"), holder("run-a"))
        yield


@pytest.mark.usefixtures("other")
def test_a_run_that_another_keeps_out_names_it_and_leaves_nothing(files: Files, folder: RunFolder) -> None:
    with pytest.raises(NodeInUse) as refused:
        AortaRunner(*files.load()).execute(folder)
    assert f" is in use by {holder('run-a')}; wait for its end (--wait SECONDS does)" in str(refused.value)
    assert not folder.path.exists()


@pytest.mark.usefixtures("other")
def test_an_interrupt_while_waiting_leaves_nothing(files: Files, folder: RunFolder) -> None:
    said: list[str] = []

    def console(line: str) -> None:
        said.append(line)
        if len(said) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        AortaRunner(*files.load(), console=console).execute(folder, wait=60)
    assert said[1:] == ["cvs | interrupted while waiting for the nodes; nothing was started"]
    assert not folder.path.exists()


# --- a defect ---------------------------------------------------------------------------------------------


def test_a_defect_in_the_search_for_the_cause_does_not_cost_the_record(
    files: Files, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_trails: object) -> None:
        raise ValueError("no such thing")

    (folder.path.parent.parent / "empty").mkdir()
    files.edit('"{cvs}/workloads/aorta"', str(folder.path.parent.parent / "empty"))
    monkeypatch.setattr(_base_runner, "first_failure", fail)
    AortaRunner(*files.load()).execute(folder)
    recorded = folder.load_manifest().run
    assert recorded.status.value == "failed"
    assert recorded.failure is not None
    assert recorded.failure.reason.startswith("a defect in cvs: ValueError: no such thing; set-up failed: ")


@pytest.mark.parametrize(
    ("told", "line"),
    [
        (["a: no way; is it up?"], "a: no way; is it up?"),
        (["a: no way; is it up?", "a: no way; is it up?; all is left"], "a: no way; is it up?; all is left"),
        (["a ended first: x", "a: y", "a: y"], "a ended first: x; a: y"),
        (["a: x; hint", "b: x; hint"], "a: x; hint; b: x; hint"),
        ([], ""),
    ],
)
def test_what_was_said_is_not_said_again(told: list[str], line: str) -> None:
    assert _base_runner.each_once(told) == line
