"""Cleaning up on every node, side by side."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from cvs.config import ClusterConfig
from cvs.errors import CvsError, RunError
from cvs.hosts import folded
from cvs.runners._fanout import Outcome, side_by_side
from cvs.runners._interrupts import Interrupts
from cvs.runtime._alive import living_cvs
from cvs.runtime.cleanup import Found, NodeCleanup, Scope
from cvs.transport.base import Transport
from cvs.transport.choice import transport_to

_REACH_SECONDS = 60
_MARGIN_SECONDS = 60
"""Over the time for one node, for the last call there."""
_CLOSE_SECONDS = 20


class Cleaned(NamedTuple):
    """How it went on one node."""

    node: str
    found: tuple[Found, ...] = ()
    error: str | None = None
    """Why it cannot be told what else is there."""
    is_reached: bool = True

    @property
    def is_good(self) -> bool:
        """Whether nothing is there that should have gone."""
        return self.error is None and all(each.is_good for each in self.found)


class _Node:
    def __init__(self, name: str, transport: Transport, cleanup: NodeCleanup) -> None:
        self.name = name
        self.is_reached = False
        self.found: list[Found] = []
        """As much as is known; what goes wrong then costs nothing of it."""
        self._transport = transport
        self._cleanup = cleanup

    def clean(self) -> None:
        try:
            self._transport.run(["true"], timeout=_REACH_SECONDS)
            self.is_reached = True
            for each in self._cleanup.found():
                self.found.append(each)
        except CvsError:
            raise
        except Exception as error:  # a defect must not cost what is told of the other nodes
            raise RunError(f"a defect in cvs: {type(error).__name__}: {error}") from error

    def close(self) -> None:
        with suppress(Exception):  # nor must one that comes after the work
            self._transport.close()


def clean_nodes(cluster: ClusterConfig, scope: Scope) -> list[Cleaned]:
    """Remove from all nodes of the cluster what is meant, or only look; in the order of the nodes.

    Raises: KeyboardInterrupt: on Ctrl-C, SIGTERM or SIGHUP; what has not gone by then stays.
    """
    # Local nodes are one machine, on which each of them would find the same.
    names = [folded(list(cluster.node_dict))] if cluster.transport == "local" else list(cluster.node_dict)
    known = cache(living_cvs)
    nodes = [_node(name, cluster, scope, known) for name in names]

    def on_each(work: Callable[[_Node], None], what: str, limit: float) -> list[Outcome[_Node, None]]:
        rounds = -(-len(nodes) // cluster.max_parallel)
        return side_by_side(nodes, work, what=what, timeout=rounds * limit, at_most=cluster.max_parallel)

    with Interrupts():
        outcomes = on_each(_Node.clean, "cleaning up", _REACH_SECONDS + scope.seconds + _MARGIN_SECONDS)
        on_each(_Node.close, "closing the connection", _CLOSE_SECONDS)
    return [_cleaned(outcome) for outcome in outcomes]


def _node(name: str, cluster: ClusterConfig, scope: Scope, known: Callable[[str], int | None]) -> _Node:
    transport = transport_to(name, cluster)
    return _Node(name, transport, NodeCleanup(transport, scope, known))


def _cleaned(outcome: Outcome[_Node, None]) -> Cleaned:
    node = outcome.node
    error = str(outcome.error).removeprefix(f"{node.name}: ") if outcome.error else None
    return Cleaned(node.name, tuple(node.found), error, node.is_reached)
