"""Connecting, over hops and to hosts that are known, at real sshd on ports of this machine."""

from __future__ import annotations

import getpass
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cvs.transport._ssh_connect import SshLimits, connect
from cvs.transport._ssh_target import SshTarget
from processes import eventually, kill
from sshd import (
    QUICK,
    Sshd,
    StartSshd,
    assert_reached,
    connected,
    dsa_key,
    fingerprint,
    make_key,
    public,
    refused,
    run,
    run_there,
    server,
    target_at,
)

# --- the host's key ---------------------------------------------------------------------------------------


def test_a_host_that_is_not_known(sshd: Sshd, key: Path, tmp_path: Path) -> None:
    sshd.authorize(key)
    known = tmp_path / "known hosts"
    target = sshd.target(key, known_hosts=(str(known), str(tmp_path / "more")))
    error = refused(target)
    assert (
        f"the host key of {sshd.name} is not known: it shows ssh-ed25519 {fingerprint(sshd.host_key)}"
        in str(error)
    )
    assert f"{known} or {tmp_path}/more has none for it" in str(error)
    assert not error.passing
    follow(str(error), "if it is the right one: ", "; or set host_key_policy to accept-new")
    assert_reached(target)


def follow(message: str, after: str, before: str = "") -> None:
    """Do what a message says."""
    command = message.partition(after)[2]
    command = command.partition(before)[0] if before else command
    assert command
    subprocess.run(["bash", "-c", command], check=True, capture_output=True)


def test_a_host_that_is_met_for_the_first_time(start_sshd: StartSshd, key: Path, tmp_path: Path) -> None:
    sshd = start_sshd(host_keys=("ed25519", "ecdsa"))
    sshd.authorize(key)
    known = tmp_path / "ssh" / "known_hosts"
    target = sshd.target(key, known_hosts=(str(known),))
    assert_reached(replace(target, host_key_policy="accept-new"))
    assert known.read_text() == sshd.known_line.rpartition(" ")[0] + "\n"
    assert_reached(target)
    run("ssh", "-F", "none", "-p", str(sshd.port), "-i", key, "-o", f"UserKnownHostsFile={known}",
        "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "127.0.0.1", "true")  # fmt: skip


def test_a_key_that_cannot_be_written_down(sshd: Sshd, key: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = sshd.target(key, host_key_policy="accept-new", known_hosts=(f"{tmp_path}/file/known_hosts",))
    assert f"cannot be written to {tmp_path}/file/known_hosts: File exists" in str(refused(target))
    assert "no file is set" in str(refused(replace(target, known_hosts=())))


@pytest.mark.parametrize("hashed", [False, True], ids=["plain", "hashed"])
@pytest.mark.parametrize("policy", ["strict", "accept-new"])
def test_a_host_key_that_has_changed(
    policy: str, hashed: bool, sshd: Sshd, key: Path, tmp_path: Path
) -> None:
    sshd.authorize(key)
    other = make_key(tmp_path / "other", "-t", "ecdsa")
    known = tmp_path / "known_hosts"
    known.write_text(f"# mine\n{sshd.name} {public(other)}")
    if hashed:
        run("ssh-keygen", "-H", "-f", known)
    target = sshd.target(key, known_hosts=(str(known),), host_key_policy=policy)
    error = refused(target)
    assert f"the host key of {sshd.name} is not the one that is known" in str(error)
    assert f"it shows ssh-ed25519 {fingerprint(sshd.host_key)}" in str(error)
    assert f"but {known}:2 says ecdsa-sha2-nistp256 {fingerprint(other)}" in str(error)
    assert not error.passing
    follow(str(error), "if the host was set up anew: ")
    assert_reached(target)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_the_host_is_asked_for_the_key_that_is_known(kind: str, start_sshd: StartSshd, key: Path) -> None:
    sshd = start_sshd(host_keys=("ed25519", "ecdsa", "rsa"))
    sshd.authorize(key)
    target = sshd.target(key)
    Path(target.known_hosts[0]).write_text(f"{sshd.name} {public(sshd.folder / f'host_{kind}')}")
    assert_reached(target)


def test_an_alias_of_the_host_key(sshd: Sshd, key: Path, tmp_path: Path) -> None:
    sshd.authorize(key)
    target = sshd.target(key, host_key_alias="node-a", known_hosts=(str(tmp_path / "known_hosts"),))
    error = str(refused(target))
    assert "the host key of node-a is not known" in error
    follow(error, "if it is the right one: ", "; or set")
    assert (tmp_path / "known_hosts").read_text().startswith("node-a ssh-ed25519 ")
    assert_reached(target)


def test_a_host_key_that_is_revoked(sshd: Sshd, key: Path) -> None:
    target = sshd.target(key, host_key_policy="accept-new")
    known = Path(target.known_hosts[0])
    known.write_text(f"{sshd.known_line}@revoked * {public(sshd.host_key)}")
    assert f"the host key of {sshd.name} is revoked ({known}:2)" in str(refused(target))


def test_a_host_that_an_authority_speaks_for(sshd: Sshd, key: Path, authority: Path) -> None:
    target = sshd.target(key)
    Path(target.known_hosts[0]).write_text(f"@cert-authority * {public(authority)}")
    assert "is not known" in str(refused(target))
    assert "a @cert-authority, which cvs does not follow" in str(refused(target))


# --- over hops --------------------------------------------------------------------------------------------


@pytest.fixture
def chain(start_sshd: StartSshd, key: Path) -> tuple[Sshd, Sshd, Sshd]:
    """Two hops and a node."""
    first, second, node = start_sshd(), start_sshd(), start_sshd()
    for sshd in (first, second, node):
        sshd.authorize(key)
    return first, second, node


def over(*hops: SshTarget) -> tuple[SshTarget, ...]:
    return tuple(replace(hop, jumps=hops[:number]) for number, hop in enumerate(hops))


def test_two_hops(chain: tuple[Sshd, Sshd, Sshd], key: Path) -> None:
    first, second, node = chain
    target = node.target(key, jumps=over(first.target(key), second.target(key)))
    with connected(target) as connection:
        came_from = run_there(connection, "echo ${SSH_CONNECTION}").split()
        assert came_from[3] == str(node.port)
        assert run_there(connection, "head -c 300000 /dev/zero | wc -c") == "300000"
        assert "Accepted publickey" in first.log
        assert "Accepted publickey" in second.log
    # Nothing of it stays open.
    assert eventually(lambda: not any(sshd.sessions() for sshd in chain))


def test_a_connection_that_ends_takes_its_hops_along(chain: tuple[Sshd, Sshd, Sshd], key: Path) -> None:
    first, second, node = chain
    connection = connect(node.target(key, jumps=over(first.target(key), second.target(key))), QUICK)
    kill(node.sessions())
    assert eventually(lambda: not connection.is_active())
    assert eventually(lambda: not first.sessions() and not second.sessions())


def test_a_hop_that_refuses_the_key(chain: tuple[Sshd, Sshd, Sshd], key: Path, tmp_path: Path) -> None:
    first, second, node = chain
    second.authorize(make_key(tmp_path / "another"))
    error = str(refused(node.target(key, jumps=over(first.target(key), second.target(key)))))
    assert error.startswith(f"node-0: hop {getpass.getuser()}@127.0.0.1:{second.port}: the login as")
    assert eventually(lambda: not first.sessions())


def test_a_host_behind_a_hop_that_is_not_known(start_sshd: StartSshd, key: Path, tmp_path: Path) -> None:
    first, second, node = start_sshd(), start_sshd(), start_sshd()
    known = (str(tmp_path / "known_hosts"),)
    target = node.target(
        known_hosts=known, jumps=over(first.target(key), second.target(key)), keys=(str(key),)
    )
    first.authorize(key)
    second.authorize(key)
    error = str(refused(target))
    hops = f"ssh -J ssh://{first.target().login} ssh://{second.target().login}"
    assert f"{hops} ssh-keyscan -p {node.port} 127.0.0.1 >> {known[0]}" in error


# --- what does not speak SSH ------------------------------------------------------------------------------


def test_no_banner() -> None:
    with server() as port:
        started = time.monotonic()
        error = refused(target_at(port), replace(QUICK, banner=0.5))
        assert f"127.0.0.1:{port} takes connections, but showed no SSH banner within 0.5 s" in str(error)
        assert error.passing
        assert time.monotonic() - started < 3


def test_no_agreement_on_keys() -> None:
    with server(b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        error = str(refused(target_at(port), replace(QUICK, banner=0.5)))
        assert f"127.0.0.1:{port} did not agree on keys within 0.5 s" in error


@pytest.mark.parametrize("stays", [True, False], ids=["stays", "hangs-up"])
def test_no_ssh_server(stays: bool) -> None:
    with server(b"HTTP/1.1 400 Bad \x1b[31mRequest\r\n\r\n", stays=stays) as port:
        error = refused(target_at(port), replace(QUICK, banner=4))
        assert f'127.0.0.1:{port} is no SSH server, it says "HTTP/1.1 400 Bad [31mRequest"' in str(error)
        assert not error.passing


def test_too_many_connections(start_sshd: StartSshd, key: Path) -> None:
    sshd = start_sshd("MaxStartups 1:100:1")
    sshd.authorize(key)
    with socket.create_connection(("127.0.0.1", sshd.port)) as guest:
        assert guest.recv(100).startswith(b"SSH-")
        started = time.monotonic()
        error = refused(sshd.target(key), SshLimits(connect=2, banner=10))
        assert f"127.0.0.1:{sshd.port} turned 5 connections away before any SSH banner" in str(error)
        assert '("Exceeded MaxStartups"); raise MaxStartups in its sshd_config or lower max_parallel' in str(
            error
        )
        assert error.passing
        assert time.monotonic() - started < 13
    assert_reached(sshd.target(key))


def test_too_many_connections_for_a_while(start_sshd: StartSshd, key: Path) -> None:
    sshd = start_sshd("MaxStartups 1:100:1")
    sshd.authorize(key)
    guest = socket.create_connection(("127.0.0.1", sshd.port))
    guest.recv(100)
    leaving = threading.Timer(0.5, guest.close)
    leaving.start()
    with connected(sshd.target(key), SshLimits()) as connection:
        assert run_there(connection) == "here"
    leaving.join()


ALONE = """
import sys
from cvs.transport._ssh_connect import ConnectError, SshLimits, connect
from cvs.transport._ssh_target import SshTarget
target = SshTarget(node="node-0", host="127.0.0.1", port=int(sys.argv[1]), user="alice", keys=(sys.argv[2],))
try:
    connect(target, SshLimits(banner=0.5))
except ConnectError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("says", "then"),
    [
        (b"", "takes connections, but showed no SSH banner"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "did not agree on keys"),
        (b"SSH-2.0-x\r\n" + bytes(500), "broke the SSH protocol"),
    ],
)
def test_a_failure_leaves_no_thread_and_no_other_word(says: bytes, then: str, tmp_path: Path) -> None:
    unused = dsa_key(tmp_path / "dsa")
    with server(says) as port:
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", ALONE, str(port), str(unused)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert time.monotonic() - started < 10
    assert done.stderr == ""
    assert done.stdout.startswith(f"node-0: 127.0.0.1:{port} {then}")
    assert done.stdout.count("\n") == 1
