"""The login: which keys a host took, passwords, and questions, at a real sshd."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_FAILED
from paramiko.server import InteractiveQuery
from pydantic import SecretStr

from cvs.transport._ssh_target import SshTarget
from sshd import (
    QUICK,
    Sshd,
    StartAgent,
    StartSshd,
    assert_reached,
    fingerprint,
    make_key,
    program,
    public,
    refused,
    run,
)


def test_a_key_that_is_not_authorized(sshd: Sshd, key: Path, tmp_path: Path) -> None:
    sshd.authorize(make_key(tmp_path / "another"))
    error = refused(sshd.target(key))
    assert f"the login as {getpass.getuser()} is refused; 127.0.0.1:{sshd.port} accepts publickey" in str(
        error
    )
    assert f"it took none of: key {key} (ssh-ed25519 {fingerprint(key)})" in str(error)
    assert "authorized_keys" in str(error)
    assert "whose login shell does not exist" in str(error)
    assert not error.passing


def test_keys_that_the_server_does_not_want(start_sshd: StartSshd, key: Path) -> None:
    sshd = start_sshd("PubkeyAuthentication no", "PasswordAuthentication yes")
    error = str(refused(sshd.target(key)))
    assert f"127.0.0.1:{sshd.port} accepts password; nothing of that is at hand" in error


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


# --- questions --------------------------------------------------------------------------------------------


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


def test_a_question_that_is_not_about_the_password(tmp_path: Path) -> None:
    with ask_in_server(tmp_path, ["Password: ", "Code: "]) as (target, answers):
        refused(replace(target, password=SecretStr("open sesame")))
        assert answers == ["open sesame", ""]


def test_a_login_that_does_not_end(tmp_path: Path) -> None:
    with ask_in_server(tmp_path, [], seconds=20) as (target, _):
        error = refused(replace(target, password=SecretStr("open sesame")), replace(QUICK, auth=0.7))
        assert str(error) == "node-0: the login as alice did not end within 0.7 s"
        assert error.passing
