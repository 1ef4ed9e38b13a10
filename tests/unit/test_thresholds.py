"""The verdict: what makes it red, and in which words."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.config import ExpectedResults
from cvs.models import (
    Aggregates,
    BenchmarkResult,
    ExactNs,
    Failure,
    ParseResult,
    Quality,
    QualityStatus,
    RankMetrics,
    RunStatus,
    Step,
    Timeline,
    TraceResult,
)
from cvs.thresholds import check, check_evidence, check_limit, measured, verdict_of

KEYS = ["max_avg_iteration_ms", "min_compute_ratio", "min_overlap_ratio", "max_time_variance_ratio"]


def rank_of(rank: int | None, status: QualityStatus = "complete", **keys: Any) -> RankMetrics:
    quality = Quality(status=status, cause=keys.pop("cause", None))
    return RankMetrics(rank=rank, files=("f",), basis="cpu", quality=quality, **keys)


def parse_of(*ranks: RankMetrics, **keys: Any) -> ParseResult:
    settings: dict[str, Any] = {
        "parser": "test",
        "basis": "cpu",
        "world_size": 2,
        "missing_ranks": (),
        **keys,
    }
    return ParseResult(ranks=ranks or (rank_of(0), rank_of(1)), **settings)


def result_of(
    parse: ParseResult | None = None, status: RunStatus = RunStatus.COMPLETED, **keys: Any
) -> BenchmarkResult:
    return BenchmarkResult(
        benchmark="aorta",
        run_id="r1",
        run_status=status,
        duration_seconds=9.0,
        num_nodes=1,
        gpus_per_node=2,
        accelerator=keys.pop("accelerator", "none"),
        parse=parse or parse_of(),
        aggregates=keys.pop("aggregates", Aggregates()),
        **keys,
    )


def evidence(result: BenchmarkResult) -> list[str]:
    violations = check_evidence(result)
    assert {violation.name for violation in violations} <= {"evidence"}
    return [violation.message for violation in violations]


# --- limits -----------------------------------------------------------------------------------------------

MEASURED = Aggregates(
    avg_iteration_time_us=50_000.0,
    std_iteration_time_us=2_500.0,
    time_variance_ratio=0.05,
    avg_compute_ratio=0.3,
    avg_comm_ratio=0.6,
    avg_overlap_ratio=0.25,
)
VALUES = {
    "max_avg_iteration_ms": 50.0,
    "min_compute_ratio": 0.3,
    "min_overlap_ratio": 0.25,
    "max_time_variance_ratio": 0.05,
}


@pytest.mark.parametrize("key", KEYS)
def test_what_a_limit_is_set_on(key: str) -> None:
    found = measured(result_of(aggregates=MEASURED), key)
    assert (found.value, found.unit) == (VALUES[key], "ms" if key.endswith("_ms") else "")


@pytest.mark.parametrize("key", KEYS)
def test_a_limit_holds_at_the_value_itself(key: str) -> None:
    assert check_limit(result_of(aggregates=MEASURED), key, VALUES[key]) is None


@pytest.mark.parametrize("key", KEYS)
def test_a_limit_is_missed_on_its_other_side_only(key: str) -> None:
    result, value = result_of(aggregates=MEASURED), VALUES[key]
    lower, higher = math.nextafter(value, 0), math.nextafter(value, 1e9)
    missed, kept = (lower, higher) if key.startswith("max") else (higher, lower)
    assert check_limit(result, key, kept) is None
    violation = check_limit(result, key, missed)
    assert violation is not None
    assert (violation.name, violation.value, violation.limit) == (key, value, missed)


MESSAGES = {
    "max_avg_iteration_ms": (20, "average iteration time is 50 ms; expected at most 20 ms"),
    "min_compute_ratio": (0.9, "average compute ratio is 0.3; expected at least 0.9"),
    "min_overlap_ratio": (0.6, "average overlap ratio is 0.25; expected at least 0.6"),
    "max_time_variance_ratio": (
        0.01,
        "spread of the iteration time over ranks (std / mean) is 0.05; expected at most 0.01",
    ),
}


@pytest.mark.parametrize("key", KEYS)
def test_message(key: str) -> None:
    limit, message = MESSAGES[key]
    violation = check_limit(result_of(aggregates=MEASURED), key, limit)
    assert violation is not None
    assert violation.message == f"{key}: {message}"


@pytest.mark.parametrize("key", KEYS)
def test_what_was_not_measured_misses_every_limit(key: str) -> None:
    for limit in (0, 1e9 if key.startswith("max") else 0):
        violation = check_limit(result_of(), key, limit)
        assert violation is not None
        assert violation.value is None
        assert "was not measured" in violation.message


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_zero_and_one_are_measured(value: float) -> None:
    result = result_of(aggregates=Aggregates(avg_overlap_ratio=value))
    assert check_limit(result, "min_overlap_ratio", 0) is None


@pytest.mark.parametrize(
    ("key", "value", "limit"),
    [
        ("min_overlap_ratio", 0.599996, 0.6),
        ("max_avg_iteration_ms", 2000.04, 2000),
        ("max_avg_iteration_ms", 1234567.8, 1234567.7),
    ],
)
def test_a_limit_that_is_narrowly_missed_does_not_look_kept(key: str, value: float, limit: float) -> None:
    values = {"avg_iteration_time_us": value * 1e3, "avg_overlap_ratio": value}
    violation = check_limit(result_of(aggregates=Aggregates(**values)), key, limit)
    assert violation is not None
    found, expected = violation.message.split("; expected ")
    assert found.split(" is ")[1] != expected.split("at least ")[-1].split("at most ")[-1]


def stepped(rank: int, *numbers: int, status: QualityStatus = "complete") -> RankMetrics:
    steps = tuple(Step(number=number, start_ns=number, duration_ns=1) for number in numbers)
    return rank_of(rank, status, steps=steps)


PARTS = {
    "a rank is missing": (
        parse_of(stepped(0, 2, 3), stepped(1, 2, 3), world_size=3, missing_ranks=(2,)),
        "2 of 3 ranks, 2 of 2 steps",
    ),
    "a trace is unreadable": (
        parse_of(stepped(0, 2, 3), stepped(1, status="unreadable")),
        "1 of 2 ranks, 2 of 2 steps",
    ),
    "a trace is cut": (
        parse_of(stepped(0, 2, 3), stepped(1, 2, status="truncated")),
        "2 of 2 ranks, 1 of 2 steps",
    ),
    "windows differ": (parse_of(stepped(0, 2, 3), stepped(1, 3, 4)), "2 of 2 ranks, 1 of 3 steps"),
}


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("parse", "part"), PARTS.values(), ids=PARTS)
def test_a_limit_that_was_checked_on_a_part_of_the_run_says_so(
    key: str, parse: ParseResult, part: str
) -> None:
    limit, message = MESSAGES[key]
    result = result_of(parse, aggregates=MEASURED)
    violation = check_limit(result, key, limit)
    assert violation is not None
    assert violation.message == f"{key}: {message} (measured on {part})"
    assert measured(result, key).note == f" (measured on {part})"


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(
            result_of(parse_of(stepped(0, 2), stepped(1, 2)), status=RunStatus.FAILED, aggregates=MEASURED),
            id="the run failed and all was measured",
        ),
        pytest.param(result_of(parse_of(rank_of(0), missing_ranks=(1,))), id="nothing was measured"),
    ],
)
def test_else_it_says_nothing_of_that(result: BenchmarkResult) -> None:
    violation = check_limit(result, "min_overlap_ratio", 0.9)
    assert violation is not None
    assert "measured on" not in violation.message
    assert measured(result, "min_overlap_ratio").note == ""


def test_only_limits_that_are_set_are_checked() -> None:
    assert check(result_of(), ExpectedResults()) == []
    names = [violation.name for violation in check(result_of(), ExpectedResults(min_overlap_ratio=0.5))]
    assert names == ["min_overlap_ratio"]


def test_evidence_comes_first_then_each_missed_limit() -> None:
    limits = ExpectedResults(max_avg_iteration_ms=20, min_compute_ratio=0.3, min_overlap_ratio=0.6)
    result = result_of(parse_of(rank_of(0), missing_ranks=(1,)), aggregates=MEASURED)
    names = [violation.name for violation in check(result, limits)]
    assert names == ["evidence", "max_avg_iteration_ms", "min_overlap_ratio"]


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_maximum_and_a_minimum_are_each_others_mirror(value: float, limit: float) -> None:
    result = result_of(aggregates=Aggregates(time_variance_ratio=value, avg_overlap_ratio=value))
    too_high = check_limit(result, "max_time_variance_ratio", limit) is not None
    too_low = check_limit(result, "min_overlap_ratio", limit) is not None
    assert (too_high, too_low) == (value > limit, value < limit)


# --- evidence ---------------------------------------------------------------------------------------------


def test_a_whole_run_is_evidence() -> None:
    assert evidence(result_of()) == []
    assert evidence(result_of(parse_of(rank_of(0, "repaired"), rank_of(1)))) == []


@pytest.mark.parametrize("status", ["incomplete", "truncated", "unreadable", "duplicate"])
def test_a_rank_of_which_something_is_missing_is_none(status: QualityStatus) -> None:
    bad = rank_of(1, status, node=1, cause="the reason")
    [message] = evidence(result_of(parse_of(rank_of(0), bad)))
    assert message == f"rank 1 (node rank 1): trace is {status}: the reason"


@pytest.mark.parametrize("accelerator", ["rocm", "cuda"])
def test_ranks_that_never_used_the_declared_accelerator_are_told_together(accelerator: str) -> None:
    ranks = (
        rank_of(0),
        rank_of(1, "no_gpu_events"),
        rank_of(3, "no_gpu_events", node=1, cause="no GPU event"),
    )
    result = result_of(parse_of(*ranks, world_size=4, missing_ranks=(2,)), accelerator=accelerator)
    assert evidence(result)[1:] == [
        f"accelerator is {accelerator}, but there are no GPU events in the trace of rank 1,"
        " rank 3 (node rank 1): did the job run on the CPU? set accelerator: none for a CPU run"
    ]


GPU = ExactNs(
    all=Timeline(
        computation_time=1,
        exposed_comm_time=0,
        exposed_memcpy_time=0,
        busy_time=1,
        idle_time=0,
        total_time=1,
        total_comm_time=0,
        total_memcpy_time=0,
    )
)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            [rank_of(0, exact_ns=GPU), rank_of(1, "no_gpu_events", backend="nccl")],
            "other ranks used a GPU, but there are no GPU events in the trace of rank 1",
        ),
        (
            [rank_of(0, "no_gpu_events", backend="cpu:gloo,cuda:nccl"), rank_of(1, "no_gpu_events", node=1)],
            "the backend is cpu:gloo,cuda:nccl, but there are no GPU events in the trace of rank 0, rank 1"
            " (node rank 1): did the profiler record the GPU? set accelerator: none for a CPU run",
        ),
    ],
)
def test_where_none_is_declared_the_traces_themselves_tell_of_a_gpu(
    ranks: list[RankMetrics], message: str
) -> None:
    result = TraceResult(accelerator=None, parse=parse_of(*ranks), aggregates=Aggregates())
    assert [violation.message for violation in check_evidence(result)] == [message]


def test_traces_without_a_run_are_judged_like_those_of_a_good_one() -> None:
    limits = ExpectedResults(max_avg_iteration_ms=20, min_compute_ratio=0.3)
    parse = parse_of(rank_of(0, "truncated"), missing_ranks=(1,), problems=("p",))
    traces = TraceResult(accelerator="none", parse=parse, aggregates=MEASURED)
    assert check(traces, limits) == check(result_of(parse, aggregates=MEASURED), limits)
    assert len(check(traces, limits)) == 4


def test_a_rank_that_nobody_knows() -> None:
    [message] = evidence(result_of(parse_of(rank_of(0), rank_of(None, "unreadable"))))
    assert message == "an unknown rank (f): trace is unreadable"


@pytest.mark.parametrize(
    ("found", "missing", "text"),
    [
        ((0, 1, 2), (3,), "3 of 4 ranks left a trace; missing: rank 3"),
        ((1,), (0, 2, 3), "1 of 4 ranks left a trace; missing: ranks 0, 2-3"),
        ((), (0, 1, 2, 3), "0 of 4 ranks left a trace; missing: ranks 0-3"),
    ],
)
def test_missing_ranks_are_named(found: tuple[int, ...], missing: tuple[int, ...], text: str) -> None:
    parse = ParseResult(
        parser="test", basis="cpu", world_size=4, missing_ranks=missing, ranks=tuple(map(rank_of, found))
    )
    assert evidence(result_of(parse)) == [text]


def test_no_trace_at_all() -> None:
    parse = ParseResult(parser="test", basis="cpu", world_size=None)
    assert evidence(result_of(parse)) == ["no trace was found"]
    told = parse.model_copy(update={"problems": ("no trace among 2 files in t",)})
    assert evidence(result_of(told)) == ["no trace among 2 files in t"]


def test_problems_of_the_whole_set() -> None:
    assert evidence(result_of(parse_of(problems=("two worlds of 2 where 4 were started",)))) == [
        "two worlds of 2 where 4 were started"
    ]


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.TIMEOUT])
def test_a_run_that_did_not_end_well_is_none_and_its_reason_is_told(status: RunStatus) -> None:
    failure = Failure(reason="rank 3 on b (node rank 1) was ended by signal 9")
    [message] = evidence(result_of(status=status, failure=failure))
    assert message == f"run r1 did not end well ({status.value}): {failure.reason}"


@pytest.mark.parametrize("status", [RunStatus.PENDING, RunStatus.RUNNING])
def test_nor_is_one_that_has_not_ended(status: RunStatus) -> None:
    assert evidence(result_of(status=status)) == ["run r1 has not ended, or cvs was killed while it ran"]


def test_a_job_that_failed_before_its_window_says_so() -> None:
    parse = ParseResult(parser="test", basis="cpu", world_size=2, missing_ranks=(0, 1))
    started = evidence(result_of(parse, status=RunStatus.FAILED, job_started=True))
    never = evidence(result_of(parse, status=RunStatus.FAILED))
    why = " (no complete profiler window exists: the job ended before one was over)"
    assert len(started) == 2
    assert started[1] == never[1] + why


def test_everything_that_is_wrong_is_told() -> None:
    parse = parse_of(rank_of(0, "truncated"), missing_ranks=(1,), problems=("p",))
    assert len(evidence(result_of(parse, status=RunStatus.TIMEOUT))) == 4


# --- verdict ----------------------------------------------------------------------------------------------


def test_verdict() -> None:
    good = result_of(aggregates=MEASURED)
    assert verdict_of(check(good, ExpectedResults(min_overlap_ratio=0.25))) == "good"
    assert verdict_of(check(good, ExpectedResults(min_overlap_ratio=0.26))) == "red"
    assert verdict_of(check(result_of(status=RunStatus.FAILED), ExpectedResults())) == "red"
