"""Every way in which a job is known to fail, for real: right verdict and rank, bounded time, nothing left.

A job takes 7 to 30 s, so those that are marked `full` run with `make test-all` only; in the rest every fault,
every way to average gradients and both launch modes occur.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import WITH_TORCH, Files, report_of
from cvs.run_folder import RunFolder, newest_run_folder
from processes import processes_of

pytestmark = [pytest.mark.torch, pytest.mark.timed]

GRACE, JOIN, SHUTDOWN = 4, 8, 3
FAULT_STEP = 6
"""After the traced steps 2 to 4, so that every rank's trace is there."""
STOPPED = GRACE + (SHUTDOWN + 5) + 5
"""Seconds to end a job of which a node does not end by itself."""


class Job:
    """One call of `cvs run` under way."""

    def __init__(self, home: Path, files: Files, overrides: str) -> None:
        self.home = home
        self.output = ""
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "cvs.cli", "run", "test_aorta", *files.options),
                f"--training_overrides={overrides}",
            ],
            cwd=home, env={**os.environ, **WITH_TORCH}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    @property
    def folder(self) -> RunFolder:
        return newest_run_folder(self.home / "cvs_runs", "test_aorta")

    def wait_for(self, pattern: str) -> None:
        """Read on until a line has `pattern`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if re.search(pattern, line):
                return
        pytest.fail(f"no line had {pattern!r}:\n{self.output}")

    def finish(self) -> int:
        rest, _ = self.process.communicate(timeout=150)
        self.output += rest
        return self.process.returncode

    def launcher_of_head(self) -> int:
        """The process id of torchrun on node rank 0."""
        for pid in processes_of(self.folder.run_id):
            argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "torch.distributed.run" in argv and "--node_rank=1" not in argv:
                return pid
        pytest.fail("node rank 0 has no torchrun")


@dataclass(frozen=True)
class Fault:
    """One fault, and what cvs is to say of it.

    `{rank}` stands for the last rank, `{node}` for its node, `{head}` for node rank 0.
    """

    overrides: str
    says: str
    seconds: float
    """Measured from the fault to the end of all nodes; cvs may take three times that."""
    log: str
    """Where to read about it first, below the run's folder."""
    sign: str = f"step {FAULT_STEP - 1}: loss"
    """Line of output just before it happens."""
    signal: signal.Signals | None = None
    """What the head's launcher gets then."""


FAULTS = {
    "raise": Fault(
        f"inject.kind=raise inject.rank={{rank}} inject.step={FAULT_STEP}",
        "rank {rank} on {node} failed: RuntimeError: injected failure: rank {rank} raises in step 6",
        seconds=2.3,
        log="logs/node_{node_rank}/torchrun/*/attempt_0/1/stderr.log",
    ),
    "kill": Fault(
        f"inject.kind=kill inject.rank={{rank}} inject.step={FAULT_STEP}",
        "rank {rank} on {node} was ended by signal 9",
        seconds=1.5,
        log="logs/node_{node_rank}/torchrun/*/attempt_0/1/stdout.log",
    ),
    "hang": Fault(
        f"inject.kind=hang inject.rank={{rank}} inject.step={FAULT_STEP} distributed.timeout_seconds=5",
        "rank {rank} on {node} did not arrive at a collective that the others waited in",
        seconds=11.7,
        log="logs/node_{node_rank}/torchrun/*/attempt_0/1/stdout.log",
    ),
    "catch_sigterm": Fault(
        "inject.kind=catch_sigterm training.max_steps=5000",
        "{head} was stopped: torch.distributed.elastic.multiprocessing.api.SignalException",
        seconds=6.6,
        log="logs/node_0.log",
        signal=signal.SIGTERM,
    ),
    "killed_launcher": Fault(
        "training.max_steps=5000",
        "{head} lost its launcher to signal 9",
        seconds=STOPPED,
        log="logs/node_0.log",
        signal=signal.SIGKILL,
    ),
    "abort_after_end": Fault(
        "inject.kind=abort_after_end inject.rank={rank}",
        "rank {rank} on {node} was ended by signal 6",
        seconds=STOPPED,
        log="logs/node_{node_rank}/torchrun/*/attempt_0/1/stderr.log",
        sign="step 7: loss",
    ),
}

MODES = {"ddp": 2, "fsdp": 2, "script": 1}
"""How gradients are averaged, or that a script starts the job; and the number of nodes."""

CHOICE = {
    *(("raise", "ddp"), ("kill", "fsdp"), ("hang", "script")),
    *(("catch_sigterm", "ddp"), ("killed_launcher", "script"), ("abort_after_end", "script")),
}
"""What `make test` runs."""


_HALF_WRITTEN = "json.decoder.JSONDecodeError"
"""torchrun 2.13 dies of the error file that a rank is just writing, and then tells of no rank how it ends."""

CASES = [
    pytest.param(
        fault, mode, marks=[] if (fault, mode) in CHOICE else [pytest.mark.full], id=f"{fault}-{mode}"
    )
    for fault in FAULTS
    for mode in MODES
]


def prepare(files: Files, mode: str) -> None:
    """Short limits, and one node where a script starts the job."""
    # Not for joining: PyTorch may load slowly.
    files.edit("join_timeout_seconds: 60", f"join_timeout_seconds: 60\n  grace_seconds: {GRACE}")
    files.edit("environment:\n", f'environment:\n  TORCH_ELASTIC_SHUTDOWN_TIMEOUT: "{SHUTDOWN}"\n')
    if mode == "script":
        files.have_a_script_start_the_job()


@contextlib.contextmanager
def under_way(home: Path, files: Files, overrides: str) -> Iterator[Job]:
    job = Job(home, files, overrides)
    try:
        yield job
    finally:
        if job.process.poll() is None:
            job.process.terminate()
            job.process.wait(60)


@pytest.mark.parametrize(("fault", "mode"), CASES)
def test_a_fault_while_it_trains(fault: str, mode: str, tmp_path: Path, files: Files) -> None:
    prepare(files, mode)
    expected, nodes = FAULTS[fault], MODES[mode]
    node_rank = nodes - 1
    names = {
        "rank": 2 * nodes - 1,
        "node": f"node-{node_rank} (node rank {node_rank})",
        "node_rank": node_rank,
        "head": "node-0 (node rank 0)",
    }
    overrides = expected.overrides.format(**names)
    if mode == "fsdp":
        overrides += " distributed.mode=fsdp"
    with under_way(tmp_path, files, overrides) as job:
        job.wait_for(expected.sign)
        if expected.signal:
            os.kill(job.launcher_of_head(), expected.signal)
        happened = time.monotonic()
        for _ in range(nodes):
            job.wait_for(r"^cvs \| node-\d ended with exit code")
        assert time.monotonic() - happened < 3 * expected.seconds
        exit_code = job.finish()
    says = expected.says
    if fault == "kill" and _HALF_WRITTEN in (job.folder.path / f"logs/node_{node_rank}.log").read_text():
        says = "rank {rank} on {node} ended without a word, and so did the launcher about it"
    assert_red(job, exit_code, says.format(**names))
    assert_shows_log(job, expected.log.format(**names))
    assert_parsed(job, set(range(2 * nodes)))


def assert_red(job: Job, exit_code: int, says: str) -> None:
    """The verdict, who is named, and that nothing is left."""
    assert processes_of(job.folder.run_id) == []
    assert exit_code == 1, job.output
    assert "verdict: red" in job.output
    failure = job.folder.load_manifest().run.failure
    assert failure is not None
    assert failure.reason.startswith(says), failure.reason
    assert f"failed: {failure.reason}" in job.output
    for node in job.folder.load_manifest().run.nodes:
        assert node.left_running == ()
        assert node.error is None


def assert_shows_log(job: Job, pattern: str) -> None:
    """The log that is named says most, and its end is shown."""
    failure = job.folder.load_manifest().run.failure
    assert failure is not None
    assert failure.log is not None
    assert [job.folder.path / failure.log] == list(job.folder.path.glob(pattern))
    assert failure.tail
    assert all(line in job.output for line in failure.tail)


def assert_parsed(job: Job, ranks: set[int]) -> None:
    """What these ranks left is collected, measured and reported."""
    report = report_of(job.folder.path)
    assert (report["verdict"], report["status"]) == ("red", "failed")
    rows = report["per_rank_summary"]
    assert isinstance(rows, list)
    assert {row["rank"] for row in rows if row["quality"]["status"] == "complete"} == ranks


# --- the rendezvous ---------------------------------------------------------------------------------------


def never_starts(files: Files, node: str, folder: Path) -> None:
    """Let the interpreter on `node` sleep where it should run torchrun."""
    (folder / "sitecustomize.py").write_text(
        "import sys, time\nif 'torch.distributed.run' in sys.orig_argv: time.sleep(3600)\n"
    )
    text = files.cluster_file.read_text()
    variables = f', "env_vars": {{"PYTHONPATH": "{folder}"}}'
    files.cluster_file.write_text(
        text.replace(f'"{node}": {{ "vpc_ip": "127.0.0.1"', f'"{node}": {{ "vpc_ip": "127.0.0.1"{variables}')
    )


@pytest.mark.parametrize(
    ("absent", "says", "seconds"),
    [
        pytest.param(1, "node-1 (node rank 1) did not join; node-0 waited: ", 10.3, id="a_node"),
        pytest.param(0, "node-0 (node rank 0) did not join; node-1 waited: ", STOPPED, id="the_head"),
    ],
)
def test_a_node_that_never_joins(
    absent: int, says: str, seconds: float, tmp_path: Path, files: Files
) -> None:
    prepare(files, "ddp")
    files.edit("join_timeout_seconds: 60", f"join_timeout_seconds: {JOIN}")
    never_starts(files, f"node-{absent}", tmp_path)
    with under_way(tmp_path, files, "") as job:
        job.wait_for("ranks start on")
        happened = time.monotonic()
        job.wait_for(r"^cvs \| node-\d ended with exit code")
        job.wait_for(r"^cvs \| node-\d ended with exit code")
        assert time.monotonic() - happened < 3 * seconds
        exit_code = job.finish()
    assert_red(job, exit_code, says)
    assert "0 of 4 ranks left a trace" in job.output


def test_a_taken_port_costs_one_more_start_on_another(tmp_path: Path, files: Files) -> None:
    prepare(files, "ddp")
    with socket.create_server(("127.0.0.1", 0)) as stranger, contextlib.ExitStack() as stack:
        port = stranger.getsockname()[1]
        files.edit("master_launch_mode: torchrun", f"master_launch_mode: torchrun\n  master_port: {port}")
        job = stack.enter_context(under_way(tmp_path, files, ""))
        job.wait_for("ranks start on")
        happened = time.monotonic()
        job.wait_for(f"port {port} on node-0 is taken by another process; the job was started again on port")
        assert time.monotonic() - happened < 3 * STOPPED
        exit_code = job.finish()
    manifest = job.folder.load_manifest()
    assert exit_code == 0, job.output
    assert manifest.plan.rendezvous.port != port
    assert f"warning: port {port} on node-0 is taken by another process" in job.output
    assert processes_of(job.folder.run_id) == []
    assert "EADDRINUSE" in job.folder.node_log(0).read_text()


# --- a job that stands still ------------------------------------------------------------------------------


def test_a_job_that_stands_still_is_looked_into_and_stopped(tmp_path: Path, files: Files) -> None:
    # With the sample's own limit for joining, so that PyTorch may load slowly.
    files.edit("stall_seconds: 30", "stall_seconds: 8")
    with under_way(tmp_path, files, "inject.kind=hang inject.rank=2 inject.step=6") as job:
        job.wait_for("step 5: loss")
        happened = time.monotonic()
        job.wait_for("no line and no step for 8 s: looking where each rank is")
        assert time.monotonic() - happened > 7
        exit_code = job.finish()
    assert_red(job, exit_code, "no line and no step for 8 s; did not arrive: rank 2 in hang (train.py:")
    assert_shows_log(job, "logs/node_1/stacks.txt")
    assert_parsed(job, {0, 1, 2, 3})
    failure = job.folder.load_manifest().run.failure
    assert failure is not None
    assert (failure.node, failure.ranks) == ("node-1", (2,))
    assert "), on node-1 (node rank 1); the others: ranks 0, 1, 3 in Trainer.train_step (" in failure.reason
    stacks = (job.folder.path / "logs" / "node_0" / "stacks.txt").read_text()
    assert stacks.startswith("rank 0\n    _engine_run_backward (")
    assert "    last line: step 5: loss " in stacks
