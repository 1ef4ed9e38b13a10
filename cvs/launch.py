"""From config and topology to a launch plan: everything that will be run, before any node is touched.

Pure: no clock, file, network or environment. What is known only when a run begins (its id, a free port on
the head, where local nodes live) comes in as a `Site`; without one the plan is on paper.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, field_serializer

from cvs.config import AortaConfig, ClusterConfig
from cvs.config.model import shown, shown_arguments, shown_words
from cvs.models import Accelerator, Frozen, TraceLensMode
from cvs.topology import NodeAddress, topology_of

SHUTDOWN_SECONDS = 10
"""How long torchrun gives its workers between SIGTERM and SIGKILL."""


ROCM_DEVICES = ("/dev/kfd", "/dev/dri")
CONTAINER_MARGIN_SECONDS = 3600
"""For analyses, collection and teardown, after the run's own time; then a container that cvs lost ends by
itself."""


class Site(Frozen):
    """What a plan takes from the moment and the machine of a run."""

    run_id: str = "<run id>"
    master_port: int | None = None
    """None: a free port on the head, chosen just before the start."""
    other_port: int | None = None
    """In place of whichever port turned out to be taken."""
    nodes_dir: str = "cvs_runs/nodes"
    """Where the folders of local nodes lie."""
    torch_python: str = "python3"
    """Interpreter with PyTorch, for runtime `process`."""
    excluded: tuple[str, ...] = ()
    """Nodes that turned out to be unfit, and without which the job goes on."""


class Variable(Frozen):
    """One environment variable of the job, and which key it comes from."""

    name: str
    value: str
    source: str

    @field_serializer("value")
    def _without_secret(self, value: str) -> str:
        return shown_words(self.name, value)

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        return self.model_dump().items()


class Connection(Frozen):
    """How cvs reaches a node."""

    transport: Literal["ssh", "local"]
    username: str
    port: int | None = None
    priv_key_file: str | None = None
    jump_host: str | None = None
    ssh_config: str | None = None
    known_hosts: str | None = None
    host_key_policy: str = "strict"
    with_password: bool = False
    with_passphrase: bool = False
    """Whether the cluster file gives these; what they are stays there."""


class ContainerPlan(Frozen):
    """The container on one node."""

    image: str
    pull: Literal["missing", "always", "never"]
    image_tar: str | None
    """A file on the node that holds the image."""
    name: str
    """Beginning of the container's name."""
    seconds: float
    """After which it ends by itself, whatever became of cvs."""
    shm_size: str
    network_mode: str
    privileged: bool
    devices: tuple[str, ...]
    all_gpus: bool
    """Whether the engine's own hook hands in the GPUs (NVIDIA's)."""
    groups: tuple[str, ...]
    """By name, as the host knows them, or by number."""
    mounts: tuple[tuple[str, ...], ...]
    """Folder on the node, folder in the container, and options where there are some."""
    user: str = "root"
    ipc_mode: str = "host"
    cap_add: tuple[str, ...] = ("SYS_PTRACE",)
    security_opt: tuple[str, ...] = ("seccomp=unconfined",)
    ulimits: dict[str, int] = Field(default_factory=lambda: {"memlock": -1, "stack": 64 * 1024 * 1024})
    """In bytes; -1: unlimited."""


Url = Annotated[str, PlainSerializer(lambda url: shown("", url))]
"""Written down without its credentials."""


class RcclBuild(Frozen):
    """RCCL, built in the container before the job."""

    clone_url: Url
    branch: str
    build_path: str
    argv: tuple[str, ...]


class AnalysisStep(Frozen):
    """One of Aorta's own scripts, run in the container after the job."""

    name: str
    argv: tuple[str, ...]
    skip_if_exists: bool


class NodePlan(Frozen):
    """What will happen on one node."""

    node_rank: int
    node: str
    vpc_ip: str
    connection: Connection
    aorta_path: str
    """The workload's folder on the node."""
    copied_from: str | None = None
    """Local nodes: the folder on this machine that `aorta_path` is a copy of."""
    run_id: str
    workdir: str
    """The same folder as the job sees it: the mount point in a container."""
    out_dir: str
    """Where torchrun leaves its logs, as the job sees it; below `workdir`."""
    argv: tuple[str, ...]
    environment: tuple[Variable, ...]
    required_files: tuple[str, ...]
    """Relative to `aorta_path`; must exist on the node."""
    torch_python: str | None = None
    """Runtime `process`: interpreter with PyTorch."""
    clone_url: Url | None = None
    """Where `aorta_path` is cloned from if it is not there."""
    revision: str | None = None
    """Branch, tag or commit that `aorta_path` must be at."""
    container: ContainerPlan | None = None
    rccl_build: RcclBuild | None = None
    analyses: tuple[AnalysisStep, ...] = ()

    @field_serializer("argv")
    def _without_secrets(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(shown_arguments(argv))

    def __repr_args__(self) -> Iterable[tuple[str, Any]]:
        return self.model_dump().items()

    def variables(self) -> dict[str, str]:
        """The environment as the job gets it, later sources over earlier ones."""
        return {variable.name: variable.value for variable in self.environment}

    @property
    def out_dir_on_node(self) -> str:
        """`out_dir` as the node sees it."""
        return str(PurePosixPath(self.aorta_path) / PurePosixPath(self.out_dir).relative_to(self.workdir))


class Rendezvous(Frozen):
    """Where and as what the nodes meet."""

    address: str
    port: int | None
    id: str


class Limits(Frozen):
    """Every limit of time of a run, in seconds."""

    total: float
    """Set-up and run together."""
    join: float
    grace: float
    """After the first node failed: how long the others may end by themselves."""
    shutdown: float = SHUTDOWN_SECONDS + 5
    """After SIGTERM: how long torchrun may take to end its workers."""
    after_first_end: float = 30
    """After the first node ended well: it has seen all workers end, so the others are about to end, too."""
    stall: float | None = None
    """Without a new line or step: how long before it is looked into and ended; None: never."""
    analysis: float = 1800
    """All analyses of one node, after the job."""
    transfer: float = 600
    """Collection from one node."""
    teardown: float = 60


class TraceLensPlan(Frozen):
    """TraceLens, on the machine that runs cvs, once cvs has measured the traces."""

    mode: TraceLensMode
    python: str | None
    """Interpreter that has it; None: the one that runs cvs."""
    seconds: float
    """For all ranks together."""


class LaunchPlan(Frozen):
    """One job over all nodes."""

    benchmark: str
    run_id: str
    mode: Literal["torchrun", "script"]
    runtime: Literal["docker", "process"]
    accelerator: Accelerator
    num_nodes: int
    local_world_size: int
    gpus_per_node: int
    rendezvous: Rendezvous
    limits: Limits
    collect_traces: bool
    checks: dict[str, float]
    """Limits on the measured values; the evidence is always checked."""
    min_nodes: int | None = None
    """With how many of its nodes the job may do, where some are unfit; None: with no less than all."""
    max_parallel: int
    """Nodes that are worked on at once."""
    tracelens: TraceLensPlan | None = None
    nodes: tuple[NodePlan, ...]

    @property
    def world_size(self) -> int:
        """Number of ranks over all nodes."""
        return self.num_nodes * self.local_world_size

    @property
    def head(self) -> NodePlan:
        """Node rank 0."""
        return self.nodes[0]


def plan_aorta(cluster: ClusterConfig, bench: AortaConfig, site: Site | None = None) -> LaunchPlan:
    """The launch plan of the Aorta benchmark; without `site` as far as it can be told on paper."""
    site = site or Site()
    topology = topology_of(cluster, site.excluded)
    rendezvous = Rendezvous(
        address=bench.multi_node.master_addr or topology.head.vpc_ip,
        port=site.other_port or bench.multi_node.master_port or site.master_port,
        id=site.run_id,
    )
    builder = _NodePlanner(cluster, bench, site, rendezvous, len(topology.nodes))
    nodes = tuple(builder.plan(node) for node in topology.nodes)
    return LaunchPlan(
        benchmark="aorta",
        run_id=site.run_id,
        mode=builder.mode,
        runtime=bench.runtime,
        accelerator=bench.accelerator,
        num_nodes=len(topology.nodes),
        local_world_size=bench.local_world_size,
        gpus_per_node=bench.gpus_per_node,
        rendezvous=rendezvous,
        limits=Limits(
            total=bench.timeout_seconds,
            join=bench.multi_node.join_timeout_seconds,
            grace=bench.multi_node.grace_seconds,
            stall=bench.stall_seconds,
            shutdown=max(_shutdown_seconds(node) for node in nodes) + 5,
        ),
        collect_traces=bench.multi_node.collect_traces,
        checks=bench.expected_results.limits(),
        min_nodes=bench.multi_node.min_nodes,
        max_parallel=cluster.max_parallel,
        tracelens=plan_tracelens(bench),
        nodes=nodes,
    )


def plan_tracelens(bench: AortaConfig) -> TraceLensPlan | None:
    """How TraceLens is to look at the traces; it sees nothing but GPU events."""
    analysis = bench.analysis
    if analysis.host_tracelens == "off" or bench.accelerator == "none":
        return None
    return TraceLensPlan(
        mode=analysis.host_tracelens,
        python=analysis.host_tracelens_python,
        seconds=analysis.host_tracelens_seconds,
    )


def _shutdown_seconds(node: NodePlan) -> float:
    """How long torchrun gives its workers on `node`; the file may say otherwise than cvs."""
    seconds = node.variables()["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]
    return float(seconds) if seconds.isdecimal() else SHUTDOWN_SECONDS


class _NodePlanner:
    """Builds the plan of each node; holds what is the same for all of them."""

    def __init__(
        self, cluster: ClusterConfig, bench: AortaConfig, site: Site, rendezvous: Rendezvous, num_nodes: int
    ) -> None:
        self.cluster = cluster
        self.bench = bench
        self.site = site
        self.rendezvous = rendezvous
        self.num_nodes = num_nodes
        wanted = bench.multi_node.master_launch_mode
        # By the file: the job is started in the same way where a node is left out.
        one = len(cluster.node_dict) == 1
        automatic: Literal["script", "torchrun"] = "script" if one else "torchrun"
        self.mode = automatic if wanted == "auto" else wanted
        self.in_container = bench.runtime == "docker"
        self.builds_rccl = self.in_container and not bench.skip_rccl_build

    def plan(self, node: NodeAddress) -> NodePlan:
        """Everything that happens on `node`."""
        bench = self.bench
        copied = self.cluster.transport == "local" and bench.runtime == "process"
        aorta_path = f"{self.site.nodes_dir}/{node.name}/aorta" if copied else bench.aorta_path
        workdir = bench.container_mount_path if self.in_container else aorta_path
        # Of this node alone, also where all nodes see one folder.
        out_dir = f"{workdir}/.cvs/{self.site.run_id}/{_file_name(node.name)}"
        script = self.mode == "script"
        return NodePlan(
            node_rank=node.node_rank,
            node=node.name,
            vpc_ip=node.vpc_ip,
            connection=self._connection(),
            aorta_path=aorta_path,
            copied_from=bench.aorta_path if copied else None,
            run_id=self.site.run_id,
            workdir=workdir,
            out_dir=out_dir,
            argv=self._script(workdir) if script else self._torchrun(node, workdir, out_dir),
            environment=self._environment(node, out_dir),
            required_files=self._required_files(),
            torch_python=None if self.in_container else self._torch_python(node),
            clone_url=bench.aorta_clone_url if bench.aorta_auto_clone else None,
            revision=bench.aorta_revision,
            container=self._container() if self.in_container else None,
            rccl_build=self._rccl_build(workdir) if self.builds_rccl else None,
            analyses=tuple(self._analyses(workdir)),
        )

    def _required_files(self) -> tuple[str, ...]:
        bench = self.bench
        job = bench.experiment_script if self.mode == "script" else bench.multi_node.train_script
        build = (bench.build_script,) if self.builds_rccl else ()
        return (job, bench.base_config, *build, *self._analysis_scripts().values())

    def _connection(self) -> Connection:
        cluster = self.cluster
        same = (
            "transport",
            "username",
            "priv_key_file",
            "jump_host",
            "ssh_config",
            "known_hosts",
            "host_key_policy",
        )
        values: dict[str, Any] = {name: getattr(cluster, name) for name in same}
        return Connection(
            **values,
            port=cluster.ssh_port,
            with_password=cluster.password is not None,
            with_passphrase=cluster.priv_key_passphrase is not None,
        )

    def _rccl_build(self, workdir: str) -> RcclBuild:
        rccl = self.bench.rccl
        argv = ("bash", f"{workdir}/{self.bench.build_script}")
        return RcclBuild(clone_url=rccl.clone_url, branch=rccl.branch, build_path=rccl.build_path, argv=argv)

    def _analysis_scripts(self) -> dict[str, str]:
        """Scripts that will be used, by what they analyse; they need what only the container has."""
        analysis = self.bench.analysis
        wanted = {
            "tracelens": (analysis.enable_tracelens, analysis.tracelens_script),
            "gemm": (analysis.enable_gemm_analysis, analysis.gemm_script),
        }
        return {name: script for name, (on, script) in wanted.items() if on and self.in_container}

    def _analyses(self, workdir: str) -> Iterable[AnalysisStep]:
        for name, script in self._analysis_scripts().items():
            # The trainer's own config says where it writes, unless it is overridden.
            output = self.bench.training_overrides.get("training.output_dir", "<output dir of the job>")
            argv = ("bash", f"{workdir}/{script}", f"{workdir}/{output}")
            yield AnalysisStep(name=name, argv=argv, skip_if_exists=self.bench.analysis.skip_if_exists)

    def _script(self, workdir: str) -> tuple[str, ...]:
        bench = self.bench
        return ("bash", f"{workdir}/{bench.experiment_script}", f"{workdir}/{bench.base_config}")

    def _torchrun(self, node: NodeAddress, workdir: str, out_dir: str) -> tuple[str, ...]:
        bench, many = self.bench, self.bench.multi_node
        process = (self._torch_python(node), "-m", "torch.distributed.run")
        launcher = ("torchrun",) if self.in_container else process
        port = self.rendezvous.port or "<free port on the head>"
        return (
            *launcher,
            f"--nnodes={self.num_nodes}",
            f"--node_rank={node.node_rank}",
            f"--nproc_per_node={bench.local_world_size}",
            f"--master_addr={self.rendezvous.address}",
            f"--master_port={port}",
            # Static rendezvous keeps node ranks as asked; its store knows no job but by this id.
            f"--rdzv_id={self.rendezvous.id}",
            f"--rdzv_conf=timeout={many.join_timeout_seconds}",
            # A restart would append to the traces and metrics of the first attempt.
            "--max_restarts=0",
            f"--log_dir={out_dir}/torchrun",
            "--tee=3",
            *many.extra_torchrun_args,
            f"{workdir}/{many.train_script}",
            "--config",
            f"{workdir}/{bench.base_config}",
            *self._overrides(),
            *many.extra_train_args,
        )

    def _torch_python(self, node: NodeAddress) -> str:
        """Interpreter with PyTorch: on another machine the one that the cluster file names for it."""
        if self.cluster.transport == "local":
            return self.site.torch_python
        variables = {**self.cluster.env_vars, **self.cluster.node_dict[node.name].env_vars}
        return variables.get("TORCH_PYTHON", "python3")

    def _overrides(self) -> tuple[str, ...]:
        # The trainer declares it with nargs="*": of several groups only the last would count.
        pairs = [f"{key}={value}" for key, value in self.bench.training_overrides.items()]
        return ("--override", *pairs) if pairs else ()

    def _environment(self, node: NodeAddress, out_dir: str) -> tuple[Variable, ...]:
        given = self.bench.environment.model_fields_set
        variables = self.bench.environment.variables()
        sources = {
            "cluster env_vars": self.cluster.env_vars,
            f"node_dict.{node.name}.env_vars": self.cluster.node_dict[node.name].env_vars,
            "default": {name: value for name, value in variables.items() if name not in given},
            "environment": {name: value for name, value in variables.items() if name in given},
            "multi_node.extra_env": self.bench.multi_node.extra_env,
        }
        merged: dict[str, Variable] = {}
        for source, values in sources.items():
            merged.update(_labelled(values, source))
        # An explicit value wins over a computed one.
        return tuple({**_labelled(self._computed(node, out_dir), "cvs"), **merged}.values())

    def _computed(self, node: NodeAddress, out_dir: str) -> dict[str, str]:
        bench = self.bench
        variables = {
            "TENSILE_STREAMK_MAX_CUS": str(256 - bench.environment.NCCL_MAX_NCHANNELS),
            # By variable, since an older torchrun ignores the variable but refuses the option.
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SHUTDOWN_SECONDS),
            "TORCHELASTIC_ERROR_FILE": f"{out_dir}/node_error.json",
            "CVS_RUN_ID": self.site.run_id,
            "TORCHELASTIC_RUN_ID": self.site.run_id,
        }
        if bench.accelerator == "none":
            # As a container without devices: a process sees no GPU either.
            variables |= {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}
        if self.builds_rccl:
            path = bench.rccl.build_path
            libraries = f"{path}/build/release:/opt/rocm/lib:/opt/mpi/lib:$LD_LIBRARY_PATH"
            variables |= {"rccl_path": path, "LD_LIBRARY_PATH": libraries}
        if self.mode == "script":
            variables |= self._for_script(node, out_dir)
        return variables

    def _for_script(self, node: NodeAddress, out_dir: str) -> dict[str, str]:
        """What a script cannot know otherwise; Aorta's own reads none of it but the first, if that."""
        variables = {"AORTA_OVERRIDE_ARGS": " ".join(self._overrides())} if self._overrides() else {}
        variables["NPROC_PER_NODE"] = str(self.bench.local_world_size)
        variables["CVS_OUT_DIR"] = out_dir
        if not self.in_container:
            variables["TORCH_PYTHON"] = self._torch_python(node)
        return variables

    def _container(self) -> ContainerPlan:
        bench, docker = self.bench, self.bench.docker
        rocm = bench.accelerator == "rocm"
        return ContainerPlan(
            image=docker.image,
            pull=docker.pull,
            image_tar=docker.image_tar,
            name=docker.container_name,
            seconds=bench.timeout_seconds + CONTAINER_MARGIN_SECONDS,
            shm_size=docker.shm_size,
            network_mode=docker.network_mode,
            privileged=docker.privileged,
            devices=(*(ROCM_DEVICES if rocm else ()), *docker.devices),
            all_gpus=bench.accelerator == "cuda",
            groups=(*(("video", "render") if rocm else ()), *docker.group_add),
            mounts=(
                (bench.aorta_path, bench.container_mount_path),
                *(tuple(volume.split(":")) for volume in docker.volumes),
            ),
        )


def _file_name(node: str) -> str:
    """An IPv6 address has characters that paths in lists (PATH and its like) cannot hold."""
    return re.sub(r"[^\w.-]", "_", node)


def _labelled(variables: dict[str, str], source: str) -> dict[str, Variable]:
    return {name: Variable(name=name, value=value, source=source) for name, value in variables.items()}
