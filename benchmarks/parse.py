"""Traces to metrics: cvs.parsers beside what a script would do, in processes that nothing has warmed up.

One core each, imports and the cyclic garbage collector left out.
"""

from __future__ import annotations

import gc
import gzip
import re
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import orjson

from benchmarks.measure import fresh, rounds, seconds
from benchmarks.table import Table
from benchmarks.traces import DENSE, SPARSE, tiled_trace, write_long_trace, write_ranks
from cvs.models import ParseOptions
from cvs.parsers import trace_bytes
from cvs.parsers.rank_trace import Question, read_trace
from cvs.parsers.torch_trace import TorchTraceParser, trace_set_of

SOURCES = {"dense": (DENSE, 18), "sparse": (SPARSE, 21)}
"""Traces of some 300 MB, with many GPU events among the others and with few."""
RANKS, RANK_TILES = 16, 4
LONG_GB = 2.5
_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_CVS, _ZLIB, _ORJSON, _BARE = "cvs", "cvs with zlib", "orjson", "whole file, msgspec"
_ONE, _TWO = "1 process", "2 processes"


def tables(count: int) -> Iterator[Table]:
    """Speed and memory: a plain and a packed trace, a very long one, many ranks side by side."""
    with tempfile.TemporaryDirectory() as folder:
        for name, (source, tiles) in SOURCES.items():
            text = tiled_trace(tiles, source=source)
            plain, packed = Path(folder, f"{name}.json"), Path(folder, f"{name}.json.gz")
            plain.write_bytes(text)
            packed.write_bytes(gzip.compress(text, 6))
            for path in (plain, packed):
                yield from _tables_of(path, len(text) / 1e6, count)
                path.unlink()
        yield _long_trace(Path(folder, "long.json"))
        yield _side_by_side(Path(folder, "ranks"), count)


# --- one trace --------------------------------------------------------------------------------------------


def _tables_of(path: Path, megabytes: float, count: int) -> Iterator[Table]:
    works = {_CVS: _parse, _ORJSON: _walk, _BARE: _decode}
    if path.suffix == ".gz":
        works[_ZLIB] = _parse_with_zlib
    contenders = {name: partial(fresh, _measured, work, path) for name, work in works.items()}
    results = rounds(contenders, count)
    what = f"parse {path.name}, {megabytes:.0f} MB of text"
    yield Table(
        f"{what}; MB/s",
        {name: [megabytes / taken for taken, _ in rows] for name, rows in results.items()},
        baselines=(_ORJSON, _BARE),
        more_is_better=True,
        goals={(_CVS, _ORJSON): 4, (_CVS, _BARE): 1.5},
    )
    yield Table(
        f"{what}; peak memory above the interpreter with all that was imported, in MB",
        {name: [peak for _, peak in rows] for name, rows in results.items()},
        baselines=(_ORJSON, _BARE),
    )


def _measured(work: Callable[[Path], None], path: Path) -> tuple[float, float]:
    """Seconds that it takes, and the most memory in MB that it adds to what this process had."""
    gc.disable()
    before = _peak_megabytes()
    taken = seconds(partial(work, path))
    return taken, _peak_megabytes() - before


def _peak_megabytes() -> float:
    # Not by getrusage, which counts what the parent had, too.
    [peak] = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak) * 1024 / 1e6


def _parse(path: Path) -> None:
    document = read_trace(lambda: path.open("rb"), Question("gpu"))
    assert document.quality.status == "complete", document.quality


def _parse_with_zlib(path: Path) -> None:
    setattr(trace_bytes, "_inflating", zlib)  # noqa: B010  (mypy knows the name as a module)
    _parse(path)


def _text_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def _walk(path: Path) -> None:
    """Read all, and note when the GPU worked on what."""
    events = orjson.loads(_text_of(path))["traceEvents"]
    spans = [
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in _GPU
    ]
    assert spans


class _Event(msgspec.Struct, gc=False):
    cat: str | None = None
    name: str | None = None
    ts: int | float | str | None = None
    dur: int | float | str | None = None


class _Document(msgspec.Struct, rename="camel"):
    trace_events: list[_Event]


_DOCUMENT: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Document)


def _decode(path: Path) -> None:
    """Decode the fields that the timeline needs, and do nothing with them."""
    assert _DOCUMENT.decode(_text_of(path)).trace_events


# --- a very long one --------------------------------------------------------------------------------------


def _long_trace(path: Path) -> Table:
    size = write_long_trace(path, int(LONG_GB * 1e9))
    taken, peak = fresh(_measured, _parse, path)
    path.unlink()
    return Table(
        f"parse {size / 1e9:.1f} GB, 95 % of it python_function: s, and MB of memory added (goal 100)",
        {"s": [taken], "MB/s": [size / 1e6 / taken], "MB added": [peak]},
        baselines=(),
    )


# --- many ranks -------------------------------------------------------------------------------------------


def _side_by_side(folder: Path, count: int) -> Table:
    write_ranks(folder, RANKS, RANK_TILES)
    contenders = {
        name: partial(fresh, _seconds_with, folder, workers) for name, workers in ((_ONE, 1), (_TWO, 2))
    }
    size = sum(path.stat().st_size for path in folder.rglob("*.json")) / 1e6 / RANKS
    return Table(
        f"parse {RANKS} ranks of {size:.0f} MB; s",
        rounds(contenders, count),
        baselines=(_ONE,),
        goals={(_TWO, _ONE): 1 / 0.7},
    )


def _seconds_with(folder: Path, workers: int) -> float:
    traces = trace_set_of(folder, "rocm")

    def parse() -> None:
        result = TorchTraceParser(ParseOptions(workers=workers)).parse(traces)
        assert len(result.ranks) == RANKS
        assert all(rank.quality.status == "complete" for rank in result.ranks)

    return seconds(parse)
