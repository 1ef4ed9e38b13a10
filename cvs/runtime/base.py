"""What a job runs in on one node: a container, or plain processes. One door for the runner."""

from __future__ import annotations

import importlib.resources
from abc import ABC, abstractmethod
from typing import Any

import orjson

from cvs.errors import EnvironmentFault
from cvs.hang import Frame, RankStack
from cvs.launch import NodePlan
from cvs.models import CommandResult, Holder
from cvs.transport.base import Process, Sink, Transport


class Runtime(ABC):
    """The job's surroundings on one node, over that node's transport."""

    def __init__(self, plan: NodePlan, transport: Transport) -> None:
        self.plan = plan
        self.transport = transport
        self.warnings: list[str] = []
        """What works on the node, but perhaps not as meant."""

    @abstractmethod
    def hold(self, holder: Holder) -> str | None:
        """Take the node for this run, until the transport is closed; end what a killed cvs left there.

        Returns: what there was to clear up, for the user.
        Raises: NodeInUse: another run holds the node; CvsError: what was left there cannot be ended.
        """

    @abstractmethod
    def prepare(self, *, timeout: float) -> dict[str, str]:
        """Make the node ready; returns what the job will be made with there (versions, GPU names).

        Raises: CvsError: it cannot be made ready; says what is missing and what to do.
        """

    @abstractmethod
    def start(self, sink: Sink) -> Process:
        """Start the plan's command."""

    @abstractmethod
    def stacks(self, *, timeout: float) -> list[RankStack]:
        """Where each rank on the node stands; the job goes on meanwhile.

        Raises: TransportError: the node cannot be asked.
        """

    @abstractmethod
    def kill_leftovers(self) -> list[int]:
        """End every process of the run that is left on the node; returns those that survive even this."""

    @abstractmethod
    def teardown(self) -> None:
        """Take away what `prepare` made, the workload and its results apart."""


def facts_command(python: str) -> list[str]:
    """Command that prints, as JSON, what a job will be made with by this interpreter."""
    return [python, "-c", _script("_facts.py")]


def facts_of(result: CommandResult, where: str) -> dict[str, str]:
    """What `facts_command` printed.

    Raises: EnvironmentFault: nothing, since the interpreter `where` has no PyTorch, or none that works.
    """
    if result.exit_code:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise EnvironmentFault(f"{where}: {last}")
    facts: dict[str, str] = orjson.loads(result.stdout.strip().splitlines()[-1])
    return facts


def stacks_command(python: str, run_id: str, seconds: float, py_spy: list[str]) -> list[str]:
    """Command that prints, as JSON, where each rank of the run stands; `py_spy`: where that may lie."""
    return [python, "-c", _script("_stacks.py"), run_id, str(seconds), *py_spy]


def rank_stacks(text: str) -> list[RankStack]:
    """What `stacks_command` printed."""
    return [
        RankStack(entry["rank"], _main_thread(entry.get("threads", [])), entry.get("error"))
        for entry in orjson.loads(text or "[]")
    ]


def _script(name: str) -> str:
    """Text of a module of this package that runs where the job runs."""
    return importlib.resources.files("cvs.runtime").joinpath(name).read_text()


def _main_thread(threads: list[dict[str, Any]]) -> tuple[Frame, ...]:
    for thread in threads:
        if thread["thread_name"] == "MainThread":
            return tuple(Frame(frame["name"], frame["filename"], frame["line"]) for frame in thread["frames"])
    return ()
