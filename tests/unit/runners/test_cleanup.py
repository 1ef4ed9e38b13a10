"""Cleaning up on every node: what is told of one where it could not be done."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from conftest import holder
from cvs.config import ClusterConfig
from cvs.models import CommandResult
from cvs.runners.cleanup import clean_nodes
from cvs.runtime._owned import HOLDER
from cvs.runtime.cleanup import Scope
from cvs.transport.local import LocalTransport
from engine import Shelf, engine

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


class Odd(LocalTransport):
    """One with a defect, which shows once containers have been looked at, and at the end."""

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        errors: str = "replace",
    ) -> CommandResult:
        if any(".cvs/lock" in word for word in argv):
            raise KeyError("lock")
        return super().run(
            argv, timeout=timeout, cwd=cwd, environment=environment, stdin=stdin, errors=errors
        )

    def close(self) -> None:
        raise KeyError("close")


def test_a_defect_on_a_node_costs_neither_the_others_nor_what_was_found_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ways = {"a": LocalTransport, "b": Odd, "c": LocalTransport}
    monkeypatch.setattr("cvs.runners.cleanup.transport_to", lambda name, _cluster: ways[name](name))
    cluster = {"username": "u", "node_dict": {name: {"vpc_ip": name} for name in ways}}
    shelf = Shelf()
    shelf.put("old", "exited", labels={HOLDER: holder("r").model_dump_json()})
    with engine(shelf) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        scope = Scope(user="alice", only_look=True, folder="/none")
        found = clean_nodes(ClusterConfig.model_validate(cluster), scope)
    assert [(node.node, node.error) for node in found] == [
        ("a", None), ("b", "a defect in cvs: KeyError: 'lock'"), ("c", None)
    ]  # fmt: skip
    assert [node.is_good for node in found] == [True, False, True]
    assert all(node.is_reached for node in found)
    assert [[each.what for each in node.found] for node in found] == [["container old"]] * 3
