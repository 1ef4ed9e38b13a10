"""Cleaning up on every node: what is told of one where it could not be done."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from cvs.config import ClusterConfig
from cvs.runners.cleanup import clean_nodes
from cvs.runtime.cleanup import Scope

SCOPE = Scope(user="alice", run_id=secrets.token_hex(6), asks_docker=False)


def test_nodes_that_are_not_reached_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "ssh_config").touch()
    names = ["127.0.0.3", "127.0.0.1", "127.0.0.2"]
    cluster = {"username": "u", "password": "p", "ssh_port": 1, "ssh_config": f"{tmp_path}/ssh_config"}
    nodes = {name: {"vpc_ip": name} for name in names}
    found = clean_nodes(ClusterConfig.model_validate({**cluster, "node_dict": nodes}), SCOPE)
    assert [node.node for node in found] == names
    for node in found:
        assert (node.is_good, node.is_reached, node.found) == (False, False, ())
        assert node.error is not None
        assert node.error.startswith(f"{node.node}:1 refuses connections")


def test_a_node_that_is_reached_and_lacks_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("sh", "true"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    cluster = {"username": "u", "transport": "local", "node_dict": {"a": {"vpc_ip": "::1"}}}
    [only] = clean_nodes(ClusterConfig.model_validate(cluster), SCOPE)
    assert (only.is_good, only.is_reached) == (False, True)
    assert only.error is not None
    assert only.error.startswith("programs missing on the node: cat, date, find, grep")
