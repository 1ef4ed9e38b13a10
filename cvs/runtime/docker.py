"""The job in a container on the node, which a sleep keeps alive and which is gone after the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

from docker.types import DeviceRequest, Ulimit
from docker.utils import parse_bytes

import cvs
from cvs.errors import NodeInUse, RunError
from cvs.hang import RankStack
from cvs.launch import ContainerPlan, NodePlan
from cvs.models import CommandResult, Holder
from cvs.runtime._engine import CONFLICT, NOT_FOUND, Engine
from cvs.runtime.base import Runtime, facts_command, facts_of, rank_stacks, stacks_command
from cvs.transport.base import Process, Sink, Transport, holder_of
from cvs.transport.detached import DetachedProcess, clean_command, job_command, signal_command

HOLDER = "cvs.holder"
"""Label with the run that a container is of."""
_EXPIRES = "cvs.expires"
PULLS = 32
"""Images that are loaded at the same time, over all nodes."""
PROGRESS_SECONDS = 5
_AT_WORK, _ENDED = ("running", "paused", "restarting"), ("exited", "dead")
"""States of a container; one of a cvs that was killed ends by itself."""
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_pulling = threading.BoundedSemaphore(PULLS)


class DockerRuntime(Runtime):
    """One container on one node."""

    def __init__(self, plan: NodePlan, transport: Transport, say: Callable[[str], None]) -> None:
        """Take the plan; `say` is told of what takes long."""
        super().__init__(plan, transport)
        self._engine = Engine(transport)
        self._say = say
        self._name: str | None = None
        """Of its container; known before that is made, so that one which was made unheard goes too."""

    @property
    def _container(self) -> ContainerPlan:
        assert self.plan.container is not None
        return self.plan.container

    # --- the node for this run alone ---

    def hold(self, holder: Holder) -> str | None:
        """See `Runtime.hold`; containers of cvs bear the run that they are of."""
        self._holder = holder
        found = self._containers()
        if busy := next((other for other in found if other["State"] in _AT_WORK), None):
            raise NodeInUse(f"{self.plan.node}: in use by {_whose(busy)}")
        left = [other for other in found if other["State"] in _ENDED or _expires(other) < _now()]
        for other in left:
            self._remove(other["Id"])
        whose = ", and of ".join(map(_whose, left))
        return f"{self.plan.node}: removed the container, which had ended, of {whose}" if left else None

    def _containers(self) -> list[dict[str, Any]]:
        """Containers of cvs on the node."""
        return self._engine.ask(
            "list containers", lambda client: client.containers(all=True, filters={"label": HOLDER})
        )

    def _own(self) -> list[str]:
        """This run's container on the node, or none."""
        if self._name is None:
            return []
        return [other["Id"] for other in self._containers() if f"/{self._name}" in other["Names"]]

    # --- set-up ---

    def prepare(self, *, timeout: float) -> dict[str, str]:
        """See `Runtime.prepare`."""
        deadline = time.monotonic() + timeout
        self._check_files()
        self._check_shared_memory()
        self._provide_image(deadline)
        self._start_container()
        self._yield_to_earlier()
        self._demand(self._run(["mkdir", "-p", self.plan.out_dir]), "cannot make its folder for logs")
        return self._facts(deadline - time.monotonic())

    def _check_files(self) -> None:
        path = self.plan.aorta_path
        missing = 'cd "$1" || exit 2; shift; for f; do [ -f "$f" ] || echo "$f"; done'
        found = self.transport.run(["sh", "-c", missing, "sh", path, *self.plan.required_files], timeout=60)
        if found.exit_code:
            raise RunError(f"{self.plan.node}: aorta_path {path}: no such folder on the node")
        if names := found.stdout.split("\n")[:-1]:
            raise RunError(f"{self.plan.node}: {', '.join(names)}: not found below aorta_path {path}")

    def _check_shared_memory(self) -> None:
        """With the host's IPC the container has the host's /dev/shm, whatever its own size would be."""
        plan = self._container
        found = self.transport.run(["df", "-B1", "--output=size", "/dev/shm"], timeout=30)
        has, wants = found.stdout.split()[-1:], parse_bytes(plan.shm_size)
        if plan.ipc_mode == "host" and has and has[0].isdecimal() and int(has[0]) < wants:
            self.warnings.append(
                f"{self.plan.node}: /dev/shm holds {int(has[0]) / 2**30:.0f} GiB, less than docker.shm_size"
                f" ({plan.shm_size}), which has no effect with the host's IPC; on the node:"
                f" mount -o remount,size={plan.shm_size} /dev/shm"
            )

    def _provide_image(self, deadline: float) -> None:
        plan, node = self._container, self.plan.node
        if plan.pull != "always" and self._has_image():
            return
        if plan.image_tar is not None:
            self._say(f"{node} | cvs: loading {plan.image_tar}")
            seconds = deadline - time.monotonic()
            loaded = self.transport.run(["docker", "load", "-q", "-i", plan.image_tar], timeout=seconds)
            if loaded.exit_code:
                raise RunError(f"{node}: cannot load docker.image_tar: {loaded.stderr.strip()}")
        elif plan.pull == "never":
            raise RunError(f"{node}: no image {plan.image}, and docker.pull is never")
        else:
            self._pull(deadline)
        if not self._has_image():
            raise RunError(f"{node}: no image {plan.image}, even now; docker.image_tar holds another")

    def _has_image(self) -> bool:
        name = self._container.image
        return bool(self._engine.ask("list images", lambda client: client.images(name=name, quiet=True)))

    def _pull(self, deadline: float) -> None:
        name, node = self._container.image, self.plan.node
        with _pulling:
            self._say(f"{node} | cvs: pulling {name}")
            progress = PullProgress(lambda told: self._say(f"{node} | cvs: {told}"))
            self._engine.ask(
                f"pull {name}",
                lambda client: progress.follow(client.pull(name, stream=True, decode=True)),
                seconds=deadline - time.monotonic(),
            )
        if progress.error:
            raise RunError(f"{node}: cannot pull {name}: {progress.error}")

    def _start_container(self) -> None:
        plan = self._container
        lives = int(plan.seconds)
        self._name = name = f"{plan.name}-{self.plan.run_id}"
        self._engine.ask(
            f"create container {name}",
            lambda client: client.create_container(
                plan.image,
                name=name,
                user=plan.user,
                entrypoint=["sleep", str(lives)],
                command=[],
                working_dir=self.plan.workdir,
                labels=self._labels(lives),
                host_config=client.create_host_config(**self._host_config(plan)),
            ),
            arrived=(CONFLICT, lambda client: client.inspect_container(name)),
        )
        self._engine.ask(f"start container {name}", lambda client: client.start(name))

    def _labels(self, lives: int) -> dict[str, str]:
        ends = _now() + timedelta(seconds=lives)
        return {
            HOLDER: self._holder.model_dump_json(),
            _EXPIRES: ends.isoformat(timespec="seconds"),
            "cvs.version": cvs.__version__,
        }

    def _host_config(self, plan: ContainerPlan) -> dict[str, Any]:
        return {
            "binds": [":".join(mount) for mount in plan.mounts],
            "privileged": plan.privileged,
            "network_mode": plan.network_mode,
            "ipc_mode": plan.ipc_mode,
            "shm_size": plan.shm_size,
            "cap_add": list(plan.cap_add),
            "security_opt": list(plan.security_opt),
            "ulimits": [Ulimit(name=name, soft=size, hard=size) for name, size in plan.ulimits.items()],
            "devices": [f"{device}:{device}:rwm" for device in plan.devices],
            "device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])] if plan.all_gpus else None,
            "group_add": self._groups(plan),
            "init": True,
        }

    def _groups(self, plan: ContainerPlan) -> list[str]:
        """By number: what owns the devices on this host, and what the named groups are here.

        A name would be looked up in the image, which may lack it, or have another number for it.
        """
        script = 'stat -Lc %g /dev/kfd /dev/dri/render* 2>/dev/null; getent group "$@" | cut -d: -f3; :'
        named = [name for name in plan.groups if not name.isdecimal()]
        found = self.transport.run(["sh", "-c", script, "sh", *named], timeout=30).stdout.split()
        if not plan.devices:
            return [group for group in plan.groups if group.isdecimal()]
        return sorted({*found, *(group for group in plan.groups if group.isdecimal())})

    def _yield_to_earlier(self) -> None:
        """Of two runs that came at the same moment, and did not see each other, the later goes."""
        mine = self._inspect(self._started())["Created"]
        for other in self._containers():
            created = self._inspect(other["Id"])
            if created["State"]["Running"] and created["Created"] < mine:
                raise NodeInUse(f"{self.plan.node}: in use by {_whose(other)}, which came a moment earlier")

    def _inspect(self, container: str) -> dict[str, Any]:
        return self._engine.ask("look at a container", lambda client: client.inspect_container(container))

    def _facts(self, timeout: float) -> dict[str, str]:
        result = self._run(facts_command("python3"), timeout)
        facts = facts_of(result, f"{self.plan.node}: {self._container.image}: python3 there says")
        return {**facts, "image": self._inspect(self._started())["Image"]}

    # --- the job ---

    def start(self, sink: Sink) -> Process:
        """See `Runtime.start`."""
        container, plan = self._started(), self.plan
        self._demand(self._run(clean_command(plan.out_dir)), "the job cannot be started")
        self._engine.launch(
            container, job_command(plan.out_dir, plan.argv), cwd=plan.workdir, environment=self._variables()
        )

        def send(number: int) -> None:
            self._run(signal_command(plan.out_dir, number))

        return DetachedProcess(
            self.transport,
            plan.out_dir_on_node,
            alive=self._inspect(container)["State"]["Pid"],
            send=send,
            sink=sink,
        )

    def _variables(self) -> dict[str, str]:
        """The plan's, with `$LD_LIBRARY_PATH` as the image has it."""
        inherited = dict(
            entry.split("=", 1) for entry in self._inspect(self._started())["Config"]["Env"] or []
        )
        variables = self.plan.variables()
        if path := variables.get(_LIBRARY_PATH):
            had = inherited.get(_LIBRARY_PATH, "")
            variables[_LIBRARY_PATH] = path.replace(f"${_LIBRARY_PATH}", had).rstrip(":")
        return variables

    def stacks(self, *, timeout: float) -> list[RankStack]:
        """See `Runtime.stacks`."""
        argv = stacks_command("python3", self.plan.run_id, 0.8 * timeout, ["py-spy"])
        return rank_stacks(self._run(argv, timeout).stdout)

    # --- the end ---

    def kill_leftovers(self) -> list[int]:
        """See `Runtime.kill_leftovers`: a container that is started anew has none of its processes left."""
        for container in self._own():
            self._restart(container)
            self._give_back()
        return []

    def _restart(self, container: str) -> None:
        self._engine.ask(
            "restart its container", lambda client: client.restart(container, timeout=0), seconds=60
        )

    def _give_back(self) -> None:
        """Make the login user the owner of what root wrote, which that user could not do."""
        user = self.transport.run(["sh", "-c", "echo $(id -u):$(id -g)"], timeout=30).stdout.strip()
        argv = ["find", self.plan.workdir, "-xdev", "-user", "0", "-exec", "chown", "-h", user, "{}", "+"]
        self._demand(self._run(argv, 300), f"cannot give {self.plan.aorta_path} back to the login user")

    def teardown(self) -> None:
        """See `Runtime.teardown`."""
        for container in self._own():
            self._remove(container)
        self._name = None
        self._engine.close()

    def _remove(self, container: str) -> None:
        self._engine.ask(
            "remove its container",
            lambda client: client.remove_container(container, force=True, v=True),
            seconds=60,
            arrived=(NOT_FOUND, lambda _client: None),
        )

    def _started(self) -> str:
        assert self._name is not None
        return self._name

    def _run(self, argv: list[str], timeout: float = 30) -> CommandResult:
        return self._engine.execute(self._started(), argv, timeout=timeout, environment=self.plan.variables())

    def _demand(self, result: CommandResult, complaint: str) -> None:
        if result.exit_code:
            raise RunError(f"{self.plan.node}: {complaint}: {result.stderr.strip()}")


class PullProgress:
    """How far a pull is, told now and then."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.error: str | None = None
        self._say = say
        self._layers: dict[str, tuple[int, int]] = {}
        self._told = time.monotonic()

    def follow(self, events: Iterable[dict[str, Any]]) -> None:
        """Read the engine's events to their end."""
        for event in events:
            self.error = event.get("error", self.error)
            detail = event.get("progressDetail") or {}
            if event.get("status") == "Downloading" and "total" in detail:
                self._layers[event["id"]] = (detail["current"], detail["total"])
            if self._layers and time.monotonic() - self._told > PROGRESS_SECONDS:
                self._told = time.monotonic()
                done, total = (sum(part) / 1e6 for part in zip(*self._layers.values(), strict=True))
                self._say(f"pulled {done:.0f} of {total:.0f} MB so far")


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _expires(container: dict[str, Any]) -> datetime:
    """When it is nobody's any more; a mark that cannot be read gives it all time."""
    try:
        return datetime.fromisoformat(container["Labels"].get(_EXPIRES, ""))
    except ValueError:
        return datetime.max.replace(tzinfo=timezone.utc)


def _whose(container: dict[str, Any]) -> str:
    """The run that a container is of, else its name."""
    return str(holder_of(container["Labels"].get(HOLDER, "")) or container["Names"][0].lstrip("/"))
