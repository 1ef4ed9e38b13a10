"""The one narrow door to a node: run a command, start the job, move files.

Every call is bounded: at its time-out the process on the node is ended, not just the wait for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cvs.models import CommandResult, Holder

Sink = Callable[[bytes], None]
"""Takes output as it comes: one line with its end, or a piece of a line that is too long."""


class Process(ABC):
    """A job that was started on a node, in a session and process group of its own."""

    @abstractmethod
    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send a signal to the whole process group; a group that is gone is no error."""

    @abstractmethod
    def drain(self, seconds: float) -> bool:
        """Wait until all output has been handed to the sink; False if it has not within `seconds`."""


class Transport(ABC):
    """The way to one node."""

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
    ) -> CommandResult:
        """Run one command to its end; a non-zero exit is a result, not an error.

        Raises: TransportError: it cannot be started, or has not ended within `timeout` seconds.
        """

    @abstractmethod
    def start(self, argv: Sequence[str], *, cwd: str, environment: Mapping[str, str], sink: Sink) -> Process:
        """Start a job; its output, both streams in one, goes to `sink`, called from another thread.

        Raises: TransportError: it cannot be started.
        """

    @abstractmethod
    def send_tree(self, source: Path, target: str) -> None:
        """Make `target` on the node a copy of the folder `source` here; what a job wrote there stays.

        Raises: TransportError: something cannot be read here or written there.
        """

    @abstractmethod
    def hold(self, folder: str, holder: Holder) -> Holder | None:
        """Take `folder` on the node for this run, until `close`; others are told who `holder` is.

        Returns: who held it last, if that one never let go of it: its cvs was killed.
        Raises: NodeInUse: another run holds it; TransportError: the folder cannot be used.
        """

    @abstractmethod
    def fetch(self, folder: str, paths: Sequence[str], into: Path, *, timeout: float) -> None:
        """Bring files from below `folder` on the node to the same paths below `into`, as many as will come.

        Raises: TransportError: some cannot be read there or written here, of which nothing is left; or time
        is up.
        """

    @abstractmethod
    def free_port(self, address: str) -> int:
        """A TCP port that nobody listens on at `address` on the node, just now.

        Raises: TransportError: `address` is none of the node's.
        """

    @abstractmethod
    def close(self) -> None:
        """End the connection; nothing on the node is touched."""
