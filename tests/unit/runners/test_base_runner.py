"""What is known before a run begins: warnings, and files that it cannot begin with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Files
from cvs.errors import ConfigError, EnvironmentFault
from cvs.run_folder import make_run_folder
from cvs.runners.aorta import AortaRunner


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
