"""The keys to log in with: from files, with their certificates, and from an agent."""

from __future__ import annotations

import io
import socket
import struct
import warnings
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import paramiko
import paramiko.agent
from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from paramiko.message import Message
from paramiko.pkey import PublicBlob
from pydantic import SecretStr

from cvs.transport._ssh_errors import Fault, readable
from cvs.transport._ssh_host_keys import PublicKey
from cvs.transport._ssh_target import SshTarget

warnings.filterwarnings("ignore", "SSH DSA key", module=__name__)

CERTIFICATE = "-cert-v01@openssh.com"
"""How names of types end that are those of certificates."""
_KEY_CLASSES: dict[str, type[paramiko.PKey]] = {
    "ssh-ed25519": paramiko.Ed25519Key,
    "ssh-rsa": paramiko.RSAKey,
    **dict.fromkeys(paramiko.ECDSAKey.supported_key_format_identifiers(), paramiko.ECDSAKey),
}


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


class Offers:
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
        except Fault as fault:
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


# --- files ------------------------------------------------------------------------------------------------


def _private_key(file: str, passphrase: SecretStr | None) -> _PrivateKey:
    """The key in a file; OSError: it cannot be read."""
    key = _opened(Path(file).read_bytes(), passphrase)
    try:
        public = _public_key(key.public_key().public_bytes(*_AS_LINE))
        private = _PrivateKey(public, key.private_bytes(*_AS_FILE, serialization.NoEncryption()).decode())
        private.signer()
    except (ValueError, TypeError, LookupError, UnsupportedAlgorithm, paramiko.SSHException):
        raise Fault("is of a type that cannot be used; make one with ssh-keygen -t ed25519") from None
    return private


def _opened(text: bytes, passphrase: SecretStr | None) -> PrivateKeyTypes:
    is_openssh = b"OPENSSH PRIVATE KEY" in text
    read = serialization.load_ssh_private_key if is_openssh else serialization.load_pem_private_key
    try:
        try:
            return read(text, None)
        except TypeError:  # it is encrypted
            if not passphrase:
                raise Fault("needs a passphrase; set priv_key_passphrase, or have an agent hold it") from None
        try:
            return read(text, passphrase.get_secret_value().encode())
        except (ValueError, InvalidTag):
            raise Fault("does not open with the passphrase; check priv_key_passphrase") from None
    except UnsupportedAlgorithm as error:
        raise Fault(f"cannot be used ({error})") from None
    except ValueError:
        raise Fault("is no private key") from None


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


# --- the agent --------------------------------------------------------------------------------------------


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
            _AgentKey(self, answer.get_string(), readable(answer.get_string()))
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
        return _with(PublicBlob(self.name, self.blob), key) if self.name.endswith(CERTIFICATE) else key

    def sign_ssh_data(self, data: Any, algorithm: str | None = None) -> Message:
        """See `PKey`; if the agent does not sign, the key is refused, where paramiko would end all."""
        try:
            return super().sign_ssh_data(data, algorithm)
        except (OSError, EOFError, paramiko.SSHException):
            return Message()
