"""What is removed from a node, and what is named and stays."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import holder
from cvs.models import Holder
from cvs.runtime._engine import Engine
from cvs.runtime._owned import HOLDER, Containers
from cvs.runtime.cleanup import Found, NodeCleanup, Scope
from cvs.transport.local import LocalTransport
from engine import Shelf, engine
from processes import eventually, is_running

RUN_ID = f"20261130T120000.000Z-{secrets.token_hex(3)}"
"""Of its own, since tests beside these (pytest-xdist) end the processes of theirs."""
ME = Scope(user="alice")
OLD = 3600


class Node:
    """A local node, and what stands in its engine."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.transport = LocalTransport("a")
        self.living: dict[str, int] = {}
        """Runs whose cvs is alive here, and its process."""

    def put(self, name: str, state: str, whose: Holder | None, age: float = OLD, **details: object) -> None:
        """A container, of a run where one is given."""
        containers = Containers(Engine(self.transport), self.transport)
        labels = containers.labels(whose, "a", 7200) if whose else {}
        self.shelf.put(name, state, created=int(time.time()) - age, labels=labels, **details)  # noqa: TID251

    def clean(self, scope: Scope = ME) -> list[Found]:
        return list(NodeCleanup(self.transport, scope, self.living.get).found())

    def fates(self, scope: Scope = ME) -> dict[str, str]:
        """By name of the container."""
        return {each.what.removeprefix("container "): each.fate for each in self.clean(scope)}


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    shelf = Shelf()
    with engine(shelf) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        yield Node(shelf)


def of_bob(run_id: str) -> Holder:
    return holder(run_id).model_copy(update={"user": "bob"})


def everything(node: Node) -> None:
    """One container of each kind."""
    node.put("ended", "exited", holder("one"))
    node.put("unborn", "created", holder("two"))
    node.put("begins", "created", holder("three"), age=5)
    node.put("runs", "running", holder("four"))
    node.put("bobs", "exited", of_bob("five"))
    node.put("aorta", "exited", None)
    node.put("other", "exited", None)
    node.shelf.put("broken", "exited", labels={HOLDER: "{"})


def test_what_is_over_and_ours_goes_and_what_else_is_of_cvs_is_named(node: Node) -> None:
    everything(node)
    assert node.fates() == {
        "ended": "removed", "unborn": "removed", "begins": "left", "runs": "left", "bobs": "left",
        "broken": "left",
    }  # fmt: skip
    assert list(node.shelf.entries) == ["begins", "runs", "bobs", "aorta", "other", "broken"]


def test_nothing_goes_where_it_is_only_looked(node: Node) -> None:
    everything(node)
    fates = node.fates(ME._replace(only_look=True))
    assert [name for name, fate in fates.items() if fate == "would remove"] == ["ended", "unborn"]
    assert len(node.shelf.entries) == 8
    assert [request for request in node.shelf.asked if not request.startswith("GET")] == []


def test_what_is_said_of_each(node: Node) -> None:
    everything(node)
    told = {each.what.split()[1]: str(each) for each in node.clean(ME._replace(container_name="aorta"))}
    assert told.pop("aorta").startswith("left container aorta (exited, image example/torch:2, made 20")
    assert told == {
        "ended": f"removed container ended of {holder('one')}: it had ended",
        "unborn": f"removed container unborn of {holder('two')}: it was never started",
        "begins": f"left container begins of {holder('three')}: in use; if its cvs is gone:"
        " cvs cleanup --run three",
        "runs": f"left container runs of {holder('four')}: in use; if its cvs is gone:"
        " cvs cleanup --run four",
        "bobs": f"left container bobs of {of_bob('five')}: another user's",
        "broken": "left container broken: its label cannot be read; if it is yours, docker rm it",
    }  # fmt: skip


def test_of_a_run_that_is_named_all_goes_and_nothing_else(node: Node) -> None:
    everything(node)
    [only] = node.clean(ME._replace(run_id="four", container_name="aorta"))
    assert (only.fate, only.what, only.is_good) == ("removed", "container runs", True)
    assert only.why == "whether its cvs lives on here cannot be told from here"
    assert "runs" not in node.shelf.entries
    assert len(node.shelf.entries) == 7
    assert "POST /containers/runs/restart" in node.shelf.asked, "ended before its files are looked at"


def test_of_a_run_from_this_machine_it_is_known_that_its_cvs_is_gone(node: Node) -> None:
    node.put("runs", "running", holder("r", socket.gethostname()))
    [only] = node.clean(ME._replace(run_id="r"))
    assert (only.fate, only.why) == ("removed", "its cvs is gone")


@pytest.mark.parametrize("state", ["running", "exited"])
@pytest.mark.parametrize("run_id", [None, "r"])
def test_nothing_goes_of_a_run_whose_cvs_is_alive(state: str, run_id: str | None, node: Node) -> None:
    node.put("runs", state, holder("r"))
    node.living["r"] = 4711
    [only] = node.clean(ME._replace(run_id=run_id))
    assert (only.fate, only.why) == ("left", "its cvs is alive, process 4711 here; end that first")
    assert only.is_good is (run_id is None), "to ask for its end by name and not to get it is no success"
    assert list(node.shelf.entries) == ["runs"]


def test_another_users_run_is_not_ended_by_its_name_either(node: Node) -> None:
    node.put("bobs", "exited", of_bob("five"))
    [only] = node.clean(ME._replace(run_id="five"))
    assert (only.fate, only.why, only.is_good) == ("left", "another user's", False)
    assert list(node.shelf.entries) == ["bobs"]


def test_what_cannot_be_removed_is_named_and_no_success(node: Node) -> None:
    node.put("ended", "exited", holder("one"))
    node.put("next", "exited", holder("one"))
    node.shelf.refusals["ended"] = 500
    first, second = node.clean()
    assert (first.fate, first.is_good) == ("left", False)
    assert first.why == "Docker cannot remove its container: refused"
    assert (second.fate, second.is_good) == ("removed", True)


def test_one_that_somebody_else_removes_meanwhile_is_gone(node: Node) -> None:
    node.put("ended", "exited", holder("one"))
    node.shelf.refusals["ended"] = 409
    assert [(each.fate, each.is_good) for each in node.clean()] == [("removed", True)]


# --- without an engine ------------------------------------------------------------------------------------


def no_cvs(_run_id: str) -> None:
    """None is alive here."""


def only_these_programs(folder: Path, monkeypatch: pytest.MonkeyPatch, *others: str) -> None:
    """Makes a PATH of what a node must have, and of others, which do nothing."""
    for name in "sh cat date find grep id kill sed sleep timeout".split():
        [found] = [path for path in ("/bin", "/usr/bin") if Path(path, name).exists()][:1]
        (folder / name).symlink_to(f"{found}/{name}")
    for name in others:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")


def test_a_node_without_docker_has_no_containers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_these_programs(tmp_path, monkeypatch)
    assert list(NodeCleanup(LocalTransport("a"), ME, no_cvs).found()) == []


def test_one_whose_docker_does_not_answer_may_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_these_programs(tmp_path, monkeypatch, "docker")
    [only] = NodeCleanup(LocalTransport("a"), ME, no_cvs).found()
    assert not only.is_good
    assert str(only).startswith("left whatever containers there are: no Docker engine answers at")
    assert list(NodeCleanup(LocalTransport("a"), ME._replace(asks_docker=False), no_cvs).found()) == []


# --- plain processes --------------------------------------------------------------------------------------


def take(folder: Path, whose: Holder, *, has_started: bool = True) -> None:
    """Have it held by a run, as behind SSH."""
    started = folder / ".cvs" / whose.run_id / "a" / "pid"
    (started.parent if has_started else started.parent.parent).mkdir(parents=True)
    if has_started:
        started.write_text("1")
    (folder / ".cvs/lock").write_text(whose.model_dump_json())


@contextmanager
def process(folder: Path, whose: Holder | None = None) -> Iterator[int]:
    """One of the run, in a folder that is held for it where a holder is given."""
    if whose:
        take(folder, whose)
    environment = {**os.environ, "CVS_RUN_ID": RUN_ID}
    process = subprocess.Popen(["sleep", "60"], cwd=folder, env=environment, start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


NAMED = ME._replace(run_id=RUN_ID, asks_docker=False)


def cleaned(scope: Scope = NAMED, living: int | None = None) -> list[Found]:
    return list(NodeCleanup(LocalTransport("a"), scope, lambda _run_id: living).found())


def test_the_processes_of_a_run_that_is_named_are_ended(tmp_path: Path) -> None:
    with process(tmp_path) as pid:
        assert cleaned(ME._replace(asks_docker=False)) == []
        assert [str(each) for each in cleaned(NAMED._replace(only_look=True))] == [
            f"would end processes {pid} of run {RUN_ID}"
        ]
        assert is_running(pid)
        [only] = cleaned()
        assert (str(only), only.is_good) == (f"ended processes {pid} of run {RUN_ID}", True)
        assert eventually(lambda: not is_running(pid))
    assert cleaned() == []


@pytest.mark.parametrize(
    ("whose", "living", "why"),
    [
        (of_bob(RUN_ID), None, "another user's"),
        (holder(RUN_ID), 4711, "its cvs is alive, process 4711 here; end that first"),
        (None, 4711, "its cvs is alive, process 4711 here; end that first"),
    ],
)
def test_but_not_those_of_another_user_or_of_a_living_cvs(
    whose: Holder | None, living: int | None, why: str, tmp_path: Path
) -> None:
    with process(tmp_path, whose) as pid:
        [only] = cleaned(living=living)
        assert (only.fate, only.why, only.is_good) == ("left", why, False)
        assert is_running(pid)


def test_the_lock_of_their_folder_tells_whose_they_are(tmp_path: Path) -> None:
    with process(tmp_path, holder(RUN_ID, "login-2")) as pid:
        [only] = cleaned()
    assert only.holder == holder(RUN_ID, "login-2")
    assert only.why == "whether its cvs lives on login-2 cannot be told from here"
    assert str(pid) in only.what


def test_a_lock_that_another_run_has_by_now_tells_nothing(tmp_path: Path) -> None:
    with process(tmp_path, of_bob("another")):
        [only] = cleaned()
    assert (only.fate, only.holder) == ("ended", None)


def test_where_a_container_of_the_run_stays_its_processes_are_not_ended_either(
    node: Node, tmp_path: Path
) -> None:
    node.put("bobs", "running", of_bob(RUN_ID))
    with process(tmp_path) as pid:
        [only] = node.clean(NAMED._replace(asks_docker=True))
        assert only.what == "container bobs"
        assert is_running(pid)


# --- by the lock of the folder ----------------------------------------------------------------------------

HERE = holder(RUN_ID, socket.gethostname())


def in_folder(folder: Path, living: int | None = None, **more: Any) -> list[Found]:
    return cleaned(ME._replace(folder=str(folder), asks_docker=False, **more), living)


def test_what_a_cvs_that_was_killed_here_left_running_ends_by_the_lock(tmp_path: Path) -> None:
    with process(tmp_path, HERE) as pid:
        [tried] = in_folder(tmp_path, only_look=True)
        assert str(tried) == f"would end processes {pid} of {HERE}: its cvs is gone"
        assert is_running(pid)
        [only] = in_folder(tmp_path)
        assert (str(only), only.is_good) == (f"ended processes {pid} of {HERE}: its cvs is gone", True)
        assert eventually(lambda: not is_running(pid))


@pytest.mark.parametrize(
    ("whose", "living", "why"),
    [
        (of_bob(RUN_ID), None, "another user's"),
        (HERE, 4711, "its cvs is alive, process 4711 here; end that first"),
        (holder(RUN_ID, "login-2"), None, f"in use; if its cvs is gone: cvs cleanup --run {RUN_ID}"),
    ],
    ids=["another user's", "its cvs lives", "on another machine"],
)
def test_what_may_be_in_progress_or_is_another_users_stays_and_is_named(
    whose: Holder, living: int | None, why: str, tmp_path: Path
) -> None:
    with process(tmp_path, whose) as pid:
        [only] = in_folder(tmp_path, living)
        assert str(only) == f"left processes {pid} of {whose}: {why}"
        assert only.is_good
        assert is_running(pid)


def test_before_its_job_is_started_a_run_may_be_in_progress(tmp_path: Path) -> None:
    take(tmp_path, HERE, has_started=False)
    with process(tmp_path) as pid:
        [only] = in_folder(tmp_path)
        assert (only.fate, only.why) == ("left", f"in use; if its cvs is gone: cvs cleanup --run {RUN_ID}")
        assert is_running(pid)


def test_a_lock_without_processes_is_named_and_stays(tmp_path: Path) -> None:
    take(tmp_path, HERE)
    [only] = in_folder(tmp_path)
    assert str(only) == f"left lock of {tmp_path} of {HERE}: no process of it is on this node"
    assert only.is_good
    assert (tmp_path / ".cvs/lock").read_text()


def test_a_folder_that_nobody_holds_tells_of_no_run(tmp_path: Path) -> None:
    assert in_folder(tmp_path / "none") == []
    (tmp_path / ".cvs").mkdir()
    (tmp_path / ".cvs/lock").touch()
    with process(tmp_path) as pid:
        assert in_folder(tmp_path) == []
        assert is_running(pid)


def test_it_is_told_once_the_lock_is_let_go_of(tmp_path: Path) -> None:
    """So that the next run need not wait: behind SSH its holder sees a moment later that all have ended."""
    with process(tmp_path, HERE) as pid:
        lock = tmp_path / ".cvs/lock"
        holds = f"while [ -e /proc/{pid}/cwd/. ]; do sleep 0.1; done; sleep 1; : > {lock}"
        holding = subprocess.Popen(["flock", str(lock), "sh", "-c", holds])
        try:
            assert eventually(lambda: subprocess.run(["flock", "-n", str(lock), "true"]).returncode == 1)
            [only] = in_folder(tmp_path)
            assert (only.fate, lock.read_text()) == ("ended", "")
        finally:
            holding.wait(20)


def test_of_a_run_that_is_named_the_lock_of_another_is_no_matter(tmp_path: Path) -> None:
    take(tmp_path, HERE)
    assert in_folder(tmp_path, run_id="another") == []
