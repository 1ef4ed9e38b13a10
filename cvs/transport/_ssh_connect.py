"""From a target to an authenticated connection, over its hops; all waits end, and every failure has a line.

paramiko's own limits follow the clock on the wall and leave threads behind; they are out of use here.
"""

from __future__ import annotations

import errno
import io
import logging
import random
import socket
import struct
import threading
import time
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import paramiko
import paramiko.agent
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from paramiko.common import cMSG_GLOBAL_REQUEST
from paramiko.message import Message
from paramiko.packet import Packetizer
from paramiko.pkey import PublicBlob
from paramiko.ssh_exception import IncompatiblePeer
from pydantic import SecretStr

from cvs.errors import TransportError
from cvs.transport._ssh_host_keys import KnownHosts, PublicKey, names_of, objection
from cvs.transport._ssh_target import SshTarget

# What matters of all this is told in our own words; as it is, it would land on the user's terminal.
for _name in ("paramiko", paramiko.agent.__file__):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)
warnings.filterwarnings("ignore", "SSH DSA key", module=__name__)

_T = TypeVar("_T")
_TRIES = 5
"""Of a server that turns connections away before it has said anything."""
_TURNED_AWAY = ("", "Exceeded MaxStartups", "Not allowed at this time")
_FIRST_WORDS = 256
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
_CERTIFICATE = "-cert-v01@openssh.com"
_KEY_CLASSES: dict[str, type[paramiko.PKey]] = {
    "ssh-ed25519": paramiko.Ed25519Key,
    "ssh-rsa": paramiko.RSAKey,
    **dict.fromkeys(paramiko.ECDSAKey.supported_key_format_identifiers(), paramiko.ECDSAKey),
}


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
    way: _Connection | None = None
    for host in (*target.jumps, target):
        try:
            way = _logged_in(host, way, limits)
        except BaseException as error:
            if way is not None:
                way.close()
            if not isinstance(error, _Fault):
                raise
            where = target.node if host is target else f"{target.node}: hop {host.login}"
            raise ConnectError(f"{where}: {error}", passing=error.passing) from error.__cause__
    assert way is not None
    return way


def _logged_in(host: SshTarget, way: _Connection | None, limits: SshLimits) -> _Connection:
    """The connection to one host, over the one to the hop before it."""
    connection: _Connection | None = None
    try:
        offers = _Offers(host, limits.auth)
        known = KnownHosts(host.known_hosts)
        connection = _negotiated(host, way, limits, known.key_types(names_of(host)))
        shown = connection.get_remote_server_key()
        if doubt := objection(host, PublicKey(shown.get_name(), shown.asbytes()), known):
            raise _Fault(doubt)
        login = _Login(connection, host, offers)
        _within(limits.auth, connection.close, lambda: f"the login as {host.user} did not end", login.run)
        connection.wire.live_on(way, connection.ask, limits)
    except BaseException as error:
        if connection is not None:
            connection.close()
        if not isinstance(error, Exception):
            raise
        last = connection or way
        fault = _explained(error, host, limits, f' ("{last.said}")' if last and last.said else "")
        raise fault from fault.__cause__
    return connection


# --- what went wrong --------------------------------------------------------------------------------------


class _Fault(Exception):
    """What went wrong at a host, in words that lack only which host."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        self.passing = passing
        super().__init__(text)


def _explained(error: Exception, host: SshTarget, limits: SshLimits, said: str) -> _Fault:
    """What an exception means for the user; `said` are the server's own words."""
    at, hop = host.address, host.jumps[-1].login if host.jumps else ""
    reason = getattr(error, "strerror", None) or str(error)
    match error:
        case _Fault():
            return error
        case socket.gaierror(errno=socket.EAI_AGAIN):
            return _Fault(f"the name {host.host} cannot be looked up just now ({reason})", passing=True)
        case socket.gaierror() | UnicodeError():
            return _Fault(
                f"there is no host {host.host} ({reason}); check its name, and HostName in the ssh config"
            )
        case ConnectionRefusedError():
            return _Fault(f"{at} refuses connections; does sshd run there, and on this port?", passing=True)
        case TimeoutError():
            hint = "is it up, and does no firewall keep silent?"
            return _Fault(f"{at} did not answer within {limits.connect:g} s; {hint}", passing=True)
        case OSError() if error.errno in _NO_ROUTE:
            return _Fault(f"there is no way to {at} ({reason}); is it up, and on the network?", passing=True)
        case paramiko.ChannelException(code=1):
            return _Fault(
                f"hop {hop} does not let through to {at}{said}; see AllowTcpForwarding in its sshd_config"
            )
        case paramiko.ChannelException():
            return _Fault(
                f"hop {hop} cannot connect to {at}{said}; is it up, and is this its port?", passing=True
            )
        case IncompatiblePeer():
            return _Fault(f"{at} and cvs have no algorithm in common: {reason}")
        case EOFError() | ConnectionError() | paramiko.AuthenticationException():
            return _Fault(f"{at} ended the connection before the login was done{said}", passing=True)
        case OSError():
            return _Fault(f"{at} cannot be reached: {reason}", passing=True)
        case paramiko.SSHException():
            return _Fault(f"{at} broke the SSH protocol ({reason}){said}", passing=True)
    fault = _Fault(f"{at} says what is no SSH ({type(error).__name__}: {reason})")
    fault.__cause__ = error
    return fault


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
    raise _Fault(f"{what()} within {seconds:g} s", passing=True)


# --- the connection ---------------------------------------------------------------------------------------


class _Wire:
    """A socket, or a channel over a hop, that notices when nobody is left at the other end."""

    def __init__(self, sock: socket.socket | paramiko.Channel) -> None:
        self.first_words = b""
        self._sock = sock
        self._closed = False  # paramiko looks at it
        self._way: paramiko.Transport | None = None
        self._limits: SshLimits | None = None
        self._ask: Callable[[], None]
        self._heard = self._took = self._asked = time.monotonic()

    def live_on(self, way: paramiko.Transport | None, ask: Callable[[], None], limits: SshLimits) -> None:
        """From now on a silent peer is asked for an answer, and given up; and the way ends with the wire."""
        self._heard = self._took = self._asked = time.monotonic()
        self._ask = ask
        self._way = way
        self._limits = limits

    def recv(self, size: int) -> bytes:
        try:
            data = self._sock.recv(size)
        except TimeoutError as error:
            self._look_at_silence(error, time.monotonic() - self._heard)
            raise
        self._heard = time.monotonic()
        if len(self.first_words) < _FIRST_WORDS:
            self.first_words += data[:_FIRST_WORDS]
        return data

    def send(self, data: bytes) -> int:
        try:
            size = self._sock.send(data)
        except TimeoutError as error:
            self._look_at_silence(error, time.monotonic() - max(self._heard, self._took))
            raise
        self._took = time.monotonic()
        return size

    def _look_at_silence(self, error: TimeoutError, silent: float) -> None:
        if error.errno:  # TCP itself gave up; paramiko would take it for the end of a short wait
            raise ConnectionAbortedError(errno.ECONNABORTED, str(error.strerror))
        if self._limits is None:
            return
        if silent > self._limits.silence:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"no answer for {silent:.0f} s")
        now = time.monotonic()
        if silent > self._limits.keepalive and now - self._asked > self._limits.keepalive:
            self._asked = now
            self._ask()

    def settimeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    def close(self) -> None:
        self._closed = True
        if self._way is not None:
            self._way.close()  # first: a channel says good-bye, and would wait for a hop that is gone
        self._sock.close()


class _Packetizer(Packetizer):
    def start_handshake(self, timeout: float) -> None:
        """No timer: paramiko's keeps the process alive."""


class _Connection(paramiko.Transport):
    """A transport that keeps the words with which the server refuses something; paramiko only logs them."""

    def __init__(self, wire: _Wire) -> None:
        super().__init__(cast(socket.socket, wire), packetizer_class=_Packetizer)
        self.wire = wire
        self.said = ""
        self.banner_timeout = self.auth_timeout = self.channel_timeout = float("inf")

    def ask(self) -> None:
        """Ask for an answer, from within the thread that reads; paramiko's own keep-alive wants none."""
        if not self.clear_to_send.is_set():
            return  # keys are being agreed on anew: there is an answer to come
        question = Message()
        question.add_byte(cMSG_GLOBAL_REQUEST)
        question.add_string("keepalive@openssh.com")
        question.add_boolean(True)
        self.packetizer.send_message(question)

    def close(self) -> None:
        """End the connection, and those to its hops."""
        super().close()
        self.wire.close()

    def _parse_disconnect(self, message: Message) -> None:
        message.get_int()
        self.said = _readable(message.get_string())

    def _parse_channel_open_failure(self, message: Message) -> None:
        message.get_int()
        message.get_int()
        self.said = _readable(message.get_string())
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]


def _readable(text: bytes) -> str:
    """The first line of what a server said, fit to be shown."""
    line = text.decode(errors="replace").strip().partition("\n")[0].strip()
    return "".join(letter for letter in line[:100] if letter.isprintable())


# --- to the agreement on keys -----------------------------------------------------------------------------


class _TurnedAway(Exception):
    """A server that has not even said that it is one; it may have too many guests."""


def _negotiated(
    host: SshTarget, way: _Connection | None, limits: SshLimits, known_types: Sequence[str]
) -> _Connection:
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
                raise _Fault(f"{text}; {hint}", passing=True) from None
            time.sleep(pause)


def _agreed(
    host: SshTarget, way: _Connection | None, limits: SshLimits, known_types: Sequence[str]
) -> _Connection:
    wire = _Wire(_dialled(host, way, limits))
    connection = _Connection(wire)
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
        said = _readable(wire.first_words)
        if said in _TURNED_AWAY:
            raise _TurnedAway(said) from None
        raise _Fault(f'{host.address} is no SSH server, it says "{said}"; is it the right port?') from None
    return connection


def _unfinished(connection: _Connection, host: SshTarget) -> str:
    if connection.remote_version:
        return f"{host.address} did not agree on keys"
    return f"{host.address} takes connections, but showed no SSH banner"


def _key_type(algorithm: str) -> str:
    """Type of the keys that make signatures by `algorithm`."""
    plain = algorithm.removesuffix(_CERTIFICATE)
    return "ssh-rsa" if plain.startswith("rsa-sha2-") else plain


def _dialled(host: SshTarget, way: _Connection | None, limits: SshLimits) -> socket.socket | paramiko.Channel:
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
        raise _Fault(f"the name {host.host} could not be looked up within {seconds:g} s", passing=True)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


# --- the keys to log in with ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Offer:
    """A key that the host is offered, and what to call it."""

    name: str
    key: paramiko.PKey


@dataclass(frozen=True)
class _PrivateKey:
    """A key from a file."""

    public: PublicKey
    text: str = field(repr=False)

    def signer(self) -> paramiko.PKey:
        return _KEY_CLASSES[self.public.type].from_private_key(io.StringIO(self.text))


@dataclass(frozen=True)
class _Certificate:
    """A certificate from a file, and the key that it is for."""

    name: str
    key: bytes
    blob: PublicBlob


class _Offers:
    """The keys that a host is offered, in order, and why others are not."""

    def __init__(self, host: SshTarget, agent_seconds: float) -> None:
        self.keys: list[_Offer] = []
        self.problems: list[str] = []
        self._passphrase = host.passphrase
        self._certificates = self._read_certificates(host.certificates)
        held = self._held_by_agent(host.agent, agent_seconds) if host.agent else []
        missing = []
        for file in host.keys:
            public = _public_half(file)
            own = [key for key in held if key.public.blob == public]
            held = [key for key in held if key.public.blob != public]
            self._take_agent_keys(own)
            if not own and not self._take_file(file):
                missing.append(file)
        if not host.only_keys:
            self._take_agent_keys(held)
        if missing:
            self.problems.append(f"there is no key file {' or '.join(missing)}")

    def _take_file(self, file: str) -> bool:
        """Offer the key in a file; False: there is none."""
        try:
            key = _private_key(file, self._passphrase)
        except FileNotFoundError:
            return False
        except OSError as error:
            self.problems.append(f"key {file}: {error.strerror}")
        except _Fault as fault:
            self.problems.append(f"key {file} {fault}")
        else:
            beside = f"{file}-cert.pub"
            certificates = self._read_certificates([beside] if Path(beside).exists() else [])
            self._take(f"key {file}", key.public, certificates + self._certificates, key.signer)
        return True

    def _take_agent_keys(self, held: Sequence[_AgentKey]) -> None:
        for key in held:
            self._take(f"key {key.comment} of the agent", key.public, self._certificates, key.signer)

    def _take(
        self,
        name: str,
        public: PublicKey,
        certificates: Sequence[_Certificate],
        signer: Callable[[], paramiko.PKey],
    ) -> None:
        """Offer a key, before it each certificate for it."""
        for certificate in certificates:
            if certificate.key == public.blob:
                self.keys.append(_Offer(certificate.name, _with(certificate.blob, signer())))
        self.keys.append(_Offer(f"{name} ({public})", signer()))

    def _read_certificates(self, files: Sequence[str]) -> list[_Certificate]:
        read = []
        for file in files:
            try:
                read.append(_certificate(file))
            except OSError as error:
                self.problems.append(f"certificate {file}: {error.strerror}")
            except (ValueError, UnsupportedAlgorithm):
                self.problems.append(f"certificate {file} is none")
        return read

    def _held_by_agent(self, agent: str, seconds: float) -> list[_AgentKey]:
        try:
            held = _Agent(agent, seconds).held()
        except (OSError, EOFError, paramiko.SSHException) as error:
            self.problems.append(f"agent {agent}: {getattr(error, 'strerror', None) or error}")
            return []
        if not held:
            self.problems.append(f"agent {agent} holds no key")
        return held


def _private_key(file: str, passphrase: SecretStr | None) -> _PrivateKey:
    """The key in a file; OSError: it cannot be read."""
    key = _opened(Path(file).read_bytes(), passphrase)
    try:
        public = _public_key(key.public_key().public_bytes(*_AS_LINE))
        private = _PrivateKey(public, key.private_bytes(*_AS_FILE, serialization.NoEncryption()).decode())
        private.signer()
    except (ValueError, TypeError, LookupError, UnsupportedAlgorithm, paramiko.SSHException):
        raise _Fault("is of a type that cannot be used; make one with ssh-keygen -t ed25519") from None
    return private


def _opened(text: bytes, passphrase: SecretStr | None) -> PrivateKeyTypes:
    is_openssh = b"OPENSSH PRIVATE KEY" in text
    read = serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key
    try:
        try:
            return read(text, None)
        except TypeError:  # it is encrypted
            if not passphrase:
                raise _Fault(
                    "needs a passphrase; set priv_key_passphrase, or have an agent hold it"
                ) from None
        try:
            return read(text, passphrase.get_secret_value().encode())
        except (ValueError, InvalidTag):
            raise _Fault("does not open with the passphrase; check priv_key_passphrase") from None
    except UnsupportedAlgorithm as error:
        raise _Fault(f"cannot be used ({error})") from None
    except ValueError:
        raise _Fault("is no private key") from None


_AS_LINE = (serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
_AS_FILE = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH)


def _public_key(line: bytes) -> PublicKey:
    """A public key as it stands in a file; ValueError: it is none."""
    kind, text = line.split()[:2]
    return PublicKey(kind.decode(), b64decode(text))


def _public_half(file: str) -> bytes | None:
    """The public key that belongs to a key file, as far as it can be told without a passphrase."""
    for name in (file, f"{file}.pub"):
        with suppress(OSError, ValueError, IndexError):
            line = Path(name).read_bytes()
            if not line.startswith(b"-----"):
                return _public_key(line).blob
            inside = Message(b64decode(b"".join(line.split(b"-----")[2].split())))
            if inside.get_bytes(15) == b"openssh-key-v1\0":
                for _ in ("cipher", "kdf", "its options"):
                    inside.get_string()
                inside.get_int()  # how many keys: one
                return inside.get_string()
    return None


def _certificate(file: str) -> _Certificate:
    """The certificate in a file; ValueError: it is none."""
    line = Path(file).read_bytes()
    identity = serialization.load_ssh_public_identity(line)
    if not isinstance(identity, serialization.SSHCertificate):
        raise ValueError
    whole = _public_key(line)
    expired = ", expired" if identity.valid_before < datetime.now(timezone.utc).timestamp() else ""
    name = f"certificate {file} ({whole.type}{expired})"
    return _Certificate(name, _certified(line).blob, PublicBlob(whole.type, whole.blob))


def _certified(line: bytes) -> PublicKey:
    """The public key that a certificate is for, or itself if it is none."""
    identity = serialization.load_ssh_public_identity(line)
    key = identity.public_key() if isinstance(identity, serialization.SSHCertificate) else identity
    return _public_key(key.public_bytes(*_AS_LINE))


def _with(certificate: PublicBlob, key: paramiko.PKey) -> paramiko.PKey:
    key.public_blob = certificate
    return key


class _Agent(paramiko.agent.AgentSSH):
    """An agent, asked over a new connection each time: an answer that is late then answers nothing else."""

    def __init__(self, path: str, seconds: float) -> None:
        super().__init__()
        self._path = path
        self._seconds = seconds

    def held(self) -> list[_AgentKey]:
        """The keys that it holds."""
        kind, answer = self._send_message(paramiko.agent.cSSH2_AGENTC_REQUEST_IDENTITIES)
        if kind != paramiko.agent.SSH2_AGENT_IDENTITIES_ANSWER:
            raise paramiko.SSHException("it does not tell which keys it holds")
        return [
            _AgentKey(self, answer.get_string(), _readable(answer.get_string()))
            for _ in range(answer.get_int())
        ]

    def _send_message(self, message: bytes | Message) -> tuple[int, Message]:
        text = message if isinstance(message, bytes) else message.asbytes()
        with socket.socket(socket.AF_UNIX) as agent:
            agent.settimeout(self._seconds)
            agent.connect(self._path)
            agent.sendall(struct.pack(">I", len(text)) + text)
            with agent.makefile("rb") as answers:
                (size,) = struct.unpack(">I", answers.read(4).ljust(4, b"\0"))
                answer = Message(answers.read(size))
        return ord(answer.get_byte() or b"\0"), answer


class _AgentKey(paramiko.agent.AgentKey):
    """A key that an agent holds."""

    def __init__(self, agent: paramiko.agent.AgentSSH, blob: bytes, comment: str) -> None:
        super().__init__(agent, blob, comment)
        self.public = PublicKey(self.name, blob)
        with suppress(ValueError, UnsupportedAlgorithm):
            self.public = _certified(f"{self.name} {b64encode(blob).decode()}".encode())

    def signer(self) -> paramiko.PKey:
        """Another one, that a certificate may be laid beside; one for a certificate offers that."""
        key = _AgentKey(self.agent, self.blob, self.comment)
        return _with(PublicBlob(self.name, self.blob), key) if self.name.endswith(_CERTIFICATE) else key

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Message:
        """See `PKey`; if the agent does not sign, the key is refused, where paramiko would end all."""
        try:
            return super().sign_ssh_data(data, algorithm)
        except (OSError, EOFError, paramiko.SSHException):
            return Message()


# --- the login --------------------------------------------------------------------------------------------


class _Login:
    """Offers one thing after the other, until the host is content."""

    def __init__(self, connection: _Connection, host: SshTarget, offers: _Offers) -> None:
        self._connection = connection
        self._host = host
        self._offers = offers
        self._accepted: Sequence[str] = ()
        self._refused: list[str] = []

    def run(self) -> None:
        """Log in."""
        connection, user = self._connection, self._host.user
        if self._suffices(lambda: connection.auth_none(user)):
            return
        for offer in self._offers.keys:
            if "publickey" not in self._accepted:
                break
            if self._suffices(partial(connection.auth_publickey, user, offer.key), offer.name):
                return
        for method, attempt in (("password", self._give_password), ("keyboard-interactive", self._answer)):
            if self._host.password and method in self._accepted:
                if self._suffices(attempt, "password"):
                    return
                break
        raise _Fault(self._refusal())

    def _suffices(self, attempt: Callable[[], list[str]], name: str = "") -> bool:
        """Whether the host is content with this; if not, it has said what it accepts."""
        try:
            self._accepted = attempt()
            if not self._accepted:
                return True
            name = f"{name} (taken, but not enough)"
        except paramiko.BadAuthenticationType as error:
            self._accepted = error.allowed_types
        except paramiko.AuthenticationException:
            if not self._connection.is_active():
                raise self._ended(name) from None
        if name:
            self._refused.append(name)
        return False

    def _give_password(self) -> list[str]:
        return self._connection.auth_password(self._host.user, self._password(), fallback=False)

    def _answer(self) -> list[str]:
        """Give the password in answer to the first question; a second one is about something else."""
        answers = iter([self._password()])

        def answer(_title: str, _instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:
            return [next(answers, "") for _ in prompts]

        return self._connection.auth_interactive(self._host.user, answer)

    def _password(self) -> str:
        return cast(SecretStr, self._host.password).get_secret_value()

    def _ended(self, name: str) -> _Fault:
        """The host has ended the connection in the middle of the login."""
        said = self._connection.said
        tried = f" after {', '.join([*self._refused, name])}" if name else ""
        too_many = "Too many" in said
        hint = "; name the one key with priv_key_file, or with IdentitiesOnly" if too_many else ""
        words = f' ("{said}")' if said else ""
        return _Fault(
            f"{self._host.address} ended the login as {self._host.user}{tried}{words}{hint}",
            passing=not too_many,
        )

    def _refusal(self) -> str:
        host = self._host
        took = (
            f"it took none of: {', '.join(self._refused)}" if self._refused else "nothing of that is at hand"
        )
        parts = [
            f"the login as {host.user} is refused",
            f"{host.address} accepts {' or '.join(self._accepted)}",
            took,
        ]
        if self._offers.problems:
            parts.append(f"not offered: {', '.join(self._offers.problems)}")
        if self._offers.keys and "publickey" in self._accepted:
            hint = f"put the public key into {host.user}'s ~/.ssh/authorized_keys there, or name another key"
        else:
            hint = "name a key with priv_key_file, have an agent hold one, or give a password"
        return "; ".join([*parts, hint])
