"""The job as plain processes on the node, with an interpreter that has PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from cvs.errors import EnvironmentFault, NodeInUse, RunError
from cvs.hang import RankStack
from cvs.models import CommandResult, Holder
from cvs.runtime._leftovers import kill_processes
from cvs.runtime._programs import ON_NODE, demand_programs
from cvs.runtime.base import Runtime, facts_command, facts_of, rank_stacks, stacks_command
from cvs.transport.base import Process, Sink

INSTALL_TORCH = (
    "point TORCH_PYTHON at an interpreter that has it, or install it: pip install torch==2.13.0"
    " --extra-index-url https://download.pytorch.org/whl/cpu (about 200 MB to load, 900 MB on disk)"
)
_PROGRAMS = (*ON_NODE, "dirname", "flock", "kill", "sed", "seq", "setsid")
_MACHINE = 'echo "$(cat /proc/sys/kernel/random/boot_id) $(uname -n) $(readlink /proc/self/ns/net)"'
"""Prints what differs from machine to machine, and among containers that stand for machines."""
_HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def find_torch_python(environment: Mapping[str, str] = os.environ) -> str:
    """Absolute path of an interpreter that has PyTorch: TORCH_PYTHON, else this one, else `python3`.

    Raises: EnvironmentFault: TORCH_PYTHON names no program, or none has PyTorch; says what to do.
    """
    named = environment.get("TORCH_PYTHON")
    candidates = [named] if named else [sys.executable, "python3"]
    programs = [_program(candidate, environment.get("PATH")) for candidate in candidates]
    for path in filter(None, programs):
        if _has_torch(path):
            return path
    if named and programs == [None]:
        raise EnvironmentFault(
            f"TORCH_PYTHON={named}: {_why_no_program(named)}; name an interpreter that has PyTorch"
        )
    asked = f"TORCH_PYTHON={named}" if named else " or ".join(candidates)
    raise EnvironmentFault(f"no PyTorch: {asked} cannot import torch; {INSTALL_TORCH}")


def _program(name: str, search: str | None) -> str | None:
    # Each node starts it from a folder of its own. Symlinks are kept: the python of a venv is one.
    found = shutil.which(str(_place(name)) if "/" in name else name, path=search)
    return str(Path(found).absolute()) if found else None


def _why_no_program(name: str) -> str:
    if "/" not in name:
        return "no such program in PATH"
    return "cannot be executed" if os.access(_place(name), os.F_OK) else "no such file"


def _place(name: str) -> Path:
    with suppress(RuntimeError):  # ~ of a user that does not exist
        return Path(name).expanduser().absolute()
    return Path(name).absolute()


def _has_torch(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", _HAS_TORCH], timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False  # no program, or none that answers


class ProcessRuntime(Runtime):
    """Plain processes, started by the plan's interpreter."""

    _session = 0
    _holds = False
    """Whether the folder's lock is held by this node, and not by another that shares the folder."""

    def hold(self, holder: Holder) -> str | None:
        """See `Runtime.hold`."""
        demand_programs(self.transport, _PROGRAMS)
        unfinished = self._taken(holder)
        if unfinished is None:
            return None
        if unfinished.host != holder.host:
            return f"{unfinished}, did not end; what it may have left on {unfinished.host} is untouched"
        if survivors := kill_processes(self.transport, unfinished.run_id):
            raise RunError(f"{self.plan.node}: processes {survivors} of {unfinished}, cannot be ended")
        return f"{unfinished}, did not end: its cvs was killed; what it had left running is ended now"

    def _taken(self, holder: Holder) -> Holder | None:
        """Who held it last; a folder that several nodes share one of them holds for all."""
        machine = self.transport.run(["sh", "-c", _MACHINE], timeout=30).stdout.strip()
        try:
            earlier = self.transport.hold(
                self.plan.aorta_path, holder.model_copy(update={"machine": machine})
            )
        except NodeInUse as busy:
            if busy.run_id != holder.run_id:
                raise
            if busy.machine != machine:
                return None
            raise RunError(
                f"{self.plan.node}: aorta_path {self.plan.aorta_path} is that of another node of this run,"
                " and so is the machine; name each machine once in node_dict"
            ) from None
        self._holds = True
        return earlier

    def keep(self, holder: Holder) -> None:
        """See `Runtime.keep`."""
        if not self._holds:
            self._taken(holder)

    def prepare(self, *, timeout: float) -> dict[str, str]:
        """See `Runtime.prepare`; a local node gets its own copy of the workload."""
        deadline = time.monotonic() + timeout
        plan = self.plan
        facts = self._provide_workload(deadline)
        if plan.copied_from is not None:
            self._copy_workload(Path(plan.copied_from))
        self._check_files(plan.aorta_path, "on the node", timeout=deadline - time.monotonic())
        made = self.transport.run(["mkdir", "-p", plan.out_dir], timeout=30)
        if made.exit_code:
            raise RunError(f"{plan.node}: cannot make its folder for logs: {made.stderr.strip()}")
        return {**self._facts(deadline - time.monotonic()), **facts}

    def _copy_workload(self, source: Path) -> None:
        self._check_files(str(source), "on this machine", timeout=60)
        self.transport.send_tree(source, self.plan.aorta_path)

    def _facts(self, timeout: float) -> dict[str, str]:
        python, variables = self._python, self.plan.variables()
        result = self.transport.run(facts_command(python), timeout=timeout, environment=variables)
        try:
            return facts_of(result, f"{self.plan.node}: {python}")
        except EnvironmentFault as fault:
            raise EnvironmentFault(f"{fault}; {INSTALL_TORCH}") from None

    def _python_there(self, script: str, *words: str, timeout: float) -> CommandResult:
        argv = [self._python, "-c", script, *words]
        return self.transport.run(argv, timeout=timeout, environment=self.plan.variables())

    @property
    def _python(self) -> str:
        return self.plan.torch_python or "python3"

    def start(self, sink: Sink) -> Process:
        """See `Runtime.start`."""
        plan = self.plan
        process = self.transport.start(
            plan.argv,
            cwd=plan.workdir,
            environment=plan.variables(),
            folder=plan.out_dir_on_node,
            sink=sink,
        )
        self._session = process.session
        return process

    def stacks(self, *, timeout: float) -> list[RankStack]:
        """See `Runtime.stacks`."""
        # Beside the job's interpreter or this one, where `pip install` puts it.
        beside = (str(Path(path).with_name("py-spy")) for path in (self._python, sys.executable))
        argv = stacks_command(self._python, self.plan.run_id, 0.8 * timeout, ["py-spy", *beside])
        return rank_stacks(self.transport.run(argv, timeout=timeout).stdout)

    def kill_leftovers(self) -> list[int]:
        """See `Runtime.kill_leftovers`."""
        return kill_processes(self.transport, self.plan.run_id, self._session)

    def teardown(self) -> None:
        """See `Runtime.teardown`; plain processes leave nothing but the workload's own files."""
