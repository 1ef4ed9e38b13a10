"""Files of known hosts, as OpenSSH reads and writes them: which keys a host is known by."""

from __future__ import annotations

import base64
import binascii
import fcntl
import hashlib
import hmac
import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from cvs.transport._ssh_target import SshTarget

_SSH_PORT = 22


@dataclass(frozen=True)
class PublicKey:
    """A public key, of a host or a user."""

    type: str
    """As files of known hosts call it, such as `ssh-ed25519`."""
    blob: bytes

    def __str__(self) -> str:
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"{self.type} SHA256:{digest}"


class Verdict(Enum):
    """What is known about the key that a host has shown."""

    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    """The host is known, but by other keys."""
    REVOKED = "revoked"


@dataclass(frozen=True)
class Finding:
    """A verdict, and the line that it rests on."""

    verdict: Verdict
    line: KnownHost | None = None
    certified: bool = False
    """Whether a certificate authority speaks for the host: its certificates are not looked at here."""


@dataclass(frozen=True)
class KnownHost:
    """One line of a file of known hosts."""

    where: str
    """File and line."""
    marker: str
    """`@revoked`, `@cert-authority` or nothing."""
    patterns: tuple[str, ...]
    key: PublicKey

    def is_about(self, name: str) -> bool:
        """Whether the line speaks of this host; `!pattern` takes one out."""
        matching = [pattern for pattern in self.patterns if _matches(pattern.removeprefix("!"), name)]
        return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


def names_of(host: SshTarget) -> tuple[str, ...]:
    """Under which names a host is looked up; the first is the one that is written down.

    A host on a port of its own may be known by its bare name, too: a key that fits there is as good.
    """
    if host.host_key_alias:
        return (host.host_key_alias.lower(),)
    name = host.host.lower()
    return (name,) if host.port == _SSH_PORT else (f"[{name}]:{host.port}", name)


class KnownHosts:
    """All lines of some files; one that is missing or cannot be read has none, and no odd line counts."""

    def __init__(self, files: Sequence[str]) -> None:
        self.unreadable: list[str] = []
        """Files that are there and cannot be read, and why."""
        self._lines = [line for file in files for line in self._read(file)]

    def _read(self, file: str) -> Iterator[KnownHost]:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self.unreadable.append(f"{file} cannot be read: {error.strerror}")
            return
        yield from _lines_of(file, text)

    def key_types(self, names: Sequence[str]) -> list[str]:
        """Types of the keys that the host is known by, to be asked of it first."""
        return [line.key.type for name in names for line in self._about(name, "")]

    def look_up(self, names: Sequence[str], key: PublicKey) -> Finding:
        """What is known about `key`, shown by the host with these `names`."""
        for name in names:
            for line in self._about(name, "@revoked"):
                if line.key.blob == key.blob:
                    return Finding(Verdict.REVOKED, line)
        for name in names:
            for line in self._about(name, ""):
                if line.key.blob == key.blob:
                    return Finding(Verdict.KNOWN, line)
        # Of another type, too: else whoever stands in for a known host would only have to show a new type.
        others = sorted(self._about(names[0], ""), key=lambda line: line.key.type != key.type)
        if others:
            return Finding(Verdict.CHANGED, others[0])
        certified = any(True for name in names for _ in self._about(name, "@cert-authority"))
        return Finding(Verdict.UNKNOWN, certified=certified)

    def _about(self, name: str, marker: str) -> Iterator[KnownHost]:
        return (line for line in self._lines if line.marker == marker and line.is_about(name))


def objection(host: SshTarget, key: PublicKey, known: KnownHosts) -> str:
    """Why the key that a host has shown is not to be trusted, and what to do; empty: it is.

    With the policy `accept-new` the key of an unknown host is written down.
    """
    names = names_of(host)
    finding = known.look_up(names, key)
    if finding.verdict is Verdict.KNOWN:
        return ""
    if finding.line is not None:
        return _other_key(host, names[0], key, finding.verdict, finding.line)
    if host.host_key_policy == "strict":
        if known.unreadable:
            return f"the host key of {names[0]} cannot be checked: {known.unreadable[0]}; set known_hosts"
        return _no_key(host, names[0], key, finding.certified)
    if not host.known_hosts:
        return f"the host key of {names[0]} cannot be written down: no file is set; set known_hosts"
    try:
        remember(host.known_hosts[0], names[0], key)
    except OSError as error:
        file = host.known_hosts[0]
        return f"the host key of {names[0]} cannot be written to {file}: {error.strerror}; set known_hosts"
    return ""


def _other_key(host: SshTarget, name: str, key: PublicKey, verdict: Verdict, line: KnownHost) -> str:
    if verdict is Verdict.REVOKED:
        return f"the host key of {name} is revoked ({line.where}): it shows {key}; the host needs a new one"
    file = shlex.quote(line.where.rpartition(":")[0])
    return (
        f"the host key of {name} is not the one that is known: it shows {key}, but {line.where} says"
        f" {line.key}; someone may stand in between; if the host was set up anew:"
        f" ssh-keygen -R {shlex.quote(name)} -f {file}; {_scan(host, name)} >> {file}"
    )


def _no_key(host: SshTarget, name: str, key: PublicKey, certified: bool) -> str:
    files = " or ".join(host.known_hosts) or "any file"
    authority = ", but a @cert-authority, which cvs does not follow" if certified else ""
    file = shlex.quote(host.known_hosts[0]) if host.known_hosts else "~/.ssh/known_hosts"
    return (
        f"the host key of {name} is not known: it shows {key}, and {files} has none for it{authority};"
        f" if it is the right one: {_scan(host, name)} >> {file}; or set host_key_policy to accept-new"
    )


def _scan(host: SshTarget, name: str) -> str:
    """The command that prints the host's keys as lines of a file of known hosts."""
    command = f"ssh-keyscan -p {host.port} {shlex.quote(host.host)}"
    if host.jumps:
        *before, last = (shlex.quote(f"ssh://{hop.login}") for hop in host.jumps)
        command = f"ssh {'-J ' + ','.join(before) + ' ' if before else ''}{last} {command}"
    return f"{command} | sed 's/^[^ ]*/{name}/'" if host.host_key_alias else command


def remember(file: str, name: str, key: PublicKey) -> None:
    """Append a line to a file of known hosts, which is made where it is missing.

    Raises: OSError: it cannot be written.
    """
    path = Path(file)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{name} {key.type} {base64.b64encode(key.blob).decode()}\n".encode()
    with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b", buffering=0) as known:
        fcntl.flock(known, fcntl.LOCK_EX)  # many nodes are met at once
        os.write(known.fileno(), line if _ends_with_a_line(known.fileno()) else b"\n" + line)


def _ends_with_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


def _lines_of(file: str, text: str) -> Iterator[KnownHost]:
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#"):
            continue
        try:
            key = PublicKey(words[1], base64.b64decode(words[2], validate=True))
        except (binascii.Error, ValueError):
            continue
        yield KnownHost(f"{file}:{number}", marker, tuple(words[0].split(",")), key)


def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith("|1|"):
        return _is_hash_of(pattern, name)
    wild = re.escape(pattern.lower()).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(wild, name) is not None


def _is_hash_of(pattern: str, name: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in pattern.split("|")[2:])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.digest(salt, name.encode(), "sha1"), digest)
