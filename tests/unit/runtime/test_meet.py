"""The script that tries the rendezvous port: two processes of this machine, and whatever else may answer."""

from __future__ import annotations

import ast
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from threading import Thread

import pytest

from conftest import PACKAGE
from cvs.transport.local import LocalTransport

SCRIPT = (PACKAGE / "runtime" / "_meet.py").read_text()
WORD = "c0ffee0123456789"
LONG = 60
"""Seconds that no end of a try ever takes here, unless it waits for its time to be up."""
NO_IPV6 = """\
import socket
class V4(socket.socket):
    def __init__(self, family=-1, *words, **options):
        if family == socket.AF_INET6: raise OSError(97, "Address family not supported by protocol")
        super().__init__(family, *words, **options)
socket.socket = V4
"""
"""A fake: a kernel without IPv6."""


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


HOSTS = [
    "127.0.0.1",
    "localhost",
    pytest.param("::1", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 on this machine")),
]

Ended = tuple[str, float]
"""What an end said, and after how many seconds."""


class End:
    """One end of a try, as a process."""

    def __init__(self, *words: str, prelude: str = "") -> None:
        self._began = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-c", prelude + SCRIPT, *words], stdout=subprocess.PIPE, text=True
        )

    def ended(self) -> Ended:
        said, _ = self._process.communicate(timeout=2 * LONG)
        assert self._process.returncode == 0
        return str(json.loads(said)["problem"]), time.monotonic() - self._began

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., End]]:
    """Starts an end of a try; none is left."""
    with ExitStack() as ends:
        yield lambda *words, **options: ends.enter_context(closing(End(*map(str, words), **options)))


Start = Callable[..., End]


@pytest.fixture
def port() -> int:
    return LocalTransport("a").free_port("127.0.0.1")


def call(start: Start, port: int, host: str = "127.0.0.1", *, seconds: float = LONG, word: str = WORD) -> str:
    told, _ = start("call", port, word, seconds, host).ended()
    return told


def test_the_script_is_for_old_interpreters_too() -> None:
    ast.parse(SCRIPT, feature_version=(3, 6))


# --- both ends --------------------------------------------------------------------------------------------


def assert_free(port: int) -> None:
    """It can be listened on without SO_REUSEADDR, which would get over what a connection leaves behind."""
    with socket.socket() as other:
        other.bind(("0.0.0.0", port))
        other.listen()


@pytest.mark.parametrize("host", HOSTS)
def test_callers_are_answered_and_the_port_is_free_at_once(start: Start, port: int, host: str) -> None:
    head = start("listen", port, WORD, LONG, 3)
    callers = [start("call", port, WORD, LONG, host) for _ in range(3)]
    assert [caller.ended()[0] for caller in callers] == ["", "", ""]
    told, seconds = head.ended()
    assert_free(port)
    assert told == ""
    assert seconds < LONG


def test_a_caller_waits_for_the_head(start: Start, port: int) -> None:
    caller = start("call", port, WORD, LONG, "127.0.0.1")
    time.sleep(0.5)
    start("listen", port, WORD, LONG, 1)
    told, seconds = caller.ended()
    assert told == ""
    assert 0.5 < seconds < LONG


def test_without_ipv6(start: Start, port: int) -> None:
    head = start("listen", port, WORD, LONG, 1, prelude=NO_IPV6)
    assert call(start, port) == ""
    assert head.ended()[0] == ""
    assert_free(port)


# --- the head ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "count"), [(1, 1), (LONG, 0)])
def test_the_head_ends_without_callers(start: Start, port: int, seconds: int, count: int) -> None:
    told, lasted = start("listen", port, WORD, seconds, count).ended()
    assert told == ""
    assert (seconds if count else 0) < lasted < LONG


TAKEN = [
    (socket.AF_INET, "127.0.0.1"),
    (socket.AF_INET, "0.0.0.0"),
    pytest.param(socket.AF_INET6, "::", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")),
]


@pytest.mark.parametrize(("family", "address"), TAKEN)
def test_a_port_that_is_taken(start: Start, family: socket.AddressFamily, address: str) -> None:
    with socket.create_server((address, 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as other:
        port = other.getsockname()[1]
        told, seconds = start("listen", port, WORD, LONG, 1).ended()
    assert told == f"port {port} cannot be listened on: Address already in use"
    assert seconds < LONG


def connected(port: int) -> socket.socket:
    """To the head, as soon as it listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=LONG)
        except ConnectionRefusedError:
            time.sleep(0.05)


def test_who_comes_and_does_not_go_holds_nobody_up(start: Start, port: int) -> None:
    head = start("listen", port, WORD, LONG, 2)
    with connected(port):
        assert call(start, port) == ""
        told, seconds = head.ended()
    assert told == ""
    assert seconds < LONG


def test_who_goes_at_once_holds_nobody_up(start: Start, port: int) -> None:
    head = start("listen", port, WORD, LONG, 2)
    reset = b"\1\0\0\0\0\0\0\0"  # linger on, for no time
    with connected(port) as caller:
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
    assert call(start, port) == ""
    assert head.ended()[0] == ""


# --- a caller that is not answered ------------------------------------------------------------------------


@pytest.mark.parametrize("host", HOSTS)
def test_nobody_listens(start: Start, port: int, host: str) -> None:
    began = time.monotonic()
    assert call(start, port, host, seconds=0.5) == "Connection refused"
    assert time.monotonic() - began > 0.5, "the head may come yet"


def test_a_name_that_nobody_knows(start: Start, port: int) -> None:
    told = call(start, port, "no-such-host.invalid", seconds=0.5)
    assert "name resolution" in told or "not known" in told


def test_another_run_answers(start: Start, port: int) -> None:
    start("listen", port, WORD[::-1], LONG, 1000)
    connected(port).close()
    assert call(start, port, seconds=1) == "something else answers there"


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.mark.parametrize("words", [b"", b"c0ffee", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64])
def test_a_server_of_something_else(start: Start, server: socket.socket, words: bytes) -> None:
    def answer() -> None:
        while True:
            try:
                caller, _ = server.accept()
            except OSError:
                return  # the test is over
            with caller:
                caller.sendall(words)

    Thread(target=answer, daemon=True).start()
    told = call(start, server.getsockname()[1], seconds=0.5)
    server.shutdown(socket.SHUT_RDWR)
    assert told == "something else answers there"


SILENCE = "no answer; a firewall?"


def test_a_server_that_says_nothing(start: Start, server: socket.socket) -> None:
    told, seconds = start("call", server.getsockname()[1], WORD, 0.5, "127.0.0.1").ended()
    assert told == SILENCE
    assert 0.5 < seconds < LONG


def test_a_port_that_drops_what_is_sent_to_it(start: Start) -> None:
    """As behind a firewall: the kernel lets no more callers wait, and tells them nothing."""
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        told, seconds = start("call", server.getsockname()[1], WORD, 0.5, "127.0.0.1").ended()
    assert told == SILENCE
    assert 0.5 < seconds < LONG
