"""What JSON without profiler events is, as far as its first keys tell: words for what was left out."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace

from cvs.parsers.trace_bytes import Stream
from cvs.parsers.trace_reading import TraceDocument
from cvs.parsers.trace_text import NO_TRACE_EVENTS

NO_TRACE = (NO_TRACE_EVENTS, "the top level is a list", "not a profiler trace")
"""How the cause begins where a file that cannot be read is JSON, and no trace."""

_HEAD = 1 << 16
"""Bytes that are looked at; such files may be as big as traces."""
_KEY = re.compile(rb'"(\w+)"\s*:')
_GZIP = b"\x1f\x8b"

_KINDS: tuple[tuple[str, frozenset[bytes]], ...] = (
    ("a flight recorder dump", frozenset({b"collective_seq_id", b"profiling_name"})),
    ("a flight recorder dump", frozenset({b"pg_config", b"pg_status"})),
    ("a memory snapshot", frozenset({b"segments", b"segment_type"})),
    ("a memory snapshot", frozenset({b"segments", b"device_traces"})),
    ("an execution trace", frozenset({b"nodes", b"ctrl_deps"})),
    ("metrics", frozenset({b"step", b"loss"})),
    ("a file of cvs itself", frozenset({b"schema_version", b"run_id"})),
)
"""What a file is, and keys that together tell it, at whatever depth."""


def is_other_json(document: TraceDocument) -> bool:
    """Whether a file is JSON of another kind, so that no trace was lost here."""
    return document.quality.status == "unreadable" and (document.quality.cause or "").startswith(NO_TRACE)


def named(document: TraceDocument, stream: Stream) -> TraceDocument:
    """What was read of the stream; of other JSON the cause also says what it is, where that is known."""
    kind = _kind_of(stream) if is_other_json(document) else None
    if kind is None:
        return document
    cause = f"{document.quality.cause} ({kind})"
    return replace(document, quality=document.quality.model_copy(update={"cause": cause}))


def _kind_of(stream: Stream) -> str | None:
    stream.seek(0)
    head = stream.read(_HEAD)
    if head.startswith(_GZIP):
        head = _unpacked(head)
    keys = frozenset(_KEY.findall(head))
    return next((kind for kind, telling in _KINDS if telling <= keys), None)


def _unpacked(head: bytes) -> bytes:
    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD)
    except zlib.error:
        return b""
