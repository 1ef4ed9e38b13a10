"""`aorta_benchmark.yaml`: the job, and what is expected of it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from cvs.config.model import ConfigModel
from cvs.config.scalars import (
    Integer,
    Limit,
    OptionalInteger,
    OptionalText,
    OverrideValue,
    RatioLimit,
    Switch,
    Text,
)


class _AortaModel(ConfigModel):
    """An unknown key in the benchmark file is an error: a misspelt limit would silently limit nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Docker(_AortaModel):
    """The container that the job runs in."""

    image: Text = "jeffdaily/pytorch:torchrec-dlrm-complete"
    container_name: Text = "aorta-benchmark"
    shm_size: Text = "17G"
    network_mode: Text = "host"
    privileged: Switch = True


class Rccl(_AortaModel):
    """Where RCCL is built from and to, unless `skip_rccl_build`."""

    clone_url: Text = "https://github.com/ROCmSoftwarePlatform/rccl.git"
    branch: Text = "develop"
    build_path: Text = "/mnt/rccl"


Channels = Annotated[Integer, Field(ge=1, le=256)]


class Environment(_AortaModel):
    """Variables for the job: some with defaults, and any further one, its text as written."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Text]

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
    """Aorta's own analysis scripts, run inside the container."""

    enable_tracelens: Switch = True
    enable_gemm_analysis: Switch = False
    tracelens_script: Text = "scripts/tracelens_single_config/run_tracelens_single_config.sh"
    gemm_script: Text = "scripts/gemm_analysis/run_tracelens_analysis.sh"
    skip_if_exists: Switch = False


class MultiNode(_AortaModel):
    """How the job is launched over the nodes."""

    master_launch_mode: Literal["auto", "script", "torchrun"] = "auto"
    nproc_per_node: Annotated[OptionalInteger, Field(ge=1)] = None
    """Ranks per node; `gpus_per_node` where it is not given."""
    master_port: Annotated[OptionalInteger, Field(ge=1024, le=65535)] = None
    """Rendezvous port; a free one on the head where it is not given."""
    master_addr: OptionalText = None
    """Rendezvous host; the head's `vpc_ip` where it is not given."""
    train_script: Text = "train.py"
    extra_torchrun_args: tuple[Text, ...] = ()
    extra_train_args: tuple[Text, ...] = ()
    join_timeout_seconds: Annotated[Integer, Field(ge=1)] = 120
    """How long nodes wait for each other at the rendezvous."""
    grace_seconds: Annotated[Integer, Field(ge=0)] = 15
    """After a node failed: how long the others may end by themselves."""
    extra_env: dict[str, Text] = Field(default_factory=dict)
    collect_traces: Switch = True


class ExpectedResults(_AortaModel):
    """Limits on the measured values; one that is not set limits nothing."""

    max_avg_iteration_ms: Limit = None
    min_compute_ratio: RatioLimit = None
    min_overlap_ratio: RatioLimit = None
    max_time_variance_ratio: Limit = None

    def limits(self) -> dict[str, float]:
        """The limits that are set, by key, in the order of the model."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


class AortaConfig(_AortaModel):
    """The benchmark file, validated; what planning and the runner get."""

    aorta_path: Text
    aorta_auto_clone: Switch = False
    aorta_clone_url: OptionalText = None
    container_mount_path: Text = "/mnt"
    base_config: Text = "config/distributed.yaml"
    training_overrides: dict[str, OverrideValue] = Field(default_factory=dict)
    build_script: Text = "scripts/build_rccl.sh"
    experiment_script: Text = "scripts/rccl_exp.sh"
    gpus_per_node: Annotated[Integer, Field(ge=1)] = 8
    timeout_seconds: Annotated[Integer, Field(ge=60)] = 10800
    accelerator: Literal["rocm", "cuda", "none"] = "rocm"
    runtime: Literal["docker", "process"] = "docker"
    skip_rccl_build: Switch = False
    docker: Docker = Docker()
    rccl: Rccl = Rccl()
    environment: Environment = Environment()
    analysis: Analysis = Analysis()
    multi_node: MultiNode = MultiNode()
    expected_results: ExpectedResults = ExpectedResults()

    @model_validator(mode="after")
    def _clone_needs_an_url(self) -> AortaConfig:
        if self.aorta_auto_clone and not self.aorta_clone_url:
            raise ValueError("aorta_auto_clone: true needs aorta_clone_url")
        return self

    @model_validator(mode="after")
    def _ranks_fit_the_node(self) -> AortaConfig:
        if self.local_world_size > self.gpus_per_node:
            raise ValueError(
                f"multi_node.nproc_per_node: {self.local_world_size} is more than gpus_per_node"
                f" ({self.gpus_per_node})"
            )
        return self

    @property
    def local_world_size(self) -> int:
        """Ranks per node."""
        return self.multi_node.nproc_per_node or self.gpus_per_node

    def with_overrides(self, overrides: dict[str, str]) -> AortaConfig:
        """The same job with further `training_overrides`, over those of the file."""
        return self.model_copy(update={"training_overrides": {**self.training_overrides, **overrides}})
