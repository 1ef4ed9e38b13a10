"""What the tests of SSH log in at and with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes import eventually, kill
from sshd import Sshd, StartAgent, StartSshd, free_port, make_key, program, run


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
            "SetEnv SHLVL=2",  # else bash reads a start-up file of whoever runs the tests, at every command
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
        kill([*sshd.sessions(), sshd.process.pid])
        sshd.process.wait()


@pytest.fixture
def sshd(start_sshd: StartSshd) -> Sshd:
    return start_sshd()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return make_key(tmp_path / "id_ed25519")


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """Signs certificates."""
    return make_key(tmp_path / "authority")


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
