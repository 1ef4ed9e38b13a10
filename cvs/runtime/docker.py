"""The job in a container on the node, which a sleep keeps alive and which is gone after the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

import docker
from docker.types import DeviceRequest, Mount, Ulimit
from docker.utils import parse_bytes

import cvs
from cvs.errors import CvsError, EnvironmentFault, NodeInUse, RunError, TransportError
from cvs.hang import RankStack
from cvs.launch import ContainerPlan, NodePlan
from cvs.models import CommandResult, Holder
from cvs.runtime._engine import CONFLICT, NOT_FOUND, Engine, Refused
from cvs.runtime._programs import ON_NODE, Programs, demand_found, demand_programs, look_command
from cvs.runtime.base import Runtime, facts_command, facts_of, rank_stacks, stacks_command
from cvs.transport.base import Process, Sink, Transport, holder_of
from cvs.transport.detached import DetachedProcess, clean_command, job_command, signal_command

HOLDER = "cvs.holder"
"""Label with the run that a container is of."""
NODE = "cvs.node"
"""Label with the node, by the name that it has in the run."""
_EXPIRES = "cvs.expires"
PULLS = 32
"""Images that are loaded at the same time, over all nodes."""
PROGRESS_SECONDS = 5
_AT_WORK, _ENDED = ("running", "paused", "restarting"), ("exited", "dead")
"""States of a container; one of a cvs that was killed ends by itself."""
_PROGRAMS = (*ON_NODE, "cut", "df", "getent", "id", "stat")
_IN_IMAGE = tuple("cat chown find grep mkdir mv python3 rm setsid sh sleep timeout".split())
_NAMESAKE_SECONDS = 10
_NO_PROGRAM = 127
"""What a container ends with whose first program is not there."""
_NO_SOURCE = "bind source path does not exist"
_PROPAGATIONS = ("private", "rprivate", "shared", "rshared", "slave", "rslave")
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
        self._id: str | None = None
        """Of its container, which another may give another name."""
        self._works = False
        """Whether commands were run in it."""
        self._out_of_reach = False
        """Whether the user knows already why the engine cannot be asked any more."""

    @property
    def _container(self) -> ContainerPlan:
        assert self.plan.container is not None
        return self.plan.container

    # --- the node for this run alone ---

    def hold(self, holder: Holder) -> str | None:
        """See `Runtime.hold`; containers of cvs bear the run that they are of."""
        self._holder = holder
        demand_programs(self.transport, (*_PROGRAMS, *(["docker"] if self._container.image_tar else [])))
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

    def _own(self) -> list[dict[str, Any]]:
        """This run's container on this node, or none."""
        return [other for other in self._of_this_run() if _label(other, NODE) == self.plan.node]

    def _of_this_run(self) -> list[dict[str, Any]]:
        if self._name is None:
            return []
        holders = ((other, holder_of(_label(other, HOLDER))) for other in self._containers())
        return [other for other, holder in holders if holder and holder.run_id == self.plan.run_id]

    # --- set-up ---

    def prepare(self, *, timeout: float) -> dict[str, str]:
        """See `Runtime.prepare`."""
        deadline = time.monotonic() + timeout
        self._check_files(self.plan.aorta_path, "on the node", timeout=60)
        self._check_shared_memory()
        self._provide_image(deadline)
        self._start_container()
        self._yield_to_earlier()
        self._check_image()
        self._demand(self._run(["mkdir", "-p", self.plan.out_dir]), "cannot make its folder for logs")
        return self._facts(deadline - time.monotonic())

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
        """Whether there is what the engine would take for this name, which may be short, whole, or an id."""

        def look(client: docker.APIClient) -> bool:
            try:
                client.inspect_image(self._container.image)  # type: ignore[no-untyped-call]
            except docker.errors.NotFound:
                return False
            return True

        return self._engine.ask("look at an image", look)

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
        mounts = [self._mount(*mount) for mount in plan.mounts]
        try:
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
                    host_config=client.create_host_config(mounts=mounts, **self._host_config(plan)),
                    use_config_proxy=False,
                ),
            )
        except Refused as refused:
            if refused.status == CONFLICT:
                self._wait_for_namesake()
            if refused.status != CONFLICT or not self._own():  # else a call whose answer was lost has made it
                raise self._explained(refused) from None
        self._id = self._own()[0]["Id"]
        self._engine.ask(f"start container {name}", lambda client: client.start(self._started()))

    def _mount(self, source: str, target: str, options: str = "") -> Mount:
        """Not what the engine calls a bind, for which it makes a folder where there is none."""
        words, known = [word for word in options.split(",") if word], ("ro", "rw", *_PROPAGATIONS)
        if unknown := [word for word in words if word not in known]:
            raise RunError(
                f"{self.plan.node}: docker.volumes: {source}: no such option: {', '.join(unknown)};"
                f" there are {', '.join(known)}"
            )
        spread = next((word for word in words if word in _PROPAGATIONS), None)
        return Mount(target, source, type="bind", read_only="ro" in words, propagation=spread)

    def _wait_for_namesake(self) -> None:
        """The engine gives a name away some time before it shows the container."""
        deadline = time.monotonic() + _NAMESAKE_SECONDS
        while not self._of_this_run() and time.monotonic() < deadline:
            time.sleep(0.2)

    def _explained(self, refused: Refused) -> RunError:
        """Why there is no container, as the user's files have it."""
        node = self.plan.node
        if refused.status == CONFLICT and (others := self._of_this_run()):
            names = " and ".join(sorted({node, *(_label(other, NODE) for other in others)}))
            return RunError(f"{names} are one machine (one Docker engine); name it once in node_dict")
        if _NO_SOURCE in refused.why:
            source = refused.why.partition(_NO_SOURCE)[2].strip(": ")
            key = "aorta_path" if source == self.plan.aorta_path else "docker.volumes"
            return RunError(f"{node}: {key}: {source}: no such file or folder on the node")
        return refused

    def _labels(self, lives: int) -> dict[str, str]:
        ends = _now() + timedelta(seconds=lives)
        return {
            HOLDER: self._holder.model_dump_json(),
            NODE: self.plan.node,
            _EXPIRES: ends.isoformat(timespec="seconds"),
            "cvs.version": cvs.__version__,
        }

    def _host_config(self, plan: ContainerPlan) -> dict[str, Any]:
        return {
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

    def _check_image(self) -> None:
        """Have the programs in the image that cvs needs there; not with `timeout`, which may be missing."""
        node, image = self.plan.node, self._container.image
        names: Programs = (*_IN_IMAGE, self.plan.argv[0])
        try:
            found = self._engine.execute(
                self._started(),
                look_command(names),
                timeout=30,
                environment=self.plan.variables(),
                limited=False,
            )
        except RunError:
            state = self._inspect(self._started())["State"]
            if state["Running"]:
                raise
            code = state["ExitCode"]
            demand_found("sleep" if code == _NO_PROGRAM else "", names, f"{node}:", f"in the image {image}")
            raise RunError(f"{node}: a container of {image} ends at once, with exit code {code}") from None
        if found.exit_code:
            raise EnvironmentFault(f"{node}: the image {image} has no sh that runs: {_said(found)}")
        demand_found(found.stdout, names, f"{node}:", f"in the image {image}")
        self._works = True

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
        try:
            for container in self._own() if self._works else []:
                self._restart(container)
                self._give_back()
        except CvsError as error:
            self._out_of_reach = isinstance(error, TransportError)
            raise TransportError(f"{error}; what root wrote stays root's until the next run there") from None
        return []

    def _restart(self, container: dict[str, Any]) -> None:
        if container["State"] == "paused":
            self._engine.ask("unpause its container", lambda client: client.unpause(container["Id"]))
        self._engine.ask(
            "restart its container", lambda client: client.restart(container["Id"], timeout=0), seconds=60
        )

    def _give_back(self) -> None:
        """Make the login user the owner of what root wrote, which that user could not do."""
        user = self.transport.run(["sh", "-c", "echo $(id -u):$(id -g)"], timeout=30).stdout.strip()
        argv = ["find", self.plan.workdir, "-xdev", "-user", "0", "-exec", "chown", "-h", user, "{}", "+"]
        self._demand(self._run(argv, 300), f"cannot give {self.plan.aorta_path} back to the login user")

    def teardown(self) -> None:
        """See `Runtime.teardown`."""
        try:
            for container in self._own():
                self._remove(container["Id"])
        except CvsError as error:
            raise self._left(error) from None
        self._name = self._id = None
        self._engine.close()

    def _left(self, error: CvsError) -> CvsError:
        """What becomes of a container that cannot be removed; why it cannot is told once."""
        if self._id is None:
            return error
        is_told = self._out_of_reach and isinstance(error, TransportError)
        before = f"{self.plan.node}:" if is_told else f"{error};"
        return TransportError(
            f"{before} its container {self._name} is left there; the next run there removes it, once it has"
            " ended (docker rm -f ends it)"
        )

    def _remove(self, container: str) -> None:
        self._engine.ask(
            "remove its container",
            lambda client: client.remove_container(container, force=True, v=True),
            seconds=60,
            arrived=(NOT_FOUND, lambda _client: None),
        )

    def _started(self) -> str:
        assert self._id is not None
        return self._id

    def _run(self, argv: list[str], timeout: float = 30) -> CommandResult:
        return self._engine.execute(self._started(), argv, timeout=timeout, environment=self.plan.variables())

    def _demand(self, result: CommandResult, complaint: str) -> None:
        if result.exit_code:
            raise RunError(f"{self.plan.node}: {complaint}: {_said(result)}")


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


def _said(result: CommandResult) -> str:
    """Why a command failed: the engine itself tells on the other output."""
    return " ".join((result.stderr.strip() or result.stdout).split()) or f"exit code {result.exit_code}"


def _label(container: dict[str, Any], name: str) -> str:
    return str((container["Labels"] or {}).get(name, ""))


def _expires(container: dict[str, Any]) -> datetime:
    """When it is nobody's any more; a mark that cannot be read gives it all time."""
    try:
        return datetime.fromisoformat(_label(container, _EXPIRES))
    except ValueError:
        return datetime.max.replace(tzinfo=timezone.utc)


def _whose(container: dict[str, Any]) -> str:
    """The run that a container is of, else its name."""
    return str(holder_of(_label(container, HOLDER)) or container["Names"][0].lstrip("/"))
