"""What a job runs in on one node: a container, or plain processes. One door for the runner."""

from __future__ import annotations

import importlib.resources
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from cvs.errors import EnvironmentFault, RunError
from cvs.hang import Frame, RankStack
from cvs.launch import AnalysisStep, NodePlan
from cvs.models import CommandResult, Holder
from cvs.preflight import JobLook
from cvs.runtime._clone import Workload
from cvs.runtime._leftovers import kill_processes
from cvs.transport.base import Process, Sink, Transport

_ABSENT = """\
cd "$1" 2> /dev/null || { ls -d "$1/." 2>&1 > /dev/null; exit 2; }
shift
for file; do [ -f "$file" ] || printf '%s\\t%s\\n' "$file" "$(ls -d "./$file" 2>&1 > /dev/null)"; done
"""
"""Prints why the folder `$1` cannot be entered, else which of the files it has not, and why."""
_START_SECONDS = 30
"""For an interpreter to start on a busy node."""
_CLOSED = "Permission denied"
_SHOWN = 80
"""Characters of an output that is not what it should be."""


def _unheard(_line: str) -> None:
    pass


class Runtime(ABC):
    """The job's surroundings on one node, over that node's transport."""

    def __init__(self, plan: NodePlan, transport: Transport, say: Callable[[str], None] = _unheard) -> None:
        """Take the plan; `say` is told of what takes long, line by line."""
        self.plan = plan
        self.transport = transport
        self.say = say
        self.is_broken_off = False
        """Whether nothing that takes long is waited for any more."""
        self.warnings: list[str] = []
        """What works on the node, but perhaps not as meant."""

    @abstractmethod
    def hold(self, holder: Holder) -> str | None:
        """Take the node for this run, until the transport is closed; end what a killed cvs left there.

        Returns: what there was to clear up, for the user.
        Raises: NodeInUse: another run holds the node; CvsError: what was left there cannot be ended.
        """

    def keep(self, holder: Holder) -> None:  # noqa: B027  (most hold their node for themselves)
        """Hold the node still, where another node of this run, which is gone now, did so for this one, too.

        Raises: CvsError: it is another's now, or cannot be held.
        """

    @abstractmethod
    def prepare(self, *, timeout: float) -> dict[str, str]:
        """Make the node ready; returns what the job will be made with there (versions, GPU names).

        Raises: CvsError: it cannot be made ready; says what is missing and what to do.
        """

    @abstractmethod
    def _python_there(self, script: str, *words: str, timeout: float) -> CommandResult:
        """Run a script with the job's interpreter, where the job will run."""

    def check_workload(self, *, timeout: float) -> None:
        """Have the plan's files where the workload lies, unless it is yet to be cloned.

        Raises: RunError: names what is missing; TransportError: the node cannot be asked.
        """
        if Workload(self.plan, self.transport).is_to_be_cloned:
            return
        folder, where = self.plan.aorta_path, "on the node"
        if self.plan.copied_from is not None:
            folder, where = self.plan.copied_from, "on this machine"
        self._check_files(folder, where, timeout=timeout)

    def lacks(self) -> str | None:
        """What a run would fetch first, in words.

        Raises: CvsError: the node cannot be asked.
        """
        if Workload(self.plan, self.transport).is_to_be_cloned:
            folder = self.plan.copied_from or self.plan.aorta_path
            parent = str(PurePosixPath(folder).parent)
            if self.transport.run(["test", "-d", parent, "-a", "-w", parent], timeout=30).exit_code:
                why = f"there is no folder {parent} that the login user can write"
                raise RunError(f"{self.plan.node}: aorta_path {folder} cannot be cloned: {why}")
            return f"aorta_path {folder} is not there yet; a run clones it"
        return None

    def _provide_workload(self, deadline: float) -> dict[str, str]:
        """Have the workload on the node, cloned if need be; the fact at which commit it is, if known."""
        workload = Workload(self.plan, self.transport)
        commit = workload.provide(self.say, timeout=deadline - time.monotonic())
        return {"aorta_revision": commit} if commit else {}

    def build(self, log: Sink, *, timeout: float) -> dict[str, str]:
        """Build what the plan wants built, after `prepare`; facts about it. `log` takes the output.

        Raises: CvsError: it cannot be built; the end of the output is in the message.
        """
        del log, timeout
        return {}

    def analyse(self, step: AnalysisStep, folder: str, log: Sink, *, timeout: float) -> None:
        """Run one of the plan's analyses where the job ran; `log` takes the output.

        Args: folder: which of the job's, below `aorta_path`.
        Raises: CvsError: it failed, or did not end in time and was ended.
        """
        del folder, log, timeout
        raise RunError(f"{self.plan.node}: {step.name}: an analysis takes a container")

    def break_off(self) -> None:
        """End what `prepare`, `build` or `analyse` is at in another thread, which then fails at once.

        Raises: TransportError: the node cannot be reached.
        """
        self.is_broken_off = True
        kill_processes(self.transport, self.plan.run_id)

    def probe(self, host: str, devices: Sequence[str], *, timeout: float) -> JobLook:
        """What is seen and can be done where the job will run, after `prepare`.

        Args: host: the rendezvous; devices: what the job will open, files or folders of render nodes.
        Raises: CvsError: nothing could be run there.
        """
        words = (host, self.plan.out_dir, *devices)
        return JobLook.model_validate(self._answer("_probe.py", "problems", *words, timeout=timeout))

    def meet(self, act: str, port: int, word: str, seconds: float, last: str) -> str:
        """One end of a try of the rendezvous port, as in `_meet.py`; the problem, or nothing.

        Raises: CvsError: nothing could be run there.
        """
        words = (act, str(port), word, str(seconds), last)
        return str(self._answer("_meet.py", "problem", *words, timeout=seconds + _START_SECONDS)["problem"])

    def _answer(self, script: str, key: str, *words: str, timeout: float) -> dict[str, Any]:
        """What the script printed, an object that has `key`, among whatever else was."""
        result = self._python_there(_script(script), *words, timeout=timeout)
        answers = [value for value in _printed(result.stdout, "{") if key in value]
        if result.exit_code or not answers:
            last = (result.stderr.strip().splitlines() or ["nothing was said"])[-1]
            raise RunError(f"{self.plan.node}: a check could not be made where the job runs: {last}")
        answer: dict[str, Any] = answers[-1]
        return answer

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

    def _check_files(self, folder: str, where: str, *, timeout: float) -> None:
        """Have the plan's files below `folder`, the `aorta_path` that lies `where`.

        Raises: RunError: names what is not there, or is closed to who looks.
        """
        plan = self.plan
        found = self.transport.run(
            ["sh", "-c", _ABSENT, "sh", folder, *plan.required_files],
            timeout=timeout,
            environment={"LC_ALL": "C"},
        )
        told = f"{plan.node}: aorta_path {folder}"
        if found.exit_code and _CLOSED in found.stdout:
            raise RunError(
                f"{told}: permission denied: it, or a folder above it, is closed to the user of cvs {where}"
            )
        if found.exit_code:
            raise RunError(f"{told}: no such folder {where}")
        absent = dict(line.split("\t", 1) for line in found.stdout.splitlines() if "\t" in line)
        if closed := [name for name, why in absent.items() if _CLOSED in why]:
            raise RunError(
                f"{told}: permission denied: {', '.join(closed)}: closed to the user of cvs {where}"
            )
        if absent:
            raise RunError(f"{plan.node}: {', '.join(absent)}: not found below aorta_path {folder}")


def facts_command(python: str) -> list[str]:
    """Command that prints, as JSON, what a job will be made with by this interpreter."""
    return [python, "-c", _script("_facts.py")]


def facts_of(result: CommandResult, where: str) -> dict[str, str]:
    """What `facts_command` printed, among whatever else was.

    Raises: EnvironmentFault: nothing, since the interpreter `where` has no PyTorch, or none that works, or is
    none.
    """
    if result.exit_code:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise EnvironmentFault(f"{where}: {last}")
    lines = result.stdout.splitlines()
    # What is no Python may print our own script, which has objects in it, too.
    found = [
        value
        for value in _printed(result.stdout, "{")
        if _is_of_texts(value) and ("torch" in value or json.dumps(value) in lines)
    ]
    if not found:
        words = " ".join(result.stdout.split())
        said = repr(words[:_SHOWN] + "…" * (len(words) > _SHOWN)) if words else "nothing"
        raise EnvironmentFault(f"{where}: {said}, where the versions of Python and PyTorch were asked for")
    facts: dict[str, str] = found[-1]
    return facts


def _is_of_texts(value: Any) -> bool:
    return all(isinstance(text, str) for text in value.values())


def _printed(text: str, opening: str) -> Iterator[Any]:
    """Each object or list, as `opening` says, printed as JSON; start-up files and hooks print, too."""
    decoder = json.JSONDecoder()
    start = text.find(opening)
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
            yield value
        except (ValueError, RecursionError):
            end = start + 1
        start = text.find(opening, end)


def stacks_command(python: str, run_id: str, seconds: float, py_spy: list[str]) -> list[str]:
    """Command that prints, as JSON, where each rank of the run stands; `py_spy`: where that may lie."""
    return [python, "-c", _script("_stacks.py"), run_id, str(seconds), *py_spy]


def rank_stacks(text: str) -> list[RankStack]:
    """What `stacks_command` printed, among whatever else was."""
    return [
        RankStack(entry["rank"], _main_thread(entry.get("threads", [])), entry.get("error"))
        for entries in _printed(text, "[")
        for entry in entries
        if isinstance(entry, dict) and "rank" in entry
    ]


def _script(name: str) -> str:
    """Text of a module of this package that runs where the job runs."""
    return importlib.resources.files("cvs.runtime").joinpath(name).read_text()


def _main_thread(threads: list[dict[str, Any]]) -> tuple[Frame, ...]:
    for thread in threads:
        if thread["thread_name"] == "MainThread":
            return tuple(Frame(frame["name"], frame["filename"], frame["line"]) for frame in thread["frames"])
    return ()
