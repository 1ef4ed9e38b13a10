"""`cvs exec`: what is said for which nodes, and the exit code."""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Command, assert_refused
from processes import processes_of

THREE: dict[str, Any] = {
    "username": "u",
    "transport": "local",
    "node_dict": {name: {"vpc_ip": "::1", "env_vars": {"ME": name}} for name in ("n-0", "n-1", "n-2")},
}


@pytest.fixture
def said(command: Command, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a shell command on three local nodes."""
    (tmp_path / "cluster.json").write_text(json.dumps(THREE))

    def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
        return command("exec", "--cmd", script, "--cluster_file", "cluster.json", *words)

    return run


# --- what is said -----------------------------------------------------------------------------------------


def test_nodes_with_the_same_answer_stand_together(said: Command) -> None:
    done = said("echo one; echo two >&2; echo three")
    assert done.stdout == "n-[0-2] (3 nodes): exit 0\n  one\n  three\n  stderr: two\n"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("script", "stdout"),
    [
        ("[ $ME = n-1 ] && echo other", "n-[0,2] (2 nodes): exit 1\nn-1: exit 0\n  other\n"),
        ("[ $ME != n-2 ] || exit 3", "n-[0-1] (2 nodes): exit 0\nn-2: exit 3\n"),
        (
            "[ $ME = n-0 ] && echo x >&2 || echo x",
            "n-0: exit 0\n  stderr: x\nn-[1-2] (2 nodes): exit 0\n  x\n",
        ),
    ],
)
def test_nodes_with_another_answer_stand_apart(script: str, stdout: str, said: Command) -> None:
    assert said(script).stdout == stdout


def test_what_would_disturb_a_terminal_is_not_shown(said: Command) -> None:
    done = said("printf 'a\\033[31m\\tb\\r\\n'; printf '\\377\\033c' >&2", "--nodes=n-0")
    assert done.stdout == "n-0: exit 0\n  a�[31m\tb\n  stderr: ��c\n"


def test_only_the_nodes_that_are_named_in_their_order(said: Command) -> None:
    assert said("echo $ME", "--nodes", "n-2,n-[0-0]").stdout == "n-2: exit 0\n  n-2\nn-0: exit 0\n  n-0\n"


def test_a_node_that_is_late(said: Command) -> None:
    done = said("echo begun; [ $ME != n-1 ] || sleep 60", "--timeout", "1")
    assert done.returncode == 1
    assert done.stdout == (
        "n-[0,2] (2 nodes): exit 0\n  begun\nn-1: did not end within 1 s and was stopped\n  begun\n"
    )


def test_json(said: Command) -> None:
    done = said("printf '\\033[1m'; [ $ME != n-2 ] || sleep 60; echo e >&2; exit 2", "--json", "--timeout=1")
    rows = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1, "")
    assert [row.pop("seconds") > 0 for row in rows] == [True] * 3
    ended = {"exit_code": 2, "stdout": "\x1b[1m", "stderr": "e\n", "error": None}
    late = "did not end within 1 s and was stopped"
    assert rows == [
        {"node": "n-0", **ended},
        {"node": "n-1", **ended},
        {"node": "n-2", "exit_code": None, "stdout": "\x1b[1m", "stderr": "", "error": late},
    ]


def test_keys_without_effect_are_named(said: Command, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(json.dumps({**THREE, "max_paralel": 1}))
    warning = "keys that have no effect here: max_paralel (did you mean max_parallel?)"
    assert said("true").stderr == f"warning: {warning}\n"


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "words", "messages"),
    [
        ("", [], ["--cmd: is empty; give a shell command"]),
        (" \n", [], ["--cmd: is empty"]),
        ("true", ["--nodes", ""], ["--nodes: names no node\n"]),
        (
            "true",
            ["--nodes", "n-0,m-1,n-20"],
            [
                "--nodes: m-1 is no node of the cluster file (did you mean n-1?)\n",
                "--nodes: n-20 is no node of the cluster file (did you mean n-2?)\n",
            ],
        ),
        ("true", ["--nodes", "n-[1-0]"], ["n-[1-0]: the range ends (0) before it begins (1)\n"]),
        ("true", ["--nodes", "n-1,n-1"], ["n-1: is named twice\n"]),
        ("true", ["--timeout", "0"], ["--timeout: '0' is no whole number of seconds from 1 to 604800\n"]),
        ("true", ["--timeout", "1.5"], ["'1.5' is no whole number"]),
        ("true", ["--timeout", "604801"], ["'604801' is no whole number"]),
        ("true", ["--timeout", "²"], ["'²' is no whole number"]),
    ],
)
def test_misuse(script: str, words: list[str], messages: list[str], said: Command) -> None:
    assert_refused(said(script, *words), 2, *messages)


def test_a_cluster_file_that_is_not_there(command: Command) -> None:
    done = command("exec", "--cmd", "true", "--cluster-file", "none.json")
    assert_refused(done, 2, "none.json: cannot be read: No such file or directory\n")


@pytest.mark.parametrize("words", [["--cmd", "true"], ["--cluster_file", "cluster.json"]])
def test_command_and_cluster_file_are_wanted(words: list[str], command: Command) -> None:
    assert_refused(command("exec", *words), 2, "required: --c")


# --- Ctrl-C -----------------------------------------------------------------------------------------------


def test_ctrl_c(tmp_path: Path) -> None:
    run_id = secrets.token_hex(6)
    cluster = {**THREE, "env_vars": {"TEST_RUN_ID": run_id}}
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    script = "touch $ME; sleep 60"
    process = subprocess.Popen(
        [sys.executable, "-m", "cvs.cli", "exec", "--cmd", script, "--cluster_file", "cluster.json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("n-*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130
    assert processes_of(run_id) == []


# --- over SSH ---------------------------------------------------------------------------------------------


def program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        pytest.fail(f"{name} is missing; install openssh-server and openssh-client")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[int]:
    """Port of an sshd that listens at 127.0.0.1 alone."""
    for key in ("host", "id"):
        make = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / key)]
        subprocess.run(make, check=True, timeout=60)
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd does not start without
    port = free_port()
    (tmp_path / "known_hosts").write_text(f"[127.0.0.1]:{port} {(tmp_path / 'host.pub').read_text()}")
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/id.pub\n"
        "PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
    )
    argv = [program("sshd"), "-D", "-f", f"{tmp_path}/sshd_config", "-E", f"{tmp_path}/sshd.log"]
    process = subprocess.Popen(argv)
    try:
        deadline = time.monotonic() + 20
        log = tmp_path / "sshd.log"
        while not (log.exists() and "listening" in log.read_text()):
            assert time.monotonic() < deadline, "sshd did not start"
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


def remote(folder: Path, port: int, *nodes: str) -> None:
    """The cluster file of nodes behind SSH."""
    (folder / "ssh_config").touch()
    cluster = {
        "username": getpass.getuser(),
        "priv_key_file": f"{folder}/id",
        "known_hosts": f"{folder}/known_hosts",
        "ssh_config": f"{folder}/ssh_config",
        "ssh_port": port,
        "env_vars": {"WORD": "it's"},
        "node_dict": {node: {"vpc_ip": node} for node in nodes},
    }
    (folder / "cluster.json").write_text(json.dumps(cluster))


def test_a_node_that_is_not_reached_costs_no_other(sshd: int, said: Command, tmp_path: Path) -> None:
    remote(tmp_path, sshd, "127.0.0.2", "127.0.0.1")
    done = said('echo "$WORD"; echo x >&2')
    first, *rest = done.stdout.splitlines()
    assert first.startswith(f"127.0.0.2: 127.0.0.2:{sshd} refuses connections")
    assert rest == ["127.0.0.1: exit 0", "  it's", "  stderr: x"]
    assert (done.returncode, done.stderr) == (1, "")


def test_nothing_is_left_on_a_remote_node_either(sshd: int, said: Command, tmp_path: Path) -> None:
    remote(tmp_path, sshd, "127.0.0.1")
    run_id = secrets.token_hex(6)
    script = f"export TEST_RUN_ID={run_id}; echo begun; setsid sleep 60 > /dev/null 2>&1 & sleep 60"
    done = said(script, "--timeout", "1")
    assert done.stdout == "127.0.0.1: did not end within 1 s and was stopped\n  begun\n"
    assert processes_of(run_id) == []


def test_what_a_command_leaves_in_the_background_is_not_waited_for(
    sshd: int, said: Command, tmp_path: Path
) -> None:
    remote(tmp_path, sshd, "127.0.0.1")
    done = said("sleep 60 & echo hi", "--timeout", "30")
    note = "[cvs: what it left running held its output, and was stopped]"
    assert done.stdout == f"127.0.0.1: exit 0\n  hi\n  stderr: {note}\n"
    assert done.returncode == 0


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_no_node_is_reached(words: list[str], said: Command, tmp_path: Path) -> None:
    port = free_port()
    remote(tmp_path, port, "127.0.0.1", "127.0.0.2")
    done = said("true", *words)
    assert (done.returncode, done.stderr) == (3, "cluster.json: no node could be reached\n")
    assert done.stdout.count("refuses connections") == 2
    if words:
        assert [(row["node"], row["exit_code"], row["seconds"]) for row in json.loads(done.stdout)] == [
            ("127.0.0.1", None, None),
            ("127.0.0.2", None, None),
        ]
