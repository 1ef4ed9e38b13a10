"""The checks before a run: on nodes that say what they are told to say, and in runs without a job."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from conftest import Files, holder, stand_in_python
from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import CvsError, RunError, TransportError
from cvs.hang import RankStack
from cvs.launch import LaunchPlan, NodePlan, Site, plan_aorta
from cvs.models import CommandResult, Holder, RunStatus
from cvs.preflight import JobLook, bad
from cvs.run_folder import RunFolder, make_run_folder, new_run_folder
from cvs.runners import _preflight
from cvs.runners._node import RunNode
from cvs.runners._preflight import Preflight
from cvs.runners.aorta import AortaRunner
from cvs.runtime.base import Runtime
from cvs.transport.base import Process, Sink
from cvs.transport.local import LocalTransport

LONG = 60
"""Seconds that nothing here takes."""


class Double(Runtime):
    """Stands in for what a job runs in: it gives what it is told to give, or raises it."""

    def __init__(self, plan: NodePlan, transport: LocalTransport, gives: dict[str, Any]) -> None:
        super().__init__(plan, transport)
        self.asked: list[str] = []
        self.met = threading.Semaphore(0)
        """Of the head: once for each caller that was answered."""
        self._gives = gives
        self._calls = list(gives.get("calls", [""]))

    def _give(self, what: str, default: object = None) -> Any:
        self.asked.append(what)
        value = self._gives.get(what, default)
        if isinstance(value, CvsError):
            raise value
        return value

    def check_workload(self, *, timeout: float) -> None:
        del timeout
        self._give("check_workload")

    def lacks(self) -> str | None:
        return cast("str | None", self._give("lacks"))

    def prepare(self, *, timeout: float) -> dict[str, str]:
        del timeout
        return cast("dict[str, str]", self._give("prepare", {}))

    def probe(self, host: str, devices: Sequence[str], *, timeout: float) -> JobLook:
        del timeout
        self.asked.append(f"of {host} and {', '.join(devices) or 'no devices'}")
        return cast(JobLook, self._give("probe", JobLook()))

    def meet(self, act: str, port: int, word: str, seconds: float, last: str) -> str:
        self.asked.append(f"to {act} at {port} with {len(word)} letters")
        return self._listen(seconds, int(last)) if act == "listen" else self._call()

    def _listen(self, seconds: float, count: int) -> str:
        if taken := self._give("listen"):
            return str(taken)
        deadline = time.monotonic() + seconds
        while count and self.met.acquire(timeout=max(deadline - time.monotonic(), 0)):
            count -= 1
        return ""

    def _call(self) -> str:
        """What it is told to say of each try, the last again and again."""
        time.sleep(0.01)
        said = self._calls.pop(0) if len(self._calls) > 1 else self._calls[0]
        if isinstance(said, CvsError):
            raise said
        if not said:
            self.met.release()
        return str(said)

    def hold(self, holder: Holder) -> None:
        """Nothing else runs here."""

    def _python_there(self, script: str, *words: str, timeout: float) -> CommandResult:
        raise NotImplementedError

    def start(self, sink: Sink) -> Process:
        raise NotImplementedError

    def stacks(self, *, timeout: float) -> list[RankStack]:
        raise NotImplementedError(timeout)

    def kill_leftovers(self) -> list[int]:
        return []

    def teardown(self) -> None:
        """Nothing was made."""


class Away(LocalTransport):
    """To a node that has just gone away."""

    def run(self, *_words: Any, **_options: Any) -> CommandResult:
        raise TransportError(f"{self.node}: the connection is lost")


class Nodes:
    """Nodes of one run, the first of which is the head, and its checks; this machine is all of them."""

    def __init__(self, folder: RunFolder, gives: dict[str, dict[str, Any]], **keys: Any) -> None:
        """`gives`: what each is told to give; further keys are the benchmark file's, and `port`."""
        self.checks = Preflight(64)
        self.plan = self._plan(str(folder.path), list(gives), **keys)
        self.nodes = [self._node(plan, folder, gives[plan.node]) for plan in self.plan.nodes]
        for double in self.doubles:
            double.met = self.doubles[0].met

    def _plan(self, aorta: str, names: list[str], port: int | None = 29500, **keys: Any) -> LaunchPlan:
        cluster = {"username": "u", "node_dict": {name: {"vpc_ip": name} for name in names}}
        return plan_aorta(
            ClusterConfig.model_validate(cluster),
            AortaConfig.model_validate({"aorta_path": aorta, "accelerator": "none", **keys}),
            Site(run_id="r1", master_port=port),
        )

    def _node(self, plan: NodePlan, folder: RunFolder, gives: dict[str, Any]) -> RunNode:
        transport = (Away if gives.get("is_away") else LocalTransport)(plan.node)
        node = RunNode(plan, self.plan, transport, Double(plan, transport, gives), folder)
        node.errors += gives.get("errors", [])
        return node

    @property
    def doubles(self) -> list[Double]:
        return [cast(Double, node.runtime) for node in self.nodes]

    def found(self) -> dict[str, list[str]]:
        """The checks of each node, in order; behind one that is not good stands what it says."""
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for each in self.checks.findings:
            said = "" if each.status == "good" else f" {each.status}: {each.text}"
            found[each.node].append(f"{each.check}{said}")
        return found


NodesOf = Callable[..., Nodes]


@pytest.fixture
def nodes_of(tmp_path: Path) -> NodesOf:
    """Makes nodes, by name and what each is told to give."""
    folder = make_run_folder(tmp_path / "r1")
    return lambda gives, **keys: Nodes(folder, gives, **keys)


# --- before nodes are prepared ----------------------------------------------------------------------------


def test_a_node_that_is_not_reached_is_asked_nothing_more(nodes_of: NodesOf) -> None:
    nodes = nodes_of({"a": {}, "b": {"errors": ["b: b:22 refuses connections"]}})
    nodes.checks.before(nodes.plan, nodes.nodes)
    assert nodes.found() == {
        "a": ["reach", "docker", "disk"],
        "b": ["reach bad: b:22 refuses connections"],
    }
    assert [double.asked for double in nodes.doubles] == [["check_workload"], []]


def test_a_node_whose_docker_cannot_be_asked(nodes_of: NodesOf) -> None:
    nodes = nodes_of({"a": {"errors": ["a: Docker cannot list containers: is it running?"]}})
    nodes.checks.before(nodes.plan, nodes.nodes)
    assert nodes.found() == {"a": ["docker bad: Docker cannot list containers: is it running?"]}


def test_plain_processes_need_no_docker(nodes_of: NodesOf) -> None:
    nodes = nodes_of({"a": {}}, runtime="process")
    nodes.checks.before(nodes.plan, nodes.nodes)
    assert nodes.found() == {"a": ["reach", "disk"]}


def test_a_node_that_is_lost_meanwhile_and_one_without_its_workload(nodes_of: NodesOf) -> None:
    bare = RunError("b: aorta_path /srv/aorta: no such folder on the node")
    nodes = nodes_of({"a": {"is_away": True}, "b": {"check_workload": bare}}, runtime="process")
    nodes.checks.before(nodes.plan, nodes.nodes)
    assert nodes.found() == {
        "a": ["reach", "reach bad: the connection is lost"],
        "b": ["reach", "disk", "files bad: aorta_path /srv/aorta: no such folder on the node"],
    }


def test_what_a_run_would_fetch_is_asked_of_nodes_that_are_fit(nodes_of: NodesOf) -> None:
    nodes = nodes_of(
        {
            "a": {"errors": ["a: is away"]},
            "b": {"lacks": "no image x yet; a run fetches it"},
            "c": {"lacks": RunError("c: no image x, and docker.pull is never")},
            "d": {},
        }
    )
    nodes.checks.before(nodes.plan, nodes.nodes)
    assert [node.name for node in nodes.checks.complete(nodes.nodes)] == ["d"]
    assert "lacks" not in nodes.doubles[0].asked
    assert nodes.found()["b"][-1] == "ready warning: no image x yet; a run fetches it"
    assert nodes.found()["c"][-1] == "ready bad: no image x, and docker.pull is never"


def test_a_node_that_cannot_be_prepared(nodes_of: NodesOf) -> None:
    nodes = nodes_of({"a": {}, "b": {"prepare": RunError("b: /dev/shm has only 64 MiB")}})
    ready = nodes.checks.prepare(nodes.nodes, LONG)
    nodes.checks.ready(nodes.plan, ready)
    assert nodes.found() == {
        "a": ["ready", "write", "rendezvous"],
        "b": ["ready bad: /dev/shm has only 64 MiB"],
    }


def test_a_node_that_could_not_be_prepared_is_noted(nodes_of: NodesOf) -> None:
    nodes = nodes_of({"a": {}, "b": {"errors": ["b: no image", "one machine under two names"]}})
    nodes.checks.prepared(nodes.nodes)
    assert nodes.found() == {"a": [], "b": ["ready bad: no image", "ready bad: one machine under two names"]}
    assert nodes.doubles[1].asked == []


@pytest.mark.parametrize(("accelerator", "devices"), [("rocm", "/dev/kfd, /dev/dri"), ("cuda", "no devices")])
def test_what_is_looked_at(nodes_of: NodesOf, accelerator: str, devices: str) -> None:
    nodes = nodes_of({"a": {}, "b": {}}, accelerator=accelerator)
    nodes.checks.ready(nodes.plan, nodes.nodes)
    assert [double.asked for double in nodes.doubles] == [[f"of a and {devices}", "probe"]] * 2


def test_a_look_that_cannot_be_made(nodes_of: NodesOf) -> None:
    told = "a check could not be made where the job runs: gone"
    nodes = nodes_of({"a": {"probe": RunError(f"a: {told}")}})
    nodes.checks.ready(nodes.plan, nodes.nodes)
    assert nodes.found() == {"a": ["ready", f"write bad: {told}"]}


def test_nodes_in_containers_of_different_images(nodes_of: NodesOf) -> None:
    images = {"a": "sha256:1111", "b": "sha256:2222"}
    nodes = nodes_of({name: {"prepare": {"image": image}} for name, image in images.items()})
    nodes.checks.ready(nodes.plan, nodes.checks.prepare(nodes.nodes, LONG))
    assert nodes.found()["a"][:3] == ["ready", "write", "image"]
    assert nodes.found()["b"][2].endswith(
        " is 2222 here, and 1111 on a; docker.pull: always, or one digest in docker.image, makes them one"
    )


# --- the rendezvous port ----------------------------------------------------------------------------------


Meet = Callable[..., dict[str, list[str]]]


@pytest.fixture
def meet(nodes_of: NodesOf, monkeypatch: pytest.MonkeyPatch) -> Meet:
    """What is found of the port by nodes that say this of each try; the head waits `seconds` for them."""

    def met(
        calls: dict[str, list[str | CvsError]], *, seconds: float = LONG, taken: str = "", **keys: Any
    ) -> dict[str, list[str]]:
        monkeypatch.setattr(_preflight, "MEET_SECONDS", seconds)
        nodes = nodes_of({name: {"calls": said, "listen": taken} for name, said in calls.items()}, **keys)
        began = time.monotonic()
        nodes.checks.meet(nodes.plan, nodes.nodes)
        assert time.monotonic() - began < LONG
        return nodes.found()

    return met


REFUSED = "Connection refused"
UNREACHED = f"port bad: does not reach the head, a, at a port 29500: {REFUSED}"


def test_all_reach_the_head(meet: Meet) -> None:
    assert meet({"a": [""], "b": [""], "c": [""]}) == {"a": ["port"], "b": ["port"], "c": ["port"]}


def test_only_the_head_listens_and_all_call(nodes_of: NodesOf) -> None:
    nodes = nodes_of({"a": {}, "b": {}})
    nodes.checks.meet(nodes.plan, nodes.nodes)
    listens, calls = (f"to {act} at 29500 with 16 letters" for act in ("listen", "call"))
    head, other = (double.asked for double in nodes.doubles)
    assert set(head) == {calls, listens, "listen"}
    assert other == [calls]


def test_who_comes_before_the_head_listens_has_another_try(meet: Meet) -> None:
    calls = {name: [REFUSED, ""] for name in "abc"}
    assert meet({"head": [""], **calls}) == {name: ["port"] for name in ("head", "a", "b", "c")}


def test_who_never_reaches_it_is_told_and_not_waited_for(meet: Meet) -> None:
    found = meet({"a": [""], "b": [REFUSED], "c": [""]})
    assert found == {"a": ["port"], "b": [UNREACHED], "c": ["port"]}


def test_nobody_reaches_it(meet: Meet) -> None:
    assert meet({"a": [REFUSED], "b": [REFUSED]}, seconds=0.3) == {"a": [UNREACHED], "b": [UNREACHED]}


def test_a_node_that_cannot_try(meet: Meet) -> None:
    found = meet({"a": [""], "b": [TransportError("b: the connection is lost")]}, seconds=0.3)
    assert found == {"a": ["port"], "b": ["port bad: the connection is lost"]}


def test_of_a_port_that_is_taken_the_job_tells(meet: Meet) -> None:
    taken = "port 29500 cannot be listened on: Address already in use"
    assert meet({"a": [REFUSED], "b": [REFUSED]}, taken=taken) == {"a": [], "b": []}


@pytest.mark.parametrize(("names", "port"), [("a", 29500), ("ab", None)])
def test_where_there_is_nothing_to_try(meet: Meet, names: str, port: int | None) -> None:
    never: list[str | CvsError] = [TransportError("nobody asks")]
    assert meet(dict.fromkeys(names, never), port=port) == {name: [] for name in names}


# --- in a run ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("TORCH_PYTHON", stand_in_python(tmp_path, "echo the job"))
    return new_run_folder(tmp_path / "cvs_runs", "test_aorta")


def test_a_run_on_nodes_that_are_not_fit_starts_nothing(files: Files, folder: RunFolder) -> None:
    files.edit("GLOO_SOCKET_IFNAME: lo ", "GLOO_SOCKET_IFNAME: none ")
    said: list[str] = []
    result = AortaRunner(*files.load(), console=said.append).execute(folder)
    assert result.status is RunStatus.FAILED
    assert result.failure is not None
    text = "GLOO_SOCKET_IFNAME=none names no interface of this node, which has "
    assert result.failure.reason.startswith(f"set-up failed: node-0: {text}")
    assert f"; node-1: {text}" in result.failure.reason
    assert said == [
        "cvs | node    reach  files  interfaces",
        "cvs | node-0  ok     ok     BAD",
        "cvs | node-1  ok     ok     BAD",
    ]
    assert list(folder.nodes_dir.glob("*/aorta/train.py")) == []


def test_an_error_is_told_once_where_it_is_found_again(files: Files, folder: RunFolder) -> None:
    files.edit('"{cvs}/workloads/aorta"', str(folder.path / "none"))
    failure = AortaRunner(*files.load(), console=lambda _line: None).execute(folder).failure
    assert failure is not None
    told = [f"node-{n}: aorta_path {folder.path}/none: no such folder on this machine" for n in (0, 1)]
    assert failure.reason == f"set-up failed: {'; '.join(told)}"


def test_a_run_without_checks_starts_the_job_all_the_same(files: Files, folder: RunFolder) -> None:
    files.edit("GLOO_SOCKET_IFNAME: lo ", "GLOO_SOCKET_IFNAME: none ")
    said: list[str] = []
    AortaRunner(*files.load(), console=said.append).execute(folder, preflight=False)
    assert {"node-0 | the job", "node-1 | the job"} <= set(said)


def test_what_a_run_may_get_over_is_a_warning_of_it(
    files: Files, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    files.edit("accelerator: none", "accelerator: cuda")
    said: list[str] = []
    result = AortaRunner(*files.load(), console=said.append).execute(folder)
    told = [f"node-{n}: its GPUs cannot be counted: there is no nvidia-smi that lists them" for n in (0, 1)]
    assert set(told) <= set(result.warnings)
    assert "node-0 | the job" in said


def test_the_doctor_looks_at_a_node_that_another_run_holds_from_outside(
    files: Files, folder: RunFolder
) -> None:
    with closing(LocalTransport("other")) as other:
        other.hold(str(folder.nodes_dir / "node-0" / "aorta"), holder("run-a"))
        findings = AortaRunner(*files.load()).doctor(folder)
    [held] = bad(findings)
    assert (held.node, held.check) == ("node-0", "free")
    assert "is in use by run run-a of alice@here" in held.text
    checked = {name: {each.check for each in findings if each.node == name} for name in ("node-0", "node-1")}
    assert checked["node-1"] - checked["node-0"] == {"ready", "write", "rendezvous"}
    assert "port" not in checked["node-1"], "not without the other"
