"""One piece of work on every node, side by side."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

from cvs.errors import RunError, TransportError
from cvs.runners._fanout import Beside, side_by_side


@dataclass(frozen=True)
class Node:
    name: str
    seconds: float = 0.0


def nodes(count: int, seconds: float = 0.0) -> list[Node]:
    return [Node(f"node-{index}", seconds) for index in range(count)]


def test_one_outcome_per_node_in_their_order() -> None:
    """Whoever is done first."""

    def work(node: Node) -> str:
        time.sleep(node.seconds)
        return node.name.upper()

    slow_first = [Node("a", 0.1), Node("b", 0.05), Node("c")]
    outcomes = side_by_side(slow_first, work, what="work", timeout=5)
    assert [(outcome.node, outcome.value, outcome.error) for outcome in outcomes] == [
        (slow_first[0], "A", None),
        (slow_first[1], "B", None),
        (slow_first[2], "C", None),
    ]


def test_no_node() -> None:
    assert side_by_side([], lambda node: node, what="work", timeout=5) == []


def test_one_nodes_failure_costs_no_other() -> None:
    def work(node: Node) -> str:
        if node.name == "node-1":
            raise RunError("node-1: disk full")
        return "done"

    outcomes = side_by_side(nodes(3), work, what="work", timeout=5)
    assert [outcome.value for outcome in outcomes] == ["done", None, "done"]
    assert [str(outcome.error or "") for outcome in outcomes] == ["", "node-1: disk full", ""]


def test_they_run_at_the_same_time() -> None:
    together = threading.Barrier(4)
    outcomes = side_by_side(nodes(4), lambda _node: together.wait(5), what="work", timeout=5)
    assert all(outcome.error is None for outcome in outcomes)


def test_at_most_so_many_at_once() -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def work(_node: Node) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    side_by_side(nodes(7), work, what="work", timeout=5, at_most=3)
    assert most == 3


def refuse(_thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_another_thread_the_work_is_done_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    outcomes = side_by_side([Node("a"), Node("b")], lambda node: node.name, what="work", timeout=5)
    assert [outcome.value for outcome in outcomes] == ["a", "b"]
    assert Beside(lambda: "c").result() == "c"


def test_work_beside_another_raises_where_it_is_waited_for() -> None:
    def fail() -> None:
        raise RunError("no")

    beside = Beside(fail)
    with pytest.raises(RunError, match="no"):
        beside.result()


def test_a_late_node_does_not_keep_the_others_waiting() -> None:
    release = threading.Event()

    def work(node: Node) -> str:
        if node.name == "node-1":
            release.wait(10)
        return "done"

    started = time.monotonic()
    outcomes = side_by_side(nodes(3), work, what="set-up", timeout=0.3)
    assert time.monotonic() - started < 1
    assert [outcome.value for outcome in outcomes] == ["done", None, "done"]
    assert isinstance(outcomes[1].error, TransportError)
    assert str(outcomes[1].error) == "node-1: set-up did not end within 0 s"
    release.set()


def test_work_that_was_given_up_is_not_begun_later() -> None:
    """A node that was reported as late must not be set up after everything was torn down."""
    begun: list[str] = []

    def work(node: Node) -> None:
        begun.append(node.name)
        time.sleep(node.seconds)

    outcomes = side_by_side([Node("stuck", 0.4), Node("next")], work, what="work", timeout=0.2, at_most=1)
    assert all(outcome.error for outcome in outcomes)
    time.sleep(0.4)
    assert begun == ["stuck"]


def test_a_defect_is_raised_after_all_have_ended() -> None:
    ended: list[str] = []

    def work(node: Node) -> None:
        if node.name == "node-0":
            raise ZeroDivisionError
        time.sleep(0.1)
        ended.append(node.name)

    with pytest.raises(ZeroDivisionError):
        side_by_side(nodes(3), work, what="work", timeout=5)
    assert sorted(ended) == ["node-1", "node-2"]


def test_a_stuck_thread_does_not_keep_the_program_alive() -> None:
    code = """
import time
from cvs.runners._fanout import side_by_side
class Node: name = "a"
[outcome] = side_by_side([Node()], lambda node: time.sleep(60), what="work", timeout=0.1)
print(outcome.error)
"""
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert told.stdout == "a: work did not end within 0 s\n"
