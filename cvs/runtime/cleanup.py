"""What runs have left on one node, and its removal: containers by their label, processes by the run's id.

Only what is of this user's runs goes, and of those that may be in progress only the one that is named.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from cvs.errors import CvsError, RunError
from cvs.models import Holder
from cvs.runtime._engine import Engine
from cvs.runtime._leftovers import holder_of_processes, kill_processes, processes_of
from cvs.runtime._owned import Container, Containers, gone_is_fine, said
from cvs.runtime._programs import demand_programs
from cvs.transport.base import Transport

_PROGRAMS = ("cat", "date", "find", "grep", "id", "kill", "sed", "sleep", "timeout")
_HAS_DOCKER = "command -v docker > /dev/null"
_ROOTED = '[ "$(id -u)" = 0 ] || find "$1" -xdev -user 0 -print -quit'
"""Prints something where root has anything below `$1` that the login user has to get back."""


class Scope(NamedTuple):
    """What is to be looked for, and how far it is gone."""

    user: str
    """Whose runs, as their holders name that user."""
    run_id: str | None = None
    """This run alone, also where it may be in progress; None: all that are over."""
    only_look: bool = False
    asks_docker: bool = True
    container_name: str | None = None
    """Containers that bear this name and are not of cvs are told of, too."""
    seconds: float = 300
    """For one node."""


class Found(NamedTuple):
    """Something on a node, and what became of it."""

    fate: Literal["removed", "would remove", "ended", "would end", "left"]
    what: str
    run_id: str | None = None
    holder: Holder | None = None
    why: str = ""
    is_good: bool = True
    """Whether it is as it should be now."""

    def __str__(self) -> str:
        run = self.holder or (f"run {self.run_id}" if self.run_id else "")
        return f"{self.fate} {self.what}{f' of {run}' if run else ''}{f': {self.why}' if self.why else ''}"


class NodeCleanup:
    """The work on one node, once."""

    def __init__(self, transport: Transport, scope: Scope, living_cvs: Callable[[str], int | None]) -> None:
        """Take the way to the node; `living_cvs` knows the process here that is the cvs of a run."""
        self._transport = transport
        self._scope = scope
        self._living_cvs = living_cvs
        self._engine = Engine(transport)
        self._containers = Containers(self._engine, transport)

    def found(self) -> list[Found]:
        """Look, and remove what is to go.

        Raises: CvsError: the node cannot be looked at.
        """
        self._deadline = time.monotonic() + self._scope.seconds
        demand_programs(self._transport, _PROGRAMS)
        try:
            found = list(self._in_docker()) if self._scope.asks_docker else []
        finally:
            self._engine.close()
        # What was refused must not end by another way: root sees the processes in containers, too.
        return found if self._is_refused(found) else [*found, *self._processes()]

    def _is_refused(self, found: list[Found]) -> bool:
        return self._scope.run_id is not None and any(each.fate == "left" and each.holder for each in found)

    # --- containers ---

    def _in_docker(self) -> Iterator[Found]:
        try:
            found, now = self._containers.settled(), self._containers.now()
        except CvsError as error:
            if self._transport.run(["sh", "-c", _HAS_DOCKER], timeout=30).exit_code == 0:
                yield Found("left", "whatever containers there are", why=self._plain(error), is_good=False)
            return
        for container in found:
            if self._is_meant(container):
                yield self._cleaned(container, container.left_over(now))
            elif self._is_namesake(container):
                yield Found("left", str(container), why="not of cvs; if it is yours, docker rm it")

    def _is_meant(self, container: Container) -> bool:
        run_id, holder = self._scope.run_id, container.holder
        return container.is_of_cvs and (run_id is None or (holder is not None and holder.run_id == run_id))

    def _is_namesake(self, container: Container) -> bool:
        name = self._scope.container_name if self._scope.run_id is None else None
        return name is not None and container.is_namesake(name)

    def _cleaned(self, container: Container, left_over: str | None) -> Found:
        holder, what = container.holder, f"container {container.name}"
        if holder is None:
            return Found("left", what, why="its label cannot be read; if it is yours, docker rm it")
        entry = Found("left", what, holder.run_id, holder)
        if why := self._refusal(holder.run_id, holder):
            return entry._replace(why=why, is_good=self._scope.run_id is None)
        if left_over is None and self._scope.run_id is None:
            return entry._replace(why=f"in use; if its cvs is gone: cvs cleanup --run {holder.run_id}")
        entry = entry._replace(why=f"it {left_over}" if left_over else self._doubt(holder))
        if self._scope.only_look:
            return entry._replace(fate="would remove")
        try:
            stays = self._remove(container)
        except CvsError as error:
            return entry._replace(why=self._plain(error), is_good=False)
        return entry._replace(fate="removed", why=stays or entry.why, is_good=not stays)

    def _refusal(self, run_id: str, holder: Holder | None) -> str | None:
        """Why what is of this run stays, whatever state it is in."""
        if holder is not None and holder.user != self._scope.user:
            return "another user's"
        process = self._living_cvs(run_id)
        return f"its cvs is alive, process {process} here; end that first" if process else None

    def _doubt(self, holder: Holder) -> str:
        """What has to be believed of a run that is to end."""
        if holder.host == socket.gethostname():
            return "its cvs is gone"
        return f"whether its cvs lives on {holder.host} cannot be told from here"

    def _remove(self, container: Container) -> str | None:
        """End and remove it, and give back what root wrote in it; what could not be given back, and why."""
        try:
            stays = self._give_back(container)
        except RunError as error:
            stays = self._plain(error)
        self._containers.remove(container.id)
        return f"what root wrote there stays root's: {stays}" if stays else None

    def _give_back(self, container: Container) -> str | None:
        with gone_is_fine():
            details = self._containers.inspect(container.id)
            inside = details["Config"]["WorkingDir"]
            outside = [mount["Source"] for mount in details["Mounts"] if mount["Destination"] == inside]
            if container.is_at_work:
                self._containers.restart(container)
            if not outside or not self._is_rooted(outside[0]):
                return None
            if not container.is_at_work:
                self._containers.restart(container)
            result = self._containers.give_back(container.id, inside, timeout=self._left())
            return f"{outside[0]}: {said(result)}" if result.exit_code else None
        return None

    def _is_rooted(self, folder: str) -> bool:
        return bool(self._transport.run(["sh", "-c", _ROOTED, "sh", folder], timeout=self._left()).stdout)

    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 1)

    # --- processes ---

    def _processes(self) -> Iterator[Found]:
        run_id = self._scope.run_id
        processes = processes_of(self._transport, run_id) if run_id else []
        if not run_id or not processes:
            return
        holder = holder_of_processes(self._transport, run_id, processes)
        entry = Found("left", f"processes {', '.join(map(str, processes))}", run_id, holder)
        if why := self._refusal(run_id, holder):
            yield entry._replace(why=why, is_good=False)
            return
        entry = entry._replace(why=self._doubt(holder) if holder else "")
        if self._scope.only_look:
            yield entry._replace(fate="would end")
        elif survivors := kill_processes(self._transport, run_id):
            yield entry._replace(why=f"{', '.join(map(str, survivors))} cannot be ended", is_good=False)
        else:
            yield entry._replace(fate="ended")

    def _plain(self, error: CvsError) -> str:
        return str(error).removeprefix(f"{self._transport.node}: ")
