"""What is said of a host that cannot be reached."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sshd import QUICK, StartSshd, free_port, refused, server, target_at


def test_nobody_listens() -> None:
    port = free_port()
    error = refused(target_at(port))
    assert str(error) == (
        f"node-0: 127.0.0.1:{port} refuses connections; does sshd run there, and on this port?"
    )
    assert error.passing


@pytest.mark.parametrize("name", ["node.invalid", "node..0"])
def test_no_such_host(name: str) -> None:
    error = str(refused(target_at(22, name), replace(QUICK, connect=20)))
    assert f"there is no host {name} (" in error or f"the name {name} cannot be looked up just now (" in error


def test_no_way_there() -> None:
    error = refused(target_at(22, "2001:db8::1"), replace(QUICK, connect=0.5))  # an address of nobody's
    assert re.search(
        r"there is no way to \[2001:db8::1\]:22 \(|\[2001:db8::1\]:22 did not answer", str(error)
    )
    assert error.passing


def test_no_answer() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        error = refused(target_at(port), replace(QUICK, connect=0.5))
        assert f"127.0.0.1:{port} did not answer within 0.5 s" in str(error)
        assert error.passing
        for one in waiting:
            one.close()


def test_nonsense_after_the_banner() -> None:
    with server(b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(range(256)) * 20) as port:
        assert f"127.0.0.1:{port}" in str(refused(target_at(port)))


def test_no_algorithm_in_common(start_sshd: StartSshd, key: Path) -> None:
    sshd = start_sshd("KexAlgorithms diffie-hellman-group18-sha512")
    error = refused(sshd.target(key))
    assert "have no algorithm in common" in str(error)
    assert not error.passing


def test_hops_that_do_not_lead_on(start_sshd: StartSshd, key: Path) -> None:
    closed, hop = start_sshd("AllowTcpForwarding no"), start_sshd()
    node = hop.target(key, port=free_port())
    for sshd in (closed, hop):
        sshd.authorize(key)
    error = refused(replace(node, jumps=(closed.target(key),)))
    assert f"hop {closed.target().login} does not let through to {node.address}" in str(error)
    assert "AllowTcpForwarding" in str(error)
    assert not error.passing
    error = refused(replace(node, jumps=(hop.target(key),)))
    assert f'hop {hop.target().login} cannot connect to {node.address} ("Connection refused")' in str(error)
    assert error.passing
    error = refused(replace(node, host="node.invalid", jumps=(hop.target(key),)), replace(QUICK, connect=20))
    assert f"hop {hop.target().login} cannot connect to node.invalid:" in str(error)
