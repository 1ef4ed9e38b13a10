"""A node behind a real sshd on this machine: commands, jobs, the lock, files, and connections that break."""

from __future__ import annotations

import getpass
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import pytest

from cvs.config import ClusterConfig
from cvs.errors import NodeInUse, TransportError
from cvs.models import Holder
from cvs.runtime._leftovers import kill_processes
from cvs.transport.local import LocalTransport
from cvs.transport.ssh import SshTransport
from processes import children_of, eventually, is_running, kill
from sshd import QUICK, Sshd, StartSshd

HOLDER = Holder(run_id="r1", user="alice", host="login", since="2026-11-30T10:00:00+00:00")
OTHER = HOLDER.model_copy(update={"run_id": "r2"})

Connect = Callable[[], SshTransport]


@pytest.fixture
def cluster(tmp_path: Path, sshd: Sshd, key: Path) -> ClusterConfig:
    return cluster_at(sshd, key, tmp_path)


def cluster_at(sshd: Sshd, key: Path, tmp_path: Path) -> ClusterConfig:
    """The cluster whose one node is behind this sshd."""
    sshd.authorize(key)
    (tmp_path / "known_hosts").write_text(sshd.known_line)
    (tmp_path / "config").write_text(f"Host node-0\n HostName 127.0.0.1\n Port {sshd.port}\n")
    return ClusterConfig.model_validate(
        {
            "username": getpass.getuser(),
            "priv_key_file": str(key),
            "ssh_config": str(tmp_path / "config"),
            "known_hosts": str(tmp_path / "known_hosts"),
            "env_vars": {"OF_CLUSTER": "it's one"},
            "node_dict": {"node-0": {"vpc_ip": "127.0.0.1", "env_vars": {"OF_NODE": "1"}}},
        }
    )


@pytest.fixture
def connect(cluster: ClusterConfig) -> Iterator[Connect]:
    """Makes transports to the one node, each with a connection of its own."""
    made: list[SshTransport] = []

    def make() -> SshTransport:
        made.append(SshTransport("node-0", cluster, limits=QUICK))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.fixture
def node(connect: Connect) -> SshTransport:
    return connect()


@pytest.fixture
def node_of(start_sshd: StartSshd, key: Path, tmp_path: Path) -> Iterator[Callable[..., SshTransport]]:
    """Makes a node whose sshd has some lines of configuration of its own."""
    made: list[SshTransport] = []

    def make(*lines: str) -> SshTransport:
        made.append(SshTransport("node-0", cluster_at(start_sshd(*lines), key, tmp_path), limits=QUICK))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.fixture
def path_of(tmp_path: Path) -> Callable[..., str]:
    """Makes the line of configuration by which a node has these programs alone."""

    def make(*programs: str) -> str:
        (tmp_path / "bin").mkdir()
        for program in programs:
            (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
        return f"SetEnv PATH={tmp_path}/bin SHLVL=2"

    return make


def drop_connections(sshd: Sshd) -> None:
    """End what serves the connections, as a lost network would; their commands live on."""
    for pid in children_of(sshd.process.pid):
        with suppress(FileNotFoundError, ProcessLookupError):  # a command that has just ended
            if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                kill([pid])


def pid_in(file: Path) -> int:
    assert eventually(lambda: file.exists() and file.read_text().endswith("\n")), "it did not start"
    return int(file.read_text())


# --- commands ---------------------------------------------------------------------------------------------


def test_a_command_and_what_it_leaves(node: SshTransport, tmp_path: Path) -> None:
    result = node.run(
        ["sh", "-c", "cat; pwd; echo bad >&2; exit 3"], timeout=10, cwd=str(tmp_path), stdin=b"in\n"
    )
    assert (result.exit_code, result.stdout, result.stderr) == (3, f"in\n{tmp_path}\n", "bad\n")


def test_words_arrive_as_they_are(node: SshTransport) -> None:
    words = ["a b", "it's", "$HOME", "*", "", "x\ny", "é"]
    result = node.run(["printf", "%s\\0", *words], timeout=10)
    assert result.stdout.split("\0") == [*words, ""]


def test_the_environment_is_the_cluster_files_and_the_calls(node: SshTransport) -> None:
    script = 'echo "$OF_CLUSTER $OF_NODE $OF_CALL"'
    result = node.run(["sh", "-c", script], timeout=10, environment={"OF_CALL": "a 'b'", "OF_NODE": "2"})
    assert result.stdout == "it's one 2 a 'b'\n"


def test_the_environment_stands_in_no_command_line(node: SshTransport) -> None:
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
    result = node.run(["sh", "-c", script], timeout=10, environment={"TOKEN": "open" + "-sesame"})
    assert "TOKEN" not in result.stdout
    assert "open-sesame" not in result.stdout


def test_output_of_any_length(node: SshTransport) -> None:
    result = node.run(["sh", "-c", "head -c 5000000 /dev/zero; head -c 3000000 /dev/zero >&2"], timeout=30)
    assert (len(result.stdout), len(result.stderr)) == (5_000_000, 3_000_000)


def test_a_command_that_takes_too_long_is_ended_there(node: SshTransport, tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pid; exec sleep 60"
    with pytest.raises(TransportError, match=r"^node-0: sh did not end within 1 s and was stopped$"):
        node.run(["sh", "-c", script], timeout=1)
    assert eventually(lambda: not is_running(pid_in(tmp_path / "pid")))


def test_no_such_folder_or_program(node: SshTransport) -> None:
    assert node.run(["true"], timeout=10, cwd="/no/such").exit_code == 126
    assert node.run(["no-such-program"], timeout=10).exit_code == 127


def test_more_commands_at_once_than_there_are_channels(node: SshTransport) -> None:
    def echo(number: int) -> str:
        return node.run(["sh", "-c", f"sleep 0.2; echo {number}"], timeout=30).stdout

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(echo, range(20))) == [f"{number}\n" for number in range(20)]


# --- a login shell that has something to say itself ---------------------------------------------------------

RUN_IT = 'eval "$SSH_ORIGINAL_COMMAND"'
NOISES = {
    "stdout": "echo Welcome to the node;",
    "stderr": "echo warn >&2;",
    "both": "printf 'no end'; echo warn >&2; echo warn >&2;",
    "much": "head -c 300000 /dev/zero;",
    "trace": "set -x;",
}


@pytest.fixture(params=NOISES)
def noisy(request: pytest.FixtureRequest, node_of: Callable[..., SshTransport]) -> SshTransport:
    return node_of(f"ForceCommand {NOISES[request.param]} {RUN_IT}")


def test_what_a_login_shell_prints_is_nothing_of_a_command(noisy: SshTransport, tmp_path: Path) -> None:
    result = noisy.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=10)
    assert (result.exit_code, result.stdout) == (3, "out\n")
    assert result.stderr.splitlines()[0] == "err"
    pieces: list[bytes] = []
    assert noisy.stream(["printf", "a\\nb"], pieces.append) == 0
    assert b"".join(pieces) == b"a\nb"
    assert noisy.hold(str(tmp_path), HOLDER) is None
    noisy.let_go()
    assert noisy.free_port("127.0.0.1")


def test_nor_of_files(noisy: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    fetched = noisy.fetch(str(tmp_path), ["file"], tmp_path / "here", timeout=20)
    assert list(fetched.digests) == ["file"]
    assert (tmp_path / "here" / "file").read_text() == "text"


def test_nor_of_a_job(noisy: SshTransport, tmp_path: Path) -> None:
    job = Job(noisy, tmp_path, f"echo $$ > {tmp_path}/pid; echo begun; exec sleep 60")
    assert eventually(lambda: job.output == b"begun\n")
    assert kill_processes(noisy, "r1") == []
    assert not is_running(pid_in(tmp_path / "pid"))


def test_nor_of_the_docker_engine(node_of: Callable[..., SshTransport], tmp_path: Path) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text("#!/bin/sh\necho $*; exec cat\n")
    docker.chmod(0o755)
    path = f"SetEnv PATH={docker.parent}:{os.environ['PATH']} SHLVL=2"
    stream = node_of(path, f"ForceCommand {NOISES['both']} {RUN_IT}").dial_docker(5)
    stream.sendall(b"GET /")
    said = b""
    while not said.endswith(b"GET /"):
        said += stream.recv(100)
    stream.close()
    assert said == b"system dial-stdio\nGET /"


CALLS: dict[str, Callable[[SshTransport, Path], object]] = {
    "run": lambda node, _: node.run(["true"], timeout=10),
    "stream": lambda node, _: node.stream(["true"], print),
    "hold": lambda node, folder: node.hold(str(folder), HOLDER),
    "fetch": lambda node, folder: node.fetch(str(folder), ["file"], folder / "here", timeout=10),
    "dial": lambda node, _: node.dial_docker(10),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_login_shell_that_runs_no_command(
    call: str, node_of: Callable[..., SshTransport], tmp_path: Path
) -> None:
    node = node_of("ForceCommand echo This account is not available.; echo sorry >&2; exit 1")
    with pytest.raises(TransportError) as caught:
        CALLS[call](node, tmp_path)
    assert str(caught.value) == (
        f"node-0: the login shell of {getpass.getuser()} did not run the command; it said: sorry / This"
        " account is not available.; it must be one such as bash, and its start-up files (.bashrc) must"
        " neither end it nor wait"
    )


def test_a_login_shell_that_waits(node_of: Callable[..., SshTransport]) -> None:
    with pytest.raises(TransportError, match=r"did not run the command in time; it said: nothing; it must"):
        node_of("ForceCommand exec sleep 30").run(["true"], timeout=1)


# --- a connection that breaks -----------------------------------------------------------------------------


def test_a_connection_that_is_lost_under_a_command(node: SshTransport, sshd: Sshd, tmp_path: Path) -> None:
    node.run(["true"], timeout=10)
    cut = Timer(0.5, drop_connections, [sshd])
    cut.start()
    with pytest.raises(TransportError, match=r"^node-0: the connection was lost"):
        node.run(["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 20"], timeout=20)
    cut.join()
    os.kill(pid_in(tmp_path / "pid"), signal.SIGKILL)


def test_the_next_command_makes_a_new_connection(node: SshTransport, sshd: Sshd) -> None:
    node.run(["true"], timeout=10)
    drop_connections(sshd)
    assert node.run(["echo", "again"], timeout=10).stdout == "again\n"


def test_none_is_made_once_it_is_closed(node: SshTransport, sshd: Sshd) -> None:
    node.run(["true"], timeout=10)
    node.close()
    assert eventually(lambda: not sshd.sessions())
    with pytest.raises(TransportError, match=r"^node-0: the connection is closed$"):
        node.run(["true"], timeout=10)


# --- a job ------------------------------------------------------------------------------------------------


class Job:
    """A job on the node, and its output so far."""

    def __init__(self, node: SshTransport, folder: Path, script: str) -> None:
        self.pieces: list[bytes] = []
        self.process = node.start(
            ["sh", "-c", script], cwd=str(folder), environment={"CVS_RUN_ID": "r1"},
            folder=str(folder / "job"), sink=self.pieces.append,
        )  # fmt: skip

    @property
    def output(self) -> bytes:
        return b"".join(self.pieces)

    def has_said(self, lines: int) -> bool:
        return self.output.count(b"\n") >= lines


def test_a_job_to_its_end(node: SshTransport, tmp_path: Path) -> None:
    job = Job(node, tmp_path, "echo $CVS_RUN_ID $OF_CLUSTER; pwd; exit 5")
    assert eventually(lambda: job.process.poll() == 5)
    assert job.process.drain(5)
    assert job.output.decode() == f"r1 it's one\n{tmp_path}\n"


def test_a_signal_reaches_it(node: SshTransport, tmp_path: Path) -> None:
    job = Job(node, tmp_path, "echo begun; exec sleep 60")
    assert eventually(lambda: job.output == b"begun\n")
    job.process.signal(signal.SIGTERM)
    assert eventually(lambda: job.process.poll() == -signal.SIGTERM)


def test_a_lost_connection_costs_a_job_no_line(node: SshTransport, sshd: Sshd, tmp_path: Path) -> None:
    job = Job(node, tmp_path, "for i in 1 2 3 4 5 6 7 8; do echo line $i; sleep 0.3; done")
    for lines in (1, 4):
        assert eventually(partial(job.has_said, lines))
        drop_connections(sshd)
    assert eventually(lambda: job.process.poll() == 0)
    assert job.output == b"".join(b"line %d\n" % number for number in range(1, 9))


def test_a_job_that_cannot_be_started(node: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "job").write_text("no folder")
    with pytest.raises(TransportError, match=r"^node-0: the job cannot be started: mkdir: .*File exists$"):
        Job(node, tmp_path, "true")


def followers_of(folder: Path) -> list[int]:
    """Shells that follow the job with this folder."""
    found = subprocess.run(
        ["pgrep", "-f", f"is_heard.*{folder}"], check=False, capture_output=True, text=True
    )
    return [int(pid) for pid in found.stdout.split()]


def test_a_job_that_is_quiet_has_no_follower_any_more_once_nobody_hears_it(
    node: SshTransport, tmp_path: Path
) -> None:
    Job(node, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    pid = pid_in(tmp_path / "pid")
    try:
        assert eventually(lambda: followers_of(tmp_path))
        node.close()
        assert eventually(lambda: not followers_of(tmp_path))
        assert is_running(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


# --- the lock ---------------------------------------------------------------------------------------------


def test_a_node_is_held_by_one(connect: Connect, tmp_path: Path) -> None:
    first, second = connect(), connect()
    assert first.hold(str(tmp_path), HOLDER) is None
    with pytest.raises(NodeInUse, match=rf"^node-0: {tmp_path} is in use by run r1"):
        second.hold(str(tmp_path), OTHER)
    first.let_go()
    assert second.hold(str(tmp_path), OTHER) is None


def test_closing_lets_go_where_no_process_of_the_run_is_left(connect: Connect, tmp_path: Path) -> None:
    first, second = connect(), connect()
    first.hold(str(tmp_path), HOLDER)
    first.close()

    def can_be_had() -> bool:
        try:
            second.hold(str(tmp_path), OTHER)
        except NodeInUse:
            return False
        return True

    assert eventually(can_be_had)


def test_a_job_holds_the_node_beyond_its_connection(connect: Connect, tmp_path: Path) -> None:
    first, second = connect(), connect()
    first.hold(str(tmp_path), HOLDER)
    Job(first, tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 60")
    pid = pid_in(tmp_path / "pid")
    first.close()
    try:
        time.sleep(2.5)  # longer than the node takes to look
        with pytest.raises(NodeInUse, match=r"in use by run r1"):
            second.hold(str(tmp_path), OTHER)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_an_engine_is_held_by_one_on_whatever_way_it_comes(
    node_of: Callable[..., SshTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        TemporaryDirectory(prefix="cvs-docker-") as folder,
        closing(socket.socket(socket.AF_UNIX)) as listener,
    ):
        listener.bind(f"{folder}/docker.sock")
        monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
        remote = node_of(f"SetEnv DOCKER_HOST=unix://{folder}/docker.sock SHLVL=2")
        remote.hold_engine(HOLDER, seconds=60)
        with closing(LocalTransport("node-0")) as here:
            with pytest.raises(NodeInUse) as refused:
                here.hold_engine(OTHER, seconds=60)
            assert str(refused.value) == f"node-0: in use by {HOLDER}"
            remote.let_go()
            here.hold_engine(OTHER, seconds=60)
            with pytest.raises(NodeInUse, match=r"^node-0: in use by run r2 of "):
                remote.hold_engine(HOLDER, seconds=60)


def test_a_folder_that_cannot_be_used(node: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TransportError, match=rf"^node-0: cannot use {tmp_path}/file: mkdir: .*"):
        node.hold(str(tmp_path / "file"), HOLDER)
    (tmp_path / ".cvs" / "lock").mkdir(parents=True)
    with pytest.raises(TransportError, match=rf"^node-0: cannot use {tmp_path}: .*/lock: Is a directory$"):
        node.hold(str(tmp_path), HOLDER)


@pytest.mark.parametrize(
    ("programs", "missing"), [(["sh", "cat", "flock"], "mkdir"), (["sh", "cat", "mkdir"], "flock")]
)
def test_a_program_that_the_lock_needs(
    programs: list[str],
    missing: str,
    node_of: Callable[..., SshTransport],
    path_of: Callable[..., str],
    tmp_path: Path,
) -> None:
    with pytest.raises(TransportError, match=rf"cannot use {tmp_path}: .*{missing}: .*not found$") as caught:
        node_of(path_of(*programs)).hold(str(tmp_path), HOLDER)
    assert not isinstance(caught.value, NodeInUse)


# --- files ------------------------------------------------------------------------------------------------


def test_files_arrive_as_they_are(node: SshTransport, tmp_path: Path) -> None:
    texts = {"a b/x.json": b"{}\n", "it's/$y": bytes(range(256)) * 1000, "empty": b""}
    for name, content in texts.items():
        (tmp_path / "there" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "there" / name).write_bytes(content)
    (tmp_path / "there" / "other").write_text("not asked for")
    fetched = node.fetch(str(tmp_path / "there"), list(texts), tmp_path / "here", timeout=20)
    assert fetched.digests == {name: hashlib.sha256(text).hexdigest() for name, text in texts.items()}
    assert fetched.problem is None
    here = tmp_path / "here"
    assert {str(p.relative_to(here)): p.read_bytes() for p in here.rglob("*") if p.is_file()} == texts


def test_a_file_that_is_not_there_costs_no_other(node: SshTransport, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "good").write_text("good")
    fetched = node.fetch(str(tmp_path / "there"), ["bad", "good"], tmp_path / "here", timeout=20)
    assert list(fetched.digests) == ["good"]
    assert fetched.problem is not None
    assert fetched.problem.startswith("node-0: cannot fetch bad: ")
    assert (tmp_path / "here" / "good").read_text() == "good"


def test_files_that_take_too_long(node: SshTransport, tmp_path: Path) -> None:
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(20 << 30)
    begun = time.monotonic()
    fetched = node.fetch(str(tmp_path), ["endless"], tmp_path / "here", timeout=1)
    assert fetched == ({}, "node-0: cannot fetch all files within 1 s")
    assert time.monotonic() - begun < 8
    assert not (tmp_path / "here" / "endless").exists()


def test_a_name_that_is_no_utf_8(node: SshTransport, tmp_path: Path) -> None:
    name = os.fsdecode(b"bad\xff")
    (tmp_path / name).write_text("text")
    argv = ["find", str(tmp_path), "-name", "bad*", "-printf", "%f"]
    assert node.run(argv, timeout=10, errors="surrogateescape").stdout == name
    fetched = node.fetch(str(tmp_path), [name], tmp_path / "here", timeout=20)
    assert (list(fetched.digests), fetched.problem) == ([name], None)
    assert (tmp_path / "here" / name).read_text() == "text"


@pytest.mark.parametrize(
    ("programs", "told"),
    [
        (["sh", "gzip"], r"more: .*tar: .*not found; what arrived is broken"),
        (["sh", "tar"], r"more: there is neither zstd nor gzip; what arrived is broken"),
    ],
)
def test_a_program_that_the_way_home_needs(
    programs: list[str],
    told: str,
    node_of: Callable[..., SshTransport],
    path_of: Callable[..., str],
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("text")
    fetched = node_of(path_of(*programs)).fetch(str(tmp_path), ["file"], tmp_path / "here", timeout=20)
    assert fetched.digests == {}
    assert re.match(rf"node-0: cannot fetch {told}", str(fetched.problem))


# --- ports ------------------------------------------------------------------------------------------------


def test_a_free_port_is_none_that_is_listened_on(node: SshTransport, sshd: Sshd) -> None:
    taken, first_ephemeral = node._ports()
    assert sshd.port in taken
    ports = {node.free_port("127.0.0.1") for _ in range(5)}
    assert not ports & taken
    assert max(ports) < first_ephemeral
