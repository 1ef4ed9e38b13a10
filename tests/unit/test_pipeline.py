"""Saved metrics: when they are used, and when the traces are measured anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import TRACES, SaveRun
from cvs.config import ExpectedResults
from cvs.errors import TraceError
from cvs.metrics import aggregates
from cvs.models import (
    Accelerator,
    NodeResult,
    ParseResult,
    Quality,
    RankMetrics,
    RunStatus,
    TraceSet,
    basis_of,
)
from cvs.parsers.torch_trace import TorchTraceParser
from cvs.pipeline import _not_of_this_time, check, measure, measure_traces, result_of
from cvs.run_folder import RunFolder
from cvs.thresholds import check_evidence

SAVED = ("as it was saved",)
"""Warning of metrics that were saved and not measured now."""


@pytest.fixture
def measured(save_run: SaveRun) -> RunFolder:
    """A good run with saved metrics."""
    folder = save_run()
    result = measure(folder, TorchTraceParser())
    folder.save_result(result.model_copy(update={"warnings": SAVED}))
    return folder


def trace_of(folder: RunFolder, rank: int) -> Path:
    return next(folder.traces.rglob(f"rank{rank}/*.gz"))


def change(path: Path) -> None:
    """Other bytes, and no more or less of them."""
    path.write_bytes(bytes(path.stat().st_size))


def change_size_at_the_same_time(path: Path) -> None:
    was = path.stat()
    path.write_bytes(path.read_bytes() + b"\n")
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_saved_metrics_are_used(measured: RunFolder) -> None:
    assert result_of(measured, TorchTraceParser()).warnings == SAVED


@pytest.mark.parametrize("fate", [Path.unlink, change, change_size_at_the_same_time])
def test_they_are_not_where_a_trace_was_changed_since(
    measured: RunFolder, fate: Callable[[Path], None]
) -> None:
    fate(trace_of(measured, 3))
    result = result_of(measured, TorchTraceParser())
    messages = [violation.message for violation in check_evidence(result)]
    assert result.warnings != SAVED
    assert any(message.endswith("; missing: rank 3") for message in messages)
    assert any("rank3/" in message and "was c" in message for message in messages)


def test_a_file_that_was_only_touched_is_measured_to_the_same_numbers(measured: RunFolder) -> None:
    saved = measured.load_result()
    trace = trace_of(measured, 0)
    later = (measured.path / "metrics.json").stat().st_mtime_ns + 1_000_000_000
    os.utime(trace, ns=(later, later))
    assert result_of(measured, TorchTraceParser()) == saved.model_copy(update={"warnings": ()})


def test_metrics_of_another_run_are_not_used(measured: RunFolder) -> None:
    measured.save_result(measured.load_result().model_copy(update={"run_id": "another"}))
    assert result_of(measured, TorchTraceParser()).warnings == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read: Invalid JSON"),
        ("", "cannot be read: Invalid JSON"),
        ('{"schema_version": 0, "foo": 1}', "schema_version is 0, and this version of cvs reads 1"),
        ('{"schema_version": 1, "foo": 1}', "cannot be read: accelerator: Field required"),
    ],
)
def test_metrics_that_are_none_are_measured_anew_with_a_warning(
    measured: RunFolder, text: str, why: str
) -> None:
    (measured.path / "metrics.json").write_text(text)
    result = result_of(measured, TorchTraceParser())
    [warning] = result.warnings
    assert warning.startswith(f"measured anew: {measured.path}/metrics.json: {why}")
    assert check_evidence(result) == []
    assert result_of(measured, TorchTraceParser()).warnings == ()


def test_metrics_of_another_version_are_measured_anew(measured: RunFolder) -> None:
    measured.save_result(measured.load_result().model_copy(update={"schema_version": 2}))
    [warning] = result_of(measured, TorchTraceParser()).warnings
    assert warning.endswith("metrics.json: schema_version is 2, and this version of cvs reads 1")


def test_a_window_that_no_calendar_has(save_run: SaveRun) -> None:
    run = save_run().load_manifest().run
    rank = RankMetrics(
        rank=0, files=("f",), basis="cpu", quality=Quality(status="complete"), start_ns=10**30
    )  # fmt: skip
    parsed = ParseResult(parser="p", basis="cpu", world_size=1, ranks=(rank,))
    assert list(_not_of_this_time(run, parsed)) == [
        "rank 0: its trace was recorded 1e+21 s after 1970, not during this run"
    ]


@pytest.mark.parametrize(
    ("node", "started"),
    [
        (NodeResult(node_rank=0, node="a", error="no such folder"), False),
        (NodeResult(node_rank=0, node="a", exit_code=1), True),
        (NodeResult(node_rank=0, node="a", stopped_by_cvs=True), True),
    ],
    ids=["set-up failed", "ended", "never seen to end"],
)
def test_whether_the_job_was_started(save_run: SaveRun, node: NodeResult, started: bool) -> None:
    folder = save_run(status=RunStatus.FAILED)
    manifest = folder.load_manifest()
    run = manifest.run.model_copy(update={"nodes": (node,)})
    folder.save_manifest(manifest.model_copy(update={"run": run}))
    assert measure(folder, TorchTraceParser()).job_started is started


# --- traces from anywhere ---------------------------------------------------------------------------------


class Told:
    """A parser of traces that never used a GPU, which tells of a backend."""

    identity = "told"

    def __init__(self, *backends: str | None) -> None:
        self.backends = backends
        self.asked: list[str] = []

    def parse(self, traces: TraceSet) -> ParseResult:
        self.asked.append(traces.accelerator)
        basis = basis_of(traces.accelerator)
        quality = Quality(status="no_gpu_events" if basis == "gpu" else "complete")
        ranks = tuple(
            RankMetrics(rank=rank, files=(f"{rank}",), basis=basis, quality=quality, backend=backend)
            for rank, backend in enumerate(self.backends)
        )
        return ParseResult(parser="told", basis=basis, world_size=len(ranks), ranks=ranks)


@pytest.mark.parametrize(
    ("backends", "basis"),
    [
        (("gloo", "gloo"), "cpu"),
        ((None, "mpi"), "cpu"),
        (("nccl", "nccl"), "gpu"),
        ((None, "cpu:gloo,cuda:NCCL"), "gpu"),
        (("gloo", "rccl"), "gpu"),
        ((), "gpu"),
    ],
)
def test_the_backend_may_tell_of_a_gpu_that_was_not_recorded(
    backends: tuple[str | None, ...], basis: str, tmp_path: Path
) -> None:
    parser = Told(*backends)
    result = measure_traces(tmp_path, parser)
    assert (result.parse.basis, result.accelerator) == (basis, None)
    assert parser.asked == ["rocm"] + ["none"] * (basis == "cpu")
    assert any(rank.quality.status == "no_gpu_events" for rank in result.parse.ranks) == (
        basis == "gpu" and bool(backends)
    )


@pytest.mark.parametrize("accelerator", ["rocm", "cuda", "none"])
def test_an_accelerator_that_is_declared_is_the_only_one_that_is_tried(
    accelerator: Accelerator, tmp_path: Path
) -> None:
    parser = Told("gloo")
    assert measure_traces(tmp_path, parser, accelerator=accelerator).accelerator == accelerator
    assert parser.asked == [accelerator]


@pytest.mark.parametrize("several", [str, Path, lambda path: [path], lambda path: (str(path), path)])
def test_one_path_or_several(several: Callable[[Path], Any]) -> None:
    result = measure_traces(several(TRACES / "cpu_gloo_2x2"), TorchTraceParser())
    assert check(result, ExpectedResults()) == []
    assert result.aggregates == aggregates(result.parse.ranks)
    assert result.aggregates.avg_iteration_time_us == pytest.approx(43_187, abs=1)


def test_a_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="none: no such file or folder"):
        measure_traces([TRACES, tmp_path / "none"], TorchTraceParser())
