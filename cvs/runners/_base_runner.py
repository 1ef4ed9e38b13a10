"""What every benchmark's runner does: set up, run, collect, tear down, on all nodes side by side.

A runner knows neither how a node is reached nor what the job runs in: `cvs.transport` and `cvs.runtime` do.
It never parses what the job leaves.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cvs.config import ClusterConfig
from cvs.errors import CvsError, EnvironmentFault, NodeInUse, RunError
from cvs.failure import first_failure
from cvs.launch import LaunchPlan, NodePlan, Site
from cvs.models import Accelerator, Failure, RunResult, RunStatus
from cvs.preflight import Finding, bad, table
from cvs.run_folder import Manifest, RunFolder
from cvs.runners._fanout import Outcome, side_by_side
from cvs.runners._hold import Hold
from cvs.runners._interrupts import Interrupts
from cvs.runners._node import Console, RunNode
from cvs.runners._preflight import Preflight
from cvs.runners._stall import Stall
from cvs.runners._watch import Watch
from cvs.runtime.base import Runtime
from cvs.runtime.docker import DockerRuntime
from cvs.runtime.process import ProcessRuntime, find_torch_python
from cvs.transport.base import Transport
from cvs.transport.choice import Way, transport_to, ways

__all__ = ["BaseRunner", "RunConfig", "RunResult", "RunStatus"]

_START_SECONDS = 60
_BUILD_SPARE_SECONDS = 60
"""For a build to be ended and told of where its own time is over."""
_Value = TypeVar("_Value")


class RunConfig(Protocol):
    """What a runner needs from a benchmark's config model, whatever the benchmark."""

    @property
    def gpus_per_node(self) -> int:
        """Accelerators per node."""

    @property
    def local_world_size(self) -> int:
        """Ranks per node."""

    @property
    def accelerator(self) -> Accelerator:
        """Which devices the job gets."""

    @property
    def runtime(self) -> str:
        """What the job runs in."""

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, without secrets."""


def _as_it_is(plan: LaunchPlan) -> LaunchPlan:
    """The plan without what would fetch or make something on a node."""
    nodes = (
        node.model_copy(
            update={
                "clone_url": None,
                "rccl_build": None,
                "container": node.container and node.container.model_copy(update={"pull": "never"}),
            }
        )
        for node in plan.nodes
    )
    return plan.model_copy(update={"nodes": tuple(nodes)})


def each_once(told: Iterable[str]) -> str:
    """Several reasons in one line; one that begins as another did tells only what is new."""
    parts: list[str] = []
    for text in told:
        first, *others = text.split("; ")
        is_known = any(first in earlier for earlier in parts)
        parts += [part for part in others if part not in parts] if is_known else [first, *others]
    return "; ".join(parts)


def _print(line: str) -> None:
    # Where nobody reads any more (a closed pipe), the logs still have every line.
    with suppress(OSError, ValueError):
        # In one piece, since several threads print.
        print(f"{line}\n", end="", flush=True)


class BaseRunner(ABC):
    """One run of one benchmark over all nodes of a cluster.

    `execute` is the whole; `setup`, `run`, `collect` and `teardown` are its parts, in this order.
    """

    benchmark: str
    """Name of the benchmark, first part of its report's name."""

    def __init__(
        self,
        cluster: ClusterConfig,
        config: RunConfig,
        *,
        files: tuple[str | None, str | None] = (None, None),
        console: Console = _print,
        adjust: Callable[[LaunchPlan], LaunchPlan] = lambda plan: plan,
    ) -> None:
        """Take the validated files; `files` are their names for the record.

        Args: console: takes each line of output; adjust: last word on the plan (tests shorten its limits).
        """
        self.cluster = cluster
        self.config = config
        self.console = console
        self._files = files
        self._adjust = adjust
        self._nodes: list[RunNode] = []
        self._warnings: list[str] = []
        self._why: str | None = None
        self._port_is_taken = False
        self._stall: Stall | None = None
        self._excluded: dict[str, str] = {}
        """Nodes that were unfit, and why, without which the job goes on."""
        self._preflight: Preflight | None = None
        self._status = RunStatus.PENDING

    @abstractmethod
    def make_plan(self, site: Site) -> LaunchPlan:
        """The benchmark's launch plan."""

    def plan_on_paper(self, nodes_dir: Path) -> LaunchPlan:
        """The plan as far as it can be told without a node; `nodes_dir`: where local nodes live."""
        site = Site(nodes_dir=str(nodes_dir))
        # What has no PyTorch says so when it is started; on paper the plan is as good.
        with suppress(EnvironmentFault):
            site = site.model_copy(update={"torch_python": find_torch_python()})
        return self.make_plan(site)

    @cached_property
    def ways(self) -> dict[str, Way]:
        """How each node is reached; no connection is opened.

        Raises: ConfigError, EnvironmentFault: it cannot be told.
        """
        return ways(self.cluster)

    def validate_config(self) -> list[str]:
        """Warnings about the two files, which are valid by having been loaded, and the ways to the nodes.

        Raises: ConfigError, EnvironmentFault: how a node is reached cannot be told.
        """
        on_the_way = dict.fromkeys(warning for way in self.ways.values() for warning in way.warnings)
        return [*self.cluster.warnings(), *on_the_way]

    def execute(self, folder: RunFolder, *, wait: float = 0, preflight: bool = True) -> RunResult:
        """The whole run, recorded in `folder` from its first moment to its last, whatever happens.

        A run that goes wrong is a result, not an error. With `preflight` every node is looked at before
        anything is prepared there, and again before the job starts.

        Raises: ConfigError: the ssh configuration cannot be used; EnvironmentFault: something that the run
        needs is missing here; NodeInUse: another run holds a node, even after `wait` seconds. Nothing was
        touched then, and `folder` is gone.
        KeyboardInterrupt: on Ctrl-C, SIGTERM or SIGHUP, after everything was stopped, collected (a second
        signal skips that) and recorded; before the nodes were ours, nothing was touched, either.
        """
        self._preflight = Preflight(self.cluster.max_parallel) if preflight else None
        try:
            self._make_nodes(folder)
        except CvsError:
            folder.discard()
            raise
        with Interrupts() as interrupts:
            self._take_nodes(wait)
            try:
                self._begin()
                self._attempt()
                interrupts.shield()
            except BaseException as error:
                self._broken_off(error)
                raise
            finally:
                self._finish(interrupts)
        if interrupts.count:
            raise KeyboardInterrupt
        return self._result()

    def doctor(self, folder: RunFolder) -> list[Finding]:
        """Only the checks, on nodes held meanwhile: nothing is pulled, cloned or built, and nothing is left.

        What a run would fetch first is a warning; what can be seen only after that is not looked at then.

        Raises: as `execute`, but for `NodeInUse`: a node that another run holds is found not to be fit.
        """
        checks = Preflight(self.cluster.max_parallel)
        self._make_nodes(folder)
        with Interrupts() as interrupts:
            try:
                self._find_python()
                held = self._hold_for_checks(checks)
                checks.before(self.plan, self._nodes)
                ready = checks.complete(held)
                self._adjust = _as_it_is
                self._replan()
                ready = checks.prepare(ready, self.plan.limits.total)
                checks.ready(self.plan, ready)
                if self._nodes[0] in ready:
                    self._replan(master_port=self._free_port())
                    checks.meet(self.plan, ready)
                interrupts.shield()
            except BaseException:
                interrupts.shield()
                raise
            finally:
                self._on_all(RunNode.leave, "leaving the nodes", self.plan.limits.teardown)
        if interrupts.count:
            raise KeyboardInterrupt
        return checks.findings

    def _hold_for_checks(self, checks: Preflight) -> list[RunNode]:
        """The nodes that are not another run's."""
        held = []
        for outcome in self._hold.attempt():
            if isinstance(outcome.error, NodeInUse):
                checks.in_use(outcome.node, str(outcome.error))
            elif outcome.error:
                outcome.node.note(outcome.error)
            else:
                held.append(outcome.node)
                if outcome.value:
                    self.console(f"cvs | {outcome.value}")
        return held

    def _make_nodes(self, folder: RunFolder) -> None:
        self._folder = folder
        self._warnings = self.validate_config()
        self._site = Site(run_id=folder.run_id, nodes_dir=str(folder.nodes_dir))
        self.plan = self._adjust(self.make_plan(self._site))
        self._nodes = [self._node(plan) for plan in self.plan.nodes]
        self._hold = Hold(
            self._nodes,
            folder.run_id,
            self.console,
            seconds=self.plan.limits.teardown,
            at_most=self.cluster.max_parallel,
        )

    def _take_nodes(self, wait: float) -> None:
        try:
            if busy := self._hold.take(wait):
                raise NodeInUse(f"{busy}; wait for its end (--wait SECONDS does){self._other_place()}")
        except BaseException as error:
            self._hold.release()
            self._folder.discard()
            if isinstance(error, KeyboardInterrupt):
                self.console("cvs | interrupted while waiting for the nodes; nothing was started")
            raise
        self._warnings += [told for told in self._hold.found if told not in self._warnings]

    def _other_place(self) -> str:
        # What the user can do besides: only folders of this machine are as many as one likes.
        return ", or take another --runs_dir" if self.plan.head.copied_from else ""

    def _begin(self) -> None:
        self._started = datetime.now(timezone.utc)
        self._clock = time.monotonic()
        self._status = RunStatus.RUNNING

    def _attempt(self) -> None:
        try:
            self._record()
            self.setup()
            self.run()
            if self._status is RunStatus.COMPLETED:
                self.analyse()
        except CvsError as error:
            self._status, self._why = RunStatus.FAILED, str(error)

    def _broken_off(self, error: BaseException) -> None:
        """Keep for the record what ended the run from outside, or a defect of ours."""
        interrupted = isinstance(error, KeyboardInterrupt)
        defect = f"a defect in cvs: {type(error).__name__}: {error}"
        self._status, self._why = RunStatus.FAILED, "interrupted before its end" if interrupted else defect

    def _replan(self, **known: object) -> None:
        """Plan anew with what has become known of the site."""
        self._site = self._site.model_copy(update=known)
        self.plan = self._adjust(self.make_plan(self._site))
        for node in self._nodes:
            node.rebind(self.plan)

    def _node(self, plan: NodePlan) -> RunNode:
        transport = self._transport(plan)
        return RunNode(plan, self.plan, transport, self._runtime(plan, transport), self._folder)

    def _transport(self, plan: NodePlan) -> Transport:
        return transport_to(plan.node, self.cluster)

    def _runtime(self, plan: NodePlan, transport: Transport) -> Runtime:
        if plan.container is None:
            return ProcessRuntime(plan, transport, self.console)
        return DockerRuntime(plan, transport, self.console)

    def setup(self) -> None:
        """Make every node ready.

        Raises: RunError: some could not be; names each and why.
        """
        self._find_python()
        self._check(lambda checks: checks.before(self.plan, self._nodes))
        # Where the job may go on without a node, one that hangs must leave it time to do so.
        share = self.plan.limits.total if self.plan.min_nodes is None else self.plan.limits.total / 2
        self._on_all(RunNode.prepare, "set-up", share)
        self._check(lambda checks: checks.prepared(self._nodes))
        self._on_all(RunNode.find_sharing, "a look at the folders", self.plan.limits.transfer)
        self._build()
        self._check(lambda checks: checks.prepared(self._nodes))
        self._check(lambda checks: checks.ready(self.plan, self._nodes))
        found = [
            *(text for node in self._nodes for text in node.runtime.warnings),
            *self.examine(self._nodes[0]),
        ]
        self._warnings += [warning for warning in found if warning not in self._warnings]

    def _build(self) -> None:
        """On every node; where nodes share a folder one builds, and the others find it built."""
        deadline = self._clock + self.plan.limits.total
        for do_first in (True, False):
            some = [node for node in self._nodes if node.is_first is do_first and not node.errors]
            for outcome in side_by_side(
                some,
                lambda node: node.build(deadline),
                what="the build",
                timeout=max(deadline - time.monotonic(), 1) + _BUILD_SPARE_SECONDS,
                at_most=self.cluster.max_parallel,
            ):
                if outcome.error:
                    outcome.node.note(outcome.error)

    def _find_python(self) -> None:
        """Have the interpreter of local nodes in the plan."""
        if self.cluster.transport == "local" and self.config.runtime == "process":
            self._replan(torch_python=find_torch_python())

    def _check(self, look: Callable[[Preflight], None]) -> None:
        """Have a look at the nodes, and go on with those that are fit for the job, if that may be.

        Raises: RunError: some are not; names each and why.
        """
        found: list[Finding] = []
        if self._preflight is not None:
            seen = len(self._preflight.findings)
            look(self._preflight)
            found = self._preflight.findings[seen:]
            warnings = [str(finding) for finding in found if finding.status == "warning"]
            self._warnings += [warning for warning in warnings if warning not in self._warnings]
        self._settle(found)

    def _settle(self, found: list[Finding]) -> None:
        """Go on with the nodes that nothing is wrong with, if that may be."""
        for node in self._nodes:
            told = [finding for finding in bad(found) if finding.node == node.name]
            # Some are of errors that are noted already.
            node.errors += [str(each) for each in told if not {str(each), each.text} & {*node.errors}]
        if unfit := [node for node in self._nodes if node.errors]:
            if self._preflight is not None:
                names = [node.name for node in self._nodes]
                for line in table(names, self._preflight.findings).splitlines():
                    self.console(f"cvs | {line}")
            self._go_on_without(unfit)

    def _go_on_without(self, unfit: list[RunNode]) -> None:
        """Leave nodes out where the files let the job do with the others.

        Raises: RunError: they do not.
        """
        rest = [node for node in self._nodes if node not in unfit]
        if any(node.is_in_use for node in unfit):
            raise RunError(f"set-up failed: {self._errors()}")  # nothing is wrong with those
        least, named = self.plan.min_nodes, self._named_rendezvous()
        if least is None or len(rest) < least:
            few = "" if least is None else f"; {len(rest)} nodes are left, and min_nodes is {least}"
            raise RunError(f"set-up failed: {self._errors()}{few}")
        if named and self._nodes[0] in unfit:
            raise RunError(f"set-up failed: {self._errors()}; the head, which {named} names, is not left out")
        for node in unfit:
            self._excluded[node.name] = "; ".join(node.errors)
            self.console(f"cvs | going on without {self._excluded[node.name]}")
        for outcome in side_by_side(
            unfit, RunNode.leave, what="leaving the node", timeout=self.plan.limits.teardown
        ):
            if outcome.error and str(outcome.error) not in outcome.node.errors:
                self._warnings.append(str(outcome.error))
        self._nodes = rest
        self._replan(excluded=tuple(self._excluded))
        # A folder that nodes share was perhaps held by one that is gone.
        self._on_all(
            lambda node: node.runtime.keep(self._hold.holder), "taking the node", self.plan.limits.teardown
        )
        if errors := self._errors():
            raise RunError(f"set-up failed: {errors}")

    def _named_rendezvous(self) -> str | None:
        """The key that names where the nodes meet, whichever of them is the head."""
        return None

    def examine(self, _head: RunNode) -> list[str]:
        """Warnings that only a node that is ready can give; a benchmark may have some."""
        return []

    def _errors(self) -> str:
        return "; ".join(self._errors_of_nodes())

    def _errors_of_nodes(self) -> list[str]:
        # Side by side, nodes often fail alike: each message once.
        return list(dict.fromkeys(text for node in self._nodes for text in node.errors))

    def run(self) -> None:
        """Start the job on all nodes at the same moment and wait for its end, in bounded time.

        A rendezvous port that another process has taken costs one more start, on another port.
        """
        self._agree_on_port()
        self._launch()
        if self._port_is_taken:
            self._start_over()

    def _agree_on_port(self) -> None:
        """Have a port that every node reaches the head at; anew where a node is left out."""
        is_given = self.plan.rendezvous.port is not None
        tried: list[RunNode] = []
        while tried != self._nodes:
            tried = list(self._nodes)
            try:
                if not is_given:
                    self._replan(master_port=self._free_port())
            except CvsError as error:
                self._nodes[0].note(error)
                self._settle([])
            else:
                self._check(lambda checks: checks.meet(self.plan, self._nodes))

    def _start_over(self) -> None:
        taken = self.plan.rendezvous.port
        self._on_all(RunNode.end, "ending the job", self.plan.limits.teardown)
        if errors := self._errors():
            raise RunError(errors)
        self._replan(other_port=self._free_port())
        told = f"port {taken} on {self.plan.head.node} is taken by another process"
        self._warnings.append(f"{told}; the job was started again on port {self.plan.rendezvous.port}")
        self.console(f"cvs | {self._warnings[-1]}")
        self._port_is_taken = False
        self._launch()
        if self._port_is_taken:
            self._why = f"{told}, and so is port {self.plan.rendezvous.port}"

    def _launch(self) -> None:
        self._record()
        names = ", ".join(node.name for node in self._nodes)
        self.console(f"cvs | {self.plan.world_size} ranks start on {names}; run folder {self._folder.path}")
        self.console("cvs | their first lines come when all of them have loaded PyTorch")
        deadline = self._clock + self.plan.limits.total
        self._stall = Stall(self._nodes, self.plan.limits, self.console)
        alarms = (self._node_alarm, self._port_alarm, self._stall)
        watch = Watch({}, self.plan.limits, deadline, on_end=self._note_end, alarms=alarms)
        are_started = False
        try:
            self._on_all(lambda node: node.start(self.console), "starting the job", _START_SECONDS)
            are_started = True
        finally:
            # Also where the start failed half-way, or Ctrl-C came meanwhile.
            watch.jobs = {node.plan.node_rank: node.watched for node in self._nodes if node.watched}
            if not are_started or len(watch.jobs) < len(self._nodes):
                watch.stop(0)
        if errors := self._errors():
            raise RunError(f"the job could not be started everywhere: {errors}")
        self._status, self._why = watch.until_over()

    def _free_port(self) -> int:
        """A port that is free on the head at this moment."""
        return self._nodes[0].transport.free_port(self.plan.rendezvous.address)

    def _note_end(self, node_rank: int, exit_code: int) -> None:
        self.console(f"cvs | {self.plan.nodes[node_rank].node} ended with exit code {exit_code}")
        if node_rank == 0 and exit_code:
            self._port_is_taken = self._nodes[0].found_port_taken()

    def _node_alarm(self) -> str | None:
        return next((node.alarm for node in self._nodes if node.alarm), None)

    def _port_alarm(self) -> str | None:
        # The others must not wait: they may have met whoever has the port.
        return "the rendezvous port is taken" if self._port_is_taken else None

    def analyse(self) -> None:
        """Have what the job left analysed where it lies; what goes wrong there is a warning."""
        if not any(node.plan.analyses for node in self._nodes):
            return
        self.console("cvs | the job has ended well; what it left is analysed on the nodes")
        for outcome in self._side_by_side(RunNode.analyse, "analysis", self.plan.limits.analysis + 60):
            self._warnings += outcome.value or ([str(outcome.error)] if outcome.error else [])

    def collect(self) -> None:
        """Bring everything home from every node; one node's failure costs no other's."""
        self._on_all(RunNode.collect, "collection", self.plan.limits.transfer)
        if self.plan.collect_traces and any(node.watched for node in self._nodes):
            self._publish()

    def _publish(self) -> None:
        for folder in {Path(node.plan.aorta_path) for node in self._nodes}:
            try:
                if folder.is_dir():
                    self._folder.publish_traces(folder)
            except OSError as error:
                self._warnings.append(f"{folder}/combined_traces cannot be linked: {error.strerror}")

    def teardown(self) -> None:
        """Take away on every node what set-up made there."""
        self._on_all(RunNode.teardown, "teardown", self.plan.limits.teardown)

    def _on_all(self, work: Callable[[RunNode], None], what: str, timeout: float) -> None:
        for outcome in self._side_by_side(work, what, timeout):
            if outcome.error:
                outcome.node.note(outcome.error)

    def _side_by_side(
        self, work: Callable[[RunNode], _Value], what: str, timeout: float
    ) -> list[Outcome[RunNode, _Value]]:
        return side_by_side(self._nodes, work, what=what, timeout=timeout, at_most=self.cluster.max_parallel)

    def _finish(self, interrupts: Interrupts) -> None:
        """Leave nothing running, bring home what there is, record it; only the second can be broken off."""
        try:
            self._on_all(RunNode.end, "ending the job", self.plan.limits.teardown)
            with interrupts.breakable():
                self.collect()
        except BaseException as error:
            self._broken_off(error)
            raise
        finally:
            try:
                self.teardown()
            finally:
                if self._status is RunStatus.COMPLETED and self._errors():
                    self._status, self._why = RunStatus.FAILED, "the job ended well, what followed did not"
                self._folder.release_reserve()
                self._record()

    def _record(self) -> None:
        self._folder.save_manifest(
            Manifest(
                cluster_file=self._files[0],
                config_file=self._files[1],
                cluster=self.cluster.resolved(),
                benchmark=self.config.resolved(),
                plan=self.plan,
                run=self._result(),
            )
        )

    def _result(self) -> RunResult:
        over = self._status not in (RunStatus.PENDING, RunStatus.RUNNING)
        return RunResult(
            benchmark=self.benchmark,
            run_id=self._folder.run_id,
            status=self._status,
            started=self._started.isoformat(),
            ended=datetime.now(timezone.utc).isoformat() if over else None,
            duration_seconds=round(time.monotonic() - self._clock, 3) if over else None,
            accelerator=self.config.accelerator,
            num_nodes=self.plan.num_nodes,
            local_world_size=self.plan.local_world_size,
            gpus_per_node=self.plan.gpus_per_node,
            nodes=tuple(node.result() for node in self._nodes),
            files=tuple(file for node in self._nodes for file in node.files),
            failure=self._failure() if over else None,
            excluded={name: why.removeprefix(f"{name}: ") for name, why in self._excluded.items()},
            warnings=(*self._warnings, *(node.doubt for node in self._nodes if over and node.doubt)),
        )

    def _first_failure(self) -> Failure | None:
        if self._stall and self._stall.found:
            return self._stall.found
        try:
            return first_failure([node.trail() for node in self._nodes if node.watched])
        except Exception as error:  # a defect must not cost the record
            return Failure(reason=f"a defect in cvs: {type(error).__name__}: {error}")

    def _failure(self) -> Failure | None:
        if self._status is RunStatus.COMPLETED:
            return None
        first = self._first_failure()
        doubts = [node.doubt for node in self._nodes]
        told = [first.reason if first else None, self._why, *doubts, *self._errors_of_nodes()]
        return (first or Failure(reason="")).model_copy(update={"reason": each_once(filter(None, told))})
