"""How nodes are reached: by what, and in what words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cvs.config import ClusterConfig
from cvs.errors import ConfigError, EnvironmentFault
from cvs.transport.choice import Way, transport_to, ways
from cvs.transport.local import LocalTransport
from cvs.transport.ssh import SshTransport


def cluster(**keys: object) -> ClusterConfig:
    nodes = {name: {"vpc_ip": f"10.0.0.{number}"} for number, name in enumerate(("node-0", "node-1"))}
    return ClusterConfig.model_validate({"username": "alice", "node_dict": nodes, **keys})


def over_ssh(tmp_path: Path, text: str = "", **keys: object) -> ClusterConfig:
    """A cluster file, with an ssh configuration of its own."""
    (tmp_path / "config").write_text(text)
    return cluster(ssh_config=str(tmp_path / "config"), known_hosts="/known", **keys)


def test_what_reaches_a_node() -> None:
    here, there = transport_to("node-1", cluster(transport="local")), transport_to("node-1", cluster())
    assert isinstance(here, LocalTransport)
    assert isinstance(there, SshTransport)
    assert here.node == there.node == "node-1"


def test_ways_to_local_nodes() -> None:
    way = Way("on this machine, as alice")
    assert ways(cluster(transport="local")) == {"node-0": way, "node-1": way}


def test_ways_over_ssh(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o644)
    text = "Host node-1\n  HostName 10.9.9.1\n  Port 2201\n"
    rest = f"key {key}, passphrase, known_hosts /known, strict"
    warnings = (f"{key}: others can read this private key; chmod 600 {key}",)
    found = ways(over_ssh(tmp_path, text, priv_key_file=str(key), priv_key_passphrase="open sesame"))
    assert list(found.items()) == [
        ("node-0", Way(f"by SSH as alice@node-0:22, {rest}", warnings)),
        ("node-1", Way(f"by SSH as alice@10.9.9.1:2201, {rest}", warnings)),
    ]


def test_ways_that_cannot_be_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxied = over_ssh(tmp_path, "Host node-1\n  ProxyCommand nc %h %p\n")
    with pytest.raises(ConfigError, match=re.escape("node-1: the ssh configuration gives node-1 a ProxyC")):
        ways(proxied)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match="ssh is missing"):
        ways(proxied)
