"""What readings of either basis share: the times of an event, and the steps."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cvs.collectives import CommKernel
from cvs.kernels import Bucket
from cvs.metrics import Interval, length
from cvs.models import KernelTime, Quality, RankMetrics
from cvs.parsers.trace_losses import Losses
from cvs.parsers.trace_numbers import MAX_NS, nanoseconds
from cvs.parsers.trace_text import Event

_YEAR_2000 = 946_684_800 * 10**9
"""Stamps below it, in ns, count from the start of a machine, not from 1970."""


@dataclass(frozen=True, slots=True)
class TraceDocument:
    """What counts in one file; ns on the clock of its `ts`, to which `base_ns` is to be added."""

    quality: Quality
    rank: int | None = None
    """Global rank as `distributedInfo` says."""
    world_size: int | None = None
    backend: str | None = None
    base_ns: int = 0
    """`baseTimeNanoseconds`; 0 where the trace lacks it and stamps count from 1970 or an unknown start."""
    steps: Mapping[int, Interval] = field(default_factory=dict)
    """Complete `ProfilerStep` ranges of the host by number, in order of start."""
    buckets: Mapping[Bucket, Sequence[Interval]] = field(default_factory=dict)
    """GPU events, on the `gpu` basis."""
    linked: Mapping[Bucket, Sequence[Interval]] | None = None
    """Those of them that a runtime call is known to have launched, where that was asked for."""
    by_step: Mapping[int, Mapping[Bucket, Sequence[Interval]]] = field(default_factory=dict)
    """GPU events by the step that launched them."""
    kernels: Sequence[KernelTime] = ()
    """GPU events by name, the longest in all first."""
    comm_kernels: Sequence[CommKernel] = ()
    """Kernels that communicate, with what they say of their collective."""
    unused_patterns: Sequence[str] = ()
    """Patterns that were given for kernels that communicate, and fit the name of none."""
    memory_peak_bytes: Mapping[str, int] = field(default_factory=dict)
    """Most memory that was allocated, by device."""
    devices: int = 0
    """Number of GPUs with events, on either basis."""
    comm: Sequence[Interval] = ()
    """Spans of gloo's collectives, on the `cpu` basis."""
    compute: Sequence[Interval] = ()
    """Operators that compute, on the `cpu` basis; they nest, so these overlap."""

    first_ns: int | None = None
    """Start of the first GPU event, else of the first step."""
    measured: RankMetrics | None = None
    """What a rank's numbers are, where all the intervals have been dropped."""

    @property
    def start_ns(self) -> int | None:
        """Wall clock of the window's start; None where the trace does not tell."""
        if self.first_ns is None or self.base_ns + self.first_ns < _YEAR_2000:
            return None
        return self.base_ns + self.first_ns


# --- readings ---------------------------------------------------------------------------------------------

E = TypeVar("E", bound=Event)

_STEP = re.compile(r"ProfilerStep\s*#\s*([0-9]{1,18})(?![0-9])")


def step_number(name: str) -> int | None:
    """Number of the step that an annotation of this name is; None: it is none."""
    match = _STEP.match(name)
    return int(match[1]) if match else None


class Reading(ABC):
    """Numbers of the events that count, taken in portion by portion; nothing else of an event is kept."""

    event: type[Any]
    """What an event is decoded to."""
    wanted: Collection[str] | None = None
    """Categories of the events that count; None: all may."""

    def __init__(self) -> None:
        self.losses = Losses()
        self._steps: dict[int, Interval] = {}
        self._announced: set[int] = set()

    @abstractmethod
    def take(self, events: Sequence[Any]) -> None:
        """Take in the next events of the file."""

    @abstractmethod
    def document(self) -> TraceDocument:
        """All that was taken in; what the header says is to be added."""

    def _span(self, event: Event, what: str, *, vital: bool = False) -> Interval | None:
        """Interval of an event; None, noted as a loss, where it has none."""
        start, duration = nanoseconds(bytes(event.ts)), nanoseconds(bytes(event.dur))
        if start is not None and duration is not None and 0 <= duration <= MAX_NS - start:
            return start, start + duration
        if start is None:
            flaw = "without usable ts"
        else:
            flaw = "with negative dur" if duration is not None and duration < 0 else "without usable dur"
        self.losses.drop(f"{what} {flaw}", vital=vital)
        return None

    def _announce_step(self, name: str) -> None:
        """Note a step that is named on the track of a GPU."""
        number = step_number(name)
        if number is not None:
            self._announced.add(number)

    def _take_step(self, event: Event, number: int) -> None:
        """Keep a step; of several with one number the longest."""
        self._announced.add(number)
        span = self._span(event, "step", vital=True)
        if span and (number not in self._steps or length([span]) > length([self._steps[number]])):
            self._steps[number] = span

    @property
    def steps(self) -> dict[int, Interval]:
        """Steps in order of start."""
        return dict(sorted(self._steps.items(), key=lambda step: step[1]))

    @property
    def _first_step(self) -> int | None:
        return min((start for start, _ in self._steps.values()), default=None)

    def _quality(self, counted: Iterable[Interval], *missing: Any) -> Quality:
        """Quality of what was read; `missing` is the status and cause of a file that lacks what counts."""
        spans = [*counted, *self._steps.values()]
        window = (min(start for start, _ in spans), max(end for _, end in spans)) if spans else None
        return self.losses.quality(*missing).model_copy(
            update={
                "window_ns": window,
                "complete_steps": len(self._steps),
                "announced_steps": len(self._announced),
            }
        )
