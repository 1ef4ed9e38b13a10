"""One PyTorch-profiler file as numbers: bytes in, intervals and steps out, and how much of it could be read.

Source: PyTorch Kineto's Chrome trace output; `ts` and `dur` are microseconds whatever `displayTimeUnit` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from cvs.errors import TraceError
from cvs.kernels import bucket_of
from cvs.models import Basis, Quality
from cvs.parsers.gpu_events import BucketOf
from cvs.parsers.gpu_reading import GpuReading, LinkedGpuReading
from cvs.parsers.host_reading import HostReading
from cvs.parsers.trace_bytes import Stream
from cvs.parsers.trace_numbers import MAX_NS, whole_number
from cvs.parsers.trace_reading import Reading, TraceDocument
from cvs.parsers.trace_text import ABSENT
from cvs.parsers.trace_windows import Header, read_events

__all__ = ["TraceDocument", "read_document"]

_MAX_WORLD = 1_000_000
"""What claims to be a bigger world is no number of ranks."""


def read_document(
    stream: Stream, basis: Basis, *, linked: bool = False, bucket_of: BucketOf = bucket_of
) -> TraceDocument:
    """Read one `.json` or `.json.gz` file for the metrics of one basis.

    A file that cannot be read is a document with quality `unreadable`, never an exception.
    """
    try:
        reading, header = read_events(stream, _reading(basis, linked, bucket_of))
    except TraceError as error:
        return TraceDocument(quality=Quality(status="unreadable", cause=str(error)))
    info = _claims(header)
    document = reading.document()
    base_ns = whole_number(bytes(header.base_time_nanoseconds), most=MAX_NS) or 0
    return replace(
        document,
        quality=_on_wall_clock(document.quality, base_ns),
        rank=whole_number(bytes(info.rank), most=_MAX_WORLD),
        world_size=whole_number(bytes(info.world_size), most=_MAX_WORLD) or None,
        backend=_text(info.backend),
        base_ns=base_ns,
    )


def _reading(basis: Basis, linked: bool, bucket_of: BucketOf) -> Callable[[], Reading]:
    if basis == "cpu":
        return HostReading
    return partial(LinkedGpuReading if linked else GpuReading, bucket_of)


def _on_wall_clock(quality: Quality, base_ns: int) -> Quality:
    if quality.window_ns is None:
        return quality
    first, last = quality.window_ns
    return quality.model_copy(update={"window_ns": (base_ns + first, base_ns + last)})


# --- header -----------------------------------------------------------------------------------------------


class _DistributedInfo(msgspec.Struct):
    rank: msgspec.Raw = ABSENT
    world_size: msgspec.Raw = ABSENT
    backend: msgspec.Raw = ABSENT


_INFO = msgspec.json.Decoder(_DistributedInfo)


def _claims(header: Header) -> _DistributedInfo:
    """What `distributedInfo` says, as far as it does."""
    try:
        return _INFO.decode(header.distributed_info)
    except msgspec.DecodeError:
        return _DistributedInfo()


def _text(value: msgspec.Raw) -> str | None:
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        return None
