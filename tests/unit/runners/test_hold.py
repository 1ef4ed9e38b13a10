"""Of runs that want the same nodes each has all or none; of those that come at one moment one has all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from conftest import holder
from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import NodeInUse
from cvs.launch import Site, plan_aorta
from cvs.run_folder import RunFolder
from cvs.runners import _hold
from cvs.runners._hold import Hold
from cvs.runners._node import RunNode
from cvs.runtime.process import ProcessRuntime
from cvs.transport.local import LocalTransport

NAMES = ("n0", "n1", "n2")


class Run:
    """A run, by its id, that wants some of the nodes."""

    def __init__(self, place: Path, run_id: str, names: tuple[str, ...] = NAMES) -> None:
        self.said: list[str] = []
        self.on_word: Callable[[], object] = lambda: None
        self.nodes = self._made(place, run_id, names)
        self.hold = Hold(self.nodes, run_id, self._console, seconds=30, at_most=64)

    def _made(self, place: Path, run_id: str, names: tuple[str, ...]) -> list[RunNode]:
        cluster = {"username": "u", "transport": "local", "node_dict": {n: {"vpc_ip": "::1"} for n in names}}
        bench = {"aorta_path": "/srv/aorta", "runtime": "process", "accelerator": "none"}
        site = Site(run_id=run_id, nodes_dir=str(place), master_port=29500)
        job = plan_aorta(ClusterConfig.model_validate(cluster), AortaConfig.model_validate(bench), site)
        ways = {plan.node: LocalTransport(plan.node) for plan in job.nodes}
        return [
            RunNode(
                plan, job, ways[plan.node], ProcessRuntime(plan, ways[plan.node]), RunFolder(place / run_id)
            )
            for plan in job.nodes
        ]

    def _console(self, line: str) -> None:
        self.said.append(line)
        self.on_word()

    def close(self) -> None:
        self.hold.release()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Makes runs, by their ids, that want the same nodes."""
    made: list[Run] = []

    def make(run_id: str, *names: str) -> Run:
        made.append(Run(tmp_path, run_id, names or NAMES))
        return made[-1]

    yield make
    for each in made:
        each.close()


def is_free(node: RunNode) -> bool:
    with closing(LocalTransport("somebody")) as other:
        try:
            other.hold(node.plan.aorta_path, holder("somebody"))
        except NodeInUse:
            return False
    return True


# --- one after the other ----------------------------------------------------------------------------------


def test_all_nodes_are_held_until_they_are_released(run: Callable[..., Run]) -> None:
    first, second = run("run-1"), run("run-2")
    assert first.hold.take(0) is None
    told = second.hold.take(0)
    assert told is not None
    assert [f"{name}: " in told for name in NAMES] == [True] * 3
    assert told.count(f"is in use by {first.hold.holder}") == 3
    first.hold.release()
    assert second.hold.take(0) is None


def test_who_waits_is_told_once_by_whom_the_nodes_are_held(run: Callable[..., Run]) -> None:
    first, other, waits = run("run-1", "n0"), run("run-2", "n0"), run("run-3")
    first.hold.attempt()

    def change() -> None:
        first.hold.release()
        other.hold.attempt()

    waits.on_word = change
    told = waits.hold.take(3)
    assert told is not None
    assert "in use by run run-2 of " in told
    said, again = waits.said
    assert said.startswith("cvs | waiting up to 3 s for the nodes: n0: ")
    assert f" is in use by {first.hold.holder}" in said
    assert f" is in use by {other.hold.holder}" in again


def test_who_waits_long_is_told_the_time_that_is_left(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hold, "_TOLD_EVERY", 0)
    other, waits = run("run-1", "n0"), run("run-2")
    other.hold.attempt()
    assert waits.hold.take(4)
    left = [int(line.removeprefix("cvs | waiting up to ").partition(" s ")[0]) for line in waits.said]
    assert left[0] == 4 > left[-1] > 0
    assert left == sorted(left, reverse=True)


def test_while_it_waits_a_run_holds_none(run: Callable[..., Run]) -> None:
    other, waits = run("run-1", "n0"), run("run-2")
    other.hold.attempt()
    seen: list[list[bool]] = []
    waits.on_word = lambda: seen.append([is_free(node) for node in waits.nodes])
    assert waits.hold.take(1)
    assert seen == [[False, True, True]]


def test_what_is_wrong_with_a_node_is_noted_once_nobody_holds_one(
    run: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "n2").write_text("no folder")
    other, waits = run("run-1", "n0"), run("run-2")
    other.hold.attempt()
    waits.on_word = other.hold.release
    assert waits.hold.take(10) is None
    assert [len(node.errors) for node in waits.nodes] == [0, 0, 1]


def test_what_a_killed_run_left_is_told_once(run: Callable[..., Run]) -> None:
    first, other, waits = run("run-1", "n0"), run("run-2", "n1"), run("run-3")
    first.hold.attempt()
    lock = Path(first.nodes[0].plan.aorta_path, ".cvs", "lock")
    left = lock.read_text()
    first.hold.release()
    lock.write_text(left)
    other.hold.attempt()
    waits.on_word = other.hold.release
    assert waits.hold.take(10) is None
    [told] = waits.hold.found
    assert told.startswith("run run-1 of ")
    assert waits.said.count(f"cvs | {told}") == 1


# --- at the same moment -----------------------------------------------------------------------------------


def test_the_earlier_keeps_what_it_has_until_the_later_gives_way(run: Callable[..., Run]) -> None:
    first, later = run("run-1"), run("run-2", "n1")
    later.hold.attempt()
    seen: list[bool] = []
    first.on_word = lambda: seen.append(is_free(first.nodes[0]))
    goes = threading.Timer(0.3, later.hold.release)
    goes.start()
    assert first.hold.take(0) is None
    assert seen == [False]


def test_the_later_gives_way_at_once(run: Callable[..., Run]) -> None:
    first, later = run("run-1", "n1"), run("run-2")
    first.hold.attempt()
    begun = time.monotonic()
    assert later.hold.take(0)
    assert time.monotonic() - begun < _hold._GIVES_WAY / 2
    assert not later.said


@pytest.mark.parametrize("wait", [0, 2])
def test_the_earlier_does_not_keep_for_ever_what_it_has(
    wait: float, run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hold, "_GIVES_WAY", 0.5)
    monkeypatch.setattr(_hold, "_TOLD_EVERY", 0)
    first, later = run("run-1"), run("run-2", "n1")
    later.hold.attempt()
    seen: list[bool] = []
    first.on_word = lambda: seen.append(is_free(first.nodes[0]))
    told = first.hold.take(wait)
    assert told is not None
    assert f"in use by {later.hold.holder}" in told
    assert (seen[0], seen[-1]) == (False, wait > 0)


def test_who_has_none_waits_for_nobody_to_give_way(run: Callable[..., Run]) -> None:
    first, later = run("run-1"), run("run-2")
    later.hold.attempt()
    begun = time.monotonic()
    assert first.hold.take(0)
    assert time.monotonic() - begun < _hold._GIVES_WAY / 2


def test_of_several_that_start_together_one_has_all(
    run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hold, "_PAUSE", 0.2)
    for _ in range(4):
        runs = [run(f"run-{number}") for number in range(3)]
        together = threading.Barrier(len(runs))
        refused: dict[int, str] = {}

        def start(number: int) -> None:
            together.wait()  # noqa: B023
            if told := runs[number].hold.take(0):  # noqa: B023
                refused[number] = told  # noqa: B023
                runs[number].hold.release()  # noqa: B023

        threads = [threading.Thread(target=start, args=(number,)) for number in range(len(runs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(refused) == len(runs) - 1
        for each in runs:
            each.hold.release()
