"""sshd on ports of this machine, keys to log in with, and what is no sshd."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric import dsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from pydantic import SecretStr

from cvs.transport._ssh_connect import ConnectError, SshLimits, connect
from cvs.transport._ssh_target import SshTarget
from processes import children_of, eventually

QUICK = SshLimits(connect=2, banner=2, auth=5)


# --- programs of OpenSSH ----------------------------------------------------------------------------------


def program(name: str) -> str:
    """Path of a program of OpenSSH; without it these tests mean nothing."""
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.fail(f"{name} is missing; install openssh-server and openssh-client")
    return found


def run(*argv: str | Path, **environment: str) -> str:
    """A program of OpenSSH to its good end."""
    done = subprocess.run(
        [program(str(argv[0])), *map(str, argv[1:])],
        capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_key(file: Path, *options: str) -> Path:
    """A new key pair; of ed25519 and without a passphrase if the options do not say otherwise."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", file.name, *options, "-f", file)
    return file


KINDS = {
    "ed25519": [],
    "ecdsa": ["-t", "ecdsa", "-b", "521"],
    "rsa": ["-t", "rsa", "-b", "2048"],
    "rsa-pem": ["-t", "rsa", "-b", "2048", "-m", "PEM"],
    "pkcs8": ["-t", "ecdsa", "-m", "PKCS8"],
    "ed25519-encrypted": ["-N", "open sesame"],
    "rsa-pem-encrypted": ["-t", "rsa", "-b", "2048", "-m", "PEM", "-N", "open sesame"],
    "pkcs8-encrypted": ["-t", "ecdsa", "-m", "PKCS8", "-N", "open sesame"],
}


def pem(file: Path, key: dsa.DSAPrivateKey | X25519PrivateKey) -> Path:
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


def dsa_key(file: Path) -> Path:
    """What ssh-keygen does not make any more."""
    return pem(file, dsa.generate_private_key(1024))


def public(key: Path) -> str:
    return Path(f"{key}.pub").read_text()


def fingerprint(key: Path) -> str:
    return run("ssh-keygen", "-l", "-f", f"{key}.pub").split()[1]


# --- servers ----------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@dataclass(frozen=True)
class Sshd:
    """A running sshd."""

    port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def host_key(self) -> Path:
        return self.folder / "host_ed25519"

    @property
    def name(self) -> str:
        """Under which files of known hosts have it."""
        return f"[127.0.0.1]:{self.port}"

    @property
    def known_line(self) -> str:
        return f"{self.name} {public(self.host_key)}"

    def sessions(self) -> list[int]:
        """Processes that serve connections."""
        return children_of(self.process.pid)

    def authorize(self, *keys: Path) -> None:
        (self.folder / "authorized_keys").write_text("".join(map(public, keys)))

    def target(self, *keys: Path, **fields: object) -> SshTarget:
        """How to log in there, with the host key known."""
        known = self.folder / "known_hosts"
        if not known.exists():
            known.write_text(self.known_line)
        target = SshTarget(
            node="node-0", host="127.0.0.1", port=self.port, user=getpass.getuser(),
            keys=tuple(map(str, keys)), known_hosts=(str(known),),
        )  # fmt: skip
        return replace(target, **fields)  # type: ignore[arg-type]


StartSshd = Callable[..., Sshd]


StartAgent = Callable[..., str]


def target_at(port: int, host: str = "127.0.0.1") -> SshTarget:
    """Something that is no sshd, or not there at all."""
    return SshTarget(node="node-0", host=host, port=port, user="alice", password=SecretStr("open sesame"))


@contextmanager
def server(*says: bytes, stays: bool = True) -> Iterator[int]:
    """A port that takes connections, says something, and then is silent or hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            kept = []
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connection.sendall(b"".join(says))
                    kept.append(connection)
                    if not stays:
                        connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


# --- connections ------------------------------------------------------------------------------------------


def run_there(connection: paramiko.Transport, command: str = "echo here") -> str:
    """What a command writes at the other end."""
    channel = connection.open_session(timeout=5)
    channel.settimeout(5)
    channel.exec_command(command)
    return channel.makefile("rb").read().decode().strip()


@contextmanager
def connected(target: SshTarget, limits: SshLimits = QUICK) -> Iterator[paramiko.Transport]:
    connection = connect(target, limits)
    try:
        yield connection
    finally:
        connection.close()


def assert_reached(target: SshTarget) -> None:
    with connected(target) as connection:
        assert run_there(connection) == "here"


def open_connections() -> list[paramiko.Transport]:
    threads = (thread for thread in threading.enumerate() if isinstance(thread, paramiko.Transport))
    return [thread for thread in threads if not thread.server_mode]


def refused(target: SshTarget, limits: SshLimits = QUICK) -> ConnectError:
    """The error with which it is not reached; nothing of paramiko is left over."""
    with pytest.raises(ConnectError) as caught:
        connect(target, limits)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("node-0: ")
    assert eventually(lambda: not open_connections()), "a connection was left open"
    return caught.value
