"""Metrics against worked examples, and against a slow reference that looks at every nanosecond."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, pstdev
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs import metrics
from cvs.errors import TraceError
from cvs.kernels import Bucket
from cvs.metrics import Interval
from cvs.models import (
    Coverage,
    CpuSums,
    ExactNs,
    ParseResult,
    QualityStatus,
    RankMetrics,
    Ratios,
    Step,
    Timeline,
)

BUCKETS: tuple[Bucket, ...] = ("computation", "communication", "memcpy")
K, N, Y = BUCKETS

intervals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda pair: (pair[0], sum(pair))), max_size=8
)
buckets = st.fixed_dictionaries({}, optional=dict.fromkeys(BUCKETS, intervals))


def instants(covered: Iterable[Interval]) -> set[int]:
    return {instant for start, end in covered for instant in range(start, end)}


# --- intervals --------------------------------------------------------------------------------------------


@given(intervals)
def test_union_covers_the_same_time_with_gaps_between(events: list[Interval]) -> None:
    merged = metrics.union(events)
    assert instants(merged) == instants(events)
    assert metrics.length(merged) == len(instants(events))
    assert all(before[1] < after[0] for before, after in itertools.pairwise(merged))
    assert metrics.union(merged) == merged
    if events:
        assert (merged[0][0], merged[-1][1]) == (min(s for s, _ in events), max(e for _, e in events))


@given(intervals, intervals)
def test_minus_takes_away_exactly_the_holes(events: list[Interval], holes: list[Interval]) -> None:
    rest = metrics.minus(metrics.union(events), metrics.union(holes))
    assert instants(rest) == instants(events) - instants(holes)
    assert metrics.length(rest) == len(instants(rest))


@given(intervals, st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (pair[0], sum(pair))))
def test_clip_keeps_what_is_inside(events: list[Interval], window: Interval) -> None:
    inside = metrics.clip(metrics.union(events), window)
    assert instants(inside) == instants(events) & instants([window])
    assert metrics.length(inside) == len(instants(inside))


def test_union_refuses_an_interval_that_ends_before_it_starts() -> None:
    with pytest.raises(TraceError, match="ends before it starts: 10 to 5 ns"):
        metrics.union([(0, 20), (10, 5)])


# --- timeline ---------------------------------------------------------------------------------------------


def of_events(events: Sequence[tuple[Bucket, int, int]]) -> dict[Bucket, list[Interval]]:
    """Buckets of (bucket, start, duration) in us."""
    found: dict[Bucket, list[Interval]] = {}
    for bucket, start, duration in events:
        found.setdefault(bucket, []).append((start * 1000, (start + duration) * 1000))
    return found


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([(K, 0, 10), (K, 20, 10)], (20, 0, 0, 20, 10, 30, 0, 0), id="gap"),
        pytest.param([(K, 0, 10), (K, 10, 5)], (15, 0, 0, 15, 0, 15, 0, 0), id="touching"),
        pytest.param(
            [(K, 0, 10), (K, 16, 0), (K, 20, 10)], (20, 0, 0, 20, 10, 30, 0, 0), id="empty in a gap"
        ),
        pytest.param(
            [(K, 0, 0), (K, 5, 10), (K, 30, 0)], (10, 0, 0, 10, 20, 30, 0, 0), id="empty at the ends"
        ),
        pytest.param([(K, 5, 0)], (0, 0, 0, 0, 0, 0, 0, 0), id="only empty"),
        pytest.param(
            [(K, 0, 10), (N, 5, 10), (Y, 8, 14), (N, 30, 5), (K, 40, 5)],
            (15, 10, 7, 32, 13, 45, 15, 14),
            id="all kinds",
        ),
        pytest.param([(K, 0, 10), (K, 0, 30)], (30, 0, 0, 30, 0, 30, 0, 0), id="side by side"),
        pytest.param([(K, 0, 60), (N, 30, 50)], (60, 20, 0, 80, 0, 80, 50, 0), id="partly hidden"),
    ],
)
def test_timeline_of_worked_examples(
    events: list[tuple[Bucket, int, int]], expected: tuple[int, ...]
) -> None:
    rows = metrics.timeline(of_events(events))
    assert rows is not None
    assert tuple(rows.model_dump().values()) == tuple(value * 1000 for value in expected)


def test_no_gpu_event_has_no_rows() -> None:
    assert metrics.timeline({}) is None
    assert metrics.timeline({"computation": []}) is None


@given(buckets)
def test_timeline_is_what_every_nanosecond_tells(events: dict[Bucket, list[Interval]]) -> None:
    compute, comm, memcpy = (instants(events.get(bucket, ())) for bucket in BUCKETS)
    everything = [interval for found in events.values() for interval in found]
    rows = metrics.timeline(events)
    if not everything:
        assert rows is None
        return
    total = max(end for _, end in everything) - min(start for start, _ in everything)
    busy = len(compute | comm | memcpy)
    assert rows == Timeline(
        computation_time=len(compute),
        exposed_comm_time=len(comm - compute),
        exposed_memcpy_time=len(memcpy - compute - comm),
        busy_time=busy,
        idle_time=total - busy,
        total_time=total,
        total_comm_time=len(comm),
        total_memcpy_time=len(memcpy),
    )


@given(buckets, st.integers(-(2**62), 2**62), st.randoms())
def test_timeline_knows_neither_order_nor_clock(
    events: dict[Bucket, list[Interval]], shift: int, random: Any
) -> None:
    moved = {
        bucket: [(start + shift, end + shift) for start, end in random.sample(found, len(found))]
        for bucket, found in events.items()
    }
    rows = metrics.timeline(events)
    assert metrics.timeline(moved) == rows
    if rows:
        assert rows.computation_time + rows.exposed_comm_time + rows.exposed_memcpy_time == rows.busy_time
        assert rows.busy_time + rows.idle_time == rows.total_time


@given(buckets)
def test_ratios_lie_between_0_and_1_or_are_undefined(events: dict[Bucket, list[Interval]]) -> None:
    rows = metrics.timeline(events)
    if rows is None:
        return
    ratios = metrics.gpu_ratios(rows)
    assert all(value is None or 0 <= value <= 1 for value in ratios.model_dump().values())
    assert (ratios.overlap is None) == (rows.total_comm_time == 0)
    assert (ratios.compute is None) == (rows.total_time == 0)


def test_ratios_of_a_worked_example() -> None:
    rows = metrics.timeline(of_events([(K, 0, 60), (N, 30, 50)]))
    assert rows is not None
    assert metrics.gpu_ratios(rows) == Ratios(compute=0.75, comm=0.625, exposed_comm=0.25, overlap=0.6)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ({"computation": [(0, 10), (20, 30)]}, (0, 10)),
        ({"computation": [(0, 10), (10, 15)]}, (0, 0)),
        ({"computation": [(0, 10), (16, 16), (20, 30)]}, (4, 6)),
        ({"computation": [(0, 0)], "memcpy": [(5, 15)], "communication": [(30, 30)]}, (0, 20)),
        ({"computation": [(5, 5)]}, (0, 0)),
    ],
)
def test_idle_gaps_below_the_threshold_are_told_apart(
    events: dict[Bucket, list[Interval]], expected: tuple[int, int]
) -> None:
    assert metrics.idle_split(events, 5) == expected


@given(buckets, st.integers(0, 10))
def test_gaps_of_either_kind_are_all_that_is_idle(
    events: dict[Bucket, list[Interval]], threshold: int
) -> None:
    rows = metrics.timeline(events)
    if rows:
        micro, macro = metrics.idle_split(events, threshold)
        assert micro + macro == rows.idle_time
        assert metrics.idle_split(events, 0) == (0, rows.idle_time)


def test_kernel_time_adds_up_what_runs_side_by_side() -> None:
    events: dict[Bucket, list[Interval]] = {"computation": [(0, 10), (5, 15)], "memcpy": [(0, 3)]}
    assert metrics.kernel_time(events) == {"computation": 20, "communication": 0, "memcpy": 3}


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=30))
def test_spread_is_that_of_a_textbook(values: list[int]) -> None:
    found = metrics.spread(values)
    assert found
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.median == pytest.approx(statistics.median(values))
    assert (found.min, found.max) == (min(values), max(values))
    if len(values) > 1:
        cuts = statistics.quantiles(values, n=20, method="inclusive")
        assert found.p95 == pytest.approx(cuts[-1])


def test_nothing_has_no_spread() -> None:
    assert metrics.spread([]) is None


def test_counts_include_empty_and_duplicate_events() -> None:
    counts = metrics.counts(of_events([(K, 0, 10), (K, 0, 10), (K, 5, 0), (N, 5, 1)]))
    assert counts.model_dump() == {"all_gpu": 4, "computation": 3, "communication": 1, "memcpy": 0}


# --- cpu basis --------------------------------------------------------------------------------------------


@given(intervals, intervals, st.integers(0, 40), st.integers(0, 40))
def test_cpu_sums_are_what_every_nanosecond_tells(
    comm: list[Interval], compute: list[Interval], start: int, duration: int
) -> None:
    step = (start, start + duration)
    sums = metrics.cpu_sums(step, metrics.union(comm), metrics.union(compute))
    inside = instants([step])
    waits, works = instants(comm) & inside, instants(compute) & inside
    assert sums == CpuSums(
        step=duration,
        comm=len(waits),
        compute=len(works),
        overlap=len(waits & works),
        exposed_comm=len(waits - works),
        other=duration - len(waits | works),
    )
    assert sums.compute + sums.exposed_comm + sums.other == sums.step


def test_cpu_total_and_ratios_are_of_the_sums() -> None:
    short = CpuSums(step=100, comm=50, compute=40, overlap=10, exposed_comm=40, other=20)
    long = CpuSums(step=300, comm=0, compute=160, overlap=0, exposed_comm=0, other=140)
    total = metrics.cpu_total([short, long])
    assert total == CpuSums(step=400, comm=50, compute=200, overlap=10, exposed_comm=40, other=160)
    assert metrics.cpu_ratios(total) == Ratios(compute=0.5, comm=0.125, exposed_comm=0.1, overlap=0.2)
    assert metrics.cpu_ratios(long).overlap is None
    assert metrics.cpu_total([]) is None


# --- steps ------------------------------------------------------------------------------------------------


def steps(starts: Mapping[int, int], duration: int = 7, **more: Any) -> tuple[Step, ...]:
    return tuple(
        Step(number=number, start_ns=start, duration_ns=duration, **more) for number, start in starts.items()
    )


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({4: 1000}, 7.0, id="a single one has its duration"),
        pytest.param({4: 1000, 5: 1100, 6: 1300}, 150.0, id="mean period"),
        pytest.param({4: 1000, 5: 1100, 8: 9000, 9: 9050}, 75.0, id="only consecutive numbers"),
        pytest.param({4: 1000, 6: 1300}, None, id="no consecutive numbers"),
        pytest.param({4: 1000, 5: 900}, None, id="the clock went back"),
    ],
)
def test_iteration(starts: dict[int, int], expected: float | None) -> None:
    assert metrics.iteration_ns(steps(starts)) == expected


# --- over ranks -------------------------------------------------------------------------------------------


def rank(number: int, status: str = "complete", basis: str = "gpu", **values: Any) -> RankMetrics:
    return RankMetrics.model_validate(
        {"rank": number, "files": ("f",), "basis": basis, "quality": {"status": status}} | values
    )


def measured(number: int, period: int, overlap: float | None = 0.5, status: str = "complete") -> RankMetrics:
    return rank(
        number,
        status,
        steps=steps({1: 0, 2: period}),
        ratios=Ratios(compute=0.25 * number, comm=0.5, exposed_comm=0.25, overlap=overlap),
    )


def test_aggregates_of_two_ranks() -> None:
    found = metrics.aggregates([measured(0, 10_000), measured(1, 14_000, overlap=None)])
    assert found.avg_iteration_time_us == 12.0
    assert found.std_iteration_time_us == pytest.approx(8**0.5)
    assert found.time_variance_ratio == pytest.approx(8**0.5 / 12)
    assert found.avg_compute_ratio == 0.125
    assert found.avg_comm_ratio == 0.5
    assert found.avg_overlap_ratio == 0.5  # the rank without communication is left out


@pytest.mark.parametrize(("total", "warned"), [(240, False), (260, True)])
def test_a_host_that_runs_ahead_of_its_gpu_is_told(total: int, warned: bool) -> None:
    rows = metrics.timeline({"computation": [(0, total)]})
    assert rows
    ahead = measured(3, 100).model_copy(update={"exact_ns": ExactNs(all=rows), "iteration_ns": 100.0})
    found = metrics.host_ahead([ahead, measured(4, 100)])
    assert len(found) == warned
    assert all(text.startswith("rank 3: the host ran ahead of the GPU: ") for text in found)


def test_a_node_has_the_values_of_its_ranks() -> None:
    ranks = [measured(0, 100), measured(1, 300), measured(2, 500), measured(3, 900)]
    placed = [
        rank.model_copy(update={"node": node}) for rank, node in zip(ranks, [1, 0, 1, None], strict=True)
    ]
    nodes = metrics.per_node(placed)
    assert [(node.node, node.ranks) for node in nodes] == [(0, (1,)), (1, (0, 2))]
    assert nodes[1].aggregates == metrics.aggregates([placed[0], placed[2]])


def test_one_rank_has_no_spread() -> None:
    found = metrics.aggregates([measured(0, 10_000)])
    assert (found.std_iteration_time_us, found.time_variance_ratio) == (0.0, 0.0)


def test_what_no_rank_measured_is_none() -> None:
    assert set(metrics.aggregates([]).model_dump().values()) == {None}
    assert set(metrics.aggregates([rank(0)]).model_dump().values()) == {None}


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        ("complete", True),
        ("repaired", True),
        ("incomplete", True),
        ("truncated", True),
        ("no_gpu_events", False),
        ("unreadable", False),
        ("duplicate", False),
    ],
)
def test_which_qualities_count(status: str, counts: bool) -> None:
    found = metrics.aggregates([measured(0, 10_000), measured(1, 20_000, status=status)])
    assert found.avg_iteration_time_us == (15.0 if counts else 10.0)


def test_different_windows_use_the_common_steps() -> None:
    early = rank(0, steps=steps({1: 0, 2: 10_000, 3: 30_000}))
    late = rank(1, steps=steps({2: 0, 3: 40_000, 4: 41_000}))
    assert metrics.common_steps([early, late, rank(2)]) == {2, 3}
    assert metrics.aggregates([early, late, rank(2)]).avg_iteration_time_us == 30.0


def test_without_common_steps_there_is_no_iteration_time() -> None:
    apart = [rank(0, steps=steps({1: 0, 2: 10_000})), rank(1, steps=steps({3: 0, 4: 10_000}))]
    assert metrics.aggregates(apart).avg_iteration_time_us is None


def test_cpu_ratios_over_ranks_use_the_common_steps() -> None:
    busy = CpuSums(step=100, comm=50, compute=75, overlap=25, exposed_comm=25, other=0)
    lazy = CpuSums(step=100, comm=25, compute=25, overlap=0, exposed_comm=25, other=50)
    first = rank(0, basis="cpu", steps=steps({1: 0}, cpu_ns=lazy) + steps({2: 100}, cpu_ns=busy))
    second = rank(1, basis="cpu", steps=steps({2: 0}, cpu_ns=lazy) + steps({3: 100}, cpu_ns=busy))
    found = metrics.aggregates([first, second])
    assert (found.avg_compute_ratio, found.avg_comm_ratio, found.avg_overlap_ratio) == (0.5, 0.375, 0.25)


def covered(*ranks: RankMetrics, world: int | None) -> Coverage:
    return metrics.coverage(ParseResult(parser="p", basis="gpu", world_size=world, ranks=ranks))


def window(number: int, *numbers: int, status: str = "complete") -> RankMetrics:
    return rank(number, status, steps=steps(dict.fromkeys(numbers, 0)))


def test_coverage_is_of_the_ranks_that_count_and_of_the_steps_that_all_of_them_have() -> None:
    found = covered(
        window(0, 2, 3, 4),
        window(1, 2, 3, 4, 5, status="repaired"),
        window(2, 1, 2, 3, 4),
        window(3, 3, 4, status="truncated"),
        window(4, 3, 6, status="unreadable"),
        world=6,
    )
    assert found == Coverage(ranks=4, world_size=6, steps=2, of_steps=6)
    assert str(found) == "4 of 6 ranks, 2 of 6 steps"
    assert not found.is_whole


@pytest.mark.parametrize(
    ("ranks", "world", "text", "whole"),
    [
        pytest.param([window(0, 2, 3), window(1, 2, 3)], 2, "2 of 2 ranks, 2 of 2 steps", True, id="whole"),
        pytest.param([window(0, 2, 3)], 2, "1 of 2 ranks, 2 of 2 steps", False, id="a rank is missing"),
        pytest.param(
            [window(0, 2), window(1, 3)], 2, "2 of 2 ranks, 0 of 2 steps", False, id="none in common"
        ),
        pytest.param([window(0, 2), window(1)], 2, "2 of 2 ranks, 0 of 1 steps", False, id="a rank has none"),
        pytest.param([rank(0), rank(1)], 2, "2 of 2 ranks, no steps", True, id="profiled without steps"),
        pytest.param([window(0, 2, status="truncated")], 1, "1 of 1 ranks, 1 of 1 steps", True, id="cut"),
        pytest.param(
            [window(0, 2), window(1, status="unreadable")],
            2,
            "1 of 2 ranks, 1 of 1 steps",
            False,
            id="a trace is unreadable",
        ),
        pytest.param(
            [window(0, 2, status="duplicate")], 1, "0 of 1 ranks, 0 of 1 steps", False, id="only a duplicate"
        ),
        pytest.param([], 4, "0 of 4 ranks, no steps", False, id="nothing"),
        pytest.param([window(0, 2)], None, "1 rank of an unknown world, 1 of 1 steps", False, id="unknown"),
        pytest.param([], None, "0 ranks of an unknown world, no steps", False, id="nothing is known"),
        pytest.param([window(0), window(0)], 2, "1 of 2 ranks, no steps", False, id="a rank in two worlds"),
        pytest.param([window(0), window(9)], 2, "1 of 2 ranks, no steps", False, id="outside the world"),
    ],
)
def test_coverage_in_words(ranks: list[RankMetrics], world: int | None, text: str, whole: bool) -> None:
    found = covered(*ranks, world=world)
    assert (str(found), found.is_whole) == (text, whole)


@pytest.mark.parametrize("status", get_args(QualityStatus))
def test_coverage_and_values_are_of_the_same_ranks(status: str) -> None:
    one = measured(0, 10_000, status=status)
    has_values = metrics.aggregates([one]).avg_iteration_time_us is not None
    assert covered(one, world=1).ranks == int(has_values)


def test_a_workbook_counts_only_where_no_rank_has_a_trace() -> None:
    traces = [window(0, 10, 11, 12), window(1, 10, 11, 12)]
    workbook = measured(2, 10_000).model_copy(update={"source": "workbook", "steps": ()})
    found = covered(*traces, workbook, world=3)
    assert (str(found), found.is_whole) == ("2 of 3 ranks, 3 of 3 steps", False)
    assert metrics.aggregates([*traces, workbook]) == metrics.aggregates(traces)
    assert str(covered(workbook, world=3)) == "1 of 3 ranks, no steps"
    assert metrics.aggregates([workbook]).avg_compute_ratio is not None
    job = ParseResult(parser="p", basis="gpu", world_size=3, missing_ranks=(0, 1, 2), ranks=(workbook,))
    assert metrics.coverage(job).ranks == 0


def test_a_rank_that_nobody_knows_is_none_of_the_world() -> None:
    alone = rank(0).model_copy(update={"rank": None})
    assert covered(alone, world=4).ranks == 0
    assert covered(alone, world=None).ranks == 1


# --- several ranks, no communication ----------------------------------------------------------------------


def communicating(number: int, comm: int | None, basis: str = "gpu", status: str = "complete") -> RankMetrics:
    if comm is None:
        return rank(number, status, basis)
    if basis == "gpu":
        rows = dict.fromkeys(Timeline.model_fields, 0) | {"total_comm_time": comm}
        return rank(number, status, exact_ns={"all": rows})
    return rank(number, status, basis, cpu_ns=dict.fromkeys(CpuSums.model_fields, 0) | {"comm": comm})


SILENT = "no trace shows communication, though the job is of several ranks"
GPU = f"{SILENT}: if its kernels have names of their own, list them in traces.communication_kernels"
CPU = f"{SILENT}: none of gloo's ranges (gloo:…) lies in their steps"


@pytest.mark.parametrize(
    ("ranks", "world", "told"),
    [
        ([communicating(0, 0), communicating(1, 0)], None, [GPU]),
        ([communicating(0, 0)], 8, [GPU]),
        ([communicating(0, 0, "cpu"), communicating(1, 0, "cpu")], 2, [CPU]),
        ([communicating(0, 0), communicating(1, 5, status="duplicate")], 2, [GPU]),
        ([communicating(0, 0), communicating(1, None, status="truncated")], 2, [GPU]),
        ([communicating(0, 0), communicating(1, 5)], 2, []),
        ([communicating(0, 0, "cpu"), communicating(1, 1, "cpu")], 2, []),
        ([communicating(0, 0)], 1, []),
        ([communicating(0, 0)], None, []),
        ([communicating(0, None), communicating(1, None)], 2, []),
        ([], 8, []),
    ],
)
def test_several_ranks_without_communication(
    ranks: list[RankMetrics], world: int | None, told: list[str]
) -> None:
    assert metrics.without_communication(ranks, world) == told


@given(st.lists(st.integers(1, 10**12), min_size=2, max_size=6), st.randoms())
def test_spread_is_that_of_a_sample_in_any_order(periods: list[int], random: Any) -> None:
    ranks = [measured(number, period) for number, period in enumerate(periods)]
    found = metrics.aggregates(ranks)
    assert metrics.aggregates(random.sample(ranks, len(ranks))) == found
    std = pstdev(periods) * (len(periods) / (len(periods) - 1)) ** 0.5
    assert found.std_iteration_time_us == pytest.approx(std / 1e3)
    assert found.time_variance_ratio == pytest.approx(std / mean(periods))
