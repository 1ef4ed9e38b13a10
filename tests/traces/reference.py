"""The GPU timeline of a trace, slowly and obviously: what fast code is compared with."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import ROUND_HALF_EVEN, Decimal
from itertools import pairwise
from typing import Any

Event = tuple[str, int, int]
"""Category, start and duration in ns."""

_ROWS = (
    *("computation_time", "exposed_comm_time", "exposed_memcpy_time"),
    *("busy_time", "total_comm_time", "total_memcpy_time"),
)
_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_COPY = re.compile(
    r"^(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)"
    r"|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?$"
)
_FILL = re.compile(r"^__amd_rocclr_fillBuffer(Aligned)?(\.kd)?$")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMM = re.compile("rccl|nccl|cross_device_reduce", re.IGNORECASE)


def document_of(text: bytes) -> dict[str, Any]:
    """The trace, with every digit of its numbers."""
    document = json.loads(text, parse_float=Decimal, parse_int=Decimal)
    assert isinstance(document, dict)
    return document


def gpu_events(document: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    """Category, name, start and end in ns of each GPU event that has usable times."""
    events = []
    for event in document["traceEvents"]:
        if isinstance(event, dict) and event.get("cat") in _GPU:
            name, start, duration = event.get("name"), _ns(event.get("ts")), _ns(event.get("dur"))
            named = name is None or isinstance(name, str)
            if named and start is not None and duration is not None and duration >= 0:
                events.append((event["cat"], name or "", start, start + duration))
    return events


def _ns(value: Any) -> int | None:
    if isinstance(value, str) and re.fullmatch(
        r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*", value
    ):
        value = Decimal(value.strip())
    if not isinstance(value, Decimal) or not value.is_finite() or abs(value) > 2**63:
        return None
    number = int((value * 1000).quantize(Decimal(1), ROUND_HALF_EVEN))
    return number if abs(number) < 2**63 else None


def bucket(category: str, name: str) -> str:
    """Which of the three kinds an event is, by the rules in their order."""
    if category == "gpu_memcpy" or (category == "kernel" and _COPY.search(name)):
        return "memcpy"
    if category == "kernel" and _FILL.search(name):
        return "computation"
    return "communication" if _COMM.search(name) else "computation"


def timeline(document: dict[str, Any]) -> dict[str, int] | None:
    """The eight rows: the time line is cut at every start and end, and each piece is looked at by itself."""
    events = gpu_events(document)
    if not events:
        return None
    edges = sorted({edge for *_, start, end in events for edge in (start, end)})
    rows: Counter[str] = Counter()
    for begin, end in pairwise(edges):
        at_work = {bucket(cat, name) for cat, name, start, stop in events if start <= begin and end <= stop}
        piece = end - begin
        rows["busy_time"] += piece if at_work else 0
        rows["computation_time"] += piece if "computation" in at_work else 0
        rows["total_comm_time"] += piece if "communication" in at_work else 0
        rows["total_memcpy_time"] += piece if "memcpy" in at_work else 0
        rows["exposed_comm_time"] += (
            piece if "communication" in at_work and "computation" not in at_work else 0
        )
        rows["exposed_memcpy_time"] += piece if at_work == {"memcpy"} else 0
    total = edges[-1] - edges[0]
    return {
        **dict.fromkeys(_ROWS, 0),
        **rows,
        "idle_time": total - rows["busy_time"],
        "total_time": total,
    }
