"""The nodes for one run alone: all of them or none, at once or after a while."""

from __future__ import annotations

import math
import random
import socket
import time
from collections.abc import Sequence
from datetime import datetime, timezone

from cvs.config.account import user_name
from cvs.errors import NodeInUse
from cvs.models import Holder
from cvs.runners._fanout import Outcome, side_by_side
from cvs.runners._node import Console, RunNode

_PAUSE = 2
"""Seconds, at most, between two looks at nodes that another run holds."""
_TOLD_EVERY = 60
"""Seconds until it is told again that the same ones hold them."""
_GIVES_WAY = 20
"""Seconds in which a run that came later has found out, and let go."""


class Hold:
    """What one run has of its nodes."""

    def __init__(
        self, nodes: Sequence[RunNode], run_id: str, console: Console, *, seconds: float, at_most: int
    ) -> None:
        """Take the nodes; a try takes so many seconds `at_most` and so many nodes at once."""
        self.holder = Holder(
            run_id=run_id,
            user=user_name(),
            host=socket.gethostname(),
            since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )
        self.found: list[str] = []
        """What unfinished runs had left on the nodes, in words."""
        self._nodes = nodes
        self._held: list[RunNode] = []
        self._console = console
        self._seconds = seconds
        self._at_most = at_most
        self._told = ""
        self._told_again = 0.0

    def take(self, wait: float) -> str | None:
        """Every node but those that nobody can reach, which keep their errors.

        Two runs that wait for each other's nodes must not do so for ever: while it waits a run holds none,
        but for a moment where the others have come later, and give way.

        Returns: who still holds which node after `wait` seconds; None where all are ours.
        """
        begun = time.monotonic()
        while busy := self._busy(self.attempt()):
            waited = time.monotonic() - begun
            keeps = waited < _GIVES_WAY and self._comes_first(busy)
            left = (max(wait, _GIVES_WAY) if keeps else wait) - waited
            told = "; ".join(map(str, busy))
            if left <= 0:
                return told
            if not keeps:
                self.release()
            self._tell(told, left)
            time.sleep(random.uniform(0.5, 1.0) * min(_PAUSE, left))
        return None

    def attempt(self) -> list[Outcome[RunNode, str | None]]:
        """Try to take each node that is not held yet, once."""
        outcomes = side_by_side(
            [node for node in self._nodes if node not in self._held],
            self._try,
            what="taking the node",
            timeout=self._seconds,
            at_most=self._at_most,
        )
        self._held += [outcome.node for outcome in outcomes if not outcome.error]
        return outcomes

    def _try(self, node: RunNode) -> str | None:
        node.transport.let_go()  # of what an earlier try has come to hold before it failed
        return node.hold(self.holder)

    def release(self) -> None:
        """Leave every node to others."""
        for node in self._nodes:
            node.transport.let_go()
        self._held.clear()

    def _busy(self, outcomes: list[Outcome[RunNode, str | None]]) -> list[NodeInUse]:
        """Who else holds a node; where nobody does, what else is wrong is noted."""
        for told in [outcome.value for outcome in outcomes if outcome.value]:
            if told not in self.found:
                self.found.append(told)
                self._console(f"cvs | {told}")
        busy = [outcome.error for outcome in outcomes if isinstance(outcome.error, NodeInUse)]
        for outcome in outcomes if not busy else []:
            if outcome.error:
                outcome.node.note(outcome.error)
        return busy

    def _comes_first(self, busy: list[NodeInUse]) -> bool:
        """Whether the others came later, as they see, too, and so give way to who holds a node already."""
        came = (self.holder.since, self.holder.run_id)
        return bool(self._held) and all((other.since, other.run_id) > came for other in busy)

    def _tell(self, busy: str, left: float) -> None:
        if busy != self._told or time.monotonic() > self._told_again:
            self._console(f"cvs | waiting up to {math.ceil(left)} s for the nodes: {busy}")
            self._told, self._told_again = busy, time.monotonic() + _TOLD_EVERY
