"""Containers on a node: by the label of cvs, which are of its runs, and which of those nobody needs any more.

Times are by the clock of the node: hosts that runs are started from may differ from it, and from each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import cvs
from cvs.models import CommandResult, Holder
from cvs.runtime._engine import CONFLICT, NOT_FOUND, Engine, Refused
from cvs.transport.base import Transport, holder_of

HOLDER = "cvs.holder"
"""Label with the run that a container is of."""
NODE = "cvs.node"
"""Label with the node, by the name that it has in the run."""
EXPIRES = "cvs.expires"
"""Label with the time at which it ends by itself."""
_AT_WORK, _ENDED = ("running", "paused", "restarting"), ("exited", "dead")
_GOING = "removing"
_START_SECONDS = 300
"""After which a container that was made and is not started yet has nobody who will start it."""
_RESTART_SECONDS = 10
"""In which one that has ended may be started anew: its run does so, to end all that is in it."""
_GPUS = ("/dev/kfd", "/dev/dri", "/dev/nvidia")


@dataclass(frozen=True)
class Container:
    """One container, as the engine lists it."""

    id: str
    name: str
    image: str
    state: str
    created: datetime
    labels: Mapping[str, str]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Container:
        """Read the engine's entry."""
        return cls(
            id=entry["Id"],
            name=(entry["Names"] or [entry["Id"][:12]])[0].lstrip("/"),
            image=entry.get("Image", ""),
            state=entry["State"],
            created=datetime.fromtimestamp(entry.get("Created", 0), timezone.utc),
            labels=entry["Labels"] or {},
        )

    def __str__(self) -> str:
        made = self.created.isoformat(timespec="seconds")
        return f"container {self.name} ({self.state}, image {self.image}, made {made}, owner unknown)"

    @property
    def is_of_cvs(self) -> bool:
        """Whether it has our label."""
        return HOLDER in self.labels

    @property
    def is_at_work(self) -> bool:
        """Whether processes may be in it."""
        return self.state in _AT_WORK

    @property
    def holder(self) -> Holder | None:
        """The run that it is of, where the label can be read."""
        return holder_of(self.labels.get(HOLDER, ""))

    def is_of_user(self, user: str) -> bool:
        """Whether a run of this user made it, from whatever machine."""
        return self.holder is not None and self.holder.user == user

    @property
    def whose(self) -> str:
        """The run that it is of, else its name."""
        return str(self.holder or self.name)

    @property
    def node(self) -> str:
        """Its node, by the name that this has in the run."""
        return self.labels.get(NODE, "")

    def is_namesake(self, name: str) -> bool:
        """Whether it is none of ours, and looks like one where ours begin with `name`."""
        return not self.is_of_cvs and (self.name == name or self.name.startswith(f"{name}-"))

    def left_over(self, now: datetime) -> str | None:
        """Why nobody needs it any more, as in "which …"; None where its run may be in progress."""
        if self.state in _ENDED:
            return "had ended"
        if self._expires < now:
            return "had outlived its time"
        if self.state == "created" and now - self.created > timedelta(seconds=_START_SECONDS):
            return "was never started"
        return None

    @property
    def _expires(self) -> datetime:
        """A mark that cannot be read gives it all time."""
        with suppress(KeyError, ValueError):
            expires = datetime.fromisoformat(self.labels[EXPIRES])
            if expires.tzinfo is not None:
                return expires
        return datetime.max.replace(tzinfo=timezone.utc)


class Containers:
    """Those of one node."""

    def __init__(self, engine: Engine, transport: Transport) -> None:
        self._engine = engine
        self._transport = transport

    def now(self) -> datetime:
        """By the node's clock."""
        said = self._transport.run(["date", "+%s"], timeout=30).stdout
        return datetime.fromtimestamp(int(said), timezone.utc)

    def all(self) -> list[Container]:
        """Everybody's, in any state, but for what is being removed already."""
        entries = self._engine.ask("list containers", lambda client: client.containers(all=True))
        return [container for container in map(Container.of, entries) if container.state != _GOING]

    def settled(self) -> list[Container]:
        """The same, once none of cvs has ended only just."""
        deadline = time.monotonic() + _RESTART_SECONDS
        while any(map(self._has_just_ended, found := self.all())) and time.monotonic() < deadline:
            time.sleep(0.5)
        return found

    def _has_just_ended(self, container: Container) -> bool:
        if container.is_of_cvs and container.state in _ENDED:
            with gone_is_fine():
                ended = datetime.fromisoformat(
                    f"{self.inspect(container.id)['State']['FinishedAt'][:19]}+00:00"
                )
                return self.now() - ended < timedelta(seconds=_RESTART_SECONDS)
        return False

    def of_cvs(self) -> list[Container]:
        """Those of cvs, whatever run and user they are of."""
        return [container for container in self.all() if container.is_of_cvs]

    def labels(self, holder: Holder, node: str, seconds: int) -> dict[str, str]:
        """By which a container is known that is made now and lives for so long."""
        ends = self.now() + timedelta(seconds=seconds)
        return {
            HOLDER: holder.model_dump_json(),
            NODE: node,
            EXPIRES: ends.isoformat(timespec="seconds"),
            "cvs.version": cvs.__version__,
        }

    def inspect(self, container: str) -> dict[str, Any]:
        """All that the engine knows of one."""
        return self._engine.ask("look at a container", lambda client: client.inspect_container(container))

    def with_gpus(self, others: list[Container]) -> list[Container]:
        """Those of the others that are at work and have GPUs."""
        return [other for other in others if other.is_at_work and self._has_gpus(other)]

    def _has_gpus(self, container: Container) -> bool:
        with gone_is_fine():
            host = self.inspect(container.id)["HostConfig"]
            devices = (device["PathOnHost"] for device in host.get("Devices") or [])
            # A request has them as a capability, or as a device such as amd.com/gpu.
            asked = "gpu" in str(host.get("DeviceRequests"))
            return bool(host.get("Privileged")) or asked or any(map(is_gpu, devices))
        return False

    def restart(self, container: Container) -> None:
        """End all that runs in it; then it stands as when it was started first."""
        if container.state == "paused":
            self._engine.ask("unpause its container", lambda client: client.unpause(container.id))
        self._engine.ask(
            "restart its container", lambda client: client.restart(container.id, timeout=0), seconds=60
        )

    def give_back(
        self, container: str, folder: str, *, timeout: float, environment: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Make the login user the owner of what root wrote below a folder in it: the user could not."""
        user = self._transport.run(["sh", "-c", "echo $(id -u):$(id -g)"], timeout=30).stdout.strip()
        argv = ["find", folder, "-xdev", "-user", "0", "-exec", "chown", "-h", user, "{}", "+"]
        return self._engine.execute(container, argv, timeout=timeout, environment=environment)

    def remove(self, container: str) -> None:
        """End it, and take it away; another may be about to do so, too."""
        with gone_is_fine(CONFLICT):
            self._engine.ask(
                "remove its container",
                lambda client: client.remove_container(container, force=True, v=True),
                seconds=60,
            )


@contextmanager
def gone_is_fine(*also: int) -> Iterator[None]:
    """Work on a container that may have been removed by now."""
    try:
        yield
    except Refused as refused:
        if refused.status not in (NOT_FOUND, *also):
            raise


def is_gpu(device: str) -> bool:
    """Whether a device, or a folder of devices, is one of the files that a GPU is opened by."""
    return device.startswith(_GPUS)


def said(result: CommandResult) -> str:
    """Why a command in a container failed: the engine itself tells on the other output."""
    return " ".join((result.stderr.strip() or result.stdout).split()) or f"exit code {result.exit_code}"
