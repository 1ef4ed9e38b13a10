"""Connecting and logging in, at real sshd on ports of this machine."""

from __future__ import annotations

import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives.asymmetric import dsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from paramiko.common import AUTH_FAILED
from paramiko.server import InteractiveQuery
from pydantic import SecretStr

from cvs.transport._ssh_connect import ConnectError, SshLimits, connect
from cvs.transport._ssh_target import SshTarget

QUICK = SshLimits(connect=2, banner=2, auth=5)


# --- what the tests log in at and with --------------------------------------------------------------------


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


def public(key: Path) -> str:
    return Path(f"{key}.pub").read_text()


def fingerprint(key: Path) -> str:
    return run("ssh-keygen", "-l", "-f", f"{key}.pub").split()[1]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def eventually(holds: Callable[[], object], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def children_of(parent: int) -> list[int]:
    """Processes below one, all the way down."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                child = int(stat.parent.name)
                found += [child, *children_of(child)]
    return found


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


@pytest.fixture
def start_sshd(tmp_path: Path) -> Iterator[StartSshd]:
    """Starts an sshd with some lines of configuration of its own; all of them end with the test."""
    started: list[Sshd] = []

    def start(*lines: str, host_keys: tuple[str, ...] = ("ed25519",)) -> Sshd:
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd does not start without
        folder = tmp_path / f"sshd-{len(started)}"
        folder.mkdir()
        for kind in host_keys:
            make_key(folder / f"host_{kind}", "-t", kind)
        port = free_port()
        settings = [
            *lines, "ListenAddress 127.0.0.1", "PidFile none", "StrictModes no", "UsePAM no",
            "LogLevel VERBOSE", f"AuthorizedKeysFile {folder}/authorized_keys", "PasswordAuthentication no",
            "KbdInteractiveAuthentication no", "PermitRootLogin yes",
            *(f"HostKey {folder}/host_{kind}" for kind in host_keys),
        ]  # fmt: skip
        (folder / "sshd_config").write_text("\n".join(settings))
        argv = [
            program("sshd"),
            "-D",
            "-f",
            str(folder / "sshd_config"),
            "-p",
            str(port),
            "-E",
            str(folder / "log"),
        ]
        sshd = Sshd(port, folder, subprocess.Popen(argv))
        started.append(sshd)
        assert eventually(lambda: (folder / "log").exists() and "listening" in sshd.log), sshd.log
        return sshd

    yield start
    for sshd in started:
        for process in [*sshd.sessions(), sshd.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        sshd.process.wait()


@pytest.fixture
def sshd(start_sshd: StartSshd) -> Sshd:
    return start_sshd()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "id_ed25519")


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


# --- keys -------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_every_kind(kind: str, sshd: Sshd, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key", *KINDS[kind])
    sshd.authorize(key)
    # A passphrase does a key no harm that has none.
    assert_reached(sshd.target(key, passphrase=SecretStr("open sesame")))


def test_a_key_that_is_not_authorized(sshd: Sshd, key: Path, tmp_path: Path) -> None:
    sshd.authorize(make_key(tmp_path / "another"))
    error = refused(sshd.target(key))
    assert f"the login as {getpass.getuser()} is refused; 127.0.0.1:{sshd.port} accepts publickey" in str(
        error
    )
    assert f"it took none of: key {key} (ssh-ed25519 {fingerprint(key)})" in str(error)
    assert "authorized_keys" in str(error)
    assert not error.passing


def test_the_second_key_is_good(sshd: Sshd, key: Path, tmp_path: Path) -> None:
    sshd.authorize(key)
    assert_reached(sshd.target(tmp_path / "missing", make_key(tmp_path / "another"), key))


def test_keys_that_the_server_does_not_want(start_sshd: StartSshd, key: Path) -> None:
    sshd = start_sshd("PubkeyAuthentication no", "PasswordAuthentication yes")
    error = str(refused(sshd.target(key)))
    assert f"127.0.0.1:{sshd.port} accepts password; nothing of that is at hand" in error


def pem(file: Path, key: dsa.DSAPrivateKey | X25519PrivateKey) -> Path:
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


def dsa_key(file: Path) -> Path:
    """What ssh-keygen does not make any more."""
    return pem(file, dsa.generate_private_key(1024))


def unusable(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Key files of no use, and what is said of each."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "junk").write_text("secret junk")
    (tmp_path / "cut").write_text(make_key(tmp_path / "whole").read_text()[:200])
    locked = make_key(tmp_path / "locked", "-N", "the right one")
    return {
        "missing": (tmp_path / "none", "there is no key file"),
        "folder": (tmp_path / "folder", "Is a directory"),
        "junk": (tmp_path / "junk", "is no private key"),
        "cut": (tmp_path / "cut", "is no private key"),
        "public": (Path(f"{locked}.pub"), "is no private key"),
        "wrong": (locked, "does not open with the passphrase; check priv_key_passphrase"),
        "dsa": (dsa_key(tmp_path / "dsa"), "is of a type that cannot be used"),
        "x25519": (pem(tmp_path / "x25519", X25519PrivateKey.generate()), "is of a type that cannot be used"),
    }


@pytest.mark.filterwarnings("ignore:SSH DSA key")
@pytest.mark.parametrize("case", ["missing", "folder", "junk", "cut", "public", "wrong", "dsa", "x25519"])
def test_key_files_of_no_use(case: str, sshd: Sshd, tmp_path: Path) -> None:
    file, said = unusable(tmp_path)[case]
    error = refused(sshd.target(file, passphrase=SecretStr("hush hush")))
    assert str(file) in str(error)
    assert said in str(error)
    assert "hush" not in str(error)
    assert "secret" not in str(error)
    assert not error.passing


def test_a_passphrase_is_needed(sshd: Sshd, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", "-N", "the right one")
    assert f"key {locked} needs a passphrase; set priv_key_passphrase" in str(refused(sshd.target(locked)))


# --- certificates -----------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Signs certificates."""
    return make_key(tmp_path / "authority")


def certify(authority: Path, key: Path, validity: str = "always:forever") -> Path:
    run(
        "ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", getpass.getuser(), "-V", validity, f"{key}.pub"
    )
    return Path(f"{key}-cert.pub")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_beside_the_key(
    kind: str, start_sshd: StartSshd, tmp_path: Path, authority: Path
) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    key = make_key(tmp_path / "key", *KINDS[kind])
    certify(authority, key)
    assert_reached(sshd.target(key))


def test_a_certificate_elsewhere(start_sshd: StartSshd, key: Path, authority: Path, tmp_path: Path) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    elsewhere = certify(authority, key).rename(tmp_path / "cert")
    others = certify(authority, make_key(tmp_path / "another"))
    assert_reached(sshd.target(key, certificates=(str(others), str(elsewhere))))


def test_certificates_of_no_use(start_sshd: StartSshd, key: Path, authority: Path, tmp_path: Path) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    expired = certify(authority, key, "20200101:20200102")
    none = (str(tmp_path / "none"), f"{key}.pub")
    error = str(refused(sshd.target(key, certificates=none)))
    assert f"certificate {expired} (ssh-ed25519-cert-v01@openssh.com, expired)" in error
    assert f"certificate {none[0]}: No such file or directory, certificate {none[1]} is none" in error


# --- the agent --------------------------------------------------------------------------------------------


StartAgent = Callable[..., str]


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[StartAgent]:
    """Starts an agent that holds some keys."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(*keys: Path, options: tuple[str, ...] = ()) -> str:
        path = str(tmp_path / f"agent-{len(processes)}")
        environment = {**os.environ, "SSH_ASKPASS": "/bin/false", "SSH_ASKPASS_REQUIRE": "force"}
        processes.append(
            subprocess.Popen([program("ssh-agent"), "-D", "-a", path], env=environment, stdout=-3)
        )
        assert eventually(Path(path).exists)
        for key in keys:
            run("ssh-add", "-q", *options, key, SSH_AUTH_SOCK=path)
        return path

    yield start
    for process in processes:
        process.kill()
        process.wait()


def test_a_key_that_the_agent_holds(sshd: Sshd, key: Path, start_agent: StartAgent, tmp_path: Path) -> None:
    rsa = make_key(tmp_path / "rsa", *KINDS["rsa"])
    agent = start_agent(key, rsa)
    for held in (key, rsa):
        sshd.authorize(held)
        assert_reached(sshd.target(agent=agent))


def test_an_encrypted_key_that_the_agent_holds(sshd: Sshd, key: Path, start_agent: StartAgent) -> None:
    sshd.authorize(key)
    agent = start_agent(key)
    run("ssh-keygen", "-q", "-p", "-N", "unknown", "-f", key)
    assert_reached(sshd.target(key, agent=agent))
    # Its public half can be told without the passphrase, even if no file has it.
    Path(f"{key}.pub").unlink()
    assert_reached(sshd.target(key, agent=agent, only_keys=True))


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_that_the_agent_holds(
    kind: str, start_sshd: StartSshd, tmp_path: Path, authority: Path, start_agent: StartAgent
) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    key = make_key(tmp_path / "key", *KINDS[kind])
    certify(authority, key)
    assert_reached(sshd.target(agent=start_agent(key)))  # ssh-add takes the certificate along


def test_a_certificate_for_a_key_that_the_agent_holds(
    start_sshd: StartSshd, key: Path, authority: Path, start_agent: StartAgent, tmp_path: Path
) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    certificate = certify(authority, key).rename(tmp_path / "elsewhere")
    assert_reached(sshd.target(agent=start_agent(key), certificates=(str(certificate),)))


def test_too_many_keys(start_sshd: StartSshd, start_agent: StartAgent, key: Path, tmp_path: Path) -> None:
    sshd = start_sshd("MaxAuthTries 2")
    sshd.authorize(key)
    others = [make_key(tmp_path / f"other-{number}") for number in range(3)]
    agent = start_agent(*others, key)
    error = refused(sshd.target(agent=agent))
    assert f"key other-0 of the agent (ssh-ed25519 {fingerprint(others[0])})" in str(error)
    assert '("Too many authentication failures"); name the one key with priv_key_file' in str(error)
    assert not error.passing
    # The key of a file is offered before the others of the agent, and with IdentitiesOnly it alone is.
    assert_reached(sshd.target(key, agent=agent))
    assert_reached(sshd.target(Path(f"{key}.pub"), agent=agent, only_keys=True))


def test_an_agent_that_does_not_sign(sshd: Sshd, key: Path, start_agent: StartAgent, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    agent = start_agent(key, options=("-c",))  # asks, and is told no
    sshd.authorize(key, other)
    assert_reached(sshd.target(agent=agent, keys=(str(other),)))
    assert "key id_ed25519 of the agent" in str(refused(sshd.target(agent=agent)))


def test_agents_of_no_use(sshd: Sshd, start_agent: StartAgent, tmp_path: Path) -> None:
    empty, none = start_agent(), str(tmp_path / "none")
    assert f"agent {empty} holds no key" in str(refused(sshd.target(agent=empty)))
    assert f"agent {none}: No such file or directory" in str(refused(sshd.target(agent=none)))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        started = time.monotonic()
        error = refused(sshd.target(agent=str(tmp_path / "silent")), replace(QUICK, auth=0.5))
        assert f"agent {tmp_path}/silent: timed out" in str(error)
        assert time.monotonic() - started < 4


# --- passwords --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Someone:
    name: str
    password: SecretStr


@pytest.fixture(scope="module")
def someone() -> Iterator[Someone]:
    """A user of this machine for as long as these tests last."""
    if os.getuid() != 0:
        pytest.skip("a user with a password can be made by root only")
    user = Someone(f"cvs-test-{os.getpid()}", SecretStr(secrets.token_hex(8)))
    run("useradd", "--no-create-home", "--home-dir", "/", "--shell", "/bin/sh", user.name)
    try:
        line = f"{user.name}:{user.password.get_secret_value()}"
        subprocess.run([program("chpasswd")], input=line, text=True, check=True)
        yield user
    finally:
        run("userdel", user.name)


def test_a_password(start_sshd: StartSshd, someone: Someone) -> None:
    sshd = start_sshd("PasswordAuthentication yes")
    assert_reached(sshd.target(user=someone.name, password=someone.password))
    error = refused(sshd.target(user=someone.name, password=SecretStr("not this one")))
    assert "accepts publickey or password; it took none of: password" in str(error)
    assert "not this one" not in str(error) + repr(error) + repr(
        sshd.target(password=SecretStr("not this one"))
    )


def test_a_password_as_the_answer_to_a_question(start_sshd: StartSshd, someone: Someone) -> None:
    if not Path("/etc/pam.d/sshd").exists():
        pytest.fail("/etc/pam.d/sshd is missing; install openssh-server")
    sshd = start_sshd("KbdInteractiveAuthentication yes", "UsePAM yes")
    assert_reached(sshd.target(user=someone.name, password=someone.password))
    error = refused(sshd.target(user=someone.name, password=SecretStr("not this one")))
    assert "accepts publickey or keyboard-interactive; it took none of: password" in str(error)


def test_a_key_and_a_password(start_sshd: StartSshd, someone: Someone, key: Path) -> None:
    sshd = start_sshd("PasswordAuthentication yes", "AuthenticationMethods publickey,password")
    sshd.authorize(key)
    (sshd.folder / "authorized_keys").chmod(0o644)
    for folder in sshd.folder.parents:
        if folder.owner() == getpass.getuser() and folder != Path("/"):
            folder.chmod(0o755)
    assert_reached(sshd.target(key, user=someone.name, password=someone.password))
    error = str(refused(sshd.target(key, user=someone.name)))
    assert (
        f"accepts password; it took none of: key {key} (ssh-ed25519 {fingerprint(key)}) (taken, but" in error
    )


def test_a_question_that_is_not_about_the_password(tmp_path: Path) -> None:
    with ask_in_server(tmp_path, ["Password: ", "Code: "]) as (target, answers):
        refused(replace(target, password=SecretStr("open sesame")))
        assert answers == ["open sesame", ""]


class _Asks(paramiko.ServerInterface):
    """A server that asks its own questions, and takes its time."""

    def __init__(self, questions: list[str], seconds: float) -> None:
        self.questions = questions
        self.seconds = seconds
        self.answers: list[str] = []

    def get_allowed_auths(self, username: str) -> str:  # noqa: ARG002
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> InteractiveQuery:  # noqa: ARG002
        time.sleep(self.seconds)
        return InteractiveQuery("", "", *self.questions)

    def check_auth_interactive_response(self, responses: list[str]) -> int:
        self.answers += responses
        return AUTH_FAILED


@contextmanager
def ask_in_server(
    tmp_path: Path, questions: list[str], seconds: float = 0
) -> Iterator[tuple[SshTarget, list[str]]]:
    """What no sshd does by itself, from the server side of paramiko."""
    host_key = make_key(tmp_path / "host_key")
    asks = _Asks(questions, seconds)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        known = tmp_path / "known_hosts"
        known.write_text(f"[127.0.0.1]:{port} {public(host_key)}")

        def serve() -> None:
            connection = paramiko.Transport(listening.accept()[0])
            connection.add_server_key(paramiko.Ed25519Key.from_private_key_file(host_key))
            with suppress(paramiko.SSHException, EOFError):
                connection.start_server(server=asks)

        threading.Thread(target=serve, daemon=True).start()
        yield (
            SshTarget(node="node-0", host="127.0.0.1", port=port, user="alice", known_hosts=(str(known),)),
            asks.answers,
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
    for process in node.sessions():
        os.kill(process, signal.SIGKILL)
    assert eventually(lambda: not connection.is_active())
    assert eventually(lambda: not first.sessions() and not second.sessions())


def test_a_hop_that_refuses_the_key(chain: tuple[Sshd, Sshd, Sshd], key: Path, tmp_path: Path) -> None:
    first, second, node = chain
    second.authorize(make_key(tmp_path / "another"))
    error = str(refused(node.target(key, jumps=over(first.target(key), second.target(key)))))
    assert error.startswith(f"node-0: hop {getpass.getuser()}@127.0.0.1:{second.port}: the login as")
    assert eventually(lambda: not first.sessions())


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


# --- the network ------------------------------------------------------------------------------------------


def target_at(port: int, host: str = "127.0.0.1") -> SshTarget:
    """Something that is no sshd, or not there at all."""
    return SshTarget(node="node-0", host=host, port=port, user="alice", password=SecretStr("open sesame"))


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


def test_nonsense_after_the_banner() -> None:
    with server(b"SSH-2.0-OpenSSH_9.2\r\n" + bytes(range(256)) * 20) as port:
        assert f"127.0.0.1:{port}" in str(refused(target_at(port)))


def test_no_algorithm_in_common(start_sshd: StartSshd, key: Path) -> None:
    sshd = start_sshd("KexAlgorithms diffie-hellman-group18-sha512")
    error = refused(sshd.target(key))
    assert "have no algorithm in common" in str(error)
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


def test_a_login_that_does_not_end(tmp_path: Path) -> None:
    with ask_in_server(tmp_path, [], seconds=20) as (target, _):
        error = refused(replace(target, password=SecretStr("open sesame")), replace(QUICK, auth=0.7))
        assert str(error) == "node-0: the login as alice did not end within 0.7 s"
        assert error.passing


# --- once it stands ---------------------------------------------------------------------------------------

IMPATIENT = replace(QUICK, keepalive=0.3, silence=1.5)


def test_a_quiet_connection_stays(sshd: Sshd, key: Path) -> None:
    sshd.authorize(key)
    with connected(sshd.target(key), IMPATIENT) as connection:
        time.sleep(3)
        assert run_there(connection) == "here"


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
