"""The GPU events of one trace, column by column: of a long trace there are many."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from cvs.kernels import Bucket
from cvs.metrics import Interval
from cvs.models import KernelTime
from cvs.parsers.trace_text import text_of

BucketOf = Callable[[str, str], Bucket]

NO_LINK = -(2**63)
"""Stands for a number that is not there."""


class _Kind(NamedTuple):
    """What all GPU events of one category and name are."""

    name: str
    bucket: Bucket


NO_KIND = -1
"""Stands for a kind whose name is no text."""


class GpuEvents:
    """Start, end, kind and link of each, in the order of the file, and the calls that launched them.

    A link is the number that an event shares with the runtime call that launched it.
    """

    def __init__(self, bucket_of: BucketOf) -> None:
        self._bucket_of = bucket_of
        self._kinds: list[_Kind] = []
        self._indexes: dict[tuple[str | None, bytes], int] = {}
        self._of, self._starts, self._ends, self._links = array("q"), array("q"), array("q"), array("q")
        self._call_starts, self._call_links = array("q"), array("q")
        self.collectives: dict[int, str] = {}
        """Names of the kinds of kernels that communicate."""

    def __len__(self) -> int:
        return len(self._starts)

    # --- taking in ---

    def kind(self, category: str | None, name: bytes) -> int:
        """Index of the kind of an event, whose name is still JSON, or `NO_KIND`."""
        key = category, name
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = self._new_kind(category or "", text_of(name))
        return index

    def _new_kind(self, category: str, name: str | None) -> int:
        if name is None:
            return NO_KIND
        index, kind = len(self._kinds), _Kind(name, self._bucket_of(category, name))
        self._kinds.append(kind)
        if category == "kernel" and kind.bucket == "communication":
            self.collectives[index] = name
        return index

    def add(
        self, kinds: Iterable[int], starts: Iterable[int], ends: Iterable[int], links: Iterable[int]
    ) -> None:
        """Keep some more."""
        self._of.extend(kinds)
        self._starts.extend(starts)
        self._ends.extend(ends)
        self._links.extend(links)

    def add_calls(self, starts: Iterable[int], links: Iterable[int]) -> None:
        """Keep when some calls of the runtime were made."""
        self._call_starts.extend(starts)
        self._call_links.extend(links)

    # --- giving out ---

    @property
    def has_doubles(self) -> bool:
        """Whether one launch seems to have made two events at the same moment."""
        return len(set(zip(self._of, self._starts, self._ends, self._links, strict=True))) < len(self)

    def last(self) -> tuple[Bucket, Interval]:
        """Bucket and interval of the one that was added last."""
        return self._kinds[self._of[-1]].bucket, (self._starts[-1], self._ends[-1])

    def buckets(self) -> dict[Bucket, list[Interval]]:
        """Intervals by bucket, in order."""
        found = _grouped(self._buckets, zip(self._starts, self._ends, strict=True))
        for intervals in found.values():
            intervals.sort()
        return found

    def times(self) -> Iterator[KernelTime]:
        """One entry per name and bucket."""
        keys = [(kind.name, kind.bucket) for kind in self._kinds]
        durations = (end - start for start, end in zip(self._starts, self._ends, strict=True))
        for (name, bucket), each in _grouped((keys[kind] for kind in self._of), durations).items():
            yield KernelTime(
                name=name,
                bucket=bucket,
                count=len(each),
                total_ns=sum(each),
                min_ns=min(each),
                max_ns=max(each),
            )

    def by_step(self, steps: Mapping[int, Interval]) -> dict[int, dict[Bucket, list[Interval]]]:
        """Intervals by the step in which they were launched, by the call's start; else by their own.

        Args: steps: in order of start.
        """
        numbers = _steps_at(steps, map(self._launches().get, self._links, self._starts))
        spans = zip(self._starts, self._ends, strict=True)
        by_step: dict[int, dict[Bucket, list[Interval]]] = {}
        for (number, bucket), intervals in _grouped(zip(numbers, self._buckets, strict=True), spans).items():
            if number is not None:
                by_step.setdefault(number, {})[bucket] = intervals
        return by_step

    def _launches(self) -> dict[int, int]:
        """When the runtime was called, by link; of several calls the first."""
        wanted = set(self._links) - {NO_LINK}
        starts: dict[int, int] = {}
        for link, start in zip(self._call_links, self._call_starts, strict=True):
            if link in wanted and start < starts.get(link, start + 1):
                starts[link] = start
        return starts

    @property
    def _buckets(self) -> Iterator[Bucket]:
        """Bucket of each."""
        return map([kind.bucket for kind in self._kinds].__getitem__, self._of)


K = TypeVar("K")
V = TypeVar("V")


def _grouped(keys: Iterable[K], values: Iterable[V]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = defaultdict(list)
    for key, value in zip(keys, values, strict=True):
        groups[key].append(value)
    return dict(groups)


def _steps_at(steps: Mapping[int, Interval], moments: Iterable[int]) -> Iterator[int | None]:
    """Number of the step that each moment lies in, of several the one that began last; None: in none."""
    numbers, ends = [None, *steps], [0, *(end for _, end in steps.values())]
    starts = [start for start, _ in steps.values()]
    for moment in moments:
        index = bisect_right(starts, moment)
        yield numbers[index] if moment < ends[index] else None
