"""What is still running of a run on a node: what bears the run's id, and what is in its launcher's session.

Each worker has a session of its own, so that no group holds them all; what they share is the id, in their
environment. What has cleared that is found while it stays in the launcher's session.
"""

from __future__ import annotations

import re
import time

from cvs.transport.base import Transport

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
_PATH = re.compile(r"^/proc/(\d+)/", re.MULTILINE)


def kill_processes(transport: Transport, run_id: str, session: int = 0) -> list[int]:
    """End every process of the run on the node; those that cannot be ended.

    Args: session: id of its launcher's, where known; no process has 0.
    Raises: TransportError: the node cannot be looked at.
    """
    left = _processes(transport, run_id, session)
    for _ in range(50):
        if not left:
            break
        transport.run(["kill", "-KILL", *map(str, left)], timeout=_SECONDS)
        time.sleep(0.1)
        left = _processes(transport, run_id, session)
    return left


def _processes(transport: Transport, run_id: str, session: int) -> list[int]:
    marks = [f"-e{name}={run_id}" for name in _MARKS]
    found = transport.run(["sh", "-c", _FIND, "sh", str(session or -1), *marks], timeout=_SECONDS).stdout
    return sorted({int(number) for number in _PATH.findall(found)})
