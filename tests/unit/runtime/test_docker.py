"""What a run in containers finds on a node before it starts: what goes, and what is left alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from conftest import holder
from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import EnvironmentFault, NodeInUse, RunError
from cvs.launch import NodePlan, Site, plan_aorta
from cvs.models import Holder
from cvs.runtime._engine import Engine
from cvs.runtime._owned import EXPIRES, Containers
from cvs.runtime.docker import DockerRuntime
from cvs.transport.local import LocalTransport
from engine import Shelf, engine

OLD = 3600
"""Seconds, more than any start takes."""


class Node:
    """A local node, and what stands in its engine."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self.transport = LocalTransport("gpu01")

    def runtime(self, accelerator: str = "rocm") -> DockerRuntime:
        return DockerRuntime(self.plan(accelerator), self.transport, lambda _line: None)

    def plan(self, accelerator: str) -> NodePlan:
        cluster = {"username": "u", "transport": "local", "node_dict": {"gpu01": {"vpc_ip": "127.0.0.1"}}}
        bench = {"aorta_path": "/aorta", "accelerator": accelerator}
        site = Site(run_id="new", master_port=29500)
        return plan_aorta(ClusterConfig.model_validate(cluster), AortaConfig.model_validate(bench), site).head

    def put(
        self, name: str, state: str, whose: Holder | None = None, *, age: float = 0, **details: object
    ) -> None:
        """A container, of a run where one is given."""
        containers = Containers(Engine(self.transport), self.transport)
        labels = containers.labels(whose, "gpu01", 7200) if whose else {}
        self.shelf.put(name, state, created=int(time.time()) - age, labels=labels, **details)  # noqa: TID251


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    shelf = Shelf()
    with engine(shelf) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        node = Node(shelf)
        with closing(node.transport):
            yield node


# --- engines that do not do -------------------------------------------------------------------------------

LACKS_RIGHTS = "so a job there has neither the node's network nor the rights for its GPUs and locked memory"
UNFIT = {
    "rootless": (
        f"is rootless, {LACKS_RIGHTS}; have the login user's docker program ask the node's own engine (docker"
        " context use default, no DOCKER_HOST), or set runtime: process"
    ),
    "userns": (
        f"maps users, {LACKS_RIGHTS}; take userns-remap out of /etc/docker/daemon.json there, or set"
        " runtime: process"
    ),
}


@pytest.mark.parametrize("word", UNFIT)
def test_an_engine_without_the_rights_for_a_job_is_refused(word: str, node: Node) -> None:
    node.put("a-1", "exited", holder("one"))
    node.shelf.security.append(f"name={word}")
    with pytest.raises(EnvironmentFault) as refused:
        node.runtime().hold(holder("new"))
    assert str(refused.value) == f"gpu01: the Docker engine there {UNFIT[word]}"
    assert list(node.shelf.entries) == ["a-1"], "nothing is removed there"
    assert node.shelf.asked.count("GET /info") == 1


@pytest.mark.parametrize("security", [[], ["name=rootless"]], ids=["root", "rootless"])
def test_podman_is_refused(security: list[str], node: Node) -> None:
    node.shelf.components = ["Podman Engine", "Conmon", "OCI Runtime (crun)"]
    node.shelf.security = security
    with pytest.raises(EnvironmentFault) as refused:
        node.runtime().hold(holder("new"))
    assert str(refused.value) == (
        "gpu01: the Docker engine there is Podman's, with which cvs is not tested; install Docker there, or"
        " set runtime: process"
    )


# --- what is there already --------------------------------------------------------------------------------


@pytest.mark.parametrize(("state", "age"), [("running", OLD), ("paused", OLD), ("created", 10)])
def test_a_run_that_may_be_in_progress_is_named_and_left_alone(state: str, age: float, node: Node) -> None:
    node.put("aorta-benchmark-x", state, holder("other"), age=age)
    node.put("aorta-benchmark-y", "exited", holder("older"))
    with pytest.raises(NodeInUse) as refused:
        node.runtime().hold(holder("new"))
    assert str(refused.value) == f"gpu01: in use by {holder('other')}"
    assert len(node.shelf.entries) == 2


def test_what_is_left_over_goes_and_is_told(node: Node) -> None:
    node.put("a-1", "exited", holder("one"))
    node.put("b-2", "created", holder("two"), age=OLD)
    node.put("c-3", "exited")
    assert node.runtime().hold(holder("new")) == (
        f"gpu01: removed the container, which had ended, of {holder('one')};"
        f" the container, which was never started, of {holder('two')}"
    )
    assert list(node.shelf.entries) == ["c-3"]


def test_what_another_user_left_over_stays(node: Node) -> None:
    bobs = holder("bobs").model_copy(update={"user": "bob"})
    node.put("a-1", "exited", bobs)
    node.put("b-2", "created", bobs, age=OLD)
    assert node.runtime().hold(holder("new")) is None
    assert list(node.shelf.entries) == ["a-1", "b-2"]


def test_what_another_user_left_at_work_keeps_the_node_in_use(node: Node) -> None:
    bobs = holder("bobs").model_copy(update={"user": "bob"})
    node.put("a-1", "running", bobs, age=OLD)
    node.shelf.entries["a-1"]["Labels"][EXPIRES] = "2020-01-01T00:00:00+00:00"
    with pytest.raises(NodeInUse) as refused:
        node.runtime().hold(holder("new"))
    assert str(refused.value) == f"gpu01: in use by {bobs}"
    assert list(node.shelf.entries) == ["a-1"]


@pytest.mark.parametrize("state", ["running", "exited", "created"])
@pytest.mark.parametrize("name", ["aorta-benchmark", "aorta-benchmark-7"])
def test_a_namesake_that_is_not_of_cvs_is_named_and_left_alone(name: str, state: str, node: Node) -> None:
    node.put(name, state, age=OLD)
    node.put("other", "exited", holder("older"))
    with pytest.raises(NodeInUse) as refused:
        node.runtime().hold(holder("new"))
    told = str(refused.value)
    assert told.startswith(f"gpu01: container {name} ({state}, image example/torch:2, made 20")
    assert "owner unknown" in told
    assert "docker rm it there, if it is yours, or set another docker.container_name" in told
    assert len(node.shelf.entries) == 2


def test_who_has_the_gpus_too_is_told(node: Node) -> None:
    node.put("trains", "running", HostConfig={"Devices": [{"PathOnHost": "/dev/kfd"}]})
    node.put("serves", "running")
    runtime = node.runtime()
    runtime.hold(holder("new"))
    runtime._check_neighbours()
    [told] = runtime.warnings
    assert told.startswith(
        "gpu01: not alone with the GPUs, so figures may suffer: container trains (running, "
    )
    assert "serves" not in told


def test_without_gpus_nobody_is_looked_at(node: Node) -> None:
    node.put("trains", "running", HostConfig={"Privileged": True})
    runtime = node.runtime("none")
    runtime.hold(holder("new"))
    node.shelf.asked.clear()
    runtime._check_neighbours()
    assert (runtime.warnings, node.shelf.asked) == ([], [])


def test_the_engine_is_held_by_one_at_a_time(node: Node) -> None:
    node.runtime().hold(holder("new"))
    with closing(LocalTransport("gpu01")) as other:
        with pytest.raises(NodeInUse) as refused:
            DockerRuntime(node.plan("rocm"), other, lambda _line: None).hold(holder("other"))
        assert str(refused.value) == f"gpu01: in use by {holder('new')}"
        node.transport.let_go()
        DockerRuntime(node.plan("rocm"), other, lambda _line: None).hold(holder("other"))


def test_a_machine_that_has_two_names_in_one_run_is_no_other_run(node: Node) -> None:
    node.runtime().hold(holder("new"))
    with closing(LocalTransport("gpu01.example.org")) as other:
        DockerRuntime(node.plan("rocm"), other, lambda _line: None).hold(holder("new"))


@pytest.mark.parametrize("state", ["running", "created"])
def test_a_run_that_came_while_the_engine_was_not_held_is_refused(state: str, node: Node) -> None:
    node.put("mine", "created", holder("new"))
    node.put("older", "exited", holder("older"))
    node.runtime()._refuse_rivals()
    node.put("theirs", state, holder("other"), age=2)
    with pytest.raises(NodeInUse) as refused:
        node.runtime()._refuse_rivals()
    assert str(refused.value) == f"gpu01: in use by {holder('other')}"


# --- what a run would fetch -------------------------------------------------------------------------------

FETCHED = "no image torch:2 yet; a run fetches it"
LACKS: list[tuple[bool, dict[str, Any], str | None]] = [
    (True, {}, None),
    (True, {"pull": "never"}, None),
    (False, {}, FETCHED),
    (False, {"pull": "always"}, FETCHED),
    (False, {"pull": "never", "image_tar": "/data/image.tar"}, FETCHED),
]


def lacks(node: Node, has_image: bool, keys: dict[str, Any]) -> str | None:
    if has_image:
        node.put("torch:2", "exited")  # of which this engine shows as much as of an image
    runtime = node.runtime()
    assert runtime.plan.container is not None
    container = runtime.plan.container.model_copy(update={"image": "torch:2", **keys})
    plan = runtime.plan.model_copy(update={"container": container})
    return DockerRuntime(plan, node.transport, lambda _line: None).lacks()


@pytest.mark.parametrize(("has_image", "keys", "told"), LACKS)
def test_an_image_that_a_run_would_fetch(
    has_image: bool, keys: dict[str, Any], told: str | None, node: Node
) -> None:
    assert lacks(node, has_image, keys) == told
    assert set(node.shelf.asked) == {"GET /version", "GET /images/torch:2/json"}


def test_an_image_that_no_run_may_fetch(node: Node) -> None:
    with pytest.raises(RunError) as refused:
        lacks(node, False, {"pull": "never"})
    assert str(refused.value) == "gpu01: no image torch:2, and docker.pull is never"
