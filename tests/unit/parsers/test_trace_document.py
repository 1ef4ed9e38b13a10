"""One file as numbers: digits to nanoseconds, events to intervals, losses to a quality."""

from __future__ import annotations

import gzip
import io
import json
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs import metrics
from cvs.models import Basis
from cvs.parsers.trace_document import TraceDocument, read_document
from cvs.parsers.trace_numbers import nanoseconds, nanoseconds_of

TRACES = Path(__file__).parents[2] / "data" / "traces"


def event(category: str | None, name: str | None, ts: Any = 0, dur: Any = 1, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, **more}


def step(number: int, ts: Any = 0, dur: Any = 100, **more: Any) -> dict[str, Any]:
    return event("user_annotation", f"ProfilerStep#{number}", ts, dur, **more)


def read(*events: Any, basis: Basis = "gpu", **header: Any) -> TraceDocument:
    text = json.dumps({**header, "traceEvents": events}).encode()
    return read_document(io.BytesIO(text), basis)


KERNEL = event("kernel", "gemm", 10, 5)

# --- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("12", 12_000),
        ("-12", -12_000),
        ("-0.5", -500),
        ("1.5", 1_500),
        ("4458676416788.123", 4458676416788123),
        ("1682725898082228.001", 1682725898082228001),
        ("1.0005", 1_000),  # half to even
        ("1.0015", 1_002),
        ("1.00050000000000000000000000000000000000000001", 1_001),
        ("-1.0015", -1_002),
        ("1e3", 1_000_000),
        ("1.5E-3", 2),
        ("2.5e-3", 2),
        ("1682725898082228001e-3", 1682725898082228001),
        ('"12.5"', 12_500),
        ('" +12.5 "', 12_500),
        ('".5"', 500),
        ('"5."', 5_000),
        ('"\\u0031"', 1_000),
        ("9223372036854775.807", 2**63 - 1),
        ("-9223372036854775.807", -(2**63) + 1),
        ("9223372036854775.8070", 2**63 - 1),
        ("9223372036854775.808", None),
        ("9223372036854775.8075", None),
        ("12345678901234567", None),
        ("1e300", None),
        ("1e99999999999999999999", None),
        ("-" + "9" * 5000, None),
        ("", None),
        ("null", None),
        ("true", None),
        ("false", None),
        ("[1]", None),
        ("{}", None),
        ('""', None),
        ('"NaN"', None),
        ('"Infinity"', None),
        ('"0x10"', None),
        ('"1_000"', None),
        ('"１"', None),
        ('"12 us"', None),
        ('"\\ud800"', None),
    ],
)
def test_nanoseconds_of_a_value(text: str, expected: int | None) -> None:
    assert nanoseconds(text.encode()) == expected


numbers = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    st.integers(0, 10**17) | st.integers(0, 10**6),
    st.just("") | st.from_regex(r"\.[0-9]{1,30}", fullmatch=True),
    st.just("") | st.integers(-40, 40).map("e{}".format),
)


@given(numbers, st.booleans())
def test_nanoseconds_are_exactly_what_the_digits_say(number: str, quoted: bool) -> None:
    exact = round(Fraction(Decimal(number)) * 1000)  # half to even
    text = f'"{number}"' if quoted else number
    assert nanoseconds(text.encode()) == (exact if abs(exact) < 2**63 else None)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_every_nanosecond_in_64_bits_can_be_written(number: int) -> None:
    assert nanoseconds(str(Decimal(number) / 1000).encode()) == number
    assert nanoseconds(f"{number}e-3".encode()) == number


@given(
    st.lists(st.sampled_from(["1.500", "-2.000", "0.880", "7", "12.5", "1e3", '"3.000"', "", "null", "x"]))
)
def test_many_at_once_are_what_each_is(numbers: list[str]) -> None:
    alone = [nanoseconds(number.encode()) for number in numbers]
    together = nanoseconds_of([msgspec.Raw(number.encode()) for number in numbers]) if numbers else []
    assert together in (alone, None)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (["4458676416788.123", "-0.001", "0.880"], [4458676416788123, -1, 880]),
        (["12", "-3", "0"], [12_000, -3_000, 0]),
        (["1.500", "2", "-0.5", "0.25"], [1_500, 2_000, -500, 250]),
        (["1.5000"], None),
        (["1.5e3"], None),
        (["9223372036854775.808"], None),
        ([""], None),
    ],
)
def test_many_as_profilers_write_them(numbers: list[str], expected: list[int] | None) -> None:
    assert nanoseconds_of([msgspec.Raw(number.encode()) for number in numbers]) == expected


# --- header -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        ({"rank": 3, "world_size": 8, "backend": "nccl"}, (3, 8)),
        ({"rank": 0}, (0, None)),
        ({"rank": "3", "world_size": 8.5}, (None, None)),
        ({"rank": -1, "world_size": 0}, (None, None)),
        ({"rank": True, "world_size": 10**12}, (None, None)),
        ({"rank": 1e300}, (None, None)),
        (None, (None, None)),
        ([1], (None, None)),
        ("rank", (None, None)),
    ],
)
def test_rank_and_world_as_the_trace_claims(info: Any, expected: tuple[int | None, int | None]) -> None:
    document = read(KERNEL, distributedInfo=info)
    assert (document.rank, document.world_size) == expected
    assert document.quality.status == "complete"


@pytest.mark.parametrize(
    ("header", "ts", "expected"),
    [
        pytest.param({"baseTimeNanoseconds": 10**18}, 5, 10**18 + 5_000, id="since a base"),
        pytest.param({}, 1_700_000_000_000_000, 1_700_000_000 * 10**9, id="since 1970"),
        pytest.param({}, 5, None, id="since an unknown start"),
        pytest.param({"baseTimeNanoseconds": "x"}, 5, None, id="an unusable base"),
    ],
)
def test_wall_clock_of_the_window(header: Any, ts: int, expected: int | None) -> None:
    assert read(step(1, ts - 3), event("kernel", "k", ts), **header).start_ns == expected
    assert read(step(1, ts), basis="cpu", **header).start_ns == expected


# --- gpu basis --------------------------------------------------------------------------------------------


def test_gpu_events_are_those_of_three_categories_whatever_their_ph() -> None:
    document = read(
        event("kernel", "gemm", 0, 10),
        event("kernel", None, 20, 1),
        {"cat": "gpu_memset", "ts": 30, "dur": 1},
        event("gpu_memcpy", "Memcpy HtoD", 40, 1, ph="B"),
        event("kernel", "ncclKernel", "50.5", 0),
        event("Kernel", "old", 0, 900),
        event("gpu_user_annotation", "ProfilerStep#1", 0, 900),
        event("cuda_sync", "Stream Sync", 0, 900),
        event(None, None, 0, 900),
        {},
        basis="gpu",
    )
    assert document.buckets == {
        "computation": [(0, 10_000), (20_000, 21_000), (30_000, 31_000)],
        "memcpy": [(40_000, 41_000)],
        "communication": [(50_500, 50_500)],
    }
    assert document.quality.status == "complete"


def test_stamps_that_a_double_cannot_hold() -> None:
    text = (
        b'{"traceEvents":[{"cat":"kernel","ts":4458676416788.123,"dur":10.001},'
        b'{"cat":"kernel","ts":4458676416798.124,"dur":5.5},{"cat":"kernel","ts":4458676416810.9,"dur":0.333}]}'
    )
    rows = metrics.timeline(read_document(io.BytesIO(text), "gpu").buckets)
    assert rows is not None
    assert (rows.computation_time, rows.idle_time, rows.total_time) == (15_834, 7_276, 23_110)


def test_no_gpu_event() -> None:
    document = read(step(3), event("cpu_op", "aten::mm"), distributedInfo={"rank": 2, "world_size": 4})
    assert (document.quality.status, document.quality.cause) == ("no_gpu_events", "no GPU event")
    assert (document.rank, document.world_size, dict(document.steps)) == (2, 4, {3: (0, 100_000)})


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ({"ts": None}, "without usable ts"),
        ({"ts": "soon"}, "without usable ts"),
        ({"ts": True}, "without usable ts"),
        ({"ts": 10**18}, "without usable ts"),
        ({"dur": None}, "without usable dur"),
        ({"dur": [1]}, "without usable dur"),
        ({"dur": -0.001}, "with negative dur"),
    ],
)
def test_a_gpu_event_or_step_without_times_makes_the_rank_incomplete(fault: Any, cause: str) -> None:
    document = read(KERNEL, {**KERNEL, **fault}, {**KERNEL, **fault}, {**step(1), **fault})
    assert document.quality.status == "incomplete"
    assert document.quality.dropped == {f"GPU event {cause}": 2, f"step {cause}": 1}
    assert document.quality.cause == f"2 x GPU event {cause}; 1 x step {cause}"
    assert document.buckets == {"computation": [(10_000, 15_000)]}
    assert not document.steps


def test_an_end_beyond_64_bits_is_not_usable() -> None:
    late = event("kernel", "gemm", 9 * 10**15, 9 * 10**15)
    assert read(KERNEL, late).quality.dropped == {"GPU event without usable dur": 1}
    assert read(KERNEL, step(1, 9 * 10**15, 9 * 10**15)).quality.status == "incomplete"


@pytest.mark.parametrize(
    "odd", [{"stream": [1]}, {"stream": {}}, {"Process Group Ranks": json.loads("[" * 500 + "]" * 500)}]
)
def test_what_a_collective_says_of_itself_may_be_odd(odd: dict[str, Any]) -> None:
    document = read(event("kernel", "ncclKernel", args={"correlation": 1, **odd}), KERNEL)
    assert document.quality.status == "complete"
    assert sum(map(len, document.buckets.values())) == 2


def test_absent_times_are_not_usable() -> None:
    assert read({"cat": "kernel", "dur": 1}, KERNEL).quality.dropped == {"GPU event without usable ts": 1}
    assert read({"cat": "kernel", "ts": 1}, KERNEL).quality.dropped == {"GPU event without usable dur": 1}


def test_a_rank_whose_gpu_events_were_all_dropped_is_not_one_without() -> None:
    assert read({**KERNEL, "ts": None}).quality.status == "incomplete"


def test_events_that_nothing_reads_may_lack_times() -> None:
    assert (
        read(KERNEL, {"ph": "M", "name": "process_name"}, event("cpu_op", "x", None)).quality.status
        == "complete"
    )


def test_runtime_events_of_two_processes_are_a_merged_trace() -> None:
    launches = [
        event("cuda_runtime", "hipLaunchKernel", pid=7),
        event("cuda_driver", "cuLaunchKernel", pid=8),
    ]
    one = read(KERNEL, launches[0], launches[0], {"cat": "cuda_runtime"})
    assert one.quality.status == "complete"
    two = read(KERNEL, *launches, distributedInfo={"rank": 0})
    assert two.quality.status == "unreadable"
    assert two.quality.cause == "merged: GPU runtime events of 2 processes in one file"
    assert (two.rank, dict(two.buckets), dict(two.steps)) == (0, {}, {})
    assert read(step(1), *launches, basis="cpu").quality.status == "complete"


def test_two_devices_are_one_timeline() -> None:
    document = read(event("kernel", "k", 0, 10, pid=0), event("kernel", "k", 0, 30, pid=1))
    assert document.devices == 2
    assert document.buckets == {"computation": [(0, 10_000), (0, 30_000)]}


# --- steps ------------------------------------------------------------------------------------------------


def test_steps_are_host_annotations_in_order_of_start() -> None:
    document = read(
        KERNEL,
        step(5, 200, 50),
        step(4, 100, 60.5),
        event("user_annotation", "ProfilerStep # 3", 300),
        event("gpu_user_annotation", "ProfilerStep#7"),
        event("cpu_op", "ProfilerStep#8"),
        event("user_annotation", "my ProfilerStep#9"),
        event("user_annotation", "ProfilerStep*"),
        event("user_annotation", None),
        event("user_annotation", "ProfilerStep#" + "9" * 5000),
    )
    assert list(document.steps.items()) == [
        (4, (100_000, 160_500)),
        (5, (200_000, 250_000)),
        (3, (300_000, 301_000)),
    ]


def test_of_one_number_the_longest_step_counts() -> None:
    assert read(KERNEL, step(1, 0, 10), step(1, 5, 30), step(1, 9, 20)).steps == {1: (5_000, 35_000)}


# --- cpu basis --------------------------------------------------------------------------------------------


def thread_name(thread: Any, name: Any) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "tid": thread, "args": {"name": name}}


def test_compute_is_operators_with_a_namespace_outside_gloo_threads() -> None:
    counted = ["aten::mm", "torch::distributed::reducer::mul_out", "fsdp::all_gather_copy_in", "c10d2::x"]
    not_counted = [
        "c10d::allreduce_",
        "_c10d_functional::wait_tensor",
        "c10d_functional::all_reduce",
        "autograd::engine::evaluate_function: AddmmBackward0",
        "torch::autograd::AccumulateGrad",
        "AddmmBackward0",
        "Optimizer.step#SGD.step",
        None,
    ]
    document = read(
        step(1),
        *(event("cpu_op", name, ts) for ts, name in enumerate(counted)),
        *(event("cpu_op", name, 50) for name in not_counted),
        event("cpu_op", "aten::copy_", 60, tid=2),  # on the thread of a collective
        event("cpu_op", "aten::copy_", 70, tid=3),  # on a thread that is named as gloo's, below
        event("user_annotation", "gloo:all_reduce", 55, 20, tid=2),
        event("user_annotation", "DistributedDataParallel.forward", 0, 90),
        KERNEL,
        thread_name(3, "thread 3 (pt_gloo_runloop)"),
        thread_name(1, "python"),
        thread_name(1, 5),
        {"ph": "M", "name": "thread_name", "args": None},
        basis="cpu",
    )
    assert document.compute == [(ts * 1000, (ts + 1) * 1000) for ts in range(len(counted))]
    assert document.comm == [(55_000, 75_000)]
    assert dict(document.buckets) == {}
    assert document.quality.status == "complete"


def test_a_cpu_trace_without_a_complete_step_is_incomplete() -> None:
    document = read(event("cpu_op", "aten::mm"), basis="cpu")
    assert (document.quality.status, document.quality.cause) == ("incomplete", "no complete ProfilerStep")


def test_other_events_without_times_make_a_cpu_trace_repaired() -> None:
    document = read(
        step(1),
        event("cpu_op", "aten::mm", None),
        event("cpu_op", "wrapper", None),
        basis="cpu",
    )
    assert document.quality.status == "repaired"
    assert document.quality.dropped == {"operator without usable ts": 1}


def test_a_collective_without_a_time_makes_a_cpu_trace_incomplete() -> None:
    document = read(step(1), event("user_annotation", "gloo:barrier", 1, -1), basis="cpu")
    assert document.quality.status == "incomplete"
    assert document.quality.dropped == {"collective with negative dur": 1}


def test_lost_text_of_a_collective_counts_on_the_cpu_only() -> None:
    text = json.dumps({"traceEvents": [step(1), event("user_annotation", "gloo:barrier", 1, 1), step(2)]})
    broken = io.BytesIO(text.replace('gloo:barrier"', "gloo:barrier").encode())
    assert read_document(broken, "cpu").quality.status == "incomplete"
    assert read_document(broken, "gpu").quality.dropped


@pytest.mark.parametrize("stamp", ["1e1000000", '"1e1000000"', '"\\ud800"'])
@pytest.mark.parametrize("basis", ["gpu", "cpu"])
def test_a_stamp_that_is_no_time_costs_its_event(stamp: str, basis: Basis) -> None:
    events = [event("kernel", "k", 7777), event("cuda_runtime", "l", 7777), step(2, 7777), step(1)]
    text = json.dumps({"traceEvents": events}).replace("7777", stamp)
    document = read_document(io.BytesIO(text.encode()), basis)
    assert document.quality.status == "incomplete"
    assert list(document.steps) == [1]


# --- files ------------------------------------------------------------------------------------------------


def test_an_unreadable_file_is_a_document_with_its_cause() -> None:
    document = read_document(io.BytesIO(b"[]"), "gpu")
    assert document.quality.status == "unreadable"
    assert document.quality.cause == "the top level is a list, not an object with traceEvents"


@pytest.mark.parametrize("percent", [20, 50, 80, 99])
def test_a_real_trace_cut_off_keeps_the_events_before(percent: int) -> None:
    text = gzip.decompress((TRACES / "multirank" / "mr4" / "rank0_trace.json.gz").read_bytes())
    whole = read_document(io.BytesIO(text), "gpu")
    cut = read_document(io.BytesIO(text[: len(text) * percent // 100]), "gpu")
    assert cut.quality.status == "truncated"
    assert (cut.rank, cut.world_size, cut.base_ns) == (0, 4, whole.base_ns)
    for bucket, kept in cut.buckets.items():
        assert set(kept) <= set(whole.buckets[bucket])
    assert 0 < sum(map(len, cut.buckets.values())) <= 63


@given(st.randoms())
def test_order_of_events_is_nothing(random: Any) -> None:
    events = [KERNEL, step(1), step(2, 150), event("kernel", "nccl", 3, 40), event("gpu_memcpy", "m", 0, 2)]
    document = read(*random.sample(events, len(events)))
    assert metrics.timeline(document.buckets) == metrics.timeline(read(*events).buckets)
    assert list(document.steps) == [1, 2]
