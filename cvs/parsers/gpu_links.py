"""Which GPU events can be tied to the runtime call that launched them: TraceLens's default selection.

Source: TraceLens, whose way this is to the letter. It explains a difference between two reports of one trace;
cvs itself counts every GPU event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from cvs.kernels import GPU_CATEGORIES, Bucket
from cvs.metrics import Interval
from cvs.parsers.trace_text import ABSENT, UNDECODABLE, Event, text_of

_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
_FLOW = "ac2g"
_GRAPH_LAUNCHES = frozenset({"cudaGraphLaunch", "hipGraphLaunch"})
_CORRELATION, _EXTERNAL_ID = "correlation", "External id"


class LinkedEvent(Event, gc=False):
    """Fields of an event that ties need."""

    ph: msgspec.Raw = ABSENT
    id: msgspec.Raw = ABSENT
    tid: msgspec.Raw = ABSENT


class _Call(NamedTuple):
    """One call of the GPU's runtime."""

    name: str
    args: dict[str, Any]


class _Place(NamedTuple):
    """Where an event stands, and the GPU event that it is, if it is one."""

    pid: Any
    tid: Any
    args: dict[str, Any]
    is_gpu: bool
    kept: tuple[Bucket, Interval] | None


class Links:
    """Ties between calls and GPU events, event by event in the order of the file."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._ends: dict[Any, tuple[Any, Any, Any]] = {}
        self._starts: set[Any] = set()
        self._calls: list[_Call] = []
        self._places: list[_Place] = []

    def take(self, event: LinkedEvent, kept: tuple[Bucket, Interval] | None) -> None:
        """Note one event; `kept` is what a GPU event counts for."""
        if event.cat == _FLOW:
            self._take_flow(event)
            return
        args = _args(bytes(event.args))
        if args is None:
            return
        if event.cat in _RUNTIME:
            self._take_call(event, args)
        if args:
            is_gpu = event.cat in GPU_CATEGORIES
            place = _Place(_value(bytes(event.pid)), _value(bytes(event.tid)), args, is_gpu, kept)
            self._places.append(place)

    def _take_flow(self, event: LinkedEvent) -> None:
        phase, number = _value(bytes(event.ph)), _value(bytes(event.id))
        if phase == "s":
            self._starts.add(number)
        elif phase == "f":
            self._ends[number] = _value(bytes(event.pid)), _value(bytes(event.tid)), number

    def _take_call(self, event: LinkedEvent, args: dict[str, Any]) -> None:
        name = text_of(bytes(event.name)) or ""
        if self._key is None and "launch" in name.lower():
            self._key = _CORRELATION if _CORRELATION in args else _EXTERNAL_ID
        self._calls.append(_Call(name, args))

    def linked(self) -> Iterator[tuple[Bucket, Interval]]:
        """What the linked GPU events count for, each once."""
        key = self._key or _EXTERNAL_ID
        at: dict[tuple[Any, Any, Any], int] = {}
        by_link: dict[Any, list[int]] = defaultdict(list)
        for index, place in enumerate(self._places):
            link = place.args.get(key)
            if place.is_gpu:
                by_link[link].append(index)
            if place.pid is not None and place.tid is not None and link is not None:
                at[place.pid, place.tid, link] = index
        found: set[int] = set()
        for call in self._calls:
            link = call.args.get(key)
            if call.name in _GRAPH_LAUNCHES:
                found.update(by_link[link])
            elif link in self._starts and link in self._ends:
                found.update(index for index in [at.get(self._ends[link])] if index is not None)
        for index in sorted(found):
            kept = self._places[index].kept
            if kept:
                yield kept


class _Args(msgspec.Struct):
    correlation: msgspec.Raw = ABSENT
    external_id: msgspec.Raw = msgspec.field(default=ABSENT, name=_EXTERNAL_ID)


_ARGS = msgspec.json.Decoder(_Args)


def _args(text: bytes) -> dict[str, Any] | None:
    """The two numbers that may tie, as far as they are there; None where an event has no arguments."""
    if text in (b"", b"null"):
        return None
    try:
        args = _ARGS.decode(text)
    except UNDECODABLE:
        return None
    found = {_CORRELATION: bytes(args.correlation), _EXTERNAL_ID: bytes(args.external_id)}
    return {key: _value(value) for key, value in found.items() if value}


@lru_cache(maxsize=1 << 16)
def _value(text: bytes) -> Any:
    """A JSON value that can be compared; None where it is absent, or a list or an object."""
    if not text or text[:1] in b"[{":
        return None
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE:
        return None
