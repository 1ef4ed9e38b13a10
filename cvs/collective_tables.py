"""Tables of the collectives of a set of traces: a row for each, summaries over them, and a brief report.

A kernel runs from the arrival of its rank until the collective is done. So the last to arrive, who waits for
nobody, has the shortest kernel, and that is the latency of the transfer itself. All times are integer ns, or
None where the ranks' clocks do not compare; sizes are bytes and rates bytes per second, or None where a size
is unknown. A collective whose ranks contradict each other is in no table: see `cvs.collective_findings`.

Source: TraceLens, collective report, whose numbers these must agree with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import NamedTuple, TypeVar

from cvs.collective_findings import doubtful_groups, findings
from cvs.collectives import Collective, CommMeta, Matching, Part
from cvs.metrics import spread, spread_over
from cvs.models import CollectiveReport, CollectiveSummary, Spread, Straggler

GIB = 2**30
GB = 10**9

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")

# --- collectives that synchronise -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ImplicitSync:
    """One collective in which no rank can end before every rank has begun, over the ranks that have it."""

    collective: Collective
    latency_ns: int
    """Shortest duration."""
    waits_ns: tuple[int, ...] | None
    """From each rank's start to the last one's, in the order of the parts."""
    end_skew_ns: int | None
    """From the first end to the last."""
    algo_bytes_per_s: float | None
    """Whole message over latency."""
    bus_bytes_per_s: float | None
    """Rate on the links, which compares over kinds and group sizes."""

    @property
    def meta(self) -> CommMeta:
        """What its ranks tell of it."""
        return self.collective.meta

    @property
    def mean_wait_ns(self) -> float | None:
        """Mean over the ranks."""
        return fmean(self.waits_ns) if self.waits_ns else None

    @property
    def first_rank(self) -> int | None:
        """Who arrived first; of several the highest."""
        return max(self._arrivals())[1] if self.waits_ns else None

    @property
    def last_rank(self) -> int | None:
        """Who arrived last; of several the lowest."""
        return min(self._arrivals())[1] if self.waits_ns else None

    def _arrivals(self) -> list[tuple[int, int]]:
        return [
            (wait, part.rank) for wait, part in zip(self.waits_ns or (), self.collective.parts, strict=True)
        ]


def implicit_sync(matching: Matching) -> tuple[ImplicitSync, ...]:
    """The collectives that synchronise their ranks, in simplified mode also those of unknown kind."""
    return tuple(_implicit_sync(one) for one in matching.collectives if matching.synchronises(one))


def _implicit_sync(collective: Collective) -> ImplicitSync:
    parts, together = collective.parts, collective.is_comparable
    last = max(part.start_ns for part in parts)
    ends = [part.end_ns for part in parts]
    latency = min(part.duration_ns for part in parts)
    algo, factor = _rate(collective.meta.full_bytes, latency), collective.meta.bus_factor
    return ImplicitSync(
        collective=collective,
        latency_ns=latency,
        waits_ns=tuple(last - part.start_ns for part in parts) if together else None,
        end_skew_ns=max(ends) - min(ends) if together else None,
        algo_bytes_per_s=algo,
        bus_bytes_per_s=None if algo is None or factor is None else algo * factor,
    )


def _rate(size: int | None, time_ns: int | None) -> float | None:
    """Bytes per second; None where no time passed."""
    return None if size is None or not time_ns else size * 1e9 / time_ns


# --- all_to_allv ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllToAllV:
    """One `all_to_allv`, in which each rank sends to each other as much as it likes."""

    collective: Collective
    sizes: tuple[int, ...] | None
    """Bytes that each rank puts in; None where any is unknown."""
    wall_ns: int | None
    """From the first start to the last end."""
    start_skews_ns: tuple[int, ...] | None
    """From the first start to each rank's."""
    end_skews_ns: tuple[int, ...] | None
    """From each rank's end to the last."""

    @property
    def durations_ns(self) -> tuple[int, ...]:
        """Of each rank's kernel."""
        return tuple(part.duration_ns for part in self.collective.parts)

    @property
    def total_nelems(self) -> int | None:
        """Elements that all ranks put in."""
        nelems = _all_known(part.meta.in_nelems for part in self.collective.parts)
        return None if nelems is None else sum(nelems)

    @property
    def total_bytes(self) -> int | None:
        """Bytes that all ranks put in."""
        return None if self.sizes is None else sum(self.sizes)

    @property
    def bytes_per_s(self) -> float | None:
        """All bytes over the wall time."""
        return _rate(self.total_bytes, self.wall_ns)

    @property
    def rank_bytes_per_s(self) -> tuple[float, ...]:
        """Bytes over duration, of each rank that put anything in and took any time for it."""
        rates = map(_rate, self.sizes or (), self.durations_ns)
        return tuple(rate for rate in rates if rate)

    @property
    def size_imbalance(self) -> float | None:
        """What the rank puts in that puts in most, over the mean."""
        total = self.total_bytes
        return max(self.sizes) * len(self.sizes) / total if self.sizes and total else None


def all_to_allv(matching: Matching) -> tuple[AllToAllV, ...]:
    """Every `all_to_allv`."""
    return tuple(
        _all_to_allv(one) for one in matching.collectives if not one.differs and one.meta.kind == "alltoallv"
    )


def _all_to_allv(collective: Collective) -> AllToAllV:
    parts, together = collective.parts, collective.is_comparable
    first, last = min(part.start_ns for part in parts), max(part.end_ns for part in parts)
    return AllToAllV(
        collective=collective,
        sizes=_all_known(part.meta.in_bytes for part in parts),
        wall_ns=last - first if together else None,
        start_skews_ns=tuple(part.start_ns - first for part in parts) if together else None,
        end_skews_ns=tuple(last - part.end_ns for part in parts) if together else None,
    )


def _all_known(values: Iterable[int | None]) -> tuple[int, ...] | None:
    found = tuple(values)
    known = tuple(value for value in found if value is not None)
    return known if len(known) == len(found) else None


# --- summaries --------------------------------------------------------------------------------------------


def _spread(values: Iterable[float | None]) -> Spread | None:
    """Over the collectives that have the value; None where none has."""
    return spread([value for value in values if value is not None])


def _grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


@dataclass(frozen=True, slots=True)
class SyncSummary:
    """The collectives of one name, element type and size."""

    group: str
    """Of the first of them, as all that `meta` tells beyond name, element type and size."""
    meta: CommMeta
    count: int
    total_latency_ns: int
    latency_ns: Spread
    start_skew_ns: Spread | None
    end_skew_ns: Spread | None
    algo_bytes_per_s: Spread | None
    bus_bytes_per_s: Spread | None


def sync_summary(rows: Sequence[ImplicitSync], *, by_group: bool) -> list[SyncSummary]:
    """One row for each name, element type and number of elements put in; the longest in all first.

    Args: by_group: process groups have rows of their own; TraceLens has them in one.
    """

    def key(row: ImplicitSync) -> Hashable:
        call = (row.meta.collective, row.meta.dtype, row.meta.in_nelems)
        return (*call, row.collective.group, row.meta.ranks) if by_group else call

    summaries = [_sync_summary(those) for those in _grouped((key(row), row) for row in rows).values()]
    return sorted(summaries, key=lambda summary: -summary.total_latency_ns)


def _sync_summary(rows: Sequence[ImplicitSync]) -> SyncSummary:
    return SyncSummary(
        group=rows[0].collective.group,
        meta=rows[0].meta,
        count=len(rows),
        total_latency_ns=sum(row.latency_ns for row in rows),
        latency_ns=spread_over([row.latency_ns for row in rows]),
        start_skew_ns=_spread(row.collective.start_skew_ns for row in rows),
        end_skew_ns=_spread(row.end_skew_ns for row in rows),
        algo_bytes_per_s=_spread(row.algo_bytes_per_s for row in rows),
        bus_bytes_per_s=_spread(row.bus_bytes_per_s for row in rows),
    )


@dataclass(frozen=True, slots=True)
class RankSummary:
    """The communication kernels of one rank that are of the same call on the same stream."""

    rank: int
    group: str
    stream: int | str | None
    meta: CommMeta
    """Of the first of them."""
    count: int
    total_ns: int
    mean_ns: float
    std_ns: float | None
    """Sample standard deviation (n - 1); None with one kernel."""
    min_ns: int
    max_ns: int


def rank_summary(matching: Matching) -> list[RankSummary]:
    """One row for each rank, group, call and stream; the longest in all first.

    A kernel that lacks any part of what calls are told apart by is in none.
    """
    alike = _grouped(
        ((part.rank, one.group, part.meta.call, part.stream), part)
        for one in matching.collectives
        for part in one.parts
    )
    rows = [
        _rank_summary(group, parts)
        for (_, group, call, stream), parts in alike.items()
        if None not in (*call, stream)
    ]
    return sorted(rows, key=lambda row: -row.total_ns)


def _rank_summary(group: str, parts: Sequence[Part]) -> RankSummary:
    durations = [part.duration_ns for part in parts]
    return RankSummary(
        rank=parts[0].rank,
        group=group,
        stream=parts[0].stream,
        meta=parts[0].meta,
        count=len(durations),
        total_ns=sum(durations),
        mean_ns=fmean(durations),
        std_ns=stdev(durations) if len(durations) > 1 else None,
        min_ns=min(durations),
        max_ns=max(durations),
    )


def stragglers(matching: Matching, rows: Sequence[ImplicitSync]) -> list[Straggler]:
    """One row for each rank that has any of the collectives, the straggler first."""
    timed = [row for row in rows if row.waits_ns is not None]
    waits = _grouped(
        (part.rank, wait)
        for row in timed
        for part, wait in zip(row.collective.parts, row.waits_ns or (), strict=True)
    )
    kept_waiting = _grouped((row.last_rank, sum(row.waits_ns or ())) for row in timed)
    last, first = Counter(row.last_rank for row in timed), Counter(row.first_rank for row in timed)
    taking_part = {part.rank for row in rows for part in row.collective.parts}

    def straggler(rank: int, comm_ns: int) -> Straggler:
        waited = waits.get(rank)
        return Straggler(
            rank=rank,
            total_wait_ns=sum(waited) if waited else None,
            mean_wait_ns=fmean(waited) if waited else None,
            arrived_last=last[rank] if waited else None,
            arrived_first=first[rank] if waited else None,
            arrived_last_ratio=last[rank] / len(timed) if waited else None,
            took_part=len(waited) if waited else 0,
            others_waited_ns=sum(kept_waiting.get(rank, ())) if waited else None,
            collectives=len(timed),
            comm_ns=comm_ns,
        )

    found = [
        straggler(rank.rank, sum(kernel.duration_ns for kernel in rank.kernels))
        for rank in matching.ranks
        if rank.rank in taking_part
    ]
    return sorted(found, key=lambda row: (row.total_wait_ns is None, row.total_wait_ns or 0))


@dataclass(frozen=True, slots=True)
class AllToAllVSummary:
    """The `all_to_allv` of one group and element type."""

    group: str
    meta: CommMeta
    """Of the first rank of the first of them."""
    count: int
    total_wall_ns: int | None
    total_bytes: Spread | None
    wall_ns: Spread | None
    bytes_per_s: Spread | None
    size_imbalance: Spread | None
    max_duration_ns: Spread | None
    start_skew_ns: Spread | None
    end_skew_ns: Spread | None


def all_to_allv_summary(rows: Sequence[AllToAllV]) -> list[AllToAllVSummary]:
    """One row for each group and element type, the longest in all first."""
    alike = _grouped(((row.collective.group, row.collective.meta.dtype), row) for row in rows)
    summaries = [_all_to_allv_summary(those) for those in alike.values()]
    return sorted(summaries, key=lambda summary: -(summary.total_wall_ns or 0))


def _all_to_allv_summary(rows: Sequence[AllToAllV]) -> AllToAllVSummary:
    walls = [row.wall_ns for row in rows if row.wall_ns is not None]
    return AllToAllVSummary(
        group=rows[0].collective.group,
        meta=rows[0].collective.meta,
        count=len(rows),
        total_wall_ns=sum(walls) if walls else None,
        total_bytes=_spread(row.total_bytes for row in rows),
        wall_ns=_spread(walls),
        bytes_per_s=_spread(row.bytes_per_s for row in rows),
        size_imbalance=_spread(row.size_imbalance for row in rows),
        max_duration_ns=_spread(max(row.durations_ns) for row in rows),
        start_skew_ns=_spread(row.collective.start_skew_ns for row in rows),
        end_skew_ns=_spread(max(row.end_skews_ns) for row in rows if row.end_skews_ns),
    )


class Sent(NamedTuple):
    """What one rank sent to one place of a group over all `all_to_allv`."""

    group: str
    source: int
    """Rank in the job."""
    place: int
    """Of the receiver in the group."""
    target: int | None
    """Rank of the receiver in the job; None where the trace does not list the group's ranks."""
    total_bytes: int
    collectives: int


def heat_map(matching: Matching) -> list[Sent]:
    """What each rank sent to each other, by group, sender and receiver.

    Kernels that do not tell it, or of whose elements the size is unknown, are left out.
    """
    sent = _grouped(
        ((one.group, part.rank, place, target), size)
        for one in matching.collectives
        for part in one.parts
        if part.meta.kind == "alltoallv"
        for place, target, size in _sends(part.meta)
    )
    return [
        Sent(*pair, total_bytes=sum(sizes), collectives=len(sizes))
        for pair, sizes in sorted(sent.items(), key=lambda item: item[0][:3])
    ]


def _sends(meta: CommMeta) -> Iterator[tuple[int, int | None, int]]:
    """Place and rank of each receiver, and bytes."""
    if meta.sends is None or meta.element_bytes is None:
        return
    known = meta.ranks if isinstance(meta.ranks, tuple) and len(meta.ranks) == len(meta.sends) else None
    for place, nelems in enumerate(meta.sends):
        yield place, known[place] if known else None, nelems * meta.element_bytes


# --- what leaves ------------------------------------------------------------------------------------------


def collective_report(matching: Matching) -> CollectiveReport:
    """The brief report on matched collectives: on those whose ranks are all here.

    Of the others nobody knows who was waited for, so neither a latency nor a skew. Nor is a rank counted as
    waited for in a group of which kernels may be matched that do not belong together.
    """
    rows = [row for row in implicit_sync(matching) if matching.is_whole(row.collective)]
    alike = _grouped(((_kind(row.meta), row.collective.group), row) for row in rows)
    summaries = [_collective_summary(those) for those in alike.values()]
    doubtful = doubtful_groups(matching)
    return CollectiveReport(
        is_simplified=matching.is_simplified,
        collectives=tuple(sorted(summaries, key=lambda summary: -summary.total_latency_ns)),
        stragglers=tuple(stragglers(matching, [row for row in rows if row.collective.group not in doubtful])),
        findings=findings(matching),
    )


def _collective_summary(rows: Sequence[ImplicitSync]) -> CollectiveSummary:
    first = rows[0]
    known = [row for row in rows if row.algo_bytes_per_s is not None]
    algo = _rate(sum(row.meta.full_bytes or 0 for row in known), sum(row.latency_ns for row in known))
    bus = None if algo is None or first.meta.bus_factor is None else algo * first.meta.bus_factor
    return CollectiveSummary(
        collective=_kind(first.meta),
        group=first.collective.group,
        group_ranks=first.meta.ranks,
        group_size=first.meta.group_size,
        count=len(rows),
        total_latency_ns=sum(row.latency_ns for row in rows),
        latency_ns=spread_over([row.latency_ns for row in rows]),
        start_skew_ns=_spread(row.collective.start_skew_ns for row in rows),
        end_skew_ns=_spread(row.end_skew_ns for row in rows),
        algo_gb_per_s=_in(GB, algo),
        algo_gib_per_s=_in(GIB, algo),
        bus_gb_per_s=_in(GB, bus),
        bus_gib_per_s=_in(GIB, bus),
    )


def _kind(meta: CommMeta) -> str | None:
    return meta.kind or meta.collective or meta.kernel


def _in(unit: int, rate: float | None) -> float | None:
    return None if rate is None else rate / unit
