"""One piece of work on every node, side by side, in bounded time.

Daemon threads, not a pool: a pool joins its threads at exit, and a stuck node must not keep cvs alive.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

from cvs.errors import CvsError, TransportError


class Named(Protocol):
    """Whatever the work is done on; `name` is for the user."""

    @property
    def name(self) -> str:
        """The node, as the user knows it."""


_Node = TypeVar("_Node", bound=Named)
_Value = TypeVar("_Value")


@dataclass
class Outcome(Generic[_Node, _Value]):
    """How the work went on one node: a value, or the error that it ended in."""

    node: _Node
    value: _Value | None = None
    error: CvsError | None = None


class Beside(Generic[_Value]):
    """Work that goes on beside something else, on one node."""

    def __init__(self, work: Callable[[], _Value]) -> None:
        self._done: queue.SimpleQueue[tuple[_Value | None, BaseException | None]] = queue.SimpleQueue()
        try:
            threading.Thread(target=self._do, args=(work,), daemon=True).start()
        except RuntimeError:  # no more threads for this user: then it goes before
            self._do(work)

    def _do(self, work: Callable[[], _Value]) -> None:
        try:
            self._done.put((work(), None))
        except BaseException as error:
            self._done.put((None, error))

    @property
    def is_done(self) -> bool:
        """Whether `result` need not wait."""
        return not self._done.empty()

    def result(self) -> _Value:
        """Wait for the work, which is bounded in itself; its value, or what it raised."""
        value, error = self._done.get()
        if error is not None:
            raise error
        return cast(_Value, value)


def side_by_side(
    nodes: Sequence[_Node], work: Callable[[_Node], _Value], *, what: str, timeout: float, at_most: int = 64
) -> list[Outcome[_Node, _Value]]:
    """Do `work` on all nodes, `at_most` at once; one outcome per node, in order.

    Args: what: the work in words, for the message about a node that is late; timeout: s, for all together.
    Raises: whatever `work` raised that is no `CvsError`, a defect of ours, after all have ended.
    """
    deadline = time.monotonic() + timeout
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, _Value | None, BaseException | None]] = queue.SimpleQueue()
    for index in range(len(nodes)):
        waiting.put(index)

    def worker() -> None:
        while time.monotonic() < deadline:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, work(nodes[index]), None))
            except BaseException as error:
                done.put((index, None, error))

    try:
        for _ in range(min(at_most, len(nodes))):
            threading.Thread(target=worker, daemon=True).start()
    except RuntimeError:  # no more threads for this user: what is to be done is done nevertheless
        worker()
    return _gathered(nodes, done, deadline, f"{what} did not end within {timeout:.0f} s")


def _gathered(
    nodes: Sequence[_Node],
    done: queue.SimpleQueue[tuple[int, _Value | None, BaseException | None]],
    deadline: float,
    late: str,
) -> list[Outcome[_Node, _Value]]:
    outcomes: dict[int, Outcome[_Node, _Value]] = {}
    defect: BaseException | None = None
    while len(outcomes) < len(nodes):
        try:
            index, value, error = done.get(timeout=max(deadline - time.monotonic(), 0.001))
        except queue.Empty:
            break
        if error is not None and not isinstance(error, CvsError):
            defect = error
        outcomes[index] = Outcome(nodes[index], value, error if isinstance(error, CvsError) else None)
    if defect is not None:
        raise defect
    return [
        outcomes.get(index) or Outcome(node, error=TransportError(f"{node.name}: {late}"))
        for index, node in enumerate(nodes)
    ]
