"""The one place where each metric is defined: interval arithmetic and what is made of it, in integer ns.

Every start and end is an integer, so intervals that touch never overlap and the identities hold exactly:
on the `gpu` basis computation + exposed communication + exposed memcpy = busy and busy + idle = total, on the
`cpu` basis compute + exposed communication + other = step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from statistics import fmean, stdev

from cvs.errors import TraceError
from cvs.kernels import Bucket
from cvs.models import (
    Aggregates,
    Counts,
    Coverage,
    CpuSums,
    NodeMetrics,
    ParseResult,
    RankMetrics,
    Ratios,
    Spread,
    Step,
    Timeline,
)

Interval = tuple[int, int]
"""Start and end of one event, ns on one clock, half-open: [start, end)."""

Buckets = Mapping[Bucket, Sequence[Interval]]
"""Intervals of a rank's GPU events by bucket, in any order."""

COUNTED = frozenset({"complete", "repaired", "incomplete", "truncated"})
"""Qualities of ranks that enter values over ranks.

A rank with lost events is counted with what it has, because leaving it out would hide it; the verdict is red
by its quality anyway. A rank whose numbers cannot be told (duplicate, unreadable) or that never used the
declared accelerator is left out.
"""

# --- intervals --------------------------------------------------------------------------------------------


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Sorted, disjoint intervals that cover the same time; those that touch become one.

    An empty interval stays where it touches no other: it is length 0 but moves the first start or last end.

    Raises: TraceError: an interval ends before it starts.
    """
    ordered = sorted(intervals)
    if not ordered:
        return []
    merged: list[Interval] = []
    begin, reach = ordered[0]
    for start, end in ordered:
        if end < start:
            raise TraceError(f"an interval ends before it starts: {start} to {end} ns")
        if start > reach:
            merged.append((begin, reach))
            begin, reach = start, end
        elif end > reach:
            reach = end
    merged.append((begin, reach))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    """Sum of the lengths of disjoint intervals."""
    return sum(end - start for start, end in intervals)


def minus(intervals: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """Part of `intervals` outside `holes`; both are unions."""
    rest: list[Interval] = []
    first = 0
    for start, end in intervals:
        while first < len(holes) and holes[first][1] <= start:
            first += 1
        at, reach = first, start
        while at < len(holes) and holes[at][0] < end:
            hole_start, hole_end = holes[at]
            if hole_start > reach:
                rest.append((reach, hole_start))
            reach = hole_end
            at += 1
        if reach < end:
            rest.append((reach, end))
    return rest


def clip(intervals: Sequence[Interval], window: Interval) -> list[Interval]:
    """Part of `intervals`, a union, inside `window`."""
    start, end = window
    first = bisect_right(intervals, start, key=itemgetter(1))
    last = bisect_left(intervals, end, lo=first, key=itemgetter(0))
    return [(max(a, start), min(b, end)) for a, b in intervals[first:last]]


# --- one rank, gpu basis ----------------------------------------------------------------------------------


def timeline(buckets: Buckets) -> Timeline | None:
    """The eight rows of a rank's GPU timeline; None without GPU events.

    Where kinds overlap, computation counts before communication before memcpy. The total is first start to
    last end over everything in the trace, not step time.

    Source: TraceLens `gpu_timeline` over every GPU event (its option for unlinked kernels).
    """
    compute, comm, memcpy = (
        union(buckets.get(kind, ())) for kind in ("computation", "communication", "memcpy")
    )
    # What a kind adds to the time in which those before it ran is what of it is exposed.
    with_comm = union([*compute, *comm])
    everything = union([*with_comm, *memcpy]) if memcpy else with_comm
    if not everything:
        return None
    busy, total = length(everything), everything[-1][1] - everything[0][0]
    return Timeline(
        computation_time=length(compute),
        exposed_comm_time=length(with_comm) - length(compute),
        exposed_memcpy_time=busy - length(with_comm),
        busy_time=busy,
        idle_time=total - busy,
        total_time=total,
        total_comm_time=length(comm),
        total_memcpy_time=length(memcpy),
    )


def idle_split(buckets: Buckets, threshold_ns: int) -> tuple[int, int]:
    """Idle time of a rank's GPU in gaps shorter than the threshold, and in the others.

    An event of length 0 splits the gap around it in two.

    Source: TraceLens `micro_idle_time` and `macro_idle_time`.
    """
    busy = union(interval for events in buckets.values() for interval in events)
    gaps = [start - end for (_, end), (start, _) in pairwise(busy)]
    micro = sum(gap for gap in gaps if gap < threshold_ns)
    return micro, sum(gaps) - micro


def kernel_time(buckets: Buckets) -> dict[str, int]:
    """Durations by bucket, added up: no union, so what ran side by side counts each."""
    return {kind: length(buckets.get(kind, ())) for kind in ("computation", "communication", "memcpy")}


def counts(buckets: Buckets) -> Counts:
    """Number of GPU events in all and per bucket, events of length 0 included."""
    sizes = {kind: len(events) for kind, events in buckets.items()}
    return Counts(
        all_gpu=sum(sizes.values()),
        computation=sizes.get("computation", 0),
        communication=sizes.get("communication", 0),
        memcpy=sizes.get("memcpy", 0),
    )


def gpu_ratios(rows: Timeline) -> Ratios:
    """Shares of the total time, and of communication that is hidden; None where a share is of nothing."""
    return Ratios(
        compute=_share(rows.computation_time, rows.total_time),
        comm=_share(rows.total_comm_time, rows.total_time),
        exposed_comm=_share(rows.exposed_comm_time, rows.total_time),
        overlap=_share(rows.total_comm_time - rows.exposed_comm_time, rows.total_comm_time),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# --- one rank, cpu basis ----------------------------------------------------------------------------------


def cpu_sums(step: Interval, comm: Sequence[Interval], compute: Sequence[Interval]) -> CpuSums:
    """The six sums of one step.

    Args: step: the `ProfilerStep`; comm, compute: unions of the collectives, of the operators that compute.
    """
    comm, compute = clip(comm, step), clip(compute, step)
    exposed = length(minus(comm, compute))
    span, hidden = step[1] - step[0], length(comm) - exposed
    return CpuSums(
        step=span,
        comm=length(comm),
        compute=length(compute),
        overlap=hidden,
        exposed_comm=exposed,
        other=span - length(compute) - exposed,
    )


def cpu_total(sums: Sequence[CpuSums]) -> CpuSums | None:
    """Sums over several steps, which every ratio is taken of; None without a step."""
    if not sums:
        return None
    return CpuSums(**{name: sum(getattr(one, name) for one in sums) for name in CpuSums.model_fields})


def cpu_ratios(sums: CpuSums) -> Ratios:
    """Shares of the time in steps, and of communication that is hidden; None where a share is of nothing."""
    return Ratios(
        compute=_share(sums.compute, sums.step),
        comm=_share(sums.comm, sums.step),
        exposed_comm=_share(sums.exposed_comm, sums.step),
        overlap=_share(sums.overlap, sums.comm),
    )


# --- steps ------------------------------------------------------------------------------------------------


def iteration_ns(steps: Sequence[Step]) -> float | None:
    """Mean step period of one rank: difference of the starts of steps with consecutive numbers.

    A host that runs ahead of its GPU shortens the duration of a step, not the period. A single step has only
    its duration. None without a step, where no two numbers are consecutive, or where the clock went back.
    """
    if len(steps) == 1:
        return float(steps[0].duration_ns)
    found = periods(steps)
    return sum(found) / len(found) if found and min(found) >= 0 else None


def periods(steps: Sequence[Step]) -> list[int]:
    """Differences of the starts of steps with consecutive numbers, ns."""
    starts = {step.number: step.start_ns for step in steps}
    return [starts[number + 1] - start for number, start in starts.items() if number + 1 in starts]


def spread(values: Sequence[float]) -> Spread | None:
    """How the values lie; None where there are none."""
    return spread_over(values) if values else None


def spread_over(values: Sequence[float]) -> Spread:
    """How at least one value lies."""
    ordered = sorted(values)
    return Spread(
        mean=fmean(ordered),
        median=_quantile(ordered, 0.5),
        p95=_quantile(ordered, 0.95),
        min=ordered[0],
        max=ordered[-1],
    )


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Value below which so large a share of the others lies, in proportion between the two nearest."""
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def common_steps(ranks: Sequence[RankMetrics]) -> frozenset[int]:
    """Numbers of the steps that every rank measured, among the ranks that have steps at all."""
    windows = [_numbers(rank) for rank in ranks if rank.steps]
    return frozenset.intersection(*windows) if windows else frozenset()


def _numbers(rank: RankMetrics) -> frozenset[int]:
    return frozenset(step.number for step in rank.steps)


# --- over ranks -------------------------------------------------------------------------------------------


def counted(ranks: Sequence[RankMetrics]) -> list[RankMetrics]:
    """Ranks that enter values over ranks: of `COUNTED` quality, and where any rank has a trace only such."""
    has_traces = any(rank.source == "trace" for rank in ranks)
    return [
        rank
        for rank in ranks
        if rank.quality.status in COUNTED and (rank.source == "trace" or not has_traces)
    ]


def aggregates(ranks: Sequence[RankMetrics]) -> Aggregates:
    """Values over the ranks that count (`counted`) and have them.

    Where ranks measured different steps, iteration times and the ratios of the `cpu` basis are taken from the
    steps that all of them have. The ratios of the `gpu` basis are of each rank's whole window.
    """
    members = counted(ranks)
    common = common_steps(members)
    iterations = _present(iteration_ns(_among(rank.steps, common)) for rank in members)
    shares = [found for rank in members if (found := _ratios(rank, common))]
    compute, comm, overlap = (
        _present(getattr(found, name) for found in shares) for name in ("compute", "comm", "overlap")
    )
    mean = _mean(iterations)
    std = _std(iterations)
    return Aggregates(
        avg_iteration_time_us=None if mean is None else mean / 1e3,
        std_iteration_time_us=None if std is None else std / 1e3,
        time_variance_ratio=std / mean if mean and std is not None else None,
        avg_compute_ratio=_mean(compute),
        avg_comm_ratio=_mean(comm),
        avg_overlap_ratio=_mean(overlap),
        iteration_time_us=spread([value / 1e3 for value in iterations]),
        compute_ratio=spread(compute),
        comm_ratio=spread(comm),
        overlap_ratio=spread(overlap),
    )


def per_node(ranks: Sequence[RankMetrics]) -> tuple[NodeMetrics, ...]:
    """Values over the ranks of each node, in order of node rank; ranks of an unknown node are left out."""
    nodes: dict[int, list[RankMetrics]] = defaultdict(list)
    for rank in ranks:
        if rank.node is not None:
            nodes[rank.node].append(rank)
    return tuple(
        NodeMetrics(
            node=node,
            ranks=tuple(rank.rank for rank in members if rank.rank is not None),
            aggregates=aggregates(members),
        )
        for node, members in sorted(nodes.items())
    )


def coverage(parse: ParseResult) -> Coverage:
    """Ranks that count (`counted`), of the world; steps that all of them have, of those that any rank has.

    A rank counts once, and only if the world has a place for it; in an unknown world every trace counts. A
    rank that is missing does not, whatever a workbook says of it.
    """
    missing = frozenset(parse.missing_ranks or ())
    measured = [rank for rank in counted(parse.ranks) if rank.rank not in missing]
    places = {rank.rank for rank in measured if rank.rank is not None}
    windows = [_numbers(rank) for rank in measured]
    any_rank = frozenset[int]().union(*map(_numbers, parse.ranks))
    world = parse.world_size
    return Coverage(
        ranks=len(measured) if world is None else sum(place < world for place in places),
        world_size=world,
        steps=len(any_rank.intersection(*windows)) if windows else 0,
        of_steps=len(any_rank),
    )


_AHEAD = 1.25
"""By how much the GPU may be busier than the steps are long, as at their edges."""


def host_ahead(ranks: Sequence[RankMetrics]) -> list[str]:
    """Ranks whose GPU took longer than the host's steps tell, each said in one sentence.

    A host that only launches work runs ahead of the GPU until something makes it wait. In a window of few
    steps the mean step period is then its own, and not that of the GPU.
    """
    warnings = []
    for rank in ranks:
        if rank.exact_ns and rank.iteration_ns and len(rank.steps) > 1:
            period, busy = rank.iteration_ns / 1e6, rank.exact_ns.all.total_time / len(rank.steps) / 1e6
            if busy > _AHEAD * period:
                told = f"the step period is {period:.3f} ms, and the GPU took {busy:.3f} ms per step"
                cure = "a window of more steps tells the GPU's"
                warnings.append(f"rank {rank.rank}: the host ran ahead of the GPU: {told}; {cure}")
    return warnings


def without_communication(ranks: Sequence[RankMetrics], world_size: int | None) -> list[str]:
    """Whether the ranks of a job of several show no communication at all, said in one sentence.

    Args: world_size: of the job; None where nobody knows.
    """
    members = counted(ranks)
    times = _present(rank.communication_time_us for rank in members)
    if not times or any(times) or max(len(members), world_size or 0) < 2:
        return []
    found = "no trace shows communication, though the job is of several ranks"
    if members[0].basis == "cpu":
        return [f"{found}: none of gloo's ranges (gloo:…) lies in their steps"]
    return [f"{found}: if its kernels have names of their own, list them in traces.communication_kernels"]


def _ratios(rank: RankMetrics, common: frozenset[int]) -> Ratios | None:
    if rank.basis == "gpu":
        return rank.ratios
    total = cpu_total([step.cpu_ns for step in _among(rank.steps, common) if step.cpu_ns])
    return cpu_ratios(total) if total else None


def _among(steps: Sequence[Step], numbers: frozenset[int]) -> list[Step]:
    return [step for step in steps if step.number in numbers]


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    """Sample standard deviation (n - 1); 0 where a single value has no spread."""
    if len(values) < 2:
        return 0.0 if values else None
    return stdev(values)
