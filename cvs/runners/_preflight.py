"""The checks of `cvs.preflight`, made on the nodes: before they are prepared, and before the start."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from cvs import preflight
from cvs.errors import CvsError
from cvs.launch import LaunchPlan
from cvs.preflight import Finding
from cvs.runners._fanout import Beside, side_by_side
from cvs.runners._node import RunNode

LOOK_SECONDS = 120
"""For one round of checks on all nodes."""
MEET_SECONDS = 60
"""For all nodes to reach the head's port."""
CALL_SECONDS = 3
"""For one try of a node, before which the head may not listen yet."""
_Value = TypeVar("_Value")


class Preflight:
    """The checks of one run; what they found so far is in `findings`."""

    def __init__(self, at_most: int) -> None:
        """Work on `at_most` nodes at once."""
        self.findings: list[Finding] = []
        self._at_most = at_most

    def before(self, plan: LaunchPlan, nodes: Sequence[RunNode]) -> None:
        """Look at the nodes, of which nothing was asked so far but to be held."""
        for node in nodes:
            self.findings += [
                _found(node, "docker" if "Docker" in error else "reach", error) for error in node.errors
            ]
        reached = [node for node in nodes if not node.errors]
        self.findings += [
            _found(node, check)
            for check in (["reach", "docker"] if plan.runtime == "docker" else ["reach"])
            for node in reached
        ]
        looks = self._on_all(reached, "reach", RunNode.look)
        self.findings += preflight.findings_of_nodes(plan, {node.name: look for node, look in looks.items()})
        self._on_all(reached, "files", RunNode.check_workload)

    def complete(self, nodes: Sequence[RunNode]) -> list[RunNode]:
        """Nodes that have all that a run would need there; what it would fetch is found on the others."""
        unfit = {finding.node for finding in preflight.bad(self.findings)}
        lacks = self._on_all([node for node in nodes if node.name not in unfit], "ready", RunNode.lacks)
        for node, text in lacks.items():
            if text:
                self.warn(node, "ready", text)
        return [node for node, text in lacks.items() if not text]

    def prepare(self, nodes: Sequence[RunNode], seconds: float) -> list[RunNode]:
        """Make nodes ready for a look from where the job will run; those where that worked."""
        return list(self._on_all(nodes, "ready", RunNode.prepare, seconds))

    def in_use(self, node: RunNode, text: str) -> None:
        """Find that another run holds a node, which is not looked at from inside then."""
        self.findings.append(_found(node, "free", text))

    def warn(self, node: RunNode, check: str, text: str) -> None:
        """Find something that a run may get over."""
        text = text.removeprefix(f"{node.name}: ")
        self.findings.append(Finding(node=node.name, check=check, status="warning", text=text))

    def prepared(self, nodes: Sequence[RunNode]) -> None:
        """Note the nodes that could not be prepared."""
        self.findings += [_found(node, "ready", error) for node in nodes for error in node.errors]

    def ready(self, plan: LaunchPlan, nodes: Sequence[RunNode]) -> None:
        """Look from where the job will run, on nodes that are prepared."""
        self.findings += [_found(node, "ready") for node in nodes]
        looks = self._on_all(nodes, "write", RunNode.probe)
        self.findings += preflight.findings_of_jobs(plan, {node.name: look for node, look in looks.items()})

    def meet(self, plan: LaunchPlan, nodes: Sequence[RunNode]) -> None:
        """Whether every node reaches the head's rendezvous port, which nobody listens on yet."""
        if plan.num_nodes == 1 or plan.rendezvous.port is None:
            return
        word, head = secrets.token_hex(8), nodes[0]
        listener = Beside(lambda: head.listen(word, MEET_SECONDS, len(nodes)))
        answers: dict[RunNode, str] = {}
        late, is_last = list(nodes), False
        while late and not is_last and not listener.is_done:
            # Once a node is answered, all others have one more try: the head listens.
            is_last = len(late) < len(nodes)
            answers |= self._on_all(late, "port", lambda node: node.call(word, CALL_SECONDS))
            late = [node for node in late if answers.get(node)]
        for _ in late:
            if listener.is_done:
                break
            self._on_all([head], "port", lambda node: node.call(word, CALL_SECONDS))  # in their place
        try:
            if listener.result():
                return  # taken: the job, which then starts on another, tells that
        except CvsError as error:
            self.findings.append(_found(head, "port", str(error)))
            return
        container = plan.head.container
        if container is not None and container.network_mode != "host":
            own = f" (docker.network_mode is {container.network_mode})"
        else:
            own = ""
        where = f"{head.name}, at {plan.rendezvous.address} port {plan.rendezvous.port}{own}"
        self.findings += [
            _found(node, "port", f"does not reach the head, {where}: {problem}" if problem else "")
            for node, problem in answers.items()
        ]

    def _on_all(
        self,
        nodes: Sequence[RunNode],
        check: str,
        work: Callable[[RunNode], _Value],
        seconds: float = LOOK_SECONDS,
    ) -> dict[RunNode, _Value]:
        """What it gave on each node where it could be done; where not, why is found."""
        outcomes = side_by_side(nodes, work, what="the check", timeout=seconds, at_most=self._at_most)
        self.findings += [_found(each.node, check, str(each.error)) for each in outcomes if each.error]
        return {each.node: cast(_Value, each.value) for each in outcomes if each.error is None}


def _found(node: RunNode, check: str, problem: str = "") -> Finding:
    text = problem.removeprefix(f"{node.name}: ")
    return Finding(node=node.name, check=check, status="bad" if text else "good", text=text)
