"""A job that outlives its connection, over a transport whose connection is cut at will."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cvs.errors import TransportError
from cvs.transport.base import Sink
from cvs.transport.detached import LIVES, DetachedProcess, clean_command, job_command, signal_command
from cvs.transport.local import LocalTransport
from processes import eventually


class Cut(LocalTransport):
    """Loses its connection after so many bytes, each time it is made; 0: never."""

    def __init__(self, after: int = 0, times: int = 10**9) -> None:
        super().__init__("a")
        self.after, self.times = after, times

    def stream(self, argv: Sequence[str], sink: Sink) -> int:
        if not self.times:
            return super().stream(argv, sink)
        self.times -= 1
        room = self.after

        def limited(piece: bytes) -> None:
            nonlocal room
            sink(piece[:room])
            room -= len(piece)
            if room <= 0:
                raise TransportError("a: the connection was lost")

        return super().stream(argv, limited)


class Job:
    """A script as a job, and what its follower hands on."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder / "job")
        self.pieces: list[bytes] = []
        self.pids: list[int] = []

    def start(
        self, script: str, transport: LocalTransport | None = None, patience: float = 20
    ) -> DetachedProcess:
        subprocess.run(clean_command(self.folder), check=True)
        launcher = subprocess.Popen(job_command(self.folder, ["sh", "-c", script]))
        self.pids.append(launcher.pid)
        pid = Path(self.folder, "pid")
        assert eventually(lambda: pid.exists() and pid.read_text().endswith("\n"))
        way = transport or LocalTransport("a")
        way.patience = patience
        return DetachedProcess(
            way,
            self.folder,
            alive=launcher.pid,
            send=self.send,
            sink=self.pieces.append,
        )

    def send(self, number: int) -> None:
        subprocess.run(signal_command(self.folder, number), check=True)

    @property
    def output(self) -> bytes:
        return b"".join(self.pieces)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    for pid in job.pids:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        os.waitpid(pid, 0)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", -9), ("kill -15 $$", -15)]
)
def test_the_exit_code(job: Job, script: str, code: int) -> None:
    process = job.start(script)
    assert process.drain(10)
    assert process.poll() == code


def test_the_output_comes_in_lines_while_it_runs(job: Job) -> None:
    process = job.start("echo one; echo two >&2; sleep 60")
    assert eventually(lambda: len(job.pieces) == 2)
    assert job.pieces == [b"one\n", b"two\n"]
    assert process.poll() is None


def test_a_last_line_without_an_end_and_one_that_is_too_long(job: Job) -> None:
    process = job.start("head -c 200000 /dev/zero | tr '\\0' x; echo; printf end")
    assert process.drain(10)
    assert job.output == b"x" * 200000 + b"\nend"
    assert max(map(len, job.pieces)) <= 65536


@pytest.mark.parametrize("after", [1, 7, 1000])
def test_no_byte_is_lost_or_doubled_however_often_the_connection_drops(job: Job, after: int) -> None:
    process = job.start("for i in $(seq 40); do echo line $i; done; exit 5", Cut(after, times=6))
    assert process.drain(60)
    assert process.poll() == 5
    assert job.output == b"".join(b"line %d\n" % number for number in range(1, 41))
    assert process.lost is None


def test_a_connection_that_stays_away_is_told(job: Job) -> None:
    process = job.start("echo ready; sleep 60", Cut(0), patience=0.5)
    assert eventually(lambda: process.lost)
    assert process.lost == "a: the connection was lost"
    assert process.poll() is None


def test_a_polite_signal_reaches_the_job_and_its_answer_is_the_exit_code(job: Job) -> None:
    process = job.start("trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    assert eventually(lambda: job.output == b"ready\n")
    process.signal(signal.SIGTERM)
    assert process.drain(10)
    assert process.poll() == 7
    assert job.output.endswith(b"asked\n")


def test_one_that_is_killed_with_all_its_group_left_no_exit_code(job: Job) -> None:
    process = job.start("echo ready; sleep 60")
    assert eventually(lambda: job.output == b"ready\n")
    process.signal(signal.SIGKILL)
    os.waitpid(job.pids.pop(), 0)
    assert process.drain(10)
    assert process.poll() == -9


# --- a disk that is full ----------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own, in memory."""
    if os.geteuid() != 0:
        pytest.skip("a disk can be mounted by root only")
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k"]
    subprocess.run(["mount", *options, "tmpfs", place], check=True, timeout=30)
    yield place
    subprocess.run(["umount", "-l", place], check=True, timeout=30)


def test_a_job_that_fills_the_disk_is_known_to_have_ended_and_how(disk: Path) -> None:
    job = Job(disk)
    process = job.start(f"head -c 1000000 /dev/zero > {disk}/big 2> /dev/null; echo lost; exit 7")
    assert process.drain(10)
    assert process.poll() == 7
    full = f"no space left on the disk of {job.folder}"
    assert job.output == f"cvs: output of the job may be lost: {full}\n".encode()
    assert process.doubt == f"output of the job may be lost: {full}"


def test_an_exit_code_that_cannot_be_written_is_told_at_once(job: Job) -> None:
    """As the job's shell leaves it where not even the blanks can be written over."""
    process = job.start(f": > {job.folder}/exit_code; sleep 60")
    assert process.drain(10)
    assert process.poll() is None
    full = f"no space left on the disk of {job.folder}"
    assert process.lost == f"a: the job ended, but not even its exit code could be written: {full}"


# --- a follower that cannot do its work -------------------------------------------------------------------


def test_a_program_that_following_needs(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("sh", "setsid", "mkdir", "rm", "dd", "sleep"):
        (tmp_path / "bin" / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    process = job.start("echo lost", patience=0.5)
    assert process.drain(10)
    assert process.poll() is None
    assert process.lost == (
        "a: the job's output cannot be followed (exit code 127); it takes wc, dd and sleep there"
    )


def test_a_folder_that_is_gone_is_told(job: Job) -> None:
    process = job.start(f"sleep 0.5; rm -r {job.folder}; sleep 60", patience=0.5)
    assert process.drain(10)
    assert process.lost == f"a: the job's folder {job.folder} is gone"


def test_a_process_that_this_user_cannot_see_is_still_there() -> None:
    """As where /proc hides what is others': then only the refusal to send a signal tells that it is there."""
    hidden = LIVES.replace("/proc/", "/nowhere/")
    done = subprocess.run(
        ["sh", "-c", f"{hidden}; lives 1 && ! lives 4194305"], check=False, user="nobody", timeout=10
    )
    assert done.returncode == 0
