"""Real jobs of the bundled trainer: two ranks over gloo on this machine's loopback, with real traces.

They need an interpreter with PyTorch: the one that runs the tests, or the one that TORCH_PYTHON names.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import cvs
from cvs.parsers.torch_trace import TorchTraceParser, trace_set_of

SCRIPT = Path(cvs.__file__).parent / "workloads" / "aorta" / "train.py"
SAMPLE = SCRIPT.parent / "config" / "distributed.yaml"
PYTHON = os.environ.get("TORCH_PYTHON", sys.executable)
SECONDS = 60
BLOCKS, PARAMETERS_PER_BLOCK = 2, 6

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def torch_python() -> None:
    found = subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.fail(
            f"{PYTHON} cannot import torch, which these tests need: install PyTorch for the CPU there, "
            f"or let TORCH_PYTHON name an interpreter that has it\n{found.stderr}"
        )


# --- starting jobs ----------------------------------------------------------------------------------------


def environment(**more: str) -> dict[str, str]:
    """Of a job that uses the loopback interface and no GPU."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC_")}
    hidden = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
    return {**inherited, **hidden, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **more}


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def script(overrides: Sequence[str], config: Path = SAMPLE) -> list[str]:
    return [str(SCRIPT), "--config", str(config), "--override", *overrides]


class Rank:
    """One process, its console in files of its own."""

    def __init__(self, name: str, argv: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.out, self.err = folder / f"{name}.out", folder / f"{name}.err"
        with self.out.open("w") as out, self.err.open("w") as err:
            self.process = subprocess.Popen(argv, cwd=folder, env=env, stdout=out, stderr=err)

    def exit_code(self) -> int:
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            pytest.fail(f"still running after {SECONDS} s: {self.process.args!r}\n{self.err.read_text()}")

    @property
    def stdout(self) -> str:
        return self.out.read_text()

    @property
    def stderr(self) -> str:
        """Without what the profiler of PyTorch itself says."""
        return re.sub(r"^USDT:.*\n", "", self.err.read_text(), flags=re.MULTILINE)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


@contextmanager
def ranks(
    folder: Path, *overrides: str, world_size: int = 2, config: Path = SAMPLE, options: Sequence[str] = ()
) -> Iterator[list[Rank]]:
    """The ranks of one job, started one by one as torchrun would."""
    port = free_port()
    started: list[Rank] = []
    try:
        for rank in range(world_size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
            env = environment(**place, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            argv = [PYTHON, *script(overrides, config), *options]
            started.append(Rank(f"console{rank}", argv, folder, env))
        yield started
    finally:
        for each in started:
            each.stop()


def run_ranks(folder: Path, *overrides: str, **options: Any) -> list[int]:
    """Exit codes of one job's ranks."""
    with ranks(folder, *overrides, **options) as started:
        return [each.exit_code() for each in started]


def torchrun(folder: Path, *overrides: str, **env: str) -> Rank:
    """A finished job of two ranks under torchrun."""
    rendezvous = ["--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    argv = [PYTHON, "-m", "torch.distributed.run", *rendezvous, "--nproc_per_node=2", *script(overrides)]
    started = Rank("console", argv, folder, environment(**env))
    started.exit_code()
    return started


# --- reading what they leave ------------------------------------------------------------------------------


def traces(folder: Path, rank: int) -> list[Path]:
    return sorted((folder / "artifacts" / "torch_profiler" / f"rank{rank}").iterdir())


def read_trace(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    parsed: dict[str, Any] = json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    return parsed


def only_trace(folder: Path, rank: int) -> dict[str, Any]:
    (path,) = traces(folder, rank)
    return read_trace(path)


def named(trace: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event.get("name", "").startswith(prefix)]


def steps(trace: Mapping[str, Any]) -> list[int]:
    return [int(event["name"].partition("#")[2]) for event in named(trace, "ProfilerStep#")]


def metrics(folder: Path, rank: int) -> list[dict[str, Any]]:
    path = folder / "artifacts" / f"rank_{rank:02d}_metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def injected(folder: Path, rank: int) -> list[int]:
    """Steps in which this rank's log tells of a fault that it commits."""
    log = (folder / "artifacts" / f"rank{rank}.log").read_text()
    return [int(number) for number in re.findall(r"step (\d+): inject\.kind", log)]


# --- a good job -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good_job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rank]:
    folder = tmp_path_factory.mktemp("good")
    return folder, torchrun(folder, "profiling.chrome_trace=true")


def test_good_job_ends_well_and_tells_each_step_once(good_job: tuple[Path, Rank]) -> None:
    _, run = good_job
    assert run.exit_code() == 0, run.stderr
    assert re.findall(r"^step (\d+): loss \d\.\d{4}, \d+\.\d ms$", run.stdout, re.MULTILINE) == list(
        "01234567"
    )
    assert sorted(re.findall(r"rank (\d): wrote artifacts/torch_profiler/rank\1/", run.stdout)) == list(
        "0011"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_loss_falls(good_job: tuple[Path, Rank], rank: int) -> None:
    losses = [entry["loss"] for entry in metrics(good_job[0], rank)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.97 * losses[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_metrics_hold_every_step(good_job: tuple[Path, Rank], rank: int) -> None:
    entries = metrics(good_job[0], rank)
    assert [entry["step"] for entry in entries] == list(range(8))
    assert {(entry["rank"], entry["world_size"], entry["lr"]) for entry in entries} == {(rank, 2, 0.3)}
    assert all(entry["profile"]["total_ms"] > 0 for entry in entries)


def test_ranks_train_on_samples_of_their_own(good_job: tuple[Path, Rank]) -> None:
    first, second = (metrics(good_job[0], rank)[0]["loss"] for rank in (0, 1))
    assert first != second


@pytest.mark.parametrize("rank", [0, 1])
def test_folder_holds_both_kinds_of_trace_and_nothing_half_done(
    good_job: tuple[Path, Rank], rank: int
) -> None:
    handler, chrome = sorted(traces(good_job[0], rank), key=lambda path: path.name == "trace.json")
    assert re.fullmatch(rf"{re.escape(socket.gethostname())}_\d+\.\d{{19}}\.pt\.trace\.json", handler.name)
    assert chrome.name == "trace.json"
    assert chrome.read_bytes() == handler.read_bytes()


@pytest.mark.parametrize("rank", [0, 1])
def test_trace_is_of_the_window_and_says_whose_it_is(good_job: tuple[Path, Rank], rank: int) -> None:
    trace = read_trace(traces(good_job[0], rank)[0])
    assert steps(trace) == [2, 3, 4]
    place = {key: trace["distributedInfo"][key] for key in ("backend", "rank", "world_size")}
    assert place == {"backend": "gloo", "rank": rank, "world_size": 2}


def test_ddp_sums_all_parameters_in_several_buckets(good_job: tuple[Path, Rank]) -> None:
    collectives = named(read_trace(traces(good_job[0], 0)[0]), "gloo:all_reduce")
    sizes = [size for event in collectives for (size,) in event["args"]["Input Dims"]]
    assert sum(sizes) == 3 * BLOCKS * (2 * 256 + 256 * 512 + 512 + 512 * 256 + 256)
    assert 3 * 2 <= len(sizes) < 3 * BLOCKS * PARAMETERS_PER_BLOCK


def test_log_is_this_ranks_own(good_job: tuple[Path, Rank]) -> None:
    log = (good_job[0] / "artifacts" / "rank1.log").read_text()
    assert re.search(r"INFO rank 1 of 2 on \S+, pid \d+: cpu over gloo, torch \d", log.splitlines()[0])
    assert log.rstrip().endswith("INFO done")


# --- FSDP -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fsdp_job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp")
    assert run_ranks(folder, "distributed.mode=fsdp") == [0, 0]
    return folder


def gathers(folder: Path) -> list[dict[str, Any]]:
    """Collectives in rank 0's trace that gather a block's weights."""
    return named(only_trace(folder, 0), "gloo:all_gather")


@pytest.mark.parametrize("rank", [0, 1])
def test_fsdp_comes_to_the_losses_of_ddp(good_job: tuple[Path, Rank], fsdp_job: Path, rank: int) -> None:
    ddp, fsdp = ([entry["loss"] for entry in metrics(job, rank)] for job in (good_job[0], fsdp_job))
    assert len(fsdp) == 8
    assert fsdp == pytest.approx(ddp, abs=1e-4)


def test_fsdp_gathers_each_block_twice_a_step_and_reduces_it_once(fsdp_job: Path) -> None:
    weights = 256 + 256 + 256 * 512 + 512 + 512 * 256 + 256
    sent = [event["args"]["Input Dims"] for event in gathers(fsdp_job)]
    assert sent == [[[weights // 2]]] * (3 * BLOCKS * 2)
    reduced = named(only_trace(fsdp_job, 0), "gloo:all_reduce")
    assert [event["args"]["Input Dims"] for event in reduced] == [[[weights]]] * (3 * BLOCKS)


def test_cvs_takes_the_traces_of_fsdp_for_complete(fsdp_job: Path) -> None:
    found = TorchTraceParser().parse(trace_set_of(fsdp_job / "artifacts", "none", world_size=2))
    assert (found.problems, found.warnings, found.missing_ranks) == ((), (), ())
    for rank in found.ranks:
        assert rank.quality.status == "complete"
        assert [step.number for step in rank.steps] == [2, 3, 4]
        assert rank.cpu_ns is not None
        assert min(rank.cpu_ns.comm, rank.cpu_ns.compute) > 0


@pytest.mark.full
def test_fsdp_in_bf16_without_resharding_and_a_killed_rank(
    good_job: tuple[Path, Rank], tmp_path: Path
) -> None:
    fsdp = ("distributed.mode=fsdp", "fsdp.reshard_after_forward=false", "fsdp.mixed_precision=bf16")
    kill = ("inject.kind=kill", "inject.rank=1", "inject.step=5")
    with ranks(tmp_path, *fsdp, *kill) as (survivor, victim):
        assert victim.exit_code() == -signal.SIGKILL
        assert survivor.exit_code() == 1
        assert "gloo/transport/tcp" in survivor.stderr
    assert [steps(only_trace(tmp_path, rank)) for rank in (0, 1)] == [[2, 3, 4], [2, 3, 4]]
    types = [event["args"]["Input type"] for event in gathers(tmp_path)]
    assert types == [["c10::BFloat16"]] * (3 * BLOCKS)
    full, half = ([entry["loss"] for entry in metrics(job, 0)[:5]] for job in (good_job[0], tmp_path))
    assert half == pytest.approx(full, abs=1e-3)
    assert half != full


# --- settings ---------------------------------------------------------------------------------------------


@pytest.mark.full
def test_manual_mode_from_json_in_two_packed_windows(tmp_path: Path) -> None:
    config = tmp_path / "job.json"
    profiling = {"wait": 0, "warmup": 1, "active": 2, "repeat": 2, "chrome_trace": True, "use_gzip": True}
    config.write_text(json.dumps({"distributed": {"mode": "manual"}, "profiling": profiling}))
    overrides = ("profiling.record_shapes=false", "profiling.tensorboard=false", "training.max_steps=7")
    # A second run into the same folder starts the metrics anew.
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "rank_00_metrics.jsonl").write_text('{"step": 99}\n')

    assert run_ranks(tmp_path, *overrides, config=config) == [0, 0]

    assert [entry["step"] for entry in metrics(tmp_path, 0)] == list(range(7))
    first, second = traces(tmp_path, 1)
    assert (first.name, second.name) == ("trace_step3.json.gz", "trace_step6.json.gz")
    assert steps(read_trace(first)) == [1, 2]
    assert steps(read_trace(second)) == [4, 5]
    collectives = named(read_trace(first), "gloo:all_reduce")
    assert len(collectives) == 2 * BLOCKS * PARAMETERS_PER_BLOCK
    assert not any("Input Dims" in event.get("args", {}) for event in collectives)


@pytest.mark.full
def test_extra_allreduce_in_a_window_that_the_end_cuts_short(tmp_path: Path) -> None:
    overrides = ("training.max_steps=4", "inject.kind=extra_allreduce", "inject.step=3")
    assert run_ranks(tmp_path, *overrides) == [0, 0]
    trace = only_trace(tmp_path, 1)
    assert steps(trace) == [2, 3]
    big = [event for event in named(trace, "gloo:all_reduce") if event["args"]["Input Dims"] == [[8 * 2**20]]]
    assert len(big) == 1


@pytest.mark.full
def test_without_profiling_and_with_rocm_metrics(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "rocm-smi"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "GPU[0] $*"\nexit 3\n')
    program.chmod(0o755)
    overrides = ("profiling.enabled=false", "training.max_steps=1", "training.output_dir=a/b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        options = ["--enable-rocm-metrics"]
        assert run_ranks(tmp_path, *overrides, world_size=1, options=options) == [0]
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == [
        "rank0.log",
        "rank_00_metrics.jsonl",
    ]
    (entry,) = [
        json.loads(line) for line in (tmp_path / "a/b/rank_00_metrics.jsonl").read_text().splitlines()
    ]
    assert entry["rocm_smi_exit_code"] == 3
    assert entry["rocm_smi_output"].startswith("GPU[0] --showtemp")


# --- slow ranks -------------------------------------------------------------------------------------------


@pytest.mark.full
def test_slow_sleep_delays_its_rank_from_its_step_on(tmp_path: Path) -> None:
    overrides = ("inject.kind=slow_sleep", "inject.rank=1", "inject.ms=80", "inject.step=3")
    assert run_ranks(tmp_path, *overrides, "profiling.enabled=false") == [0, 0]
    assert (injected(tmp_path, 0), injected(tmp_path, 1)) == ([], [3, 4, 5, 6, 7])
    assert min(entry["profile"]["total_ms"] for entry in metrics(tmp_path, 1)[3:]) >= 80


@pytest.mark.full
def test_slow_compute_is_busy_with_matrix_products(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, "inject.kind=slow_compute", "inject.rank=1", "inject.ms=60") == [0, 0]

    def busy_ms(rank: int) -> float:
        products = named(only_trace(tmp_path, rank), "aten::mm")
        square = [event["dur"] for event in products if event["args"]["Input Dims"] == [[512, 512]] * 3]
        return float(sum(square)) / 1000

    assert injected(tmp_path, 1) == list(range(8))
    assert busy_ms(0) == 0
    assert busy_ms(1) > 0.5 * 60 * 3


# --- failures ---------------------------------------------------------------------------------------------


@pytest.mark.full
def test_raise_is_named_in_the_error_file(tmp_path: Path) -> None:
    error_file = tmp_path / "error.json"
    overrides = ("inject.kind=raise", "inject.rank=1", "inject.step=6")
    run = torchrun(tmp_path, *overrides, TORCHELASTIC_ERROR_FILE=str(error_file))
    assert run.exit_code() == 1
    message = json.loads(error_file.read_text())["message"]["message"]
    assert message == "RuntimeError: injected failure: rank 1 raises in step 6 (inject.kind raise)"


@pytest.mark.full
def test_kill_after_the_window_leaves_full_traces(tmp_path: Path) -> None:
    with ranks(tmp_path, "inject.kind=kill", "inject.rank=1", "inject.step=5") as (survivor, victim):
        assert victim.exit_code() == -signal.SIGKILL
        assert survivor.exit_code() == 1
        assert "gloo/transport/tcp" in survivor.stderr
    assert [steps(only_trace(tmp_path, rank)) for rank in (0, 1)] == [[2, 3, 4], [2, 3, 4]]
    assert [entry["step"] for entry in metrics(tmp_path, 1)] == [0, 1, 2, 3, 4]


@pytest.mark.full
def test_hang_is_bounded_for_the_others_and_ends_at_sigterm(tmp_path: Path) -> None:
    hang = ("inject.kind=hang", "inject.rank=1", "inject.step=1")
    with ranks(tmp_path, *hang, "distributed.timeout_seconds=4", "profiling.enabled=false") as (
        waiting,
        hung,
    ):
        assert waiting.exit_code() == 1
        assert "Timed out waiting 4000ms" in waiting.stderr
        assert hung.process.poll() is None
        hung.process.terminate()
        assert hung.exit_code() == -signal.SIGTERM
    assert [entry["step"] for entry in metrics(tmp_path, 1)] == [0]


@pytest.mark.full
def test_abort_after_end_spoils_a_job_that_is_done(tmp_path: Path) -> None:
    assert run_ranks(tmp_path, "inject.kind=abort_after_end", "inject.rank=1") == [0, -signal.SIGABRT]
    assert len(metrics(tmp_path, 1)) == 8
    assert steps(only_trace(tmp_path, 1)) == [2, 3, 4]
    assert not list(tmp_path.glob("core*"))


@pytest.mark.full
def test_trace_that_cannot_be_written_fails_the_job_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "artifacts/torch_profiler/rank0/trace.json").mkdir(parents=True)
    with ranks(tmp_path, "profiling.chrome_trace=true", world_size=1) as (rank,):
        assert rank.exit_code() == 1
        assert "IsADirectoryError" in rank.stderr


@pytest.mark.full
def test_loss_that_is_no_number_fails_the_job(tmp_path: Path) -> None:
    with ranks(tmp_path, "optimizer.lr=1e30", "profiling.enabled=false", world_size=1) as (rank,):
        assert rank.exit_code() == 1
        assert "FloatingPointError: rank 0: the loss is nan in step 1" in rank.stderr
    assert len(metrics(tmp_path, 0)) == 1


# --- refusals ---------------------------------------------------------------------------------------------


def test_unknown_injection_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    # One of two ranks: it would wait for the other if it tried to make the process group.
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    env = environment(**place, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port())
    run = Rank("console", [PYTHON, *script(["inject.knd=kill"])], tmp_path, env)
    assert run.exit_code() == 2
    assert run.stderr == "train.py: inject.knd: no such key, known are kind, rank, step and ms\n"
    assert not (tmp_path / "artifacts").exists()


@pytest.mark.full
def test_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_text("")
    with ranks(tmp_path, "training.max_steps=3", world_size=1) as (rank,):
        assert rank.exit_code() == 2
        assert rank.stderr == "train.py: training.output_dir: [Errno 17] File exists: 'artifacts'\n"


@pytest.mark.full
def test_pytorch_without_fsdp2_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    # As torch 2.5 has it; the interpreter reads this file before the script.
    older = "from torch.distributed import fsdp\ndel fsdp.fully_shard\n"
    (tmp_path / "sitecustomize.py").write_text(older)
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    env = environment(**place, **rendezvous, PYTHONPATH=str(tmp_path), PYTHONWARNINGS="ignore")
    run = Rank("console", [PYTHON, *script(["distributed.mode=fsdp"])], tmp_path, env)
    assert run.exit_code() == 2
    assert re.fullmatch(
        r"train\.py: distributed\.mode fsdp needs PyTorch 2\.6 or later, \S+ has \d\S+: "
        r"install a later one there, or set distributed\.mode to ddp or manual\n",
        run.stderr,
    )
    assert not (tmp_path / "artifacts").exists()


def test_interpreter_without_pytorch_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('none here')\n")
    env = environment(PYTHONPATH=str(tmp_path))
    run = Rank("console", [PYTHON, *script([])], tmp_path, env)
    assert run.exit_code() == 1
    assert run.stderr == (
        f"train.py: {PYTHON} cannot import torch (none here); "
        "install PyTorch there, or start this script with an interpreter that has it\n"
    )
