"""A connection that stands, and a host that falls silent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from processes import eventually
from sshd import QUICK, Sshd, StartSshd, connected, run_there

IMPATIENT = replace(QUICK, keepalive=0.3, silence=1.5)


@contextmanager
def stopped(sshd: Sshd) -> Iterator[None]:
    """All its sessions stand still, as on a machine that hangs."""
    sessions = sshd.sessions()
    for process in sessions:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in sessions:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def test_a_quiet_connection_stays(sshd: Sshd, key: Path) -> None:
    sshd.authorize(key)
    with connected(sshd.target(key), IMPATIENT) as connection:
        time.sleep(3)
        assert run_there(connection) == "here"


def test_a_host_that_falls_silent(sshd: Sshd, key: Path) -> None:
    sshd.authorize(key)
    with connected(sshd.target(key), IMPATIENT) as connection:
        channel = connection.open_session(timeout=5)
        channel.exec_command("cat")
        with stopped(sshd):
            started = time.monotonic()
            assert channel.recv(1) == b""  # a wait without a limit
            assert time.monotonic() - started < 8
            assert not connection.is_active()


def test_a_host_that_falls_silent_while_it_is_sent_to(sshd: Sshd, key: Path) -> None:
    sshd.authorize(key)
    with connected(sshd.target(key), IMPATIENT) as connection:
        channel = connection.open_session(timeout=5)
        channel.exec_command("cat > /dev/null")
        with stopped(sshd):
            started = time.monotonic()
            with pytest.raises((OSError, EOFError)):
                channel.sendall(bytes(64 * 1024 * 1024))
            assert time.monotonic() - started < 8


def test_a_host_behind_a_hop_that_falls_silent(start_sshd: StartSshd, key: Path) -> None:
    hop, node = start_sshd(), start_sshd()
    hop.authorize(key)
    node.authorize(key)
    with connected(node.target(key, jumps=(hop.target(key),)), IMPATIENT) as connection:
        channel = connection.open_session(timeout=5)
        channel.exec_command("cat > /dev/null")
        with stopped(node):
            started = time.monotonic()
            with pytest.raises((OSError, EOFError)):
                channel.sendall(bytes(64 * 1024 * 1024))
            assert time.monotonic() - started < 8
        assert eventually(lambda: not hop.sessions())
