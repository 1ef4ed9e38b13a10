"""The one narrow door to a node: run a command, start the job, move files.

Every call is bounded: at its time-out the process on the node is ended, not just the wait for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import ValidationError

from cvs.errors import NodeInUse, TransportError
from cvs.models import CommandResult, Holder

Sink = Callable[[bytes], None]
"""Takes output as it comes: one line with its end, or a piece of a line that is too long."""

HOLD_ENGINE = """\
IFS= read -r me
socket=${DOCKER_HOST#unix://}
[ -S "$socket" ] || socket=/run/docker.sock
place=$(cd -P "${socket%/*}" && pwd) && exec 9< "$place" || exit
for _ in 1 2 3 4 5; do
    flock -n 9 && exec env CVS_RUN_ID="$2" timeout "$1" sh -c 'echo "held "; read -r bye' "$place $me"
    [ $? -eq 1 ] || exit
    other=$(grep -hsz "^$place {" /proc/[0-9]*/cmdline | tr '\\0' '\\n' | head -n 1)
    [ -z "$other" ] || break
    sleep 0.2
done
echo "busy ${other#"$place "}"
"""
"""Holds the Docker engine until it is said good-bye, or is heard no more, or `$1` seconds are over.

It bears the mark of the run `$2`, by which `cvs cleanup` finds it where the connection broke off unheard.

What all who use an engine can lock, and see, is the folder of its socket and each other's command lines, in
which the holder stands: no file of one user is left that another could not write.
"""


class Stream(Protocol):
    """As much of a socket as an HTTP client needs."""

    def settimeout(self, seconds: float | None, /) -> object:
        """Bound each wait."""

    def sendall(self, data: bytes, /) -> object:
        """Write all of it."""

    def recv(self, size: int, /) -> bytes:
        """Read some."""

    def close(self) -> object:
        """End it."""


class Fetched(NamedTuple):
    """Files that came from a node."""

    digests: dict[str, str]
    """SHA-256 of each as it was written here, in hex, by its path."""
    problem: str | None
    """What became of others, in one line."""

    @classmethod
    def of(cls, node: str, digests: dict[str, str], problems: Sequence[str]) -> Fetched:
        """With the first of some problems, and how many more there are."""
        if not problems:
            return cls(digests, None)
        more = f", nor {len(problems) - 1} others" if problems[1:] else ""
        return cls(digests, f"{node}: cannot fetch {recordable(problems[0])}{more}")


class Process(ABC):
    """A job that was started on a node, in a session and process group of its own."""

    session = 0
    """Id of the session that it leads on the node; 0: not known."""

    @abstractmethod
    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the whole process group; a group that is gone is no error."""

    @property
    def lost(self) -> str | None:
        """Why nobody will ever know how the job ended: its node cannot be reached any more."""
        return None

    @property
    def doubt(self) -> str | None:
        """Why its output may not be whole, where that is known."""
        return None

    @abstractmethod
    def drain(self, seconds: float) -> bool:
        """Wait until all output has been handed to the sink; False if it has not within `seconds`."""


class Transport(ABC):
    """The way to one node."""

    patience: float = 60
    """How long a job is followed without a connection before its node is given up, in seconds."""

    def __init__(self, node: str) -> None:
        self.node = node

    @abstractmethod
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
        """Run one command to its end; a non-zero exit is a result, not an error.

        Args: errors: what becomes of bytes on stdout that are no UTF-8, as for `bytes.decode`; names of files
        are kept by `surrogateescape`.
        Raises: TransportError: it cannot be started, or has not ended within `timeout` seconds.
        """

    @abstractmethod
    def start(
        self, argv: Sequence[str], *, cwd: str, environment: Mapping[str, str], folder: str, sink: Sink
    ) -> Process:
        """Start a job; its output, both streams in one, goes to `sink`, called from another thread.

        Args: folder: on the node, where what must outlive a connection is kept until it is fetched.
        Raises: TransportError: it cannot be started.
        """

    @abstractmethod
    def stream(self, argv: Sequence[str], sink: Sink) -> int:
        """Run one command to its end, handing on its output in pieces of any size; its exit code.

        Without a limit of its own: it ends when the command does, or the connection.
        Raises: TransportError: it cannot be started, or the connection is lost.
        """

    def send_tree(self, source: Path, target: str) -> None:
        """Make `target` on the node a copy of the folder `source` here; what a job wrote there stays.

        Raises: TransportError: something cannot be read here or written there, or the node is another
        machine, which has its own copy.
        """
        raise TransportError(f"{self.node}: {source} is not copied to {target}, on another machine")

    @abstractmethod
    def hold(self, folder: str, holder: Holder) -> Holder | None:
        """Take `folder` on the node for this run, until `close`; others are told who `holder` is.

        Returns: who held it last, if that one never let go of it: its cvs was killed.
        Raises: NodeInUse: another run holds it; TransportError: the folder cannot be used.
        """

    @abstractmethod
    def hold_engine(self, holder: Holder, *, seconds: int) -> None:
        """Take the node's Docker engine for this run, until `let_go` or `close`, and for so long at most.

        Raises: NodeInUse: a run holds it, whatever user's; TransportError: it cannot be held.
        """

    @abstractmethod
    def fetch(self, folder: str, paths: Sequence[str], into: Path, *, timeout: float) -> Fetched:
        """Bring files from below `folder` on the node to the same paths below `into`, as many as will come.

        Nothing is left of one that cannot be read there or written here, or came in part when time was up.
        Raises: TransportError: the node cannot be reached.
        """

    @abstractmethod
    def free_port(self, address: str) -> int:
        """A TCP port that nobody listens on at `address` on the node, just now.

        Raises: TransportError: `address` is none of the node's.
        """

    @abstractmethod
    def dial_docker(self, timeout: float) -> Stream:
        """A new connection to the node's Docker engine.

        Raises: TransportError: there is none.
        """

    @abstractmethod
    def let_go(self) -> None:
        """Leave what is held to others."""

    @abstractmethod
    def close(self) -> None:
        """End the connection; nothing on the node is touched."""


def recordable(text: str) -> str:
    """The text, fit for a record: bytes of a file's name that are no UTF-8 are spelt out, such as `\\xff`."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def in_use(node: str, folder: str | None, holder: Holder | None) -> NodeInUse:
    """What there is to say where another has the folder; without one, the node."""
    told = f"{node}: {f'{folder} is ' if folder else ''}in use by {holder or 'another process'}"
    if holder is None:
        return NodeInUse(told)
    return NodeInUse(told, run_id=holder.run_id, since=holder.since, machine=holder.machine)


def holder_of(text: str) -> Holder | None:
    """The holder as it was written down; None where nobody is, or the text is none of ours."""
    try:
        return Holder.model_validate_json(text)
    except ValidationError:
        return None
