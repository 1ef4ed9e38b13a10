"""Thousands of damaged and hostile files: never a crash, never a number that was not there, never silence."""

from __future__ import annotations

import gzip
import io
import time
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import orjson
import pytest
from traces import reference
from traces.faults import FAULTS, PACKED_FAULTS

from cvs import metrics
from cvs.metrics import Interval
from cvs.parsers.trace_document import TraceDocument, read_document

TRACES = Path(__file__).parents[2] / "data" / "traces"
_SMALL = 50_000
_LONGEST_SECONDS = 1.0


def _text(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


@cache
def sound_traces() -> tuple[bytes, ...]:
    paths = [*TRACES.glob("*.json*"), *TRACES.glob("multirank/*/rank*_trace.json*")]
    traces = [_text(path) for path in sorted(paths) if ".golden." not in path.name]
    return tuple(text for text in traces if len(text) < _SMALL)


def read(content: bytes) -> TraceDocument:
    started = time.process_time()
    document = read_document(io.BytesIO(content), "gpu")
    assert time.process_time() - started < _LONGEST_SECONDS
    return document


def counted(document: TraceDocument) -> set[Interval]:
    return {span for spans in document.buckets.values() for span in spans}


@cache
def _events_of(text: bytes) -> set[Interval]:
    return {(start, end) for *_, start, end in reference.gpu_events(reference.document_of(text))}


def rows(document: TraceDocument) -> dict[str, int] | None:
    found = metrics.timeline(document.buckets)
    return found.model_dump() if found else None


@cache
def _reference(text: bytes) -> dict[str, int] | None:
    return reference.timeline(reference.document_of(text))


def check(content: bytes, text: bytes, sound: bytes, fault: str) -> None:
    """What holds of every file, however it came to be; `text` is what it unpacks to, if it does."""
    document = read(content)
    status = document.quality.status
    try:
        strict = orjson.loads(text)
        accepted = isinstance(strict, dict) and isinstance(strict.get("traceEvents"), list)
    except orjson.JSONDecodeError:
        accepted = False
    if accepted and status != "unreadable":
        assert rows(document) == _reference(text), fault
    elif accepted:
        assert "merged" in (document.quality.cause or ""), (fault, document.quality)
    else:
        assert status != "complete", fault
        assert counted(document) <= _events_of(sound), fault


@dataclass(frozen=True)
class _Faulty:
    """A file with one fault."""

    content: bytes
    text: bytes
    """What it unpacks to; nothing where it does not."""
    sound: bytes
    """The text without the fault."""
    what: str


def _faulty(seed: int) -> _Faulty:
    """The file with the fault of this seed, raw or packed."""
    random = Random(seed)
    sound = random.choice(sound_traces())
    kinds = [*FAULTS, *PACKED_FAULTS]
    kind = kinds[seed % len(kinds)]
    what = f"{kind}, seed {seed}"
    if kind in PACKED_FAULTS:
        content = PACKED_FAULTS[kind](gzip.compress(sound, 6, mtime=0), random)
        return _Faulty(content, _strictly_unpacked(content), sound, what)
    text = FAULTS[kind](sound, random)
    packed = random.random() < 0.3
    return _Faulty(gzip.compress(text, 1, mtime=0) if packed else text, text, sound, what)


def _strictly_unpacked(content: bytes) -> bytes:
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error):
        return b""


def _check_seeds(seeds: range) -> None:
    for seed in seeds:
        one = _faulty(seed)
        check(one.content, one.text, one.sound, one.what)


CHOICE, ALL = 1_100, 10_000


@pytest.mark.parametrize("part", range(4))
def test_one_fault(part: int) -> None:
    _check_seeds(range(part, CHOICE, 4))


@pytest.mark.full
@pytest.mark.parametrize("part", range(8))
def test_one_fault_in_ten_thousand_files(part: int) -> None:
    _check_seeds(range(CHOICE + part, ALL, 8))
