"""`aorta_benchmark.yaml`: the job, and what is expected of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from cvs.config.environment import EnvVars, VariableName, gloo_misfits
from cvs.config.model import ConfigModel
from cvs.config.patterns import KernelPattern, RankPattern
from cvs.config.problem import Key, Problem, refuse_misfits
from cvs.config.scalars import (
    MOST_SECONDS,
    UNSPEAKABLE,
    Count,
    Integer,
    Name,
    NotNegative,
    Optional,
    OverrideValue,
    Ratio,
    Seconds,
    Switch,
    Text,
    UserPort,
)

_REVISION = re.compile(r"\w[\w.+@/-]*")


class _AortaModel(ConfigModel):
    """An unknown key in the benchmark file is an error: a misspelt limit would silently limit nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        found = path or "''"
        raise ValueError(
            f"{found} is no absolute path (one that begins with /; {{home}} stands for the home)"
        )
    return path


def _inside(path: str) -> str:
    parts = PurePosixPath(path).parts
    if path.startswith("/") or ".." in parts or not parts:
        raise ValueError(f"{path!r} is no path inside aorta_path (relative, without ..)")
    return path


def _revision(name: str) -> str:
    if not _REVISION.fullmatch(name) or ".." in name:
        raise ValueError(f"{name!r} is no branch, tag or commit")
    return name


def _override_key(key: str) -> str:
    if not key or "=" in key or any(char.isspace() for char in key) or UNSPEAKABLE.search(key):
        raise ValueError("is no key of the training config (letters and points, no = and no space)")
    return key


def _size(text: str) -> str:
    if not re.fullmatch(r"\d+[bkmgBKMG]?", text):
        raise ValueError(f"{text!r} is no size (a whole number, and b, k, m or g for its unit)")
    return text


def _volume(text: str) -> str:
    folders, options = text.split(":")[:2], text.split(":")[2:]
    if len(folders) < 2 or not all(folder.startswith("/") for folder in folders) or options[1:]:
        raise ValueError(f"{text!r} is no volume (/folder/on/the/node:/folder/in/the/container, or with :ro)")
    return text


AbsolutePath = Annotated[Text, AfterValidator(_absolute)]
InsidePath = Annotated[Text, AfterValidator(_inside)]
"""Relative to `aorta_path`, and below it."""
Revision = Annotated[Name, AfterValidator(_revision)]
"""A branch, tag or commit of git, by its name; no expression that leads to one."""


class Docker(_AortaModel):
    """The container that the job runs in."""

    image: Name = "jeffdaily/pytorch:torchrec-dlrm-complete"
    container_name: Name = "aorta-benchmark"
    shm_size: Annotated[Name, AfterValidator(_size)] = "17G"
    network_mode: Name = "host"
    privileged: Switch = True
    pull: Literal["missing", "always", "never"] = "missing"
    image_tar: Optional[AbsolutePath] = None
    """File on each node that holds the image."""
    devices: tuple[AbsolutePath, ...] = ()
    volumes: tuple[Annotated[Text, AfterValidator(_volume)], ...] = ()
    group_add: tuple[Name, ...] = ()
    """Further devices, mounts and groups of the container."""


class Rccl(_AortaModel):
    """Where RCCL is built from and to, unless `skip_rccl_build`."""

    clone_url: Name = "https://github.com/ROCmSoftwarePlatform/rccl.git"
    branch: Name = "develop"
    build_path: AbsolutePath = "/mnt/rccl"


Channels = Annotated[Integer, Field(ge=1, le=256)]


class Environment(_AortaModel):
    """Variables for the job: some with defaults, and any further one, its text as written."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[VariableName, Text]

    NCCL_MAX_NCHANNELS: Channels = 112
    """The compute units that remain, 256 minus this, go to TENSILE_STREAMK_MAX_CUS."""
    NCCL_MAX_P2P_NCHANNELS: Channels = 112
    NCCL_DEBUG: Text = "VERSION"
    TORCH_NCCL_HIGH_PRIORITY: Text = "1"
    OMP_NUM_THREADS: Text = "1"
    RCCL_MSCCL_ENABLE: Text = "0"

    def variables(self) -> dict[str, str]:
        """Every variable with its text, in the order of the model, then of the file."""
        return {name: str(value) for name, value in self.model_dump().items()}

    def _recorded_keys(self) -> list[str]:
        return [*type(self).model_fields, *(self.model_extra or {})]


class Analysis(_AortaModel):
    """Aorta's own analysis scripts, run inside the container; and TraceLens, run where cvs is."""

    enable_tracelens: Switch = True
    enable_gemm_analysis: Switch = False
    tracelens_script: InsidePath = "scripts/tracelens_single_config/run_tracelens_single_config.sh"
    gemm_script: InsidePath = "scripts/gemm_analysis/run_tracelens_analysis.sh"
    skip_if_exists: Switch = False
    host_tracelens: Literal["off", "report", "check"] = "off"
    """Whether TraceLens on the machine that runs cvs writes its workbooks, or has its numbers compared."""
    host_tracelens_seconds: Seconds = 1800
    """How long that may take for all ranks together."""
    host_tracelens_python: Optional[AbsolutePath] = None
    """Interpreter that has TraceLens; the one that runs cvs where it is not given."""


TORCHRUN_OPTIONS = (
    *("nnodes", "node_rank", "nproc_per_node", "master_addr", "master_port"),
    *("rdzv_id", "rdzv_conf", "rdzv_backend", "rdzv_endpoint", "standalone"),
    *("max_restarts", "log_dir", "tee", "redirects"),
)
"""Options of torchrun that cvs sets, or that would undo one that it sets."""
TORCHRUN_LETTERS = ("-t", "-r")
"""Short for tee and redirects."""
TRAIN_OPTIONS = ("config", "override")
"""Options of the trainer that cvs sets."""


class MultiNode(_AortaModel):
    """How the job is launched over the nodes."""

    master_launch_mode: Literal["auto", "script", "torchrun"] = "auto"
    nproc_per_node: Optional[Count] = None
    """Ranks per node; `gpus_per_node` where it is not given."""
    master_port: Optional[UserPort] = None
    """Rendezvous port; a free one on the head where it is not given."""
    master_addr: Optional[Name] = None
    """Rendezvous host; the head's `vpc_ip` where it is not given."""
    train_script: InsidePath = "train.py"
    extra_torchrun_args: tuple[Text, ...] = ()
    extra_train_args: tuple[Text, ...] = ()
    join_timeout_seconds: Seconds = 120
    """How long nodes wait for each other at the rendezvous."""
    grace_seconds: Annotated[Integer, Field(ge=0, le=MOST_SECONDS)] = 15
    """After a node failed: how long the others may end by themselves."""
    on_node_failure: Literal["fail", "exclude"] = "fail"
    """What becomes of the run where a node turns out to be unfit before the job starts."""
    min_nodes: Optional[Count] = None
    """With `exclude`: without so many nodes the run fails."""
    extra_env: EnvVars = Field(default_factory=dict)
    collect_traces: Switch = True

    def misfits(self) -> Iterator[Problem]:
        """Options that cvs sets itself, and keys that need each other."""
        if self.on_node_failure == "exclude" and self.min_nodes is None:
            yield Problem(("multi_node", "on_node_failure"), "exclude needs min_nodes")
        if self.on_node_failure == "fail" and self.min_nodes is not None:
            yield Problem(("multi_node", "min_nodes"), "has an effect only with on_node_failure: exclude")
        yield from _repeated(
            self.extra_torchrun_args, "extra_torchrun_args", TORCHRUN_OPTIONS, TORCHRUN_LETTERS
        )
        yield from _repeated(self.extra_train_args, "extra_train_args", TRAIN_OPTIONS)


def _repeated(
    arguments: tuple[str, ...], key: str, own: tuple[str, ...], letters: tuple[str, ...] = ()
) -> Iterator[Problem]:
    for index, argument in enumerate(arguments):
        option = argument.partition("=")[0] if argument.startswith("--") else argument[:2]
        # argparse takes the beginning of an option for the whole: `--nnode` for `--nnodes`.
        name = option[2:].replace("-", "_")
        if option in letters or (name and any(full.startswith(name) for full in own)):
            yield Problem(("multi_node", key, index), f"{option} is set by cvs; leave it out here")


class Traces(_AortaModel):
    """How the traces are read."""

    rank_pattern: Optional[RankPattern] = None
    """Finds the rank in the path of a trace, in place of the names of folders and files."""
    communication_kernels: tuple[KernelPattern, ...] = ()
    """Names of further kernels that communicate."""


class ExpectedResults(_AortaModel):
    """Limits on the measured values; one that is not set limits nothing."""

    max_avg_iteration_ms: Optional[NotNegative] = None
    min_compute_ratio: Optional[Ratio] = None
    min_overlap_ratio: Optional[Ratio] = None
    max_time_variance_ratio: Optional[NotNegative] = None

    def limits(self) -> dict[str, float]:
        """The limits that are set, by key, in the order of the model."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class AortaConfig(_AortaModel):
    """The benchmark file, validated; what planning and the runner get."""

    aorta_path: AbsolutePath
    aorta_auto_clone: Switch = False
    aorta_clone_url: Optional[Name] = None
    aorta_revision: Optional[Revision] = None
    """What `aorta_path` must be at: a branch, tag or commit; what is cloned is checked out at it."""
    container_mount_path: AbsolutePath = "/mnt"
    base_config: InsidePath = "config/distributed.yaml"
    training_overrides: dict[Annotated[str, AfterValidator(_override_key)], OverrideValue] = Field(
        default_factory=dict
    )
    build_script: InsidePath = "scripts/build_rccl.sh"
    experiment_script: InsidePath = "scripts/rccl_exp.sh"
    gpus_per_node: Count = 8
    timeout_seconds: Annotated[Integer, Field(ge=60, le=MOST_SECONDS)] = 10800
    stall_seconds: Optional[Seconds] = None
    """Without a new line or step: how long before the job is looked into and stopped; None: never."""
    accelerator: Literal["rocm", "cuda", "none"] = "rocm"
    runtime: Literal["docker", "process"] = "docker"
    skip_rccl_build: Switch = False
    docker: Docker = Docker()
    rccl: Rccl = Rccl()
    environment: Environment = Environment()
    analysis: Analysis = Analysis()
    multi_node: MultiNode = MultiNode()
    traces: Traces = Traces()
    expected_results: ExpectedResults = ExpectedResults()

    @model_validator(mode="after")
    def _fits_together(self) -> AortaConfig:
        refuse_misfits(self._misfits())
        return self

    def _misfits(self) -> Iterator[Problem]:
        if self.aorta_auto_clone and not self.aorta_clone_url:
            url: tuple[Key, ...] = (("aorta_clone_url",),)
            yield Problem(("aorta_auto_clone",), "true needs aorta_clone_url", involves=url)
        if self.local_world_size > self.gpus_per_node:
            text = f"{self.local_world_size} is more than gpus_per_node ({self.gpus_per_node})"
            yield Problem(("multi_node", "nproc_per_node"), text, involves=(("gpus_per_node",),))
        yield from self.multi_node.misfits()
        yield from gloo_misfits(self.environment.variables(), ("environment",))
        yield from gloo_misfits(self.multi_node.extra_env, ("multi_node", "extra_env"))

    @property
    def local_world_size(self) -> int:
        """Ranks per node."""
        return self.multi_node.nproc_per_node or self.gpus_per_node

    def with_overrides(self, overrides: dict[str, str]) -> AortaConfig:
        """The same job with further `training_overrides`, over those of the file."""
        changed: dict[str, Any] = {"training_overrides": {**self.training_overrides, **overrides}}
        return self.model_copy(update=changed)
