"""A small data-parallel training job with the command line, config keys and files of Aorta's trainer.

It runs with or without a GPU, in a container or on a bare node, from this one file: it needs PyTorch, and
PyYAML only for a config in YAML. torchrun starts it, once per rank:

    python -m torch.distributed.run --nproc_per_node=2 train.py --config config/distributed.yaml

Each rank fits a small network to a fixed synthetic regression task, averages gradients with the other ranks
(`distributed.mode` says how, and whether each rank keeps all weights), and leaves below `training.output_dir`

    rank<R>.log                 what this rank did
    rank_<RR>_metrics.jsonl     one object per step
    torch_profiler/rank<R>/     traces of the profiled window, written as soon as the window is over

Steps are numbered from 0, the same in the profiler's `ProfilerStep#N`, in the metrics and in `inject.step`.
The keys under `inject` make one rank slow or make it fail, to see whether whoever watches the job notices.

Exit code: 0 good, 2 the command line, the config or the surroundings cannot be used (one line on stderr, and
no process group was made), else the job failed. The syntax is kept to Python 3.8, which old images carry.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import json
import logging
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TextIO, get_type_hints

# Nothing here needs NumPy; without it PyTorch would open every rank's stderr with a warning.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler, record
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule
except ImportError as missing:
    # The settings below can be read without it.
    if __name__ == "__main__":
        sys.exit(
            f"train.py: {sys.executable} cannot import torch ({missing}); "
            "install PyTorch there, or start this script with an interpreter that has it"
        )

HAS_YAML = importlib.util.find_spec("yaml") is not None

log = logging.getLogger("train")


class UsageError(Exception):
    """The command line, the config or the surroundings cannot be used; the text is one line for the user."""


# --- settings ---------------------------------------------------------------------------------------------


def setting(
    default: Any,
    wanted: type | None = None,
    least: float | None = None,
    words: Iterable[str] = (),
    mode: str | None = None,
) -> Any:
    """Field of a section: its default, its type (else the default's), its smallest value, its words.

    Args: mode: the only `distributed.mode` in which it has an effect.
    """
    rule = {"wanted": wanted or type(default), "least": least, "words": tuple(words), "mode": mode}
    return field(default=default, metadata=rule)


@dataclass(frozen=True)
class Training:
    """How long, how much, and where the results go (relative to the current directory)."""

    max_steps: int = setting(8, least=1)
    batch_size: int = setting(256, least=1)
    output_dir: str = setting("artifacts")


@dataclass(frozen=True)
class Optimizer:
    """Plain SGD: AdamW would double the size of the traces."""

    lr: float = setting(0.3, least=0)


@dataclass(frozen=True)
class Dataset:
    """Seed of the task and of the initial weights (equal on all ranks) and of each rank's own samples."""

    seed: int = setting(42, least=0)


@dataclass(frozen=True)
class Model:
    """`num_layers` blocks, each LayerNorm, Linear to `mlp_hidden_dim`, ReLU, Linear back to `model_dim`."""

    model_dim: int = setting(256, least=1)
    num_layers: int = setting(2, least=1)
    mlp_hidden_dim: int = setting(512, least=1)


@dataclass(frozen=True)
class Distributed:
    """How ranks average gradients: `ddp` in buckets during backward, `manual` one by one after it.

    With `fsdp` each rank keeps only its share of the weights; FSDP2 gathers a block's when it is their turn.
    """

    mode: str = setting("ddp", words=("ddp", "fsdp", "manual"))
    bucket_cap_mb: float = setting(1.0, least=0.001, mode="ddp")
    timeout_seconds: float = setting(60.0, least=1)


@dataclass(frozen=True)
class Fsdp:
    """Whether a block's weights are dropped between forward and backward, and what a block computes in."""

    reshard_after_forward: bool = setting(True, mode="fsdp")
    mixed_precision: str = setting("none", words=("none", "bf16"), mode="fsdp")


@dataclass(frozen=True)
class Profiling:
    """Which steps are traced (`repeat` windows of wait, warmup, active steps; 0: on and on), and how."""

    enabled: bool = setting(True)
    wait: int = setting(1, least=0)
    warmup: int = setting(1, least=0)
    active: int = setting(3, least=1)
    repeat: int = setting(1, least=0)
    record_shapes: bool = setting(True)
    profile_memory: bool = setting(False)
    with_stack: bool = setting(False)
    with_flops: bool = setting(False)
    tensorboard: bool = setting(True)
    chrome_trace: bool = setting(False)
    trace_filename: str = setting("trace.json")
    use_gzip: bool = setting(False)


INJECTIONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "slow_compute": (("rank", "ms"), ("step",)),
    "slow_sleep": (("rank", "ms"), ("step",)),
    "extra_allreduce": ((), ("step",)),
    "raise": (("rank", "step"), ()),
    "kill": (("rank", "step"), ()),
    "hang": (("rank", "step"), ()),
    "catch_sigterm": ((), ("rank",)),
    "abort_after_end": (("rank",), ()),
}
"""What can be made to go wrong: for each kind the keys it needs, and those it takes."""

LASTING = ("slow_compute", "slow_sleep", "extra_allreduce", "catch_sigterm")
"""Kinds that act in every step from `inject.step` (default 0) on; the others act once."""


@dataclass(frozen=True)
class Injection:
    """A fault to commit; none by default. `ms` is the delay per step of the slow kinds."""

    kind: str | None = setting(None, wanted=str, words=INJECTIONS)
    rank: int | None = setting(None, wanted=int, least=0)
    step: int | None = setting(None, wanted=int, least=0)
    ms: float | None = setting(None, wanted=float, least=1)


@dataclass(frozen=True)
class Job:
    """All settings; the field names are the sections of the config."""

    training: Training
    optimizer: Optimizer
    dataset: Dataset
    model: Model
    distributed: Distributed
    fsdp: Fsdp
    profiling: Profiling
    inject: Injection


SECTIONS = get_type_hints(Job)
"""Type of each section, by its name."""


def known_settings() -> dict[str, Any]:
    """Field of every `section.key` that has an effect."""
    return {f"{name}.{key.name}": key for name, cls in SECTIONS.items() for key in fields(cls)}


def parse(text: str, as_json: bool) -> Any:
    """Content of a JSON or YAML text; raises ValueError where it is malformed."""
    if as_json:
        return json.loads(text)
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise ValueError(problem) from None


def scalar(text: str) -> Any:
    """Value of an override: a YAML scalar, or a JSON one where PyYAML is missing; what is neither is text."""
    try:
        return parse(text, as_json=not HAS_YAML)
    except ValueError:
        return text


def read_config(path: Path) -> dict[str, Any]:
    """Sections of a config file, JSON if its name says so, else YAML.

    Raises: UsageError: it cannot be read, is malformed, or is no mapping.
    """
    as_json = path.suffix == ".json"
    if not (as_json or HAS_YAML):
        raise UsageError(
            f"--config {path}: {sys.executable} has no PyYAML: install it, or give the config as a .json file"
        )
    try:
        config = parse(path.read_text(encoding="utf-8"), as_json)
    except (OSError, ValueError) as problem:
        raise UsageError(f"--config {path}: {' '.join(str(problem).split())}") from None
    if not isinstance(config, dict):
        raise UsageError(f"--config {path}: expected a mapping of sections, found {config!r:.60}")
    return config


def override(config: dict[str, Any], pairs: Sequence[str]) -> None:
    """Set each `section.key=value` of `pairs` in `config`; a text setting takes the value as it is written.

    Raises: UsageError: a pair has no `=`, its section is no mapping in the config, no setting has its key, or
    the job's mode does not heed it: it would change nothing, without a word.
    """
    known = known_settings()
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"--override: expected section.key=value, found {pair!r}")
        section, _, key = name.partition(".")
        if name not in known and section != "inject":
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(f"--override {name}: no such key{hint}")
        wants_text = name in known and known[name].metadata["wanted"] is str
        section_of(config, section)[key] = text if wants_text else scalar(text)
    check_heeded([pair.partition("=")[0] for pair in pairs], mode_of(config))


def check_heeded(names: Sequence[str], mode: str) -> None:
    """Refuse settings that act only in another `distributed.mode`."""
    known = known_settings()
    for name in names:
        only = known[name].metadata["mode"] if name in known else None
        if only not in (None, mode):
            raise UsageError(
                f"--override {name} has no effect with distributed.mode {mode}: "
                f"leave it out, or add distributed.mode={only}"
            )


def mode_of(config: dict[str, Any]) -> str:
    """Checked `distributed.mode` of the config."""
    return str(read_section("distributed", Distributed, section_of(config, "distributed")).mode)


def section_of(config: dict[str, Any], name: str) -> dict[str, Any]:
    """Section `name` of the config, made where it is missing or empty."""
    if config.get(name) is None:
        config[name] = {}
    section = config[name]
    if not isinstance(section, dict):
        raise UsageError(f"{name}: expected a mapping, found {section!r:.60}")
    return section


def checked(name: str, given: Any, rule: Mapping[str, Any]) -> Any:
    """The value of one setting, if it is of the type and in the range that `rule` names; else UsageError."""
    wanted, least, words = rule["wanted"], rule["least"], rule["words"]
    value = number(given) if wanted is float else given
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool) or value == "":
        expected = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}[wanted]
        raise UsageError(f"{name}: expected {expected}, found {given!r:.60}")
    if least is not None and value < least:
        raise UsageError(f"{name}: expected at least {least}, found {given}")
    if words and value not in words:
        raise UsageError(f"{name}: expected one of {', '.join(words)}, found {given!r:.60}")
    return value


def number(value: Any) -> float | None:
    """`value` as a float, also if it is written like 1e-3, which YAML takes for text; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def read_section(name: str, cls: Any, given: Mapping[str, Any]) -> Any:
    """Section of type `cls` from what the config holds; keys that it does not know are left aside."""
    values = {}
    for key in fields(cls):
        value = given.get(key.name, key.default)
        if value is not None or key.default is not None:
            value = checked(f"{name}.{key.name}", value, key.metadata)
        values[key.name] = value
    return cls(**values)


def job_of(config: dict[str, Any], world_size: int) -> Job:
    """Checked settings of a job of `world_size` ranks.

    Unknown keys are ignored, as Aorta does (its own configs are full of keys that mean nothing here), except
    under `inject`: a test that injects nothing would pass for the wrong reason.

    Raises: UsageError: a value that cannot be used, or an injection or a trace that would never happen.
    """
    if mode_of(config) != "fsdp":
        # Aorta's own configs have this section in every mode, so it is not judged where nobody heeds it.
        config = {**config, "fsdp": None}
    sections = {name: section_of(config, name) for name in SECTIONS}
    for key in sections["inject"]:
        if key not in {known.name for known in fields(Injection)}:
            raise UsageError(f"inject.{key}: no such key, known are kind, rank, step and ms")
    job = Job(**{name: read_section(name, cls, sections[name]) for name, cls in SECTIONS.items()})
    check_injection(job.inject, job.training.max_steps, world_size)
    if job.profiling.enabled:
        check_profiling(job.profiling, job.training.max_steps)
    return job


def check_injection(inject: Injection, max_steps: int, world_size: int) -> None:
    """Refuse a fault that lacks a key, has one too many, or would never happen."""
    needs, takes = INJECTIONS[inject.kind] if inject.kind else ((), ())
    for key in ("rank", "step", "ms"):
        given = getattr(inject, key) is not None
        if given and not inject.kind:
            raise UsageError(f"inject.{key} is set, but not inject.kind: one of {', '.join(INJECTIONS)}")
        if given and key not in needs + takes:
            raise UsageError(f"inject.{key} has no effect with inject.kind {inject.kind}: leave it out")
        if not given and key in needs:
            raise UsageError(f"inject.kind {inject.kind} needs inject.{key}")
    if inject.rank is not None and inject.rank >= world_size:
        raise UsageError(f"inject.rank {inject.rank} would never act: the last rank is {world_size - 1}")
    if inject.step is not None and inject.step >= max_steps:
        raise UsageError(f"inject.step {inject.step} would never come: the last step is {max_steps - 1}")


def check_profiling(profiling: Profiling, max_steps: int) -> None:
    """Refuse a profiler that would record nothing, or leave nothing of what it recorded."""
    skipped = profiling.wait + profiling.warmup
    if skipped >= max_steps:
        raise UsageError(
            f"profiling: wait + warmup = {skipped} leave nothing of training.max_steps {max_steps} to trace: "
            "lower them, or set profiling.enabled to false"
        )
    if not (profiling.tensorboard or profiling.chrome_trace):
        raise UsageError(
            "profiling: no trace is asked for; set profiling.tensorboard or profiling.chrome_trace to true, "
            "or profiling.enabled to false"
        )
    name = profiling.trace_filename
    if Path(name).name != name or not name.endswith(".json"):
        raise UsageError(f"profiling.trace_filename: expected a file name that ends in .json, found {name!r}")


# --- this rank's place in the job -------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Who this process is, as torchrun told it."""

    rank: int
    local_rank: int
    world_size: int


def place_of(environ: Mapping[str, str]) -> Place:
    """This process's place in the job; UsageError where it was not started by torchrun."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        if not environ.get(name):
            raise UsageError(
                f"{name} is not set in the environment: start this script with torchrun, as in "
                "python -m torch.distributed.run --nproc_per_node=2 train.py --config FILE"
            )
    try:
        return Place(*(int(environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
    except ValueError as problem:
        raise UsageError(f"RANK, LOCAL_RANK or WORLD_SIZE in the environment: {problem}") from None


def device_of(local_rank: int) -> torch.device:
    """This rank's GPU, or the CPU on a machine that shows none; UsageError where there are too few GPUs."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise UsageError(f"LOCAL_RANK is {local_rank}, but this machine shows {gpus} GPUs: start fewer ranks")
    return torch.device("cuda", local_rank)


def prepare_output(job: Job, rank: int) -> Path:
    """Make the output folder and start this rank's log; UsageError where the folder cannot be written."""
    output = Path(job.training.output_dir)
    try:
        output.mkdir(parents=True, exist_ok=True)
        logging.basicConfig(
            filename=output / f"rank{rank}.log",
            filemode="w",
            format="%(asctime)s %(levelname)s %(message)s",
            level=logging.INFO,
            force=True,
        )
    except OSError as problem:
        raise UsageError(f"training.output_dir: {problem}") from None
    return output


def say(text: str) -> None:
    """Put one line on stdout and into this rank's log."""
    log.info(text)
    print(text, flush=True)


# --- faults -----------------------------------------------------------------------------------------------


def compute_for(ms: float, device: torch.device) -> None:
    """Keep this rank busy with matrix products for `ms`, on one thread of a CPU."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    factor = torch.ones(512, 512, device=device)
    product = torch.empty_like(factor)
    end = time.perf_counter() + ms / 1000
    while time.perf_counter() < end:
        torch.mm(factor, factor, out=product)
        if device.type == "cuda":
            torch.cuda.synchronize()
    torch.set_num_threads(threads)


def fail(rank: int, step: int) -> NoReturn:
    """Raise an error as a bug in the training script would."""
    raise RuntimeError(f"injected failure: rank {rank} raises in step {step} (inject.kind raise)")


def hang() -> NoReturn:
    """Never come back: the other ranks wait in their next collective until it times out."""
    while True:
        time.sleep(3600)


def catch_sigterm() -> None:
    """Go on training when asked to end, as Aorta's trainer does until its step is over."""
    signal.signal(signal.SIGTERM, lambda *_: log.warning("SIGTERM: going on (inject.kind catch_sigterm)"))


def allreduce_32_mib(device: torch.device) -> None:
    """Sum 32 MiB over all ranks: traffic of a model many times as big."""
    dist.all_reduce(torch.ones(8 * 2**20, device=device))


def disturb(inject: Injection, rank: int, step: int, device: torch.device) -> None:
    """Do what `inject` asks of this rank at the start of this step: before the step's first collective."""
    first = inject.step or 0
    due = step >= first if inject.kind in LASTING else step == inject.step
    if inject.kind is None or not due or inject.rank not in (None, rank):
        return
    log.info("step %d: inject.kind %s", step, inject.kind)
    ms = inject.ms or 0.0
    actions: dict[str, Callable[[], object]] = {
        "slow_compute": lambda: compute_for(ms, device),
        "slow_sleep": lambda: time.sleep(ms / 1000),
        "extra_allreduce": lambda: allreduce_32_mib(device),
        "raise": lambda: fail(rank, step),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "hang": hang,
        "catch_sigterm": catch_sigterm,
    }
    actions[inject.kind]()


# --- traces and metrics -----------------------------------------------------------------------------------


def trace_names(profiling: Profiling, process: str, now_ns: int, step: int) -> list[str]:
    """File names for one window of this rank.

    Args: process: HOST_PID; step: number of the step after the window, to tell several windows apart.
    """
    names = []
    if profiling.tensorboard:
        names.append(f"{process}.{now_ns}.pt.trace.json")
    if profiling.chrome_trace:
        stem = profiling.trace_filename[: -len(".json")]
        names.append(f"{stem}.json" if profiling.repeat == 1 else f"{stem}_step{step}.json")
    return [f"{name}.gz" for name in names] if profiling.use_gzip else names


class TraceWriter:
    """Writes one rank's trace at the end of each window, into a folder that it makes.

    An error must not pass through the profiler that calls this: the profiler would stop itself a second time
    and die of SIGSEGV (seen with torch 2.13), and the reason would be lost. It waits for `raise_failure`.
    """

    def __init__(self, settings: Profiling, rank: int, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.settings, self.rank, self.folder = settings, rank, folder
        self.failure: OSError | RuntimeError | None = None
        self.windows = 0
        """Windows that are over."""

    def __call__(self, profiler: profile) -> None:
        """Write the window that has just ended."""
        self.windows += 1
        process = f"{socket.gethostname()}_{os.getpid()}"
        names = trace_names(self.settings, process, time.time_ns(), profiler.step_num)
        try:
            self._write([self.folder / name for name in names], profiler)
        except (OSError, RuntimeError) as problem:
            self.failure = problem

    def _write(self, targets: Sequence[Path], profiler: profile) -> None:
        """Each file appears whole or not at all. The profiler exports once only, so the second is a copy."""
        for target in targets:
            # No trace by its name, should the job die meanwhile. PyTorch packs what ends in .gz.
            part = target.with_name(target.name.replace(".json", ".part"))
            if target == targets[0]:
                profiler.export_chrome_trace(str(part))
                if not part.exists():
                    raise OSError(f"rank {self.rank}: PyTorch wrote no trace into {self.folder} (disk full?)")
            else:
                shutil.copyfile(targets[0], part)
            part.replace(target)
            say(f"rank {self.rank}: wrote {target} ({target.stat().st_size} bytes)")

    def raise_failure(self) -> None:
        """Raise what kept a trace from being written."""
        if self.failure is not None:
            raise self.failure


def make_profiler(settings: Profiling, writer: TraceWriter, device: torch.device) -> profile:
    """Profiler of the configured windows, which hands each to `writer`."""
    return profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
        schedule=schedule(
            wait=settings.wait, warmup=settings.warmup, active=settings.active, repeat=settings.repeat
        ),
        on_trace_ready=writer,
        record_shapes=settings.record_shapes,
        profile_memory=settings.profile_memory,
        with_stack=settings.with_stack,
        with_flops=settings.with_flops,
    )


@contextlib.contextmanager
def traced_steps(job: Job, rank: int, folder: Path, device: torch.device) -> Iterator[Callable[[], None]]:
    """Trace the configured steps of the block; what it gets is to be called between one step and the next."""
    if not job.profiling.enabled:
        yield lambda: None
        return
    writer = TraceWriter(job.profiling, rank, folder)
    with make_profiler(job.profiling, writer, device) as profiler:

        def next_step() -> None:
            before = writer.windows
            profiler.step()
            writer.raise_failure()
            if writer.windows > before:
                # What happens to one rank from here on costs no other its trace of this window.
                dist.barrier()

        yield next_step
    writer.raise_failure()


def rocm_metrics() -> dict[str, Any]:
    """What rocm-smi says about this machine, under Aorta's keys; the reason where it says nothing."""
    program = shutil.which("rocm-smi")
    if program is None:
        return {"rocm_smi_error": "rocm-smi is not on the PATH"}
    try:
        done = subprocess.run(
            [program, "--showtemp", "--showuse", "--showpower", "--showmemuse"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return {"rocm_smi_error": str(problem)}
    output, errors = done.stdout.strip(), done.stderr.strip()
    return {"rocm_smi_exit_code": done.returncode, "rocm_smi_output": output, "rocm_smi_stderr": errors}


# --- training ---------------------------------------------------------------------------------------------


class Trainer:
    """One rank's network, optimizer and data."""

    def __init__(self, job: Job, place: Place, device: torch.device) -> None:
        self.world_size = place.world_size
        self.mode = job.distributed.mode
        self.model = make_network(job.model, job.dataset.seed).to(device)
        if self.mode == "ddp":
            self.model = in_buckets(self.model, job.distributed, device)
        elif self.mode == "fsdp":
            shard(self.model, job.fsdp, place.world_size, device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=job.optimizer.lr)
        self.inputs, self.targets = (part.to(device) for part in make_batch(job, place.rank))

    def train_step(self) -> float:
        """Forward, backward and update; waits for the device. Returns: this rank's loss before the update."""
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.inputs), self.targets)
        torch.autograd.backward(loss)
        if self.mode == "manual":
            self._average_gradients()
        self.optimizer.step()
        return float(loss.item())

    def _average_gradients(self) -> None:
        """One parameter after the other, so that nothing can overlap with backward."""
        for gradient in [parameter.grad for parameter in self.model.parameters()]:
            if gradient is not None:
                dist.all_reduce(gradient)
                gradient /= self.world_size


def make_network(model: Model, seed: int) -> nn.Module:
    """The network, on the CPU and from one seed, so that all ranks start with equal weights."""
    torch.manual_seed(seed)
    return nn.Sequential(*(make_block(model) for _ in range(model.num_layers)))


def make_block(model: Model) -> nn.Module:
    """One block of the network, which FSDP gathers and drops as a whole."""
    return nn.Sequential(
        nn.LayerNorm(model.model_dim),
        nn.Linear(model.model_dim, model.mlp_hidden_dim),
        nn.ReLU(),
        nn.Linear(model.mlp_hidden_dim, model.model_dim),
    )


def in_buckets(network: nn.Module, settings: Distributed, device: torch.device) -> nn.Module:
    """The network inside one that averages gradients in buckets while backward goes on."""
    return DistributedDataParallel(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=settings.bucket_cap_mb,
        gradient_as_bucket_view=True,
    )


def fsdp2() -> Any:
    """The part of PyTorch that holds FSDP2; UsageError where it is too old for that."""
    # Here, so that the other modes run with a PyTorch that has none, and need not wait for the import.
    from torch.distributed import fsdp

    if not hasattr(fsdp, "fully_shard"):
        raise UsageError(
            f"distributed.mode fsdp needs PyTorch 2.6 or later, {sys.executable} has {torch.__version__}: "
            "install a later one there, or set distributed.mode to ddp or manual"
        )
    return fsdp


def shard(network: nn.Module, settings: Fsdp, world_size: int, device: torch.device) -> None:
    """Leave each rank its share of every block's weights.

    With `bf16` blocks gather their weights and compute in it; what they hand on, and gradients, are float32.
    """
    from torch.distributed.device_mesh import init_device_mesh

    fsdp = fsdp2()
    policy = fsdp.MixedPrecisionPolicy()
    if settings.mixed_precision == "bf16":
        policy = fsdp.MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
    mesh = init_device_mesh(device.type, (world_size,))
    for part in [*network.children(), network]:
        fsdp.fully_shard(
            part, mesh=mesh, reshard_after_forward=settings.reshard_after_forward, mp_policy=policy
        )


def make_batch(job: Job, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's inputs and targets, both (batch_size, model_dim); one linear map for all ranks."""
    dim, seed = job.model.model_dim, job.dataset.seed
    task = torch.randn(dim, dim, generator=torch.Generator().manual_seed(seed)) / math.sqrt(dim)
    own = torch.Generator().manual_seed(seed + 1 + rank)
    inputs = torch.randn(job.training.batch_size, dim, generator=own)
    return inputs, inputs @ task


def train(job: Job, place: Place, device: torch.device, output: Path, with_rocm_metrics: bool) -> None:
    """All steps of this rank, inside the process group."""
    rank, last_step = place.rank, job.training.max_steps - 1
    trainer = Trainer(job, place, device)
    metrics_file = output / f"rank_{rank:02d}_metrics.jsonl"
    tracing = traced_steps(job, rank, output / "torch_profiler" / f"rank{rank}", device)
    with metrics_file.open("w", encoding="utf-8") as metrics, tracing as next_step:
        for step in range(last_step + 1):
            started = time.perf_counter()
            disturb(job.inject, rank, step, device)
            loss = trainer.train_step()
            total_ms = (time.perf_counter() - started) * 1000
            entry: dict[str, Any] = {"rank": rank, "world_size": place.world_size, "step": step, "loss": loss}
            entry.update(lr=job.optimizer.lr, profile={"index": step, "total_ms": total_ms})
            if with_rocm_metrics:
                entry.update(rocm_metrics())
            report(metrics, entry)
            # Not after the last step: that would open one more step, and an empty one, in the trace.
            if step < last_step:
                next_step()


def report(metrics: TextIO, entry: Mapping[str, Any]) -> None:
    """Add a step to the metrics, at once, so that it outlives whatever comes next; rank 0 tells of it, too.

    Raises: FloatingPointError: the loss is no number any more.
    """
    rank, step, loss, total_ms = entry["rank"], entry["step"], entry["loss"], entry["profile"]["total_ms"]
    if not math.isfinite(loss):
        raise FloatingPointError(f"rank {rank}: the loss is {loss} in step {step}")
    metrics.write(json.dumps(entry) + "\n")
    metrics.flush()
    (say if rank == 0 else log.info)(f"step {step}: loss {loss:.4f}, {total_ms:.1f} ms")


def run(job: Job, place: Place, device: torch.device, output: Path, with_rocm_metrics: bool) -> NoReturn:
    """Join the process group, train, leave, and end this process."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    log.info(
        "rank %d of %d on %s, pid %d: %s over %s, torch %s",
        *(place.rank, place.world_size, socket.gethostname(), os.getpid()),
        *(device, backend, torch.__version__),
    )
    dist.init_process_group(backend, timeout=timedelta(seconds=job.distributed.timeout_seconds))
    train(job, place, device, output, with_rocm_metrics)
    dist.barrier(device_ids=[device.index] if device.type == "cuda" else None)
    dist.destroy_process_group()
    if job.inject.kind == "abort_after_end" and job.inject.rank == place.rank:
        log.info("after the end: inject.kind abort_after_end")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.abort()
    end_well()


def end_well() -> NoReturn:
    """Leave with exit code 0 without letting the interpreter shut down.

    Gloo's threads outlive the process group. One that drops the last Python object of a collective while the
    interpreter is finalizing brings the process down with SIGABRT: 4 of 19 good runs, none of 20 with this.
    """
    log.info("done")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


# --- command line -----------------------------------------------------------------------------------------


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Command line of Aorta's trainer; UsageError where `--override` is repeated."""
    parser = argparse.ArgumentParser(prog="train.py", description="Small data-parallel training job.")
    parser.add_argument("--config", type=Path, required=True, help="YAML or JSON file")
    parser.add_argument("--override", nargs="*", action="append", default=[], help="section.key=value ...")
    parser.add_argument("--enable-rocm-metrics", action="store_true", help="ask rocm-smi after each step")
    arguments = parser.parse_args(argv)
    if len(arguments.override) > 1:
        raise UsageError(
            "--override is given twice, of which Aorta keeps only the last: put all pairs behind one"
        )
    return arguments


def main(argv: Sequence[str]) -> int:
    """Check everything, then run; returns only if something was refused."""
    try:
        arguments = parse_arguments(argv)
        config = read_config(arguments.config)
        override(config, [pair for group in arguments.override for pair in group])
        place = place_of(os.environ)
        job = job_of(config, place.world_size)
        device = device_of(place.local_rank)
        if job.distributed.mode == "fsdp":
            fsdp2()
        output = prepare_output(job, place.rank)
    except UsageError as refusal:
        print(f"train.py: {refusal}", file=sys.stderr)
        get_error_handler().record_exception(refusal)
        return 2
    run(job, place, device, output, arguments.enable_rocm_metrics)


def end_badly() -> NoReturn:
    """Print the exception that is being handled and leave at once.

    As at a good end, threads of gloo that outlive the process group would turn an orderly exit into SIGABRT.
    """
    traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    try:
        sys.exit(record(main)(sys.argv[1:]))
    except Exception:
        end_badly()
