"""The door to a node that is a folder of this machine, with real processes behind it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import REPOSITORY, holder
from cvs.errors import NodeInUse, TransportError
from cvs.transport.base import Process
from cvs.transport.local import LocalTransport
from processes import eventually, is_running


@pytest.fixture
def local() -> Iterator[LocalTransport]:
    transport = LocalTransport("node-0")
    yield transport
    transport.close()


def pid_in(file: Path) -> int:
    """The process id that a started process writes there."""
    assert eventually(lambda: file.exists() and file.read_text().endswith("\n")), "it did not start"
    return int(file.read_text())


# --- commands ---------------------------------------------------------------------------------------------


def test_a_command_and_all_that_it_leaves(local: LocalTransport) -> None:
    argv = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    result = local.run(argv, timeout=5)
    assert (result.argv, result.exit_code) == (tuple(argv), 3)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert 0 < result.seconds < 5


def test_a_signal_is_a_negative_exit_code(local: LocalTransport) -> None:
    assert local.run(["sh", "-c", "kill -9 $$"], timeout=5).exit_code == -9


def test_where_with_what_and_on_what_it_runs(local: LocalTransport, tmp_path: Path) -> None:
    result = local.run(
        ["sh", "-c", 'pwd; echo "$MY_OWN"; cat'],
        timeout=5,
        cwd=str(tmp_path),
        environment={"MY_OWN": "two words"},
        stdin=b"given",
    )
    assert result.stdout == f"{tmp_path.resolve()}\ntwo words\ngiven"


def test_what_is_not_read_from_stdin_does_no_harm(local: LocalTransport) -> None:
    assert local.run(["true"], timeout=5, stdin=b"x" * 200_000).exit_code == 0


def test_output_of_any_size_and_kind(local: LocalTransport) -> None:
    result = local.run(["sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; printf '\\377' >&2"], timeout=5)
    assert result.stdout == "x" * 300_000
    assert result.stderr == "�"


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), max_size=4))
def test_arguments_arrive_as_they_are(words: list[str]) -> None:
    """No shell stands between."""
    result = LocalTransport("a").run(
        ["sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "sh", *words], timeout=5
    )
    assert result.stdout == "".join(f"{word}\0" for word in words)


FOREIGN = """
    RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT
    TORCHELASTIC_RUN_ID TORCHELASTIC_ERROR_FILE PET_NNODES CVS_RUN_ID
""".split()


def test_a_launcher_above_leaves_nothing_to_the_node(
    local: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*FOREIGN, "MY_OWN"):
        monkeypatch.setenv(name, "foreign")
    told = local.run(["env", "-0"], timeout=5).stdout.split("\0")
    assert [entry.partition("=")[0] for entry in told if entry.endswith("=foreign")] == ["MY_OWN"]


def test_what_the_plan_says_comes_over_it(local: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CVS_RUN_ID", "foreign")
    result = local.run(["sh", "-c", "echo $CVS_RUN_ID"], timeout=5, environment={"CVS_RUN_ID": "r1"})
    assert result.stdout == "r1\n"


def test_a_program_that_is_not_there(local: LocalTransport) -> None:
    with pytest.raises(TransportError, match=r"^node-0: cannot start no-such-program: No such file"):
        local.run(["no-such-program"], timeout=5)


def test_a_folder_that_is_not_there_is_what_is_named(local: LocalTransport) -> None:
    with pytest.raises(TransportError, match=r"^node-0: .*/no/such/folder"):
        local.run(["true"], timeout=5, cwd="/no/such/folder")


@pytest.mark.parametrize(
    ("argv", "environment"), [(["true"], {"A=B": "c"}), (["true"], {"A": "b\0c"}), (["true", "\0"], {})]
)
def test_what_no_process_can_be_given(
    local: LocalTransport, argv: list[str], environment: dict[str, str]
) -> None:
    with pytest.raises(TransportError, match=r"^node-0: cannot start true"):
        local.run(argv, timeout=5, environment=environment)


# --- time-outs --------------------------------------------------------------------------------------------


def test_at_its_time_out_a_command_is_ended_with_its_children(local: LocalTransport, tmp_path: Path) -> None:
    started = time.monotonic()
    script = "trap '' TERM; sleep 60 & echo $! > child; echo $$ > parent; wait"
    with pytest.raises(TransportError, match=r"^node-0: sh did not end within 0 s and was stopped$"):
        local.run(["sh", "-c", script], timeout=0.3, cwd=str(tmp_path))
    assert time.monotonic() - started < 2
    assert not is_running(pid_in(tmp_path / "parent"))
    assert eventually(lambda: not is_running(pid_in(tmp_path / "child")))


def test_a_child_that_outlives_its_parent_is_ended_too(local: LocalTransport, tmp_path: Path) -> None:
    """It keeps the output open, so the command has not ended for who waits for its output."""
    with pytest.raises(TransportError, match="did not end within"):
        local.run(["sh", "-c", "sleep 60 & echo $! > child"], timeout=0.3, cwd=str(tmp_path))
    child = pid_in(tmp_path / "child")
    try:
        assert eventually(lambda: not is_running(child), seconds=1)
    finally:
        if is_running(child):
            os.kill(child, signal.SIGKILL)


def test_an_interrupt_ends_the_command(local: LocalTransport, tmp_path: Path) -> None:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            local.run(["sh", "-c", "echo $$ > pid; exec sleep 60"], timeout=60, cwd=str(tmp_path))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    assert not is_running(pid_in(tmp_path / "pid"))


# --- jobs -------------------------------------------------------------------------------------------------


class Job:
    """A started job and what it has said so far."""

    def __init__(self, local: LocalTransport, script: str, cwd: Path, **environment: str) -> None:
        self.pieces: list[bytes] = []
        argv = ["sh", "-c", script]
        self.process: Process = local.start(
            argv, cwd=str(cwd), environment=environment, folder="", sink=self.pieces.append
        )

    def exit_code(self) -> int | None:
        assert eventually(lambda: self.process.poll() is not None), "it did not end"
        assert self.process.drain(5)
        return self.process.poll()


def test_output_comes_line_by_line_both_streams_in_one(local: LocalTransport, tmp_path: Path) -> None:
    job = Job(local, "echo one; echo two >&2; echo three; printf four; exit 5", tmp_path)
    assert job.exit_code() == 5
    assert job.pieces == [b"one\n", b"two\n", b"three\n", b"four"]


def test_output_comes_while_the_job_runs(local: LocalTransport, tmp_path: Path) -> None:
    job = Job(local, "echo first; exec sleep 60", tmp_path)
    assert eventually(lambda: job.pieces == [b"first\n"])
    assert job.process.poll() is None
    assert not job.process.drain(0.05)
    job.process.signal(signal.SIGTERM)
    assert job.exit_code() == -15


def test_a_line_without_an_end_comes_in_pieces(local: LocalTransport, tmp_path: Path) -> None:
    job = Job(local, "head -c 200000 /dev/zero | tr '\\0' x", tmp_path)
    assert job.exit_code() == 0
    assert len(job.pieces) > 1
    assert b"".join(job.pieces) == b"x" * 200_000


def test_a_job_has_a_session_of_its_own_and_no_stdin(local: LocalTransport, tmp_path: Path) -> None:
    """So that Ctrl-C in the terminal reaches cvs alone, and nothing waits for the user."""
    job = Job(local, "echo $$ > pid; cat; echo got nothing; exec sleep 60", tmp_path)
    pid = pid_in(tmp_path / "pid")
    assert (os.getsid(pid), os.getpgid(pid)) == (pid, pid)
    assert eventually(lambda: job.pieces == [b"got nothing\n"])
    job.process.signal(signal.SIGKILL)
    assert job.exit_code() == -9


def test_a_signal_goes_to_the_whole_group(local: LocalTransport, tmp_path: Path) -> None:
    job = Job(local, "sleep 60 & echo $! > child; wait", tmp_path)
    child = pid_in(tmp_path / "child")
    job.process.signal(signal.SIGTERM)
    assert job.exit_code() == -15
    assert eventually(lambda: not is_running(child))


def test_a_signal_to_a_job_that_has_ended_is_no_error(local: LocalTransport, tmp_path: Path) -> None:
    job = Job(local, "exit 0", tmp_path)
    assert job.exit_code() == 0
    job.process.signal(signal.SIGKILL)
    assert job.process.poll() == 0


def test_the_job_gets_its_environment(local: LocalTransport, tmp_path: Path) -> None:
    job = Job(local, 'pwd; echo "$MY_OWN"', tmp_path, MY_OWN="a  b")
    assert job.exit_code() == 0
    assert job.pieces == [f"{tmp_path.resolve()}\n".encode(), b"a  b\n"]


def test_a_job_that_cannot_be_started(local: LocalTransport, tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=r"^node-0: cannot start /no/torchrun: No such file"):
        local.start(["/no/torchrun"], cwd=str(tmp_path), environment={}, folder="", sink=print)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_sink_that_fails_does_not_stall_the_job(local: LocalTransport, tmp_path: Path) -> None:
    """A job whose output nobody takes would stand still once the pipe is full."""

    def broken(_piece: bytes) -> None:
        raise BrokenPipeError

    script = "i=0; while [ $i -lt 40 ]; do head -c 8000 /dev/zero; echo; i=$((i+1)); done"
    process = local.start(["sh", "-c", script], cwd=str(tmp_path), environment={}, folder="", sink=broken)
    try:
        assert eventually(lambda: process.poll() is not None, seconds=1.5)
        assert process.drain(5)
    finally:
        process.signal(signal.SIGKILL)


# --- files ------------------------------------------------------------------------------------------------


def test_fetch(local: LocalTransport, tmp_path: Path) -> None:
    names = ["a", "d/e/b", "with space/and\nnewline", "-dash", "ümlaut"]
    for index, name in enumerate(names):
        (tmp_path / "node" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "node" / name).write_bytes(bytes([index, 0, 255]))
    (tmp_path / "node" / "not asked for").touch()
    digests, problem = local.fetch(str(tmp_path / "node"), names, tmp_path / "home", timeout=5)
    home = {path.relative_to(tmp_path / "home").as_posix(): path for path in (tmp_path / "home").rglob("*")}
    assert {name for name, path in home.items() if path.is_file()} == set(names)
    contents = [bytes([index, 0, 255]) for index in range(5)]
    assert [home[name].read_bytes() for name in names] == contents
    assert [digests[name] for name in names] == [hashlib.sha256(text).hexdigest() for text in contents]
    assert problem is None


def test_fetch_names_what_cannot_be_read(local: LocalTransport, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    digests, problem = local.fetch(str(tmp_path), ["no", "a", "none"], tmp_path / "home", timeout=5)
    assert list(digests) == ["a"]
    assert problem == "node-0: cannot fetch no: No such file or directory, nor 1 others"


def test_fetch_is_bounded(local: LocalTransport, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    fetched = local.fetch(str(tmp_path), ["a"], tmp_path / "home", timeout=0)
    assert fetched == ({}, "node-0: cannot fetch all files within 0 s")


def test_send_tree(local: LocalTransport, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("print()")
    local.send_tree(tmp_path / "source", str(tmp_path / "node" / "aorta"))
    assert (tmp_path / "node" / "aorta" / "train.py").read_text() == "print()"


def test_send_tree_names_both_sides_and_the_reason(local: LocalTransport, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").touch()
    (tmp_path / "taken").touch()
    with pytest.raises(TransportError) as caught:
        local.send_tree(tmp_path / "source", str(tmp_path / "taken"))
    message = str(caught.value)
    assert message.startswith(f"node-0: cannot copy {tmp_path}/source to {tmp_path}/taken: ")
    assert "Not a directory" in message or "File exists" in message


# --- holding a folder -------------------------------------------------------------------------------------


def test_a_folder_is_held_by_one_run(local: LocalTransport, tmp_path: Path) -> None:
    local.hold(str(tmp_path), holder("run-1"))
    other = LocalTransport("node-0")
    who = "run run-1 of alice@here, since 2026-11-30T04:49:07"
    with pytest.raises(NodeInUse, match=rf"^node-0: {tmp_path} is in use by {who}"):
        other.hold(str(tmp_path), holder("run-2"))
    local.close()
    assert other.hold(str(tmp_path), holder("run-2")) is None
    with pytest.raises(NodeInUse, match="in use by run run-2"):
        local.hold(str(tmp_path), holder("run-1"))
    other.close()


def test_other_folders_are_free(local: LocalTransport, tmp_path: Path) -> None:
    local.hold(str(tmp_path / "a"), holder("run-1"))
    other = LocalTransport("node-1")
    other.hold(str(tmp_path / "b"), holder("run-2"))
    other.close()


def test_a_holder_that_is_killed_holds_nothing_and_is_told(local: LocalTransport, tmp_path: Path) -> None:
    code = (
        "import sys; from conftest import holder; from cvs.transport.local import LocalTransport as L\n"
        "t = L('x'); t.hold(sys.argv[1], holder('run-1')); print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(NodeInUse, match="in use by run run-1"):
            local.hold(str(tmp_path), holder("run-2"))
    finally:
        process.kill()
        process.communicate()
    assert local.hold(str(tmp_path), holder("run-2")) == holder("run-1")


@pytest.mark.parametrize("text", ["run-1", "{}", '{"run_id": "run-1"', "\0" * 99])
def test_a_record_that_cannot_be_read_tells_of_nobody(
    local: LocalTransport, tmp_path: Path, text: str
) -> None:
    (tmp_path / ".cvs").mkdir()
    (tmp_path / ".cvs" / "lock").write_text(text)
    assert local.hold(str(tmp_path), holder("run-2")) is None


def test_what_a_job_started_does_not_hold_on(local: LocalTransport, tmp_path: Path) -> None:
    """A worker that is left must not keep the next run out."""
    local.hold(str(tmp_path), holder("run-1"))
    process = local.start(["sleep", "60"], cwd=str(tmp_path), environment={}, folder="", sink=print)
    local.close()
    other = LocalTransport("node-0")
    other.hold(str(tmp_path), holder("run-2"))
    other.close()
    process.signal(signal.SIGKILL)
    assert eventually(lambda: process.poll() is not None)


def test_a_folder_that_cannot_be_held(local: LocalTransport, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TransportError, match=r"^node-0: .*file"):
        local.hold(str(tmp_path / "file"), holder("run-1"))


# --- holding an engine ------------------------------------------------------------------------------------


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a socket that is this machine's Docker engine."""
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind("docker.sock")
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        yield tmp_path


def test_an_engine_is_held_by_one_run(local: LocalTransport, docker: Path) -> None:
    local.hold_engine(holder("run-1"), seconds=60)
    with closing(LocalTransport("node-0")) as other:
        with pytest.raises(NodeInUse) as refused:
            other.hold_engine(holder("run-2"), seconds=60)
        assert str(refused.value) == f"node-0: in use by {holder('run-1')}"
        assert (refused.value.run_id, refused.value.since) == ("run-1", holder("run-1").since)
        local.let_go()
        other.hold_engine(holder("run-2"), seconds=60)
    assert [path.name for path in docker.iterdir()] == ["docker.sock"], "nothing is written there"


def test_an_engine_is_the_same_by_every_path(
    local: LocalTransport, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local.hold_engine(holder("run-1"), seconds=60)
    (docker / "var").symlink_to(docker)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{docker}/var/docker.sock")
    with closing(LocalTransport("node-0")) as other, pytest.raises(NodeInUse, match="in use by run run-1"):
        other.hold_engine(holder("run-2"), seconds=60)


@pytest.mark.usefixtures("docker")
def test_an_engine_is_held_for_so_long_at_most(local: LocalTransport) -> None:
    local.hold_engine(holder("run-1"), seconds=1)
    with closing(LocalTransport("node-0")) as other:
        assert eventually(lambda: can_hold_engine(other))


def test_a_killed_cvs_holds_no_engine(local: LocalTransport, docker: Path) -> None:
    code = (
        "import sys; from conftest import holder; from cvs.transport.local import LocalTransport as L\n"
        "L('x').hold_engine(holder('run-1'), seconds=60); print('held', flush=True); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")}, cwd=docker,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not can_hold_engine(local)
    finally:
        process.kill()
        process.communicate()
    assert eventually(lambda: can_hold_engine(local))


def can_hold_engine(transport: LocalTransport) -> bool:
    try:
        transport.hold_engine(holder("run-2"), seconds=60)
    except NodeInUse:
        return False
    return True


def test_an_engine_that_cannot_be_held(
    local: LocalTransport, docker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sh", "timeout"):
        (docker / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(docker))
    with pytest.raises(TransportError, match=r"^node-0: cannot use the Docker engine: .*flock: not found"):
        local.hold_engine(holder("run-1"), seconds=60)


# --- ports ------------------------------------------------------------------------------------------------


def test_a_free_port_can_be_listened_on(local: LocalTransport) -> None:
    with socket.create_server(("127.0.0.1", local.free_port("127.0.0.1"))) as server:
        assert server.getsockname()[1] >= 1024


def test_ports_that_are_taken_are_not_offered(local: LocalTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] not in {local.free_port("127.0.0.1") for _ in range(20)}


def test_an_address_of_another_machine(local: LocalTransport) -> None:
    with pytest.raises(
        TransportError, match=r"^node-0: no port can be opened at 192\.0\.2\.1: .*; vpc_ip must be"
    ):
        local.free_port("192.0.2.1")


def test_a_port_at_an_ipv6_address(local: LocalTransport) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error.strerror}")
    assert local.free_port("::1") >= 1024


# --- many at once -----------------------------------------------------------------------------------------


def test_jobs_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    def work(index: int) -> None:
        job = Job(LocalTransport(f"node-{index}"), f"for i in 1 2 3; do echo {index}; done", tmp_path)
        codes[index] = job.exit_code()
        said[index] = job.pieces

    said: dict[int, list[bytes]] = {}
    codes: dict[int, int | None] = {}
    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    assert codes == dict.fromkeys(range(4), 0)
    assert said == {index: [f"{index}\n".encode()] * 3 for index in range(4)}


def test_a_job_that_cannot_be_followed_does_not_go_on(
    local: LocalTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        assert pid_in(tmp_path / "pid")
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    script = "echo $$ > pid; exec sleep 60"
    with pytest.raises(TransportError, match=r"^node-0: cannot follow the job: can't start new thread$"):
        local.start(["sh", "-c", script], cwd=str(tmp_path), environment={}, folder="", sink=print)
    assert not is_running(pid_in(tmp_path / "pid"))
