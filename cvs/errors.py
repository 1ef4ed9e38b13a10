"""What can go wrong, in words for the user. Imports nothing of ours.

The library raises these; the command line turns one into a line and an exit code, pytest into a failed case
without a traceback. A missed limit is no error but data: see `cvs.thresholds`.
"""

from __future__ import annotations

from collections.abc import Sequence


class CvsError(Exception):
    """Root of all errors that are meant for the user: what, where, what was found, what to do."""

    exit_code = 1


class ConfigError(CvsError):
    """One of the two files cannot be used as it is; every problem of the file is told at once."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        """Take one line per problem, each naming file and key."""
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class EnvironmentFault(CvsError):
    """Something this machine or a node must have is missing; nothing could be tried."""

    exit_code = 3


class TransportError(CvsError):
    """A node could not be reached, or a command on it could not be started or ended."""


class NodeInUse(CvsError):
    """A node is held by another run; nothing was touched on any."""

    def __init__(self, message: str, *, run_id: str = "", since: str = "", machine: str = "") -> None:
        """Take the line for the user; where known, which run it is, since when, and which machine took it."""
        self.run_id = run_id
        self.since = since
        self.machine = machine
        super().__init__(message)


class RunError(CvsError):
    """A run did not come to its end, or what it left is not what it claims."""


class EvidenceError(CvsError):
    """What a case needs to judge is not there: no run, no trace, no metrics."""


class TraceError(CvsError):
    """A trace, or the events in it, cannot be read as what they claim to be."""
