"""Which containers on a node are of cvs, and which of those nobody needs any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from conftest import holder
from cvs.runtime._engine import Engine, Refused
from cvs.runtime._owned import EXPIRES, HOLDER, Container, Containers
from cvs.transport.local import LocalTransport
from engine import Shelf, engine

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=timezone.utc)
LATER, EARLIER = NOW + timedelta(hours=1), NOW - timedelta(hours=1)


def container(state: str, minutes: float = 0, expires: str = LATER.isoformat(), name: str = "x") -> Container:
    """One of cvs, made so many minutes ago."""
    labels = {HOLDER: holder("old").model_dump_json(), EXPIRES: expires}
    return Container("1", name, "image", state, NOW - timedelta(minutes=minutes), labels)


@pytest.mark.parametrize("state", ["running", "paused", "restarting", "created"])
def test_a_run_may_be_in_progress(state: str) -> None:
    assert container(state).left_over(NOW) is None


@pytest.mark.parametrize("state", ["exited", "dead"])
def test_it_has_ended(state: str) -> None:
    assert container(state).left_over(NOW) == "had ended"


@pytest.mark.parametrize("state", ["running", "paused", "restarting", "created"])
def test_it_has_outlived_its_time_in_any_state(state: str) -> None:
    assert container(state, expires=EARLIER.isoformat()).left_over(NOW) == "had outlived its time"


@pytest.mark.parametrize(("minutes", "why"), [(4, None), (6, "was never started")])
def test_one_that_is_not_started_is_soon(minutes: float, why: str | None) -> None:
    assert container("created", minutes).left_over(NOW) == why


@pytest.mark.parametrize("expires", ["", "soon"])
def test_a_mark_that_cannot_be_read_gives_it_all_time(expires: str) -> None:
    assert container("running", expires=expires).left_over(NOW) is None


@pytest.mark.parametrize(
    ("name", "is_namesake"),
    [("aorta", True), ("aorta-1", True), ("aorta1", False), ("my-aorta", False), ("AORTA", False)],
)
def test_a_namesake_has_the_name_and_not_the_label(name: str, is_namesake: bool) -> None:
    other = Container("1", name, "image", "exited", NOW, {"cvs.version": "1"})
    assert other.is_namesake("aorta") is is_namesake
    assert not container("exited", name=name).is_namesake("aorta")


# --- those of an engine -----------------------------------------------------------------------------------


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    shelf = Shelf()
    with engine(shelf) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        yield shelf


@pytest.fixture
def containers() -> Containers:
    transport = LocalTransport("a")
    return Containers(Engine(transport), transport)


def test_what_is_being_removed_is_not_there(shelf: Shelf, containers: Containers) -> None:
    shelf.put("going", "removing")
    shelf.put("there", "exited")
    assert [each.name for each in containers.all()] == ["there"]


def test_the_label_tells_which_are_of_cvs(shelf: Shelf, containers: Containers) -> None:
    shelf.put("ours", labels=containers.labels(holder("r"), "gpu01", 60))
    shelf.put("other", labels={"some": "label"})
    [ours] = containers.of_cvs()
    assert (ours.name, ours.node, ours.holder) == ("ours", "gpu01", holder("r"))
    assert ours.left_over(containers.now()) is None
    assert ours.left_over(containers.now() + timedelta(seconds=62)) == "had outlived its time"


@pytest.mark.parametrize("state", ["running", "exited"])
def test_what_has_ended_only_just_may_be_about_to_start_anew(
    state: str, shelf: Shelf, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cvs.runtime._owned._RESTART_SECONDS", 3)
    labels = containers.labels(holder("r"), "gpu01", 60)
    ended = {"FinishedAt": f"{containers.now():%Y-%m-%dT%H:%M:%S}.123456789Z"}
    shelf.put("ours", "exited", labels=labels, State=ended)
    starts = threading.Timer(0.7, shelf.put, ["ours", state], {"labels": labels, "State": ended})
    starts.start()
    begun = time.monotonic()
    assert [each.state for each in containers.settled()] == [state]
    assert (time.monotonic() - begun > 1.5) is (state == "exited"), "one that stays as it is has ended"


def test_nobody_waits_for_others_or_for_what_ended_long_ago(shelf: Shelf, containers: Containers) -> None:
    shelf.put("ours", "exited", labels=containers.labels(holder("r"), "gpu01", 60))
    just = {"FinishedAt": f"{containers.now():%Y-%m-%dT%H:%M:%S}Z"}
    shelf.put("theirs", "exited", State=just)
    assert len(containers.settled()) == 2
    assert shelf.asked.count("GET /containers/json") == 1


GPUS: list[tuple[dict[str, Any], bool]] = [
    ({}, False),
    ({"Devices": None, "DeviceRequests": None, "Privileged": False}, False),
    ({"Devices": [{"PathOnHost": "/dev/infiniband/uverbs0"}]}, False),
    ({"Devices": [{"PathOnHost": "/dev/fuse"}, {"PathOnHost": "/dev/kfd"}]}, True),
    ({"Devices": [{"PathOnHost": "/dev/dri/renderD128"}]}, True),
    ({"DeviceRequests": [{"Driver": "", "Capabilities": [["gpu"]]}]}, True),
    ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["amd.com/gpu=all"], "Capabilities": None}]}, True),
    ({"Privileged": True}, True),
]


@pytest.mark.parametrize(("host", "has"), GPUS)
def test_who_has_gpus(host: dict[str, Any], has: bool, shelf: Shelf, containers: Containers) -> None:
    shelf.put("other", HostConfig=host)
    others = containers.all()
    assert containers.with_gpus(others) == (others if has else [])


def test_only_those_at_work_are_looked_at_and_one_that_goes_meanwhile_is_none(
    shelf: Shelf, containers: Containers
) -> None:
    for name, state in {"ended": "exited", "going": "running"}.items():
        shelf.put(name, state, HostConfig={"Privileged": True})
    others = containers.all()
    del shelf.entries["going"]
    shelf.asked.clear()
    assert containers.with_gpus(others) == []
    assert shelf.asked == ["GET /containers/going/json"]


def test_two_may_remove_the_same_one_at_the_same_time(shelf: Shelf, containers: Containers) -> None:
    shelf.put("going")
    shelf.refusals["going"] = 409
    containers.remove("going")
    containers.remove("gone")
    shelf.refusals["going"] = 500
    with pytest.raises(Refused, match="cannot remove its container: refused"):
        containers.remove("going")
