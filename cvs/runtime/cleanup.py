"""What runs have left on one node, and its removal: containers by their label, processes by the run's id.

Where no run is named, that id is the one in the lock of the folder that plain processes work in. Only what is
of this user's runs goes, and of those that may be in progress only the one that is named.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Literal, NamedTuple

from cvs.errors import CvsError, RunError
from cvs.models import Holder
from cvs.runtime._engine import Engine
from cvs.runtime._leftovers import (
    await_release,
    has_started,
    holder_of_folder,
    holder_of_processes,
    kill_processes,
    processes_of,
)
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
    folder: str | None = None
    """Where plain processes work; its lock names their run."""
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

    def found(self) -> Iterator[Found]:
        """Look, and remove what is to go; each thing is told as soon as it is settled.

        Raises: CvsError: the node cannot be looked at any further.
        """
        self._deadline = time.monotonic() + self._scope.seconds
        demand_programs(self._transport, _PROGRAMS)
        is_refused = False
        with closing(self._engine):
            for each in self._in_docker() if self._scope.asks_docker else ():
                is_refused |= each.fate == "left" and each.holder is not None
                yield each
        if self._scope.run_id is None:
            yield from self._in_folder()
        elif not is_refused:  # else it must not end by another way: root sees processes in containers, too
            yield from self._processes(self._scope.run_id)

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
            return entry._replace(why=_in_use(holder))
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
        if _is_from_here(holder):
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

    def _processes(self, run_id: str) -> Iterator[Found]:
        """Those of the run that is named."""
        if not (processes := processes_of(self._transport, run_id)):
            return
        holder = holder_of_processes(self._transport, run_id, processes)
        entry = Found("left", _listed(processes), run_id, holder)
        if why := self._refusal(run_id, holder):
            yield entry._replace(why=why, is_good=False)
        else:
            yield self._ended(run_id, entry._replace(why=self._doubt(holder) if holder else ""))

    def _in_folder(self) -> Iterator[Found]:
        """Those of the run that the lock of the folder names."""
        folder = self._scope.folder
        if folder is None or (holder := holder_of_folder(self._transport, folder)) is None:
            return
        processes = processes_of(self._transport, holder.run_id)
        entry = Found("left", _listed(processes) or f"lock of {folder}", holder.run_id, holder)
        if why := self._refusal(holder.run_id, holder):
            yield entry._replace(why=why)
        elif not processes:
            yield entry._replace(why="no process of it is on this node")
        # Before its job is started, a cvs that lives cannot be told from one that is gone.
        elif _is_from_here(holder) and has_started(self._transport, folder, holder.run_id):
            yield self._ended(holder.run_id, entry._replace(why=self._doubt(holder)))
        else:
            yield entry._replace(why=_in_use(holder))

    def _ended(self, run_id: str, entry: Found) -> Found:
        if self._scope.only_look:
            return entry._replace(fate="would end")
        if survivors := kill_processes(self._transport, run_id):
            return entry._replace(why=f"{', '.join(map(str, survivors))} cannot be ended", is_good=False)
        if self._scope.folder:
            await_release(self._transport, self._scope.folder)
        return entry._replace(fate="ended")

    def _plain(self, error: CvsError) -> str:
        return str(error).removeprefix(f"{self._transport.node}: ")


def _is_from_here(holder: Holder) -> bool:
    return holder.host == socket.gethostname()


def _in_use(holder: Holder) -> str:
    return f"in use; if its cvs is gone: cvs cleanup --run {holder.run_id}"


def _listed(processes: list[int]) -> str:
    return f"processes {', '.join(map(str, processes))}" if processes else ""
