"""From a target to an authenticated connection, over its hops; each wait ends, each failure has a line."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import paramiko

from cvs.errors import TransportError
from cvs.transport._ssh_errors import Fault, explained, readable
from cvs.transport._ssh_host_keys import KnownHosts, PublicKey, names_of, objection
from cvs.transport._ssh_keys import CERTIFICATE, Offers
from cvs.transport._ssh_login import Login
from cvs.transport._ssh_target import SshTarget
from cvs.transport._ssh_wire import Connection, Wire
from cvs.transport.base import Transport

_T = TypeVar("_T")
_TRIES = 5
"""Of a server that turns connections away before it has said anything."""
_TURNED_AWAY = ("", "Exceeded MaxStartups", "Not allowed at this time")


@dataclass(frozen=True)
class SshLimits:
    """How long each step to one host may take, in seconds."""

    connect: float = 10
    """Looking up the name and connecting to it, or to the next host over a hop."""
    banner: float = 15
    """Until both sides have agreed on keys."""
    auth: float = 30
    keepalive: float = 10
    """After so long a silence the host is asked for an answer, any."""
    silence: float = 30
    """After so long a silence it is given up, and with it the connection."""
    patience: float = Transport.patience
    """As for every way to a node."""


class ConnectError(TransportError):
    """A host could not be connected to, or logged in at."""

    def __init__(self, message: str, *, passing: bool) -> None:
        """Take the line for the user, and whether another try may succeed with nothing mended."""
        self.passing = passing
        super().__init__(message)


def connect(target: SshTarget, limits: SshLimits) -> paramiko.Transport:
    """An authenticated connection, which closes those to its hops with itself.

    Raises: ConnectError: what went wrong, at which host, and what to do.
    """
    way: Connection | None = None
    for host in (*target.jumps, target):
        try:
            way = _logged_in(host, way, limits)
        except BaseException as error:
            if way is not None:
                way.close()
            if not isinstance(error, Fault):
                raise
            where = target.node if host is target else f"{target.node}: hop {host.login}"
            raise ConnectError(f"{where}: {error}", passing=error.passing) from error.__cause__
    assert way is not None
    return way


def _logged_in(host: SshTarget, way: Connection | None, limits: SshLimits) -> Connection:
    """The connection to one host, over the one to the hop before it."""
    connection: Connection | None = None
    try:
        offers = Offers(host, limits.auth)
        known = KnownHosts(host.known_hosts)
        connection = _negotiated(host, way, limits, known.key_types(names_of(host)))
        shown = connection.get_remote_server_key()
        if doubt := objection(host, PublicKey(shown.get_name(), shown.asbytes()), known):
            raise Fault(doubt)
        login = Login(connection, host, offers)
        _within(limits.auth, connection.close, lambda: f"the login as {host.user} did not end", login.run)
        connection.live_on(way, keepalive=limits.keepalive, silence=limits.silence)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if not isinstance(error, Exception):
            raise
        last = connection or way
        fault = explained(error, host, limits.connect, f' ("{last.said}")' if last and last.said else "")
        raise fault from fault.__cause__
    return connection


def _within(seconds: float, end: Callable[[], None], what: Callable[[], str], do: Callable[[], _T]) -> _T:
    """What `do` gives; when time is up `end` is called, which ends whatever wait of paramiko's it is in."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        end()

    timer = threading.Timer(seconds, give_up)
    timer.daemon = True
    timer.start()
    try:
        result = do()
    except Exception:
        if not late.is_set():
            raise
    else:
        if not late.is_set():
            return result
    finally:
        timer.cancel()
    raise Fault(f"{what()} within {seconds:g} s", passing=True)


# --- to the agreement on keys -----------------------------------------------------------------------------


class _TurnedAway(Exception):
    """A server that has not even said that it is one; it may have too many guests."""


def _negotiated(
    host: SshTarget, way: Connection | None, limits: SshLimits, known_types: Sequence[str]
) -> Connection:
    """A connection that has agreed on keys; a server that turns it away is asked again."""
    deadline = time.monotonic() + limits.connect + limits.banner
    tries = 0
    while True:
        tries += 1
        try:
            return _agreed(host, way, limits, known_types)
        except _TurnedAway as error:
            pause = random.uniform(0.1, 0.4) * 2**tries
            if tries == _TRIES or time.monotonic() + pause > deadline:
                said = f' ("{error}")' if str(error) else ""
                text = f"{host.address} turned {tries} connections away before any SSH banner{said}"
                hint = "raise MaxStartups in its sshd_config or lower max_parallel; or is it no SSH port?"
                raise Fault(f"{text}; {hint}", passing=True) from None
            time.sleep(pause)


def _agreed(
    host: SshTarget, way: Connection | None, limits: SshLimits, known_types: Sequence[str]
) -> Connection:
    wire = Wire(_dialled(host, way, limits))
    connection = Connection(wire)
    options = connection.get_security_options()
    # First those that can be judged.
    options.key_types = sorted(options.key_types, key=lambda name: _key_type(name) not in known_types)
    try:
        _within(
            limits.banner, connection.close, lambda: _unfinished(connection, host), connection.start_client
        )
    except BaseException as error:
        connection.close()
        if connection.remote_version or not isinstance(error, (paramiko.SSHException, EOFError, OSError)):
            raise
        said = readable(wire.first_words)
        if said in _TURNED_AWAY:
            raise _TurnedAway(said) from None
        raise Fault(f'{host.address} is no SSH server, it says "{said}"; is it the right port?') from None
    return connection


def _unfinished(connection: Connection, host: SshTarget) -> str:
    if connection.remote_version:
        return f"{host.address} did not agree on keys"
    return f"{host.address} takes connections, but showed no SSH banner"


def _key_type(algorithm: str) -> str:
    """Type of the keys that make signatures by `algorithm`."""
    plain = algorithm.removesuffix(CERTIFICATE)
    return "ssh-rsa" if plain.startswith("rsa-sha2-") else plain


def _dialled(host: SshTarget, way: Connection | None, limits: SshLimits) -> socket.socket | paramiko.Channel:
    """A stream of bytes to the host, from here or from the hop before it."""
    if way is None:
        return _connected(host, limits.connect)
    late = f"hop {host.jumps[-1].login} did not connect to {host.address}"
    dial = partial(way.open_channel, "direct-tcpip", (host.host, host.port), ("127.0.0.1", 0))
    return _within(limits.connect, way.close, lambda: late, dial)


def _connected(host: SshTarget, seconds: float) -> socket.socket:
    """A socket to the first of the host's addresses that answers."""
    deadline = time.monotonic() + seconds
    addresses = _addresses(host, seconds)
    while True:
        family, kind, protocol, _, address = addresses.pop(0)
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(max((deadline - time.monotonic()) / (len(addresses) + 1), 0.01))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException as error:
            sock.close()
            if not addresses or not isinstance(error, OSError):
                raise
        else:
            return sock


_Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]


def _addresses(host: SshTarget, seconds: float) -> list[_Address]:
    """What the name stands for; the resolver knows no limit, so a thread asks it."""
    found: list[list[_Address] | Exception] = []

    def look_up() -> None:
        try:
            found.append(list(socket.getaddrinfo(host.host, host.port, type=socket.SOCK_STREAM)))
        except (OSError, UnicodeError) as error:
            found.append(error)

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        raise Fault(f"the name {host.host} could not be looked up within {seconds:g} s", passing=True)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
