"""One PyTorch-profiler file as numbers: bytes in, intervals and steps out, and how much of it could be read.

Of the decoded events only the numbers of those that count are kept. `ts` and `dur` stay text until their
digits are read, because a double cannot hold the nanoseconds of a stamp since 1970.

Source: PyTorch Kineto's Chrome trace output; `ts` and `dur` are microseconds whatever `displayTimeUnit` says.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, BinaryIO

import msgspec

from cvs.errors import TraceError
from cvs.kernels import GPU_CATEGORIES, Bucket, bucket_of
from cvs.metrics import Interval, length
from cvs.models import Basis, Quality
from cvs.parsers.trace_text import ABSENT, ANNOTATION, Decoders, Event, Label, Losses, read_events

_YEAR_2000 = 946_684_800 * 10**9
"""Stamps below it, in ns, count from the start of a machine, not from 1970."""

_MAX_WORLD = 1_000_000
"""What claims to be a bigger world is no number of ranks."""


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """What counts in one file; ns on the clock of its `ts`, to which `base_ns` is to be added."""

    quality: Quality
    rank: int | None = None
    """Global rank as `distributedInfo` says."""
    world_size: int | None = None
    base_ns: int = 0
    """`baseTimeNanoseconds`; 0 where the trace lacks it and stamps count from 1970 or an unknown start."""
    steps: Mapping[int, Interval] = field(default_factory=dict)
    """Complete `ProfilerStep` ranges of the host by number, in order of start."""
    buckets: Mapping[Bucket, Sequence[Interval]] = field(default_factory=dict)
    """GPU events, on the `gpu` basis."""
    devices: int = 0
    """Number of GPUs that the events in `buckets` ran on."""
    comm: Sequence[Interval] = ()
    """Spans of gloo's collectives, on the `cpu` basis."""
    compute: Sequence[Interval] = ()
    """Operators that compute, on the `cpu` basis; they nest, so these overlap."""

    @property
    def start_ns(self) -> int | None:
        """Wall clock of the first GPU event, else of the first step; None where the trace does not tell."""
        starts = [start for events in self.buckets.values() for start, _ in events]
        starts = starts or [start for start, _ in self.steps.values()]
        start = self.base_ns + min(starts, default=0)
        return start if starts and start >= _YEAR_2000 else None


def read_document(stream: BinaryIO, basis: Basis) -> TraceDocument:
    """Read one `.json` or `.json.gz` file for the metrics of one basis.

    A file that cannot be read is a document with quality `unreadable`, never an exception.
    """
    reading: _Reading = _GpuReading() if basis == "gpu" else _HostReading()
    try:
        header = read_events(stream, reading.decoders, reading.losses, reading.take)
    except TraceError as error:
        return TraceDocument(quality=Quality(status="unreadable", cause=str(error)))
    rank, world_size = _claims(header.distributed_info)
    base_ns = _whole_number(header.base_time_nanoseconds, most=_MAX_NS) or 0
    return reading.document(rank=rank, world_size=world_size, base_ns=base_ns)


# --- numbers ----------------------------------------------------------------------------------------------

_MAX_NS = 2**63 - 1
_PLAIN = re.compile(rb"(-?[0-9]{1,16})(?:\.([0-9]{1,3}))?")
_UNUSUAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EXACT = Context(prec=40, rounding=ROUND_HALF_EVEN)
_ONE_NS = Decimal("0.001")


def nanoseconds(text: bytes) -> int | None:
    """Nanoseconds that a JSON value of microseconds means, exactly what its digits say.

    Digits beyond the nanosecond round to the nearest, half to even. A string that holds a number counts as
    it. None: not usable, that is absent, null, bool, no number, or beyond 64-bit nanoseconds.
    """
    plain = _PLAIN.fullmatch(text)
    if plain is None:
        return _unusual_nanoseconds(text)
    whole, fraction = plain.groups(b"")
    return _in_64_bits(int(whole + fraction.ljust(3, b"0")))


def _unusual_nanoseconds(text: bytes) -> int | None:
    """The same for a number written as a string, with an exponent or with more digits."""
    written = msgspec.json.decode(text, type=str).strip() if text.startswith(b'"') else text.decode()
    if not _UNUSUAL.fullmatch(written):
        return None
    try:
        number = Decimal(written)
    except InvalidOperation:  # an exponent of 19 digits and more
        return None
    if abs(number) > _MAX_NS:  # far too big; what is not fits into the precision of the next line
        return None
    return _in_64_bits(int(number.quantize(_ONE_NS, context=_EXACT).scaleb(3, context=_EXACT)))


def _in_64_bits(number: int) -> int | None:
    return number if abs(number) <= _MAX_NS else None


# --- header -----------------------------------------------------------------------------------------------


class _DistributedInfo(msgspec.Struct):
    rank: msgspec.Raw = ABSENT
    world_size: msgspec.Raw = ABSENT


def _claims(info: msgspec.Raw) -> tuple[int | None, int | None]:
    """Rank and world size as `distributedInfo` says, None where it does not."""
    try:
        claims = msgspec.json.decode(info, type=_DistributedInfo)
    except msgspec.DecodeError:
        return None, None
    return _whole_number(claims.rank, most=_MAX_WORLD), _whole_number(
        claims.world_size, most=_MAX_WORLD
    ) or None


def _whole_number(text: msgspec.Raw, *, most: int) -> int | None:
    number = int(bytes(text)) if re.fullmatch(rb"[0-9]{1,19}", bytes(text)) else None
    return number if number is not None and number <= most else None


# --- events of either basis -------------------------------------------------------------------------------

_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,18})(?![0-9])")


class _Reading(ABC):
    """Numbers of the events that count, taken in portion by portion; nothing else of an event is kept."""

    decoders: Decoders[Any]

    def __init__(self) -> None:
        self.losses = Losses()
        self._steps: dict[int, Interval] = {}

    @abstractmethod
    def take(self, events: Iterable[Any]) -> None:
        """Take in the next events of the file."""

    @abstractmethod
    def document(self, *, rank: int | None, world_size: int | None, base_ns: int) -> TraceDocument:
        """All that was taken in, beside what the header says."""

    def _span(self, event: Event, what: str, *, vital: bool = False) -> Interval | None:
        """Interval of an event; None, noted as a loss, where it has none."""
        start, duration = nanoseconds(bytes(event.ts)), nanoseconds(bytes(event.dur))
        if start is None or duration is None:
            self.losses.drop(f"{what} without usable {'ts' if start is None else 'dur'}", vital=vital)
        elif duration < 0:
            self.losses.drop(f"{what} with negative dur", vital=vital)
        else:
            return start, start + duration
        return None

    def _take_step(self, event: Event, number: int) -> None:
        """Keep a step; of several with one number the longest."""
        span = self._span(event, "step", vital=True)
        if span and (number not in self._steps or length([span]) > length([self._steps[number]])):
            self._steps[number] = span

    @property
    def steps(self) -> dict[int, Interval]:
        """Steps in order of start."""
        return dict(sorted(self._steps.items(), key=lambda step: step[1]))


def _step_number(name: str) -> int | None:
    match = _STEP.match(name)
    return int(match[1]) if match else None


# --- gpu basis --------------------------------------------------------------------------------------------

_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})


class _GpuReading(_Reading):
    """What the `gpu` basis needs: every GPU event by bucket, wherever it ran and whatever its `ph`."""

    decoders = Decoders(Event)

    def __init__(self) -> None:
        super().__init__()
        self._buckets: dict[Bucket, list[Interval]] = defaultdict(list)
        self._devices: set[Label] = set()
        self._processes: set[Label] = set()

    def take(self, events: Iterable[Event]) -> None:
        """Keep GPU events and steps, and which processes call the GPU's runtime."""
        for event in events:
            category = event.cat
            if category in GPU_CATEGORIES:
                self._take_gpu_event(category, event)
            elif category == ANNOTATION:
                number = _step_number(event.name or "")
                if number is not None:
                    self._take_step(event, number)
            elif category in _RUNTIME and event.pid is not None:
                self._processes.add(event.pid)

    def _take_gpu_event(self, category: str, event: Event) -> None:
        span = self._span(event, "GPU event", vital=True)
        if span:
            self._buckets[bucket_of(category, event.name or "")].append(span)
            self._devices.add(event.pid)

    def document(self, *, rank: int | None, world_size: int | None, base_ns: int) -> TraceDocument:
        """Without numbers where the file holds the events of several ranks."""
        if len(self._processes) > 1:
            cause = f"merged: GPU runtime events of {len(self._processes)} processes in one file"
            quality = Quality(status="unreadable", cause=cause)
            return TraceDocument(quality=quality, rank=rank, world_size=world_size)
        missing = () if self._buckets else ("no_gpu_events", "no GPU event")
        return TraceDocument(
            quality=self.losses.quality(*missing),
            rank=rank,
            world_size=world_size,
            base_ns=base_ns,
            steps=self.steps,
            buckets=dict(self._buckets),
            devices=len(self._devices),
        )


# --- cpu basis --------------------------------------------------------------------------------------------

_GLOO = "gloo:"
_GLOO_THREAD = "pt_gloo_runloop"
_COMPUTES = re.compile(r"(?!(?:c10d|_c10d_functional|c10d_functional|autograd|torch::autograd)::)\w+::")
"""Operators with a namespace, but not those that launch a collective or wrap others, waits included."""


class _HostEvent(Event, gc=False):
    """Fields of an event that the `cpu` basis reads."""

    tid: Label = None
    args: msgspec.Raw = ABSENT


class _ThreadName(msgspec.Struct):
    name: str | None = None


@lru_cache(maxsize=1 << 16)
def _computes(name: str) -> bool:
    return _COMPUTES.match(name) is not None


class _HostReading(_Reading):
    """What the `cpu` basis needs: gloo's collectives, and operators that compute outside gloo's threads."""

    decoders = Decoders(_HostEvent)

    def __init__(self) -> None:
        super().__init__()
        self._comm: list[Interval] = []
        self._operators: dict[Label, list[Interval]] = defaultdict(list)
        self._gloo_threads: set[Label] = set()

    def take(self, events: Iterable[_HostEvent]) -> None:
        """Keep steps, collectives, and operators by thread: which threads are gloo's is known at the end."""
        for event in events:
            name = event.name or ""
            if event.cat == "cpu_op" and _computes(name):
                self._take_operator(event)
            elif event.cat == ANNOTATION:
                self._take_annotation(event, name)
            elif name == "thread_name" and _GLOO_THREAD in _thread_name(event.args):
                self._gloo_threads.add(event.tid)

    def _take_operator(self, event: _HostEvent) -> None:
        span = self._span(event, "operator")
        if span:
            self._operators[event.tid].append(span)

    def _take_annotation(self, event: _HostEvent, name: str) -> None:
        number = _step_number(name)
        if number is not None:
            self._take_step(event, number)
        elif name.startswith(_GLOO):
            self._gloo_threads.add(event.tid)
            span = self._span(event, "collective")
            if span:
                self._comm.append(span)

    def document(self, *, rank: int | None, world_size: int | None, base_ns: int) -> TraceDocument:
        """Incomplete where there is no complete step to sum over."""
        threads = self._operators.keys() - self._gloo_threads
        missing = () if self._steps else ("incomplete", "no complete ProfilerStep")
        return TraceDocument(
            quality=self.losses.quality(*missing),
            rank=rank,
            world_size=world_size,
            base_ns=base_ns,
            steps=self.steps,
            comm=self._comm,
            compute=[span for thread in threads for span in self._operators[thread]],
        )


def _thread_name(args: msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(args, type=_ThreadName).name or ""
    except msgspec.DecodeError:
        return ""
