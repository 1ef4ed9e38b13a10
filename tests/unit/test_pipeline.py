"""Saved metrics: when they are used, and when the traces are measured anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import SaveRun
from cvs.models import NodeResult, RunStatus
from cvs.parsers.torch_trace import TorchTraceParser
from cvs.pipeline import measure, result_of
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


@pytest.mark.parametrize("keys", [{"schema_version": 0}, {"run_id": "another"}])
def test_metrics_of_another_version_or_run_are_not_used(measured: RunFolder, keys: dict[str, object]) -> None:
    measured.save_result(measured.load_result().model_copy(update=keys))
    assert result_of(measured, TorchTraceParser()).warnings != SAVED


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
