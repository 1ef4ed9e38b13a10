"""What the `gpu` basis needs of a trace: every GPU event, wherever it ran and whatever its `ph`."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from cvs.collectives import CommKernel, CommMeta, comm_meta
from cvs.kernels import GPU_CATEGORIES, Bucket, bucket_of
from cvs.metrics import Interval
from cvs.models import KernelTime, Quality
from cvs.parsers.gpu_links import LinkedEvent, Links
from cvs.parsers.trace_numbers import MAX_NS, nanoseconds, nanoseconds_of
from cvs.parsers.trace_reading import Reading, TraceDocument, step_number
from cvs.parsers.trace_text import ANNOTATION, Event, text_of

BucketOf = Callable[[str, str], Bucket]

_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
_GPU_ANNOTATION = "gpu_user_annotation"
_INSTANT = "cpu_instant_event"
_MEMORY = b'"[memory]"'
_NO_LINK = -(2**63)


@dataclass(slots=True)
class _Kind:
    """All GPU events of one category and name; numbers in arrays, of which a long trace has many."""

    name: str
    bucket: Bucket
    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    links: array[int] = field(default_factory=lambda: array("q"))
    """Number of the runtime call that launched each."""

    @property
    def intervals(self) -> Iterator[Interval]:
        return zip(self.starts, self.ends, strict=True)

    @property
    def has_doubles(self) -> bool:
        """Whether one launch seems to have made two events at the same moment."""
        events = list(zip(self.starts, self.ends, self.links, strict=True))
        return len(set(events)) < len(events)


class _Args(msgspec.Struct, gc=False):
    """What ties a GPU event and the runtime call that launched it."""

    correlation: int | float | str | None = None
    external_id: int | float | str | None = msgspec.field(default=None, name="External id")


_ARGS = msgspec.json.Decoder(_Args)
_ALL_ARGS = msgspec.json.Decoder(list[_Args | None])
_ANY_ARGS = msgspec.json.Decoder(dict[str, Any])


class _Memory(msgspec.Struct):
    """State of an allocator."""

    allocated: int = msgspec.field(name="Total Allocated")
    device_type: int = msgspec.field(name="Device Type")
    device: int = msgspec.field(name="Device Id")


_MEMORY_ARGS = msgspec.json.Decoder(_Memory)


class GpuReading(Reading):
    """GPU events by name, steps, and which runtime calls launched what."""

    event = Event

    def __init__(self, bucket_of: BucketOf = bucket_of) -> None:
        super().__init__()
        self._bucket_of = bucket_of
        self._kinds: dict[tuple[str | None, bytes], _Kind] = {}
        self._devices: set[bytes] = set()
        self._processes: set[bytes] = set()
        self._launch_links, self._launch_starts = array("q"), array("q")
        self._comm_kernels: list[CommKernel] = []
        self._metas: dict[CommMeta, CommMeta] = {}
        self._memory: dict[str, int] = {}
        self._takers: Mapping[str | None, Callable[[Event], None]] = {
            ANNOTATION: self._take_annotation,
            _GPU_ANNOTATION: lambda event: self._announce_step(text_of(bytes(event.name)) or ""),
            _INSTANT: self._take_instant,
        }
        self.wanted = {*GPU_CATEGORIES, *_RUNTIME, *self._takers}

    def take(self, events: Sequence[Event]) -> None:
        """Keep the numbers of what counts."""
        takers = self._takers
        gpu_events, calls = [], []
        for event in events:
            category = event.cat
            if category in GPU_CATEGORIES:
                gpu_events.append(event)
            elif category in _RUNTIME:
                calls.append(event)
            elif category in takers:
                takers[category](event)
        if gpu_events:
            self._take_gpu_events(gpu_events)
        if calls:
            self._take_runtime_calls(calls)

    # --- events ---

    def _take_gpu_events(self, events: Sequence[Event]) -> None:
        starts = nanoseconds_of([event.ts for event in events])
        durations = nanoseconds_of([event.dur for event in events])
        if starts is None or durations is None or min(durations) < 0 or max(durations) > MAX_NS - max(starts):
            self._take_odd_gpu_events(events)
            return
        kinds = self._kinds
        for event, start, duration, link in zip(events, starts, durations, _links(events), strict=True):
            kind = kinds.get((event.cat, bytes(event.name))) or self._new_kind(event)
            if kind:
                self._keep(kind, start, start + duration, link, event)

    def _take_odd_gpu_events(self, events: Sequence[Event]) -> None:
        for event in events:
            span = self._span(event, "GPU event", vital=True)
            kind = self._kinds.get((event.cat, bytes(event.name))) or self._new_kind(event)
            if span and kind:
                self._keep(kind, span[0], span[1], _link(_args_of(event)), event)

    def _new_kind(self, event: Event) -> _Kind | None:
        category, name = event.cat or "", bytes(event.name)
        text = text_of(name)
        if text is None:
            self.losses.drop("GPU event with a name that is no text", vital=True)
            return None
        kind = self._kinds[category, name] = _Kind(text, self._bucket_of(category, text))
        return kind

    def _keep(self, kind: _Kind, start: int, end: int, link: int, event: Event) -> None:
        kind.starts.append(start)
        kind.ends.append(end)
        kind.links.append(link)
        self._devices.add(bytes(event.pid))
        if kind.bucket == "communication" and event.cat == "kernel":
            self._keep_collective(kind.name, start, end - start, event)

    def _keep_collective(self, name: str, start: int, duration: int, event: Event) -> None:
        try:
            args = _ANY_ARGS.decode(event.args)
            meta = comm_meta(name, args)
        except (msgspec.DecodeError, RecursionError):
            return
        if meta:
            meta, stream = self._metas.setdefault(meta, meta), args.get("stream")
            stream = stream if isinstance(stream, (int, str)) else None
            self._comm_kernels.append(CommKernel(start, duration, stream, meta))

    def _take_runtime_calls(self, calls: Sequence[Event]) -> None:
        self._processes.update({bytes(call.pid) for call in calls} - {b"", b"null"})
        starts: Sequence[int | None] | None = nanoseconds_of([call.ts for call in calls])
        if starts is None:
            starts = [nanoseconds(bytes(call.ts)) for call in calls]
        for start, link in zip(starts, _links(calls), strict=True):
            if link != _NO_LINK and start is not None:
                self._launch_links.append(link)
                self._launch_starts.append(start)

    def _take_annotation(self, event: Event) -> None:
        number = step_number(text_of(bytes(event.name)) or "")
        if number is not None:
            self._take_step(event, number)

    def _take_instant(self, event: Event) -> None:
        if bytes(event.name) != _MEMORY:
            return
        try:
            state = _MEMORY_ARGS.decode(event.args)
        except msgspec.DecodeError:
            return
        device = "cpu" if state.device < 0 else f"gpu{state.device}"
        self._memory[device] = max(state.allocated, self._memory.get(device, 0))

    # --- document ---

    def document(self) -> TraceDocument:
        """Without numbers where the file holds the events of several ranks."""
        if len(self._processes) > 1:
            cause = f"merged: GPU runtime events of {len(self._processes)} processes in one file"
            return TraceDocument(quality=Quality(status="unreadable", cause=cause))
        if self.losses.has_lost_text and any(kind.has_doubles for kind in self._kinds.values()):
            self.losses.drop("piece of the text perhaps twice", vital=True)
        buckets = self._buckets()
        missing = () if buckets else ("no_gpu_events", "no GPU event")
        return TraceDocument(
            quality=self._quality(_bounds(buckets), *missing),
            steps=self.steps,
            first_ns=min((events[0][0] for events in buckets.values()), default=self._first_step),
            buckets=buckets,
            by_step=self._by_step() if self._steps else {},
            kernels=sorted(self._times(), key=lambda kernel: (-kernel.total_ns, kernel.name)),
            comm_kernels=tuple(self._comm_kernels),
            memory_peak_bytes=dict(sorted(self._memory.items())),
            devices=len(self._devices),
        )

    def _buckets(self) -> dict[Bucket, list[Interval]]:
        """Intervals by bucket, in order."""
        buckets: dict[Bucket, list[Interval]] = defaultdict(list)
        for kind in self._kinds.values():
            if kind.starts:
                buckets[kind.bucket] += kind.intervals
        for intervals in buckets.values():
            intervals.sort()
        return dict(buckets)

    def _times(self) -> Iterator[KernelTime]:
        """One entry per name and bucket."""
        kinds: dict[tuple[str, Bucket], list[int]] = defaultdict(list)
        for kind in self._kinds.values():
            kinds[kind.name, kind.bucket] += (end - start for start, end in kind.intervals)
        for (name, bucket), durations in kinds.items():
            if durations:
                yield KernelTime(
                    name=name,
                    bucket=bucket,
                    count=len(durations),
                    total_ns=sum(durations),
                    min_ns=min(durations),
                    max_ns=max(durations),
                )

    def _by_step(self) -> dict[int, dict[Bucket, list[Interval]]]:
        """GPU events by the step in which they were launched, by the call's start; else by their own."""
        launched = self._launches()
        steps = _Steps(self.steps)
        found: dict[int, dict[Bucket, list[Interval]]] = {}
        for kind in self._kinds.values():
            for start, end, link in zip(kind.starts, kind.ends, kind.links, strict=True):
                number = steps.at(launched.get(link, start))
                if number is not None:
                    found.setdefault(number, {}).setdefault(kind.bucket, []).append((start, end))
        return found

    def _launches(self) -> dict[int, int]:
        """When the runtime was called, by the number that call and event share; of several the first."""
        wanted = {link for kind in self._kinds.values() for link in kind.links} - {_NO_LINK}
        starts: dict[int, int] = {}
        for link, start in zip(self._launch_links, self._launch_starts, strict=True):
            if link in wanted and start < starts.get(link, start + 1):
                starts[link] = start
        return starts


class LinkedGpuReading(GpuReading):
    """The same, and which GPU events can be tied to a runtime call: slow, and all those ties are kept."""

    event = LinkedEvent

    def __init__(self, bucket_of: BucketOf = bucket_of) -> None:
        super().__init__(bucket_of)
        self.wanted = None
        self._links = Links()
        self._kept: tuple[Bucket, Interval] | None = None

    def take(self, events: Sequence[LinkedEvent]) -> None:  # type: ignore[override]
        """Keep the numbers of what counts, and the ties of all events."""
        for event in events:
            self._kept = None
            super().take((event,))
            self._links.take(event, self._kept)

    def _keep(self, kind: _Kind, start: int, end: int, link: int, event: Event) -> None:
        super()._keep(kind, start, end, link, event)
        self._kept = kind.bucket, (start, end)

    def document(self) -> TraceDocument:
        """With the linked events apart."""
        whole = super().document()
        linked: dict[Bucket, list[Interval]] = defaultdict(list)
        for bucket, span in self._links.linked():
            linked[bucket].append(span)
        return replace(whole, linked=dict(linked) if whole.buckets else None)


def _links(events: Sequence[Event]) -> list[int]:
    """Numbers that GPU events share with the calls that launched them; `_NO_LINK` where there is none."""
    try:
        every = _ALL_ARGS.decode(b"[%b]" % b",".join([event.args for event in events]))
    except msgspec.DecodeError:
        every = []
    if len(every) < len(events):  # one of them has none, or others than usual
        every = [_args_of(event) for event in events]
    return [_link(args) for args in every]


def _args_of(event: Event) -> _Args | None:
    try:
        return _ARGS.decode(event.args)
    except msgspec.DecodeError:
        return None


def _link(args: _Args | None) -> int:
    if args is None:
        return _NO_LINK
    link = args.external_id if args.correlation is None else args.correlation
    return link if type(link) is int and abs(link) < 2**63 else _NO_LINK


def _bounds(buckets: Mapping[Bucket, Sequence[Interval]]) -> Iterator[Interval]:
    """An interval from the first start to the last end of each bucket."""
    for intervals in buckets.values():
        yield intervals[0][0], max(end for _, end in intervals)


class _Steps:
    """Finds the step that a moment lies in; of steps that overlap, the one that began last."""

    def __init__(self, steps: Mapping[int, Interval]) -> None:
        self._numbers = list(steps)
        self._spans = list(steps.values())
        self._starts = [start for start, _ in self._spans]

    def at(self, moment: int) -> int | None:
        """Number of the step; None between steps."""
        index = bisect_right(self._starts, moment) - 1
        return self._numbers[index] if index >= 0 and moment < self._spans[index][1] else None
