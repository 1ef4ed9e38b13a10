"""The job in a container on the node, which a sleep keeps alive and which is gone after the run."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any

import docker
from docker.types import DeviceRequest, Mount, Ulimit
from docker.utils import parse_bytes

from cvs.config.model import HIDDEN, is_secret
from cvs.errors import CvsError, EnvironmentFault, NodeInUse, RunError, TransportError
from cvs.hang import RankStack
from cvs.launch import AnalysisStep, ContainerPlan, NodePlan
from cvs.models import CommandResult, Holder
from cvs.runtime._alive import sign_of_life
from cvs.runtime._engine import CONFLICT, Engine, Refused
from cvs.runtime._owned import Container, Containers, is_gpu, said
from cvs.runtime._programs import ON_NODE, Programs, demand_found, demand_programs, look_command
from cvs.runtime._rccl import Rccl, discard_command
from cvs.runtime.base import Runtime, facts_command, facts_of, rank_stacks, stacks_command
from cvs.terminal import printable
from cvs.transport.base import Process, Sink, Transport
from cvs.transport.detached import DetachedProcess, clean_command, job_command, signal_command

PULLS = 32
"""Images that are loaded at the same time, over all nodes."""
PROGRESS_SECONDS = 5
_PROGRAMS = (*ON_NODE, "cut", "date", "df", "flock", "getent", "id", "stat", "tr")
_IN_IMAGE = tuple("cat chown find grep mkdir mv python3 rm setsid sh sleep timeout".split())
_NAMESAKE_SECONDS = 10
_NO_PROGRAM = 127
"""What a container ends with whose first program is not there."""
_NO_SOURCE = "bind source path does not exist"
_PROPAGATIONS = ("private", "rprivate", "shared", "rshared", "slave", "rslave")
_LIBRARY_PATH = "LD_LIBRARY_PATH"
_BESIDE = "beside"
"""Folder of a command that is followed, in the job's."""
_POLL_SECONDS = 0.1
_LAST_LINES = 5
_LONGEST_LINE = 200
"""How much of an output a message tells."""
_pulling = threading.BoundedSemaphore(PULLS)


class DockerRuntime(Runtime):
    """One container on one node."""

    def __init__(self, plan: NodePlan, transport: Transport, say: Callable[[str], None]) -> None:
        """Take the plan; `say` is told of what takes long."""
        super().__init__(plan, transport, say)
        self._engine = Engine(transport)
        self._containers = Containers(self._engine, transport)
        self._others: list[Container] = []
        """What was there before and is not of cvs."""
        self._sign: IO[bytes] | None = None
        self._name: str | None = None
        """Of its container; known before that is made, so that one which was made unheard goes too."""
        self._id: str | None = None
        """Of its container, which another may give another name."""
        self._works = False
        """Whether commands were run in it."""
        self._beside: Process | None = None
        """What goes on in it besides the job, and is waited for."""
        self._inherited: dict[str, str] = {}
        """Variables of the image."""
        self._out_of_reach = False
        """Whether the user knows already why the engine cannot be asked any more."""

    @property
    def _container(self) -> ContainerPlan:
        assert self.plan.container is not None
        return self.plan.container

    # --- the node for this run alone ---

    def hold(self, holder: Holder) -> str | None:
        """See `Runtime.hold`; containers of cvs bear the run that they are of.

        Until there is one, the engine is held: of runs that come at the same moment one looks at a time.
        """
        self._holder = holder
        demand_programs(self.transport, (*_PROGRAMS, *(["docker"] if self._container.image_tar else [])))
        self._take_engine()
        found, now = self._containers.settled(), self._containers.now()
        self._engine.demand_fit()
        self._others = [other for other in found if not other.is_of_cvs]
        owned = [(other, other.left_over(now)) for other in found if other.is_of_cvs]
        left = [(other, why) for other, why in owned if why and other.is_of_user(holder.user)]
        others = [(other, why) for other, why in owned if (other, why) not in left]
        if busy := next((other for other, why in others if why is None or other.is_at_work), None):
            raise NodeInUse(f"{self.plan.node}: in use by {busy.whose}")
        self._refuse_namesakes()
        for other, _ in left:
            self._containers.remove(other.id)
        told = "; ".join(f"the container, which {why}, of {other.whose}" for other, why in left)
        return f"{self.plan.node}: removed {told}" if told else None

    def _take_engine(self) -> None:
        try:
            self.transport.hold_engine(self._holder, seconds=int(self._container.seconds))
        except NodeInUse as busy:
            if busy.run_id != self._holder.run_id:  # else one machine has two names, as is told later
                raise

    def _refuse_namesakes(self) -> None:
        """Of what bears our name and not our label nobody can tell whether it is needed."""
        name = self._container.name
        if others := [str(other) for other in self._others if other.is_namesake(name)]:
            raise NodeInUse(
                f"{self.plan.node}: {', '.join(others)} bears the name of docker.container_name and is not of"
                " cvs; docker rm it there, if it is yours, or set another docker.container_name"
            )

    def _own(self) -> list[Container]:
        """This run's container on this node, or none."""
        return [other for other in self._of_this_run() if other.node == self.plan.node]

    def _of_this_run(self) -> list[Container]:
        if self._name is None:
            return []
        found = self._containers.of_cvs()
        return [other for other in found if other.holder and other.holder.run_id == self.plan.run_id]

    # --- set-up ---

    def prepare(self, *, timeout: float) -> dict[str, str]:
        """See `Runtime.prepare`."""
        deadline = time.monotonic() + timeout
        facts = self._provide_workload(deadline)
        self._check_files(self.plan.aorta_path, "on the node", timeout=60)
        self._check_shared_memory()
        self._check_neighbours()
        self._provide_image(deadline)
        self._start_container()
        self._refuse_rivals()
        self.transport.let_go()  # from here on the container holds the node
        self._check_image()
        self._demand(self._run(["mkdir", "-p", self.plan.out_dir]), "cannot make its folder for logs")
        return {**self._facts(deadline - time.monotonic()), **facts}

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

    def _check_neighbours(self) -> None:
        """Others may work with the same GPUs; which they do is theirs to know."""
        plan = self._container
        wanted = plan.all_gpus or any(map(is_gpu, plan.devices))
        if others := self._containers.with_gpus(self._others) if wanted else []:
            self.warnings.append(
                f"{self.plan.node}: not alone with the GPUs, so figures may suffer:"
                f" {', '.join(map(str, others))} has them, too"
            )

    def _provide_image(self, deadline: float) -> None:
        plan, node = self._container, self.plan.node
        if plan.pull != "always" and self._has_image():
            return
        if plan.image_tar is not None:
            self.say(f"{node} | cvs: loading {plan.image_tar}")
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

    def lacks(self) -> str | None:
        """See `Runtime.lacks`."""
        if missing := super().lacks():
            return missing
        plan = self._container
        if self._has_image():
            return None
        if plan.image_tar is None and plan.pull == "never":
            raise RunError(f"{self.plan.node}: no image {plan.image}, and docker.pull is never")
        return f"no image {plan.image} yet; a run fetches it"

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
            self.say(f"{node} | cvs: pulling {name}")
            progress = PullProgress(lambda told: self.say(f"{node} | cvs: {told}"))
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
        self._sign = sign_of_life(self.plan.run_id)
        labels = self._containers.labels(self._holder, self.plan.node, lives)
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
                    labels=labels,
                    host_config=client.create_host_config(mounts=mounts, **self._host_config(plan)),
                    use_config_proxy=False,
                ),
            )
        except Refused as refused:
            if refused.status == CONFLICT:
                self._wait_for_namesake()
            if refused.status != CONFLICT or not self._own():  # else a call whose answer was lost has made it
                raise self._explained(refused) from None
        self._id = self._own()[0].id
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
            names = " and ".join(sorted({node, *(other.node for other in others)}))
            return RunError(f"{names} are one machine (one Docker engine); name it once in node_dict")
        if _NO_SOURCE in refused.why:
            source = refused.why.partition(_NO_SOURCE)[2].strip(": ")
            key = "aorta_path" if source == self.plan.aorta_path else "docker.volumes"
            return RunError(f"{node}: {key}: {source}: no such file or folder on the node")
        return refused

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

    def _refuse_rivals(self) -> None:
        """Another run may have come where the connection was lost meanwhile, and with it the engine."""
        now = self._containers.now()
        for other in self._containers.of_cvs():
            is_ours = other.holder is not None and other.holder.run_id == self.plan.run_id
            if not is_ours and (other.is_at_work or not other.left_over(now)):
                raise NodeInUse(f"{self.plan.node}: in use by {other.whose}")

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
            raise EnvironmentFault(f"{node}: the image {image} has no sh that runs: {said(found)}")
        demand_found(found.stdout, names, f"{node}:", f"in the image {image}")
        self._works = True
        entries = self._inspect(self._started())["Config"]["Env"] or []
        self._inherited = dict(entry.split("=", 1) for entry in entries)

    def _inspect(self, container: str) -> dict[str, Any]:
        return self._containers.inspect(container)

    def _python_there(self, script: str, *words: str, timeout: float) -> CommandResult:
        return self._run(["python3", "-c", script, *words], timeout)

    def _facts(self, timeout: float) -> dict[str, str]:
        result = self._run(facts_command("python3"), timeout)
        facts = facts_of(result, f"{self.plan.node}: {self._container.image}: python3 there says")
        return {**facts, "image": self._inspect(self._started())["Image"]}

    # --- the job ---

    def start(self, sink: Sink) -> Process:
        """See `Runtime.start`."""
        return self._followed(self.plan.argv, sink)

    def _followed(self, argv: Sequence[str], sink: Sink, folder: str = "", what: str = "the job") -> Process:
        """A command in the container, with the job's environment; it is followed through its `folder`."""
        container, plan = self._started(), self.plan
        there = str(PurePosixPath(plan.out_dir, folder))
        self._demand(self._run(clean_command(there)), f"{what} cannot be started")
        self._engine.launch(
            container, job_command(there, argv), cwd=plan.workdir, environment=self._variables()
        )

        def send(number: int) -> None:
            self._run(signal_command(there, number))

        return DetachedProcess(
            self.transport,
            str(PurePosixPath(plan.out_dir_on_node, folder)),
            alive=self._inspect(container)["State"]["Pid"],
            send=send,
            sink=sink,
        )

    def _variables(self) -> dict[str, str]:
        """The plan's, with `$LD_LIBRARY_PATH` as the image has it."""
        variables = self.plan.variables()
        if path := variables.get(_LIBRARY_PATH):
            had = self._inherited.get(_LIBRARY_PATH, "")
            variables[_LIBRARY_PATH] = path.replace(f"${_LIBRARY_PATH}", had).rstrip(":")
        return variables

    def stacks(self, *, timeout: float) -> list[RankStack]:
        """See `Runtime.stacks`."""
        argv = stacks_command("python3", self.plan.run_id, 0.8 * timeout, ["py-spy"])
        return rank_stacks(self._run(argv, timeout).stdout)

    # --- before and after it ---

    def build(self, log: Sink, *, timeout: float) -> dict[str, str]:
        """See `Runtime.build`: RCCL."""
        if self.plan.rccl_build is None:
            return {}
        deadline = time.monotonic() + timeout
        image = self._inspect(self._started())["Image"]
        rccl = Rccl(self.plan, image, self._run, partial(self._follow, log), self.say)
        try:
            return rccl.provide(lambda: deadline - time.monotonic())
        finally:
            self.warnings += rccl.warnings

    def analyse(self, step: AnalysisStep, folder: str, log: Sink, *, timeout: float) -> None:
        """See `Runtime.analyse`."""
        argv = [*step.argv[:-1], str(PurePosixPath(self.plan.workdir, folder))]
        self._follow(log, f"analysis {step.name}", argv, timeout)

    def _follow(self, log: Sink, what: str, argv: Sequence[str], seconds: float) -> None:
        """Run a command in the container to its end.

        Raises: CvsError: it did not end well, or not in time, and was ended.
        """
        deadline = time.monotonic() + seconds
        end: deque[bytes] = deque(maxlen=_LAST_LINES)

        def take(piece: bytes) -> None:
            end.append(piece)
            log(piece)

        process = self._beside = self._followed(argv, take, _BESIDE, what)
        while (code := process.poll()) is None and not self.is_broken_off:
            if process.lost or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        self._beside = None
        if code is None:
            with suppress(CvsError):  # what is left of it ends with the container
                process.signal(signal.SIGKILL)
            late = "" if self.is_broken_off else f"did not end within {seconds:.0f} s and "
            raise TransportError(process.lost or f"{self.plan.node}: {what} {late}was stopped")
        process.drain(5)
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            raise RunError(
                f"{self.plan.node}: {what} ended with {how}: {self._without_secrets(_in_a_line(end))}"
            )
        self._run(["rm", "-rf", str(PurePosixPath(self.plan.out_dir, _BESIDE))])

    def _without_secrets(self, text: str) -> str:
        """What a program said, without the values of the job's secret variables."""
        for name, value in self.plan.variables().items():
            if value and is_secret(name):
                text = text.replace(value, HIDDEN)
        return text

    def break_off(self) -> None:
        """See `Runtime.break_off`."""
        super().break_off()
        if self._beside is not None:
            self._beside.signal(signal.SIGKILL)

    # --- the end ---

    def kill_leftovers(self) -> list[int]:
        """See `Runtime.kill_leftovers`: a container that is started anew has none of its processes left."""
        try:
            for container in self._own() if self._works else []:
                self._containers.restart(container)
                self._give_back()
                if self.plan.rccl_build:
                    self._run(discard_command(self.plan.rccl_build))
        except CvsError as error:
            self._out_of_reach = isinstance(error, TransportError)
            raise TransportError(f"{error}; what root wrote stays root's until the next run there") from None
        return []

    def _give_back(self) -> None:
        """Make the login user the owner of what root wrote, which that user could not do."""
        plan = self.plan
        result = self._containers.give_back(
            self._started(), plan.workdir, timeout=300, environment=plan.variables()
        )
        self._demand(result, f"cannot give {plan.aorta_path} back to the login user")

    def teardown(self) -> None:
        """See `Runtime.teardown`."""
        try:
            for container in self._own():
                self._containers.remove(container.id)
        except CvsError as error:
            raise self._left(error) from None
        finally:
            if self._sign is not None:
                self._sign.close()
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

    def _started(self) -> str:
        assert self._id is not None
        return self._id

    def _run(self, argv: list[str], timeout: float = 30, *, stdin: bytes = b"") -> CommandResult:
        return self._engine.execute(
            self._started(), argv, timeout=timeout, environment=self._variables(), stdin=stdin
        )

    def _demand(self, result: CommandResult, complaint: str) -> None:
        if result.exit_code:
            raise RunError(f"{self.plan.node}: {complaint}: {said(result)}")


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


def _in_a_line(pieces: Iterable[bytes]) -> str:
    """The end of an output, as far as it fits a message."""
    lines = (printable(piece.decode(errors="replace").strip()) for piece in pieces)
    return " / ".join(line[:_LONGEST_LINE] for line in lines if line) or "without a word"
