"""What is still running of a run on a node: what bears the run's id, and what is in its launcher's session.

Each worker has a session of its own, so that no group holds them all; what they share is the id, in their
environment. What has cleared that is found while it stays in the launcher's session.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from cvs.models import Holder
from cvs.transport.base import Transport, holder_of

_MARKS = ("TORCHELASTIC_RUN_ID", "CVS_RUN_ID")
"""Variables that hold the id; a wrapper between may have kept only one of them."""
_SECONDS = 30
"""For one look at the processes of a node."""


_FIND = """\
session=$1; shift
grep -lszxF "$@" /proc/[0-9]*/environ
# A leader without the mark is another's, which has got the number of ours.
[ -d "/proc/$session" ] && ! grep -qszxF "$@" "/proc/$session/environ" && exit
cat /proc/[0-9]*/stat 2>/dev/null | sed -n "s|^\\([0-9]*\\) (.*) [A-Y] [0-9]* [0-9]* $session .*|/proc/\\1/|p"
"""
"""Prints a path below /proc for each; zombies have no environment, and are left out of the session."""
_LOCKS = 'for id; do cat "/proc/$id/cwd/.cvs/lock" 2> /dev/null && echo; done; :'
"""Prints who holds the folder that each process works in."""
_LOCK = 'cat "$1/.cvs/lock" 2> /dev/null'
"""Prints who holds a folder, or held it last and never let go of it."""
_STARTED = 'ls "$1/.cvs/$2/"*/pid'
"""Ends well where the job of a run was started in a folder."""
_RELEASED = '[ ! -e "$1/.cvs/lock" ] || flock -w 5 "$1/.cvs/lock" true'
"""Waits for the lock, which its holder lets go of once it has seen that no process of the run is left."""
_PATH = re.compile(r"^/proc/(\d+)/", re.MULTILINE)


def kill_processes(transport: Transport, run_id: str, session: int = 0) -> list[int]:
    """End every process of the run on the node; those that cannot be ended.

    Args: session: id of its launcher's, where known; no process has 0.
    Raises: TransportError: the node cannot be looked at.
    """
    left = processes_of(transport, run_id, session)
    for _ in range(50):
        if not left:
            break
        transport.run(["kill", "-KILL", *map(str, left)], timeout=_SECONDS)
        time.sleep(0.1)
        left = processes_of(transport, run_id, session)
    return left


def processes_of(transport: Transport, run_id: str, session: int = 0) -> list[int]:
    """Processes of the run on the node; as for `kill_processes`."""
    marks = [f"-e{name}={run_id}" for name in _MARKS]
    found = transport.run(["sh", "-c", _FIND, "sh", str(session or -1), *marks], timeout=_SECONDS).stdout
    return sorted({int(number) for number in _PATH.findall(found)})


def holder_of_processes(transport: Transport, run_id: str, processes: Sequence[int]) -> Holder | None:
    """Whose run these are of, as the lock of the folder tells that one of them works in; None if none tells.

    Raises: TransportError: the node cannot be looked at.
    """
    argv = ["sh", "-c", _LOCKS, "sh", *map(str, processes)]
    holders = map(holder_of, transport.run(argv, timeout=_SECONDS).stdout.splitlines())
    return next((holder for holder in holders if holder and holder.run_id == run_id), None)


def holder_of_folder(transport: Transport, folder: str) -> Holder | None:
    """Which run the lock of a folder names: it is in progress, or its cvs was killed; None if none.

    Raises: TransportError: the node cannot be looked at.
    """
    return holder_of(transport.run(["sh", "-c", _LOCK, "sh", folder], timeout=_SECONDS).stdout)


def has_started(transport: Transport, folder: str, run_id: str) -> bool:
    """Whether the run came to start its job in that folder on a node; local nodes keep no note of it.

    Raises: TransportError: the node cannot be looked at.
    """
    return transport.run(["sh", "-c", _STARTED, "sh", folder, run_id], timeout=_SECONDS).exit_code == 0


def await_release(transport: Transport, folder: str) -> None:
    """Wait a moment for the lock of a folder, once the processes of its run have ended.

    Raises: TransportError: the node cannot be looked at.
    """
    transport.run(["sh", "-c", _RELEASED, "sh", folder], timeout=_SECONDS)
