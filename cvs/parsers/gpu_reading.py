"""What the `gpu` basis needs of a trace: every GPU event, wherever it ran and whatever its `ph`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import add
from typing import Annotated, Any

import msgspec

from cvs.collectives import CommKernel, CommMeta, comm_meta
from cvs.kernels import GPU_CATEGORIES, Bucket, bucket_of
from cvs.metrics import Interval
from cvs.models import Quality
from cvs.parsers.gpu_events import NO_KIND, NO_LINK, BucketOf, GpuEvents
from cvs.parsers.gpu_links import LinkedEvent, Links
from cvs.parsers.trace_numbers import MAX_NS, nanoseconds, nanoseconds_of
from cvs.parsers.trace_reading import Reading, TraceDocument, step_number
from cvs.parsers.trace_text import ANNOTATION, UNDECODABLE, Event, text_of

_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
_GPU_ANNOTATION = "gpu_user_annotation"
_INSTANT = "cpu_instant_event"
_MEMORY = b'"[memory]"'


class _Args(msgspec.Struct, gc=False):
    """What ties a GPU event and the runtime call that launched it."""

    correlation: int | float | str | None = None
    external_id: int | float | str | None = msgspec.field(default=None, name="External id")


class _Correlated(msgspec.Struct, gc=False):
    """The same as it usually is."""

    correlation: Annotated[int, msgspec.Meta(gt=NO_LINK, le=MAX_NS)]


_ARGS = msgspec.json.Decoder(_Args)
_CORRELATIONS = msgspec.json.Decoder(list[_Correlated])
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
        self._gpu = GpuEvents(bucket_of)
        self._devices: set[bytes] = set()
        self._processes: set[bytes] = set()
        self._comm_kernels: list[CommKernel] = []
        self._metas: dict[CommMeta, CommMeta] = {}
        self._memory: dict[str, int] = {}
        self._takers: Mapping[str, Callable[[Event], None]] = {
            ANNOTATION: self._take_annotation,
            _GPU_ANNOTATION: lambda event: self._announce_step(text_of(bytes(event.name)) or ""),
            _INSTANT: self._take_instant,
        }
        self._counted = {*GPU_CATEGORIES, *_RUNTIME, *self._takers}
        self.wanted = self._counted

    def take(self, events: Sequence[Event]) -> None:
        """Keep the numbers of what counts."""
        counted, takers = self._counted, self._takers
        gpu_events, calls = [], []
        for event in [event for event in events if event.cat in counted]:
            category = event.cat
            if category in GPU_CATEGORIES:
                gpu_events.append(event)
            elif category in _RUNTIME:
                calls.append(event)
            else:
                takers[category or ""](event)
        if gpu_events:
            self._take_gpu_events(gpu_events)
        if calls:
            self._take_runtime_calls(calls)

    # --- events ---

    def _take_gpu_events(self, events: Sequence[Event]) -> None:
        kind_of = self._gpu.kind
        kinds = [kind_of(event.cat, bytes(event.name)) for event in events]
        spans = _spans(events)
        if spans and NO_KIND not in kinds:
            self._keep(events, kinds, *spans)
        else:
            self._take_odd_gpu_events(events, kinds)

    def _take_odd_gpu_events(self, events: Sequence[Event], kinds: Sequence[int]) -> None:
        for event, kind in zip(events, kinds, strict=True):
            span = self._span(event, "GPU event", vital=True)
            if kind == NO_KIND:
                self.losses.drop("GPU event with a name that is no text", vital=True)
            elif span:
                self._keep([event], [kind], [span[0]], [span[1]])

    def _keep(
        self, events: Sequence[Event], kinds: Sequence[int], starts: Sequence[int], ends: Sequence[int]
    ) -> None:
        self._gpu.add(kinds, starts, ends, _links(events))
        self._devices.update({bytes(event.pid) for event in events})
        if not self._gpu.collectives.keys().isdisjoint(kinds):
            for event, kind, start, end in zip(events, kinds, starts, ends, strict=True):
                if kind in self._gpu.collectives:
                    self._keep_collective(self._gpu.collectives[kind], start, end - start, event)

    def _keep_collective(self, name: str, start: int, duration: int, event: Event) -> None:
        try:
            args = _ANY_ARGS.decode(event.args)
            meta = comm_meta(name, args)
        except UNDECODABLE:
            return
        if meta:
            meta, stream = self._metas.setdefault(meta, meta), args.get("stream")
            stream = stream if isinstance(stream, (int, str)) else None
            self._comm_kernels.append(CommKernel(start, duration, stream, meta))

    def _take_runtime_calls(self, calls: Sequence[Event]) -> None:
        self._processes.update({bytes(call.pid) for call in calls} - {b"", b"null"})
        starts, links = nanoseconds_of([call.ts for call in calls]), _links(calls)
        if starts is not None:
            self._gpu.add_calls(starts, links)
            return
        for call, link in zip(calls, links, strict=True):
            start = nanoseconds(bytes(call.ts))
            if start is not None:
                self._gpu.add_calls([start], [link])

    def _take_annotation(self, event: Event) -> None:
        number = step_number(text_of(bytes(event.name)) or "")
        if number is not None:
            self._take_step(event, number)

    def _take_instant(self, event: Event) -> None:
        if bytes(event.name) != _MEMORY:
            return
        try:
            state = _MEMORY_ARGS.decode(event.args)
        except UNDECODABLE:
            return
        device = "cpu" if state.device < 0 else f"gpu{state.device}"
        self._memory[device] = max(state.allocated, self._memory.get(device, 0))

    # --- document ---

    def document(self) -> TraceDocument:
        """Without numbers where the file holds the events of several ranks."""
        if len(self._processes) > 1:
            cause = f"merged: GPU runtime events of {len(self._processes)} processes in one file"
            return TraceDocument(quality=Quality(status="unreadable", cause=cause))
        if self.losses.has_lost_text and self._gpu.has_doubles:
            self.losses.drop("piece of the text perhaps twice", vital=True)
        buckets = self._gpu.buckets()
        missing = () if buckets else ("no_gpu_events", "no GPU event")
        return TraceDocument(
            quality=self._quality(_bounds(buckets), *missing),
            steps=self.steps,
            first_ns=min((events[0][0] for events in buckets.values()), default=self._first_step),
            buckets=buckets,
            by_step=self._gpu.by_step(self.steps) if self._steps else {},
            kernels=sorted(self._gpu.times(), key=lambda kernel: (-kernel.total_ns, kernel.name)),
            comm_kernels=tuple(self._comm_kernels),
            memory_peak_bytes=dict(sorted(self._memory.items())),
            devices=len(self._devices),
        )


class LinkedGpuReading(GpuReading):
    """The same, and which GPU events can be tied to a runtime call: slow, and all those ties are kept."""

    event = LinkedEvent

    def __init__(self, bucket_of: BucketOf = bucket_of) -> None:
        super().__init__(bucket_of)
        self.wanted = None
        self._links = Links()

    def take(self, events: Sequence[LinkedEvent]) -> None:  # type: ignore[override]
        """Keep the numbers of what counts, and the ties of all events."""
        for event in events:
            count = len(self._gpu)
            super().take((event,))
            self._links.take(event, self._gpu.last() if len(self._gpu) > count else None)

    def document(self) -> TraceDocument:
        """With the linked events apart."""
        whole = super().document()
        linked: dict[Bucket, list[Interval]] = defaultdict(list)
        for bucket, span in self._links.linked():
            linked[bucket].append(span)
        return replace(whole, linked=dict(linked) if whole.buckets else None)


def _spans(events: Sequence[Event]) -> tuple[list[int], list[int]] | None:
    """Starts and ends of events, if all are written as usual and can be used."""
    starts = nanoseconds_of([event.ts for event in events])
    durations = nanoseconds_of([event.dur for event in events])
    if not starts or not durations or min(durations) < 0 or max(durations) > MAX_NS - max(starts):
        return None
    return starts, list(map(add, starts, durations))


def _links(events: Sequence[Event]) -> list[int]:
    """Numbers that GPU events share with the calls that launched them; `NO_LINK` where there is none."""
    try:
        every = _CORRELATIONS.decode(b"[%b]" % b",".join([event.args for event in events]))
    except UNDECODABLE:
        every = []
    if len(every) == len(events):
        return [each.correlation for each in every]
    return [_link(_args_of(event)) for event in events]  # one of them has another, or none


def _args_of(event: Event) -> _Args | None:
    try:
        return _ARGS.decode(event.args)
    except UNDECODABLE:
        return None


def _link(args: _Args | None) -> int:
    if args is None:
        return NO_LINK
    link = args.external_id if args.correlation is None else args.correlation
    return link if type(link) is int and abs(link) < 2**63 else NO_LINK


def _bounds(buckets: Mapping[Bucket, Sequence[Interval]]) -> Iterator[Interval]:
    """An interval from the first start to the last end of each bucket."""
    for intervals in buckets.values():
        yield intervals[0][0], max(end for _, end in intervals)
