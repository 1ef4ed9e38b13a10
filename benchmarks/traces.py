"""Traces as big as those of a real job, made of a small real one."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path

from benchmarks import TESTS

_SOURCE = TESTS / "data" / "traces" / "mi300_resnet_rccl.json.gz"
"""Rank 0 of 8: 56,451 events in 17 MB, three steps in 87 ms."""
_STEPS = 3
_TILE_US = 100_000
_BEGIN = b'"traceEvents": ['
_END = b"\n  ],\n"
_COUNTED = re.compile(rb'("ts": |ProfilerStep#)([0-9]+)')


def tiled_trace(tiles: int, rank: int = 0) -> bytes:
    """The text of a trace whose events are those of the small one, `tiles` times, one after the other.

    A tile is longer than what compressors look back over, so it packs no better for being repeated.
    """
    head, events, tail = _parts()
    head = head.replace(b'"rank": 0,', b'"rank": %d,' % rank)
    return head + b",".join(_later(events, tile) for tile in range(tiles)) + tail


@cache
def _parts() -> tuple[bytes, list[bytes], bytes]:
    """What stands before the events, the events, split at all that counts on in time, and the rest."""
    text = gzip.decompress(_SOURCE.read_bytes())
    begin, end = text.index(_BEGIN) + len(_BEGIN), text.rindex(_END)
    return text[:begin], _COUNTED.split(text[begin:end]), text[end:]


def _later(events: list[bytes], tile: int) -> bytes:
    """The events of the tile of this number: later stamps, later steps."""
    pieces = list(events)
    for at in range(1, len(pieces), 3):
        by = _TILE_US if pieces[at].startswith(b'"') else _STEPS
        pieces[at + 1] = b"%d" % (int(pieces[at + 1]) + tile * by)
    return b"".join(pieces)


def write_ranks(folder: Path, ranks: int, tiles: int) -> list[str]:
    """Plain traces of the first ranks below `folder`, as a job leaves them: their paths."""
    paths = [f"artifacts/torch_profiler/rank{rank}/node_1.{rank}.pt.trace.json" for rank in range(ranks)]
    for rank, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True)
        (folder / path).write_bytes(tiled_trace(tiles, rank))
    return paths
