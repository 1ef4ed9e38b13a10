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


def write_long_trace(path: Path, size: int) -> int:
    """Write a trace of about so many bytes, of which 95 % are calls of Python functions: its size."""
    head, _, tail = _parts()
    gpu = _events_of(_GPU_EVENTS)
    call = b"""
  {
    "ph": "X", "cat": "python_function", "name": "torch/nn/modules/module.py(1553): _call_impl",
    "pid": 542, "tid": 542, "ts": %d.250, "dur": 12.500,
    "args": { "Python parent id": %d, "Python id": %d, "Ev Idx": %d }
  }"""
    with path.open("wb") as file:
        file.write(head + b",".join(gpu[:1]))
        number = 0
        while file.tell() < size - len(tail):
            calls = b",".join(
                call % (3743411222894 + at, at, at + 1, at) for at in range(number, number + 95)
            )
            file.write(b",%b,%b" % (calls, gpu[number // 95 % len(gpu)]))
            number += 95
        file.write(tail)
    return path.stat().st_size


_GPU_EVENTS = re.compile(rb'\{\s*"ph": "X", "cat": "kernel".*?\n  \}', re.DOTALL)


def _events_of(pattern: re.Pattern[bytes]) -> list[bytes]:
    text = gzip.decompress(_SOURCE.read_bytes())
    return [match[0] for match in pattern.finditer(text)]
