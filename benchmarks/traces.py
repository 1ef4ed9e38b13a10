"""Traces as big as those of a real job, made of a small real one."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from benchmarks import TESTS


class Source(NamedTuple):
    """A small real trace, and where its list of events begins and ends."""

    name: str
    begin: bytes
    end: bytes
    steps: int
    microseconds: int
    """A little more than it lasts."""

    def parts(self) -> tuple[bytes, list[bytes], bytes]:
        """What stands before the events, the events, split at all that counts on in time, and the rest."""
        text = gzip.decompress((TESTS / "data" / "traces" / self.name).read_bytes())
        begin, end = text.index(self.begin) + len(self.begin), text.rindex(self.end)
        return text[:begin], _COUNTED.split(text[begin:end]), text[end:]


DENSE = Source("mi300_resnet_rccl.json.gz", b'"traceEvents": [', b"\n  ],\n", steps=3, microseconds=100_000)
"""Rank 0 of 8: 56,451 events in 17 MB, three steps in 87 ms; 217 GPU events per MB."""
SPARSE = Source("b200_eager.json.gz", b'"traceEvents": [', b"\n    ],\n", steps=0, microseconds=200_000)
"""24,656 events in 14 MB; 65 GPU events per MB."""
_COUNTED = re.compile(rb'("ts": |ProfilerStep#)([0-9]+)')


def tiled_trace(tiles: int, rank: int = 0, source: Source = DENSE) -> bytes:
    """The text of a trace whose events are those of the small one, `tiles` times, one after the other.

    A tile is longer than what compressors look back over, so it packs no better for being repeated.
    """
    head, events, tail = _parts(source)
    head = head.replace(b'"rank": 0,', b'"rank": %d,' % rank)
    return head + b",".join(_later(events, tile, source) for tile in range(tiles)) + tail


_parts = cache(Source.parts)


def _later(events: list[bytes], tile: int, source: Source) -> bytes:
    """The events of the tile of this number: later stamps, later steps."""
    pieces = list(events)
    for at in range(1, len(pieces), 3):
        by = source.microseconds if pieces[at].startswith(b'"') else source.steps
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
    head, events, tail = _parts(DENSE)
    gpu = [match[0] for match in _GPU_EVENTS.finditer(b"".join(events))]
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
