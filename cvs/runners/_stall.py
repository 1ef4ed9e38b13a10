"""A job that stands still: noticed, and looked into before it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from cvs.hang import RankStack, did_not_arrive, where_they_stand
from cvs.launch import Limits
from cvs.models import Failure
from cvs.runners._fanout import Outcome, side_by_side
from cvs.runners._node import RunNode

LOOK_SECONDS = 30
"""For a look at all nodes."""
_NAP_SECONDS = 2
"""cvs was stopped itself, or kept from running, where it has not looked for so long."""
_Value = TypeVar("_Value")


class Stall:
    """Alarm of a watch: the job has shown no line and made no step for `limits.stall` seconds.

    Before the first line, in which the ranks load PyTorch and meet, it may take as long as joining may, too.
    """

    def __init__(self, nodes: Sequence[RunNode], limits: Limits, say: Callable[[str], None]) -> None:
        self.found: Failure | None = None
        """What the look into a stalled job found."""
        self._nodes = nodes
        self._limits = limits
        self._say = say
        self._started = self._step_seen = self._looked = time.monotonic()

    def __call__(self) -> str | None:
        """Why the job has to end, once it stands still."""
        seconds, now = self._limits.stall, time.monotonic()
        if now - self._looked > _NAP_SECONDS:
            self._step_seen = now  # what the job has said meanwhile is yet to be read
        self._looked = now
        if seconds is None or time.monotonic() - self._last_sign() < seconds:
            return None
        if any(outcome.value for outcome in self._on_all(lambda node: node.makes_steps(seconds))):
            self._step_seen = time.monotonic()
            return None
        self._say(f"cvs | no line and no step for {seconds:.0f} s: looking where each rank is")
        stacks = {outcome.node: outcome.value or [] for outcome in self._on_all(RunNode.stacks)}
        self.found = failure_of(stacks, seconds)
        return self.found.reason

    def _last_sign(self) -> float:
        heard = [node.heard for node in self._nodes if node.heard is not None]
        return max(self._step_seen, *(heard or [self._started + self._limits.join]))

    def _on_all(self, work: Callable[[RunNode], _Value]) -> list[Outcome[RunNode, _Value]]:
        return side_by_side(self._nodes, work, what="a look at the job", timeout=LOOK_SECONDS)


def failure_of(stacks: Mapping[RunNode, Sequence[RankStack]], seconds: float) -> Failure:
    """What there is to say about a job that stands still, given where its ranks stand."""
    still = f"no line and no step for {seconds:.0f} s"
    everyone = [stack for some in stacks.values() for stack in some]
    absent = did_not_arrive(everyone)
    if not absent:
        return Failure(reason=f"{still}; {where_they_stand(everyone) or 'no rank was found'}")
    node = next(node for node, some in stacks.items() if absent[0] in some)
    others = [stack for stack in everyone if stack not in absent]
    who = f"{where_they_stand(absent)}, on {node.name} (node rank {node.plan.node_rank})"
    return Failure(
        reason=f"{still}; did not arrive: {who}; the others: {where_they_stand(others)}",
        node_rank=node.plan.node_rank,
        node=node.name,
        ranks=tuple(sorted(stack.rank for stack in absent)),
        log=node.stacks_log,
        tail=tuple(map(str, absent[0].frames)),
    )
