"""A rank's trace to its metrics: cvs.parsers beside the least that a script would do with orjson."""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import orjson

from benchmarks.measure import fresh, rounds, seconds
from benchmarks.table import Table
from benchmarks.traces import tiled_trace
from cvs.parsers.torch_trace import TorchTraceParser, trace_set_of

TILES = 8
_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
_CVS, _ORJSON = "cvs", "orjson"


def tables(count: int) -> Iterator[Table]:
    """Speed and peak memory for the plain and the packed file, of so many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        text = tiled_trace(TILES)
        plain, packed = Path(folder, "rank0.json"), Path(folder, "rank0.json.gz")
        plain.write_bytes(text)
        packed.write_bytes(gzip.compress(text, 6))
        for path in (plain, packed):
            yield from _tables_of(path, len(text) / 1e6, count)


def _tables_of(path: Path, megabytes: float, count: int) -> Iterator[Table]:
    contenders = {
        _CVS: partial(fresh, _measured, _parse, path),
        _ORJSON: partial(fresh, _measured, _walk, path),
    }
    results = rounds(contenders, count)
    what = f"parse {path.name}, {megabytes:.0f} MB of text"
    yield Table(
        f"{what}; MB/s",
        {name: [megabytes / taken for taken, _ in rows] for name, rows in results.items()},
        baselines=(_ORJSON,),
        more_is_better=True,
    )
    yield Table(
        f"{what}; peak memory in MB",
        {name: [peak for _, peak in rows] for name, rows in results.items()},
        baselines=(_ORJSON,),
    )


def _measured(work: Callable[[Path], None], path: Path) -> tuple[float, float]:
    """Seconds that it takes, and the most memory that this process has ever had, in MB."""
    taken = seconds(partial(work, path))
    # Not by getrusage, which counts what the parent had, too.
    [peak] = re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return taken, int(peak) * 1024 / 1e6


def _parse(path: Path) -> None:
    [rank] = TorchTraceParser().parse(trace_set_of(path, "rocm")).ranks
    assert rank.quality.status == "complete", rank.quality


def _walk(path: Path) -> None:
    """Read all, and note when the GPU worked on what."""
    text = path.read_bytes()
    events = orjson.loads(gzip.decompress(text) if path.suffix == ".gz" else text)["traceEvents"]
    spans = [
        (event["name"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in _GPU
    ]
    assert spans
