"""What is still running of a run on a node, found by the run's id in the environment of its processes.

Each worker has a session of its own, so that no group holds them all; the id is what they share.
"""

from __future__ import annotations

import time

from cvs.transport.base import Transport

_MARKS = ("TORCHELASTIC_RUN_ID", "CVS_RUN_ID")
"""Variables that hold the id; a wrapper between may have kept only one of them."""
_SECONDS = 30
"""For one look at the processes of a node."""


def kill_processes(transport: Transport, run_id: str) -> list[int]:
    """End every process of the run on the node; those that cannot be ended.

    Raises: TransportError: the node cannot be looked at.
    """
    left = _processes(transport, run_id)
    for _ in range(50):
        if not left:
            break
        transport.run(["kill", "-KILL", *map(str, left)], timeout=_SECONDS)
        time.sleep(0.1)
        left = _processes(transport, run_id)
    return left


def _processes(transport: Transport, run_id: str) -> list[int]:
    marks = [f"-e{name}={run_id}" for name in _MARKS]
    # Without a shell between, so that nothing of the search bears the mark; zombies have no environment.
    search = ["sh", "-c", 'exec grep -lszxF "$@" /proc/[0-9]*/environ', "sh", *marks]
    return [int(path.split("/")[2]) for path in transport.run(search, timeout=_SECONDS).stdout.split()]
