"""Nodes that are reached over SSH: one connection each, which carries commands, files and the Docker API."""

from __future__ import annotations

import io
import math
import random
import shlex
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import paramiko
import zstandard

from cvs.config import ClusterConfig
from cvs.errors import TransportError
from cvs.models import CommandResult, Holder
from cvs.transport._ssh_connect import SshLimits, connect
from cvs.transport._ssh_errors import readable
from cvs.transport._ssh_mark import ShellError, after_mark, marked, skip_to_mark
from cvs.transport._ssh_target import resolve
from cvs.transport._unpack import PACK, Reader, unpack
from cvs.transport.base import HOLD_ENGINE, Fetched, Process, Sink, Stream, Transport, holder_of, in_use
from cvs.transport.detached import DetachedProcess, clean_command, job_command, signal_command

CHANNELS = 8
"""At once on one connection; sshd takes ten by default."""
_OPEN_SECONDS = 15
_BLOCK = 256 * 1024
_KILLED = 137
_LOWEST_PORT, _HIGHEST_PORT = 20000, 32768
"""Where a rendezvous port is looked for, below those that the node gives to connections."""
_WITH_VARIABLES = 'eval "$(dd bs=1 count="$1" 2>/dev/null)"; cd "$2" || exit 126; shift 2; exec "$@"'
"""Takes the environment from its input: what stands in a command line, everybody on the node can read."""
_PID = (
    'for _ in $(seq 100); do [ -s "$1/pid" ] && exec cat "$1/pid"; sleep 0.1; done;'
    ' echo "it has not written $1/pid; is the disk full?" >&2; exit 1'
)
_HOLD = """\
IFS= read -r me
mkdir -p "${1%/*}" || exit
exec 9>> "$1" || exit
tries=5
until flock -n 9; do
    [ $? -eq 1 ] || exit
    other=$(cat "$1")
    [ -n "$other" ] || [ $((tries -= 1)) -eq 0 ] && { echo "busy $other"; exit; }
    sleep 0.2
done
printf 'held '; cat "$1"; echo
printf %s "$me" > "$1"
read -r bye || while grep -qszxF "CVS_RUN_ID=$2" /proc/[0-9]*/environ; do sleep 2; done
: > "$1"
"""
"""Holds the lock `$1` for the run `$2`: until it is said good-bye, else until no process of it is left.

flock ends with 1 where another has it, and only then; what else goes wrong is told on stderr. Who has only
just taken it writes a moment later who that is, and who is about to leave it has wiped that out.
"""


class SshTransport(Transport):
    """One node, as the login user of the cluster file."""

    def __init__(self, node: str, cluster: ClusterConfig, *, limits: SshLimits | None = None) -> None:
        super().__init__(node)
        self._cluster = cluster
        self._limits = limits or SshLimits()
        self.patience = self._limits.patience
        self._lock = threading.Lock()
        self._connection: paramiko.Transport | None = None
        self._channels = threading.BoundedSemaphore(CHANNELS)
        self._held: list[paramiko.Channel] = []
        self._closed = False

    # --- the connection ---

    def _connected(self) -> paramiko.Transport:
        """The one connection, made where there is none, or made anew where it has gone."""
        with self._lock:
            if self._closed:
                raise TransportError(f"{self.node}: the connection is closed")
            if self._connection is None or not self._connection.is_active():
                self._connection = connect(resolve(self.node, self._cluster), self._limits)
            return self._connection

    @contextmanager
    def _channel(self, script: str, *words: str, timeout: float) -> Iterator[paramiko.Channel]:
        """A channel in which a shell runs `script` with its `words`, closed at the end."""
        deadline = time.monotonic() + timeout
        if not self._channels.acquire(timeout=timeout):
            raise TransportError(f"{self.node}: no channel became free within {timeout:.0f} s")
        try:
            channel = self._begun(script, *words, deadline=deadline)
            try:
                yield channel
            finally:
                channel.close()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._lost(error) from None
        finally:
            self._channels.release()

    def _begun(self, script: str, *words: str, deadline: float) -> paramiko.Channel:
        """A channel in which a shell runs `script`; what comes on its stdout is that script's.

        Raises: TransportError: there is none; paramiko.SSHException, EOFError, OSError: it was lost again.
        """
        channel = self._opened(deadline)
        try:
            channel.exec_command(marked(script, *words))
            skip_to_mark(channel, deadline)
        except ShellError as error:
            channel.close()
            raise TransportError(f"{self.node}: {error}") from None
        except BaseException:
            channel.close()
            raise
        return channel

    def _opened(self, deadline: float) -> paramiko.Channel:
        """A new channel; where the connection turns out to be lost, on a new one."""
        for is_last in (False, True):
            try:
                return self._open(deadline)
            except (paramiko.SSHException, EOFError, OSError) as error:
                if is_last:
                    raise self._lost(error) from None
        raise AssertionError

    def _open(self, deadline: float) -> paramiko.Channel:
        while True:
            try:
                seconds = min(_OPEN_SECONDS, max(deadline - time.monotonic(), 0.1))
                return self._connected().open_session(timeout=seconds)
            except paramiko.ChannelException as error:
                # MaxSessions: others of ours are about to end.
                if time.monotonic() > deadline - 1:
                    raise TransportError(f"{self.node}: sshd refuses another channel: {error}") from None
                time.sleep(random.uniform(0.1, 0.5))

    def _lost(self, error: BaseException) -> TransportError:
        return TransportError(f"{self.node}: the connection was lost ({type(error).__name__}: {error})")

    def close(self) -> None:
        """See `Transport.close`."""
        with self._lock:
            self._closed = True
            for channel in self._held:
                channel.close()
            self._held.clear()
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    # --- commands ---

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
        exports = self._exports(environment or {})
        limited = ["timeout", "-s", "KILL", str(max(math.ceil(timeout), 1)), *argv]
        words = [str(len(exports)), cwd or ".", *limited]
        with self._channel(_WITH_VARIABLES, *words, timeout=timeout) as channel:
            stdout, stderr = _communicate(channel, exports + stdin, started + timeout)
            code = self._exit_code(channel, argv, timeout)
        seconds = time.monotonic() - started
        if code == _KILLED and seconds >= timeout:
            raise self._late(argv, timeout)
        return CommandResult(
            argv=tuple(argv),
            exit_code=code,
            stdout=stdout.decode(errors=errors),
            stderr=stderr.decode(errors="replace"),
            seconds=seconds,
        )

    def _exports(self, environment: Mapping[str, str]) -> bytes:
        node = self._cluster.node_dict.get(self.node)
        variables = {**self._cluster.env_vars, **(node.env_vars if node else {}), **environment}
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()).encode()

    def _late(self, argv: Sequence[str], timeout: float) -> TransportError:
        return TransportError(f"{self.node}: {argv[0]} did not end within {timeout:.0f} s and was stopped")

    def _exit_code(self, channel: paramiko.Channel, argv: Sequence[str], timeout: float) -> int:
        if not channel.status_event.wait(5):
            raise self._late(argv, timeout)
        if channel.exit_status != -1:
            return channel.exit_status
        if not channel.get_transport().is_active():  # no word about the command came at all
            raise TransportError(f"{self.node}: the connection was lost while {argv[0]} ran")
        return _KILLED

    def stream(self, argv: Sequence[str], sink: Sink) -> int:
        """See `Transport.stream`."""
        with self._channel('exec "$@"', *argv, timeout=_OPEN_SECONDS) as channel:
            while piece := channel.recv(_BLOCK):
                sink(piece)
            if not channel.status_event.wait(5) or channel.exit_status == -1:
                raise TransportError(f"{self.node}: the connection was lost")
            return channel.exit_status

    def start(
        self, argv: Sequence[str], *, cwd: str, environment: Mapping[str, str], folder: str, sink: Sink
    ) -> Process:
        """See `Transport.start`."""
        self._demand(self.run(clean_command(folder), timeout=30), "the job cannot be started")
        launch = ["sh", "-c", '"$@" > /dev/null 2>&1 < /dev/null &', "sh", *job_command(folder, argv)]
        self._demand(
            self.run(launch, cwd=cwd, environment=environment, timeout=30), "the job cannot be started"
        )
        pid = self._demand(self.run(["sh", "-c", _PID, "sh", folder], timeout=30), "the job did not start")

        def send(number: int) -> None:
            self.run(signal_command(folder, number), timeout=30)

        process = DetachedProcess(self, folder, alive=int(pid), send=send, sink=sink)
        process.session = int(pid)
        return process

    def _demand(self, result: CommandResult, complaint: str) -> str:
        if result.exit_code:
            raise TransportError(f"{self.node}: {complaint}: {result.stderr.strip() or result.exit_code}")
        return result.stdout

    # --- the node for this run alone ---

    def hold(self, folder: str, holder: Holder) -> Holder | None:
        """See `Transport.hold`.

        A process on the node has the lock, as long as the connection lives and, after that, as long as a
        process of the run does.
        """
        return self._taken(holder, folder, _HOLD, f"{folder}/.cvs/lock", holder.run_id)

    def hold_engine(self, holder: Holder, *, seconds: int) -> None:
        """See `Transport.hold_engine`."""
        self._taken(holder, None, HOLD_ENGINE, str(seconds), holder.run_id)

    def _taken(self, holder: Holder, folder: str | None, script: str, *words: str) -> Holder | None:
        """Have a script on the node hold something; who held it last, if that is known."""
        deadline = time.monotonic() + _OPEN_SECONDS
        try:
            channel = self._begun(script, *words, deadline=deadline)
            answer, earlier, said = _asked(channel, holder.model_dump_json())
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._lost(error) from None
        known = holder_of(earlier)
        if answer != "held":
            channel.close()
            if answer == "busy":
                raise in_use(self.node, folder, known)
            what, why = folder or "the Docker engine", said or "the connection was lost"
            raise TransportError(f"{self.node}: cannot use {what}: {why}")
        self._held.append(channel)
        return known

    def let_go(self) -> None:
        """See `Transport.let_go`."""
        for channel in self._held:
            with suppress(OSError, EOFError, paramiko.SSHException):
                channel.sendall(b"bye\n")
                channel.recv(1)  # until the lock is gone
            channel.close()
        self._held.clear()

    # --- files ---

    def fetch(self, folder: str, paths: Sequence[str], into: Path, *, timeout: float) -> Fetched:
        """See `Transport.fetch`; packed and compressed on the node, unpacked as it comes."""
        digests: dict[str, str] = {}
        problems: list[str] = []
        broken = ""
        if not paths:
            return Fetched(digests, None)
        deadline = time.monotonic() + timeout
        wanted = "\0".join(paths).encode("utf-8", "surrogateescape")
        with self._channel(PACK, folder, timeout=timeout) as channel:
            errors = _in_background(lambda: channel.makefile_stderr("rb").read())
            feeding = _in_background(lambda: _feed(channel, wanted))
            try:
                for path, came in unpack(_reader(channel, deadline), set(paths), into):
                    if isinstance(came, OSError):
                        problems.append(f"{path}: {came.strerror}")
                    else:
                        digests[path] = came
            except TimeoutError:
                return Fetched.of(self.node, digests, [f"all files within {timeout:.0f} s"])
            except (tarfile.TarError, EOFError, ValueError, zstandard.ZstdError) as error:
                broken = f"what arrived is broken ({error})"
            feeding.join(5)
            errors.join(5)
            said = after_mark(b"".join(errors.results)).decode(errors="replace").splitlines()
            said = [line.removeprefix("tar: ") for line in said if "previous errors" not in line]
            if broken:  # the node's own words tell why
                problems.append("more: " + "; ".join([*said[:1], broken]))
            else:
                problems += said
            if not channel.status_event.wait(5) or channel.exit_status != 0:
                problems = problems or ["more: the connection was lost"]
        return Fetched.of(self.node, digests, problems)

    def free_port(self, address: str) -> int:
        """See `Transport.free_port`; read from the node's own table of sockets."""
        taken, first_ephemeral = self._ports()
        for _ in range(1000):
            port = random.randrange(_LOWEST_PORT, max(first_ephemeral, _LOWEST_PORT + 1000))
            if port not in taken:
                return port
        raise TransportError(f"{self.node}: no port is free at {address}")

    def _ports(self) -> tuple[set[int], int]:
        files = "/proc/sys/net/ipv4/ip_local_port_range /proc/net/tcp /proc/net/tcp6"
        text = self.run(["sh", "-c", f"cat {files} 2>/dev/null"], timeout=30).stdout
        first, *rows = text.splitlines() or [str(_HIGHEST_PORT)]
        taken = {int(row.split()[1].rpartition(":")[2], 16) for row in rows if ":" in row.partition(":")[2]}
        return taken, int(first.split()[0])

    # --- Docker ---

    def dial_docker(self, timeout: float) -> Stream:
        """See `Transport.dial_docker`."""
        channel = self._begun("exec docker system dial-stdio", deadline=time.monotonic() + timeout)
        channel.settimeout(timeout)
        return channel


class _InBackground(threading.Thread):
    """Something that must not be waited for, and what it gave."""

    def __init__(self, work: Callable[[], bytes]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.results: list[bytes] = []

    def run(self) -> None:
        with suppress(paramiko.SSHException, EOFError, OSError):
            self.results.append(self._work())


def _in_background(work: Callable[[], bytes]) -> _InBackground:
    thread = _InBackground(work)
    thread.start()
    return thread


def _asked(channel: paramiko.Channel, me: str) -> tuple[str, str, str]:
    """What the lock's shell answers, who held it before, and what went wrong; closed where this fails."""
    channel.settimeout(_OPEN_SECONDS)
    try:
        channel.sendall(me.encode() + b"\n")
        answer, _, earlier = channel.makefile("rb").readline().decode(errors="replace").partition(" ")
        errors = b"" if answer == "held" else after_mark(channel.makefile_stderr("rb").read())
    except BaseException:
        channel.close()
        raise
    return answer, earlier, readable(errors, 500)


def _feed(channel: paramiko.Channel, text: bytes) -> bytes:
    channel.sendall(text)
    channel.shutdown_write()
    return b""


def _communicate(channel: paramiko.Channel, stdin: bytes, deadline: float) -> tuple[bytes, bytes]:
    """What the command wrote on its two outputs, until its end or the deadline."""
    errors = _in_background(lambda: channel.makefile_stderr("rb").read())
    feeding = _in_background(lambda: _feed(channel, stdin))
    out = []
    while time.monotonic() < deadline:
        channel.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            piece = channel.recv(_BLOCK)
        except TimeoutError:
            break
        if not piece:
            break
        out.append(piece)
    feeding.join(1)
    errors.join(1)
    return b"".join(out), after_mark(b"".join(errors.results))


def _reader(channel: paramiko.Channel, deadline: float) -> IO[bytes]:
    def receive(size: int) -> bytes:
        channel.settimeout(max(deadline - time.monotonic(), 0.01))
        return channel.recv(size)

    return io.BufferedReader(Reader(receive), _BLOCK)
