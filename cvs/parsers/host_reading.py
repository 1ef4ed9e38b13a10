"""What the `cpu` basis needs of a trace: gloo's collectives, and operators outside gloo's threads."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from cvs.kernels import GPU_CATEGORIES
from cvs.metrics import Interval
from cvs.parsers.trace_reading import Reading, TraceDocument, step_number
from cvs.parsers.trace_text import ABSENT, ANNOTATION, UNDECODABLE, Event, text_of

_GLOO = "gloo:"
_GLOO_THREAD = "pt_gloo_runloop"
_COMPUTES = re.compile(r"(?!(?:c10d|_c10d_functional|c10d_functional|autograd|torch::autograd)::)\w+::")
"""Operators with a namespace, but not those that launch a collective or wrap others, waits included."""


class HostEvent(Event, gc=False):
    """Fields of an event that the `cpu` basis reads."""

    tid: msgspec.Raw = ABSENT


class _ThreadName(msgspec.Struct):
    name: str | None = None


_THREAD_NAME = msgspec.json.Decoder(_ThreadName)


@lru_cache(maxsize=1 << 16)
def _computes(name: bytes) -> bool:
    return _COMPUTES.match(text_of(name) or "") is not None


class HostReading(Reading):
    """Steps, collectives, and operators by thread: which threads are gloo's is known at the end."""

    event = HostEvent

    def __init__(self) -> None:
        super().__init__()
        self.losses.counting += b'|"' + _GLOO.encode()
        self._comm: list[Interval] = []
        self._operators: dict[bytes, list[Interval]] = defaultdict(list)
        self._gloo_threads: set[bytes] = set()
        self._devices: set[bytes] = set()

    def take(self, events: Sequence[HostEvent]) -> None:
        """Keep the numbers of what counts."""
        for event in events:
            if event.cat == "cpu_op":
                if _computes(bytes(event.name)):
                    self._take_operator(event)
            elif event.cat == ANNOTATION:
                self._take_annotation(event, text_of(bytes(event.name)) or "")
            elif event.cat in GPU_CATEGORIES:
                self._devices.add(bytes(event.pid))
            elif bytes(event.name) == b'"thread_name"' and _GLOO_THREAD in _thread_name(event.args):
                self._gloo_threads.add(bytes(event.tid))

    def _take_operator(self, event: HostEvent) -> None:
        span = self._span(event, "operator")
        if span:
            self._operators[bytes(event.tid)].append(span)

    def _take_annotation(self, event: HostEvent, name: str) -> None:
        number = step_number(name)
        if number is not None:
            self._take_step(event, number)
        elif name.startswith(_GLOO):
            self._gloo_threads.add(bytes(event.tid))
            span = self._span(event, "collective", vital=True)
            if span:
                self._comm.append(span)

    def document(self) -> TraceDocument:
        """Incomplete where there is no complete step to sum over."""
        threads = self._operators.keys() - self._gloo_threads
        missing = () if self._steps else ("incomplete", "no complete ProfilerStep")
        return TraceDocument(
            quality=self._quality((), *missing),
            steps=self.steps,
            first_ns=self._first_step,
            devices=len(self._devices),
            comm=self._comm,
            compute=[span for thread in threads for span in self._operators[thread]],
        )


def _thread_name(args: msgspec.Raw) -> str:
    try:
        return _THREAD_NAME.decode(args).name or ""
    except UNDECODABLE:
        return ""
