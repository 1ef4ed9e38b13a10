"""Nodes that are folders of this machine: the same door as to a remote node, without a network."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from cvs.errors import TransportError
from cvs.models import CommandResult, Holder
from cvs.transport._lines import Lines
from cvs.transport._mirror import mirror
from cvs.transport._written import written
from cvs.transport.base import HOLD_ENGINE, Fetched, Process, Sink, Stream, Transport, holder_of, in_use

_BLOCK = 64 * 1024
_TRIES = 5
"""Of a lock whose holder is not written down: who only just has it, or is about to leave it."""
_LAUNCHER_VARIABLES = ("PET_", "TORCHELASTIC_", "CVS_RUN_ID")
_RANK_VARIABLES = frozenset(
    "RANK LOCAL_RANK GROUP_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT".split()
)


class LocalTransport(Transport):
    """Runs on this machine, as the user who runs cvs."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self._locks: list[IO[str]] = []
        self._holding: list[subprocess.Popen[bytes]] = []

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        errors: str = "replace",
    ) -> CommandResult:
        """See `Transport.run`."""
        started = time.monotonic()
        process = self._popen(argv, cwd, environment, stderr=subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout=max(timeout, 0.01))
        except BaseException as error:
            # The group, not the process: a child may hold the output open. Nobody has waited for the leader
            # yet, so the group's number is still its own.
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                late = f"{argv[0]} did not end within {timeout:.0f} s and was stopped"
                raise TransportError(f"{self.node}: {late}") from None
            raise
        return CommandResult(
            argv=tuple(argv),
            exit_code=process.returncode,
            stdout=out.decode(errors=errors),
            stderr=err.decode(errors="replace"),
            seconds=time.monotonic() - started,
        )

    def start(
        self, argv: Sequence[str], *, cwd: str, environment: Mapping[str, str], folder: str, sink: Sink
    ) -> Process:
        """See `Transport.start`; a child of this process needs no folder."""
        del folder
        process = self._popen(argv, cwd, environment, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            return _LocalProcess(process, sink)
        except RuntimeError as error:  # no more threads for this user
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            raise TransportError(f"{self.node}: cannot follow the job: {error}") from None

    def _popen(
        self,
        argv: Sequence[str],
        cwd: str | None,
        environment: Mapping[str, str] | None,
        *,
        stderr: int,
        stdin: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                argv,
                cwd=cwd,
                env={**_login_environment(), **(environment or {})},
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            where = f" in {cwd}" if cwd and error.filename == cwd else ""
            raise TransportError(f"{self.node}: cannot start {argv[0]}{where}: {error.strerror}") from None
        except ValueError as error:  # a null byte, an illegal name of a variable
            raise TransportError(f"{self.node}: cannot start {argv[0]}: {error}") from None

    def send_tree(self, source: Path, target: str) -> None:
        """See `Transport.send_tree`."""
        try:
            mirror(source, Path(target))
        except OSError as error:
            raise TransportError(
                f"{self.node}: cannot copy {source} to {target}: {error.filename}: {error.strerror}"
            ) from None

    def hold(self, folder: str, holder: Holder) -> Holder | None:
        """See `Transport.hold`; the kernel lets go of it when this process ends, however it ends."""
        path = Path(folder, ".cvs", "lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.open("a+")
        except OSError as error:
            raise TransportError(f"{self.node}: cannot use {folder}: {error.strerror}") from None
        self._take(lock, folder)
        unfinished = _holder(lock)
        _write_holder(lock, holder)
        return unfinished

    def _take(self, lock: IO[str], folder: str) -> None:
        other = None
        for _ in range(_TRIES):
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._locks.append(lock)
                return
            if other := _holder(lock):
                break
            time.sleep(0.2)
        lock.close()
        raise in_use(self.node, folder, other)

    def hold_engine(self, holder: Holder, *, seconds: int) -> None:
        """See `Transport.hold_engine`."""
        argv = ["sh", "-c", HOLD_ENGINE, "sh", str(seconds), holder.run_id]
        process = self._popen(argv, None, None, stderr=subprocess.PIPE)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{holder.model_dump_json()}\n".encode())
        process.stdin.flush()
        answer, _, other = process.stdout.readline().decode(errors="replace").partition(" ")
        if answer == "held":
            self._holding.append(process)
            return
        _, said = process.communicate()
        if answer == "busy":
            raise in_use(self.node, None, holder_of(other))
        why = said.decode(errors="replace").strip()
        raise TransportError(f"{self.node}: cannot use the Docker engine: {why}")

    def fetch(self, folder: str, paths: Sequence[str], into: Path, *, timeout: float) -> Fetched:
        """See `Transport.fetch`."""
        deadline = time.monotonic() + timeout
        digests: dict[str, str] = {}
        problems = []
        for path in paths:
            if time.monotonic() > deadline:
                problems = [f"all files within {timeout:.0f} s"]
                break
            try:
                with Path(folder, path).open("rb") as source:
                    digests[path] = written(source, into / path)
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
        return Fetched.of(self.node, digests, problems)

    def stream(self, argv: Sequence[str], sink: Sink) -> int:
        """See `Transport.stream`."""
        process = self._popen(argv, None, None, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        assert process.stdout is not None
        while piece := os.read(process.stdout.fileno(), _BLOCK):
            sink(piece)
        return process.wait()

    def dial_docker(self, timeout: float) -> Stream:
        """See `Transport.dial_docker`."""
        path = os.environ.get("DOCKER_HOST", "").removeprefix("unix://") or "/var/run/docker.sock"
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            raise TransportError(
                f"{self.node}: no Docker engine answers at {path}: {error.strerror}; does it run, and may you"
                " use it? (docker version tells); without Docker, set runtime: process"
            ) from None
        return connection

    def close(self) -> None:
        """See `Transport.close`."""
        self.let_go()

    def let_go(self) -> None:
        """See `Transport.let_go`."""
        for lock in self._locks:
            _write_holder(lock, None)
            lock.close()
        self._locks.clear()
        for process in self._holding:
            process.communicate()  # which says good-bye, and waits for the end
        self._holding.clear()

    def free_port(self, address: str) -> int:
        """See `Transport.free_port`."""
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.create_server((address, 0), family=family) as server:
                return int(server.getsockname()[1])
        except OSError as error:
            raise TransportError(
                f"{self.node}: no port can be opened at {address}: {error.strerror}; vpc_ip must be an"
                " address of the head node"
            ) from None


def _holder(lock: IO[str]) -> Holder | None:
    lock.seek(0)
    return holder_of(lock.read())


def _write_holder(lock: IO[str], holder: Holder | None) -> None:
    """Who holds the lock; a record that outlives its lock tells of a cvs that was killed."""
    with suppress(OSError):  # on a full disk the lock itself still holds
        lock.truncate(0)
        lock.write(holder.model_dump_json() if holder else "")
        lock.flush()


class _LocalProcess(Process):
    def __init__(self, process: subprocess.Popen[bytes], sink: Sink) -> None:
        self._process = process
        self.session = process.pid
        assert process.stdout is not None
        self._reader = threading.Thread(target=_pump, args=(process.stdout, sink), daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        return self._process.poll()

    def signal(self, number: int) -> None:
        # Once the leader has been reaped its number may be another's; what is left of the job is found by
        # its environment, not by its group.
        if self.poll() is None:
            _signal_group(self._process.pid, number)

    def drain(self, seconds: float) -> bool:
        self._reader.join(seconds)
        return not self._reader.is_alive()


def _pump(stream: IO[bytes], sink: Sink) -> None:
    lines = Lines(sink)
    try:
        while piece := os.read(stream.fileno(), _BLOCK):
            lines.take(piece)
        lines.close()
    finally:
        # Whatever became of the sink: a job whose output nobody takes stands still.
        while os.read(stream.fileno(), _BLOCK):
            pass


def _signal_group(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return


def _login_environment() -> dict[str, str]:
    """This process's environment without what a launcher above it (a torchrun, another cvs) left there."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _RANK_VARIABLES and not name.startswith(_LAUNCHER_VARIABLES)
    }
