"""JSON that is no trace: recognised by its content, and named where that is known."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pytest

from cvs.parsers.other_json import is_other_json, named
from cvs.parsers.trace_document import TraceDocument, read_document

FLIGHT_RECORDER = {
    "entries": [
        {"collective_seq_id": 3, "frames": [], "profiling_name": "nccl:all_reduce", "state": "completed"}
    ],
    "nccl_version": "2.21.5",
    "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "pg_status": {"0": {"last_enqueued_collective": 3}},
    "version": "2.4",
}
MEMORY = {
    "segments": [{"address": 1, "total_size": 2097152, "stream": 0, "segment_type": "small", "blocks": []}],
    "device_traces": [[]],
    "allocator_settings": {},
}
METRICS = {"rank": 0, "world_size": 2, "step": 3, "loss": 0.5, "lr": 0.01}
EXECUTION_TRACE = {"schema": "1.1.1", "pid": 1, "nodes": [{"id": 1, "name": "[pytorch]", "ctrl_deps": 1}]}
REPORT = {"schema_version": 1, "benchmark": "aorta", "run_id": "r", "verdict": "good"}
NO_TRACE = "no traceEvents: not a profiler trace"
A_LIST = "the top level is a list, not an object with traceEvents"


def read(text: bytes) -> TraceDocument:
    with io.BytesIO(text) as stream:
        return named(read_document(stream, "gpu"), stream)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (FLIGHT_RECORDER, f"{NO_TRACE} (a flight recorder dump)"),
        ({"entries": [], "pg_config": {}, "pg_status": {}}, f"{NO_TRACE} (a flight recorder dump)"),
        (MEMORY, f"{NO_TRACE} (a memory snapshot)"),
        ({"device_traces": [], "segments": []}, f"{NO_TRACE} (a memory snapshot)"),
        (METRICS, f"{NO_TRACE} (metrics)"),
        ([METRICS, METRICS], f"{A_LIST} (metrics)"),
        (EXECUTION_TRACE, f"{NO_TRACE} (an execution trace)"),
        (REPORT, f"{NO_TRACE} (a file of cvs itself)"),
        ({"training": {"max_steps": 10}}, NO_TRACE),
        ({"traceEvents": None}, NO_TRACE),
        ({}, NO_TRACE),
        ([1, 2], A_LIST),
    ],
)
def test_other_json_is_named_where_it_is_known(content: Any, cause: str, pack: Any) -> None:
    document = read(pack(json.dumps(content, indent=1).encode()))
    assert (document.quality.status, document.quality.cause) == ("unreadable", cause)
    assert is_other_json(document)


@pytest.mark.parametrize("content", ["3", '"text"', '{"traceEvents": {"step": 1, "loss": 2}}'])
def test_json_of_any_other_shape_is_no_trace_either(content: str) -> None:
    assert is_other_json(read(content.encode()))


def test_a_trace_that_has_such_keys_is_a_trace() -> None:
    kernel = {"cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": FLIGHT_RECORDER | METRICS}
    document = read(json.dumps({"traceEvents": [kernel]}).encode())
    assert (document.quality.status, document.quality.cause) == ("complete", None)
    assert not is_other_json(document)


@pytest.mark.parametrize("text", [b"", b"{", b'{"step": 1, "loss": 2', b"\x1f\x8bnot gzip"])
def test_what_is_broken_is_no_json_of_another_kind(text: bytes) -> None:
    document = read(text)
    assert document.quality.status == "unreadable"
    assert not is_other_json(document)


def test_only_the_beginning_of_a_big_file_is_looked_at() -> None:
    late = json.dumps({"notes": "x" * (1 << 17), "step": 1, "loss": 2}).encode()
    assert read(late).quality.cause == read(gzip.compress(late)).quality.cause == NO_TRACE
