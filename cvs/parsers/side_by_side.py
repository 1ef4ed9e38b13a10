"""Reads several traces at the same time, in processes of their own.

Decoding holds Python's lock, so threads gain nothing. A process that dies, of a lack of memory perhaps, costs
the trace that it read. The processes are started with `python -m`, because a user's script that has no
`__main__` guard would be run once more by those of `multiprocessing`.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import IO, BinaryIO, NamedTuple

from cvs.machine import cores_here, memory_here
from cvs.models import Quality
from cvs.parsers.rank_trace import Question, read_trace
from cvs.parsers.trace_document import TraceDocument
from cvs.parsers.trace_sets import open_trace

Progress = Callable[[str], None]
"""Takes a line that says how far it is, now and then."""

_WORTH_A_PROCESS = 20 << 20
"""Bytes on disk below which starting one takes longer than reading."""
_PACKED = 8
"""How much more a packed file may weigh."""
_MEMORY_OF_ONE = 256 << 20
_SECONDS_BETWEEN_LINES = 2.0
_PR_SET_PDEATHSIG = 1


class Place(NamedTuple):
    """A trace to read."""

    root: str
    path: str
    size: int

    @property
    def weight(self) -> int:
        """About how much text it is."""
        return self.size * (_PACKED if self.path.endswith(".gz") else 1)


def read_all(
    places: Sequence[Place],
    question: Question,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[TraceDocument]:
    """Documents of the traces, in their order.

    Args: workers: at most so many processes; None: what cores, memory and the traces ask for.
    """
    told = _Told(places, progress)
    number = _workers(places) if workers is None else min(workers, len(places))
    if number > 1:
        return _in_processes(places, question, number, told)
    return [_read_here(place, question, told) for place in places]


def _read_here(place: Place, question: Question, told: _Told) -> TraceDocument:
    document = read_trace(lambda: _Counted(open_trace(place.root, place.path), told), question)
    told.count(0, done=True)
    return document


def _workers(places: Sequence[Place]) -> int:
    worthy = sum(place.weight >= _WORTH_A_PROCESS for place in places)
    return min(worthy, cores_here(), memory_here() // _MEMORY_OF_ONE)


# --- processes --------------------------------------------------------------------------------------------


def _in_processes(
    places: Sequence[Place], question: Question, number: int, told: _Told
) -> list[TraceDocument]:
    waiting: SimpleQueue[int] = SimpleQueue()
    for index in sorted(range(len(places)), key=lambda index: -places[index].weight):
        waiting.put(index)
    documents: dict[int, TraceDocument] = {}
    readers = [_Reader(question) for _ in range(number)]

    def work(reader: _Reader) -> None:
        while (index := _next(waiting)) is not None:
            documents[index] = reader.read(places[index])
            told.count(places[index].size, done=True)
        reader.end()

    pool = ThreadPoolExecutor(number)
    try:
        for done in [pool.submit(work, reader) for reader in readers]:
            done.result()
    finally:  # also after an interrupt
        while _next(waiting) is not None:
            pass
        for reader in readers:
            reader.end()
        pool.shutdown()
    return [documents[index] for index in range(len(places))]


def _next(waiting: SimpleQueue[int]) -> int | None:
    try:
        return waiting.get_nowait()
    except Empty:
        return None


class _Reader:
    """A process that reads one trace after the other; another takes its place where it dies."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_over = False

    def read(self, place: Place) -> TraceDocument:
        """Document of a trace."""
        process = self._started()
        if process is None:
            return _unread("reading was broken off")
        assert process.stdin
        assert process.stdout
        try:
            pickle.dump(place, process.stdin)
            process.stdin.flush()
            document: TraceDocument = pickle.load(process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            return self._died(process)
        return document

    def _started(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._process is None and not self._is_over:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "cvs.parsers.side_by_side"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                    start_new_session=True,  # a Ctrl-C is for the one that asks
                )
                assert self._process.stdin
                pickle.dump(self._question, self._process.stdin)
            return self._process

    def _died(self, process: subprocess.Popen[bytes]) -> TraceDocument:
        process.kill()
        code = process.wait()
        with self._lock:
            self._process = None
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return _unread(f"the process that read it ended with {how}: out of memory?")

    def end(self) -> None:
        """End the process, whatever it is at, and start no other."""
        with self._lock:
            self._is_over = True
            process, self._process = self._process, None
        if process:
            process.kill()
            process.communicate()


def _unread(cause: str) -> TraceDocument:
    return TraceDocument(quality=Quality(status="unreadable", cause=cause))


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer each place with its document, until nobody asks any more."""
    question: Question = pickle.load(requests)
    while True:
        try:
            place: Place = pickle.load(requests)
        except EOFError:
            return
        document = read_trace(partial(open_trace, place.root, place.path), question)
        pickle.dump(document, answers)
        answers.flush()


# --- progress ---------------------------------------------------------------------------------------------


class _Told:
    """Says how far the reading is, where it takes long."""

    def __init__(self, places: Sequence[Place], progress: Progress | None) -> None:
        self._progress = progress
        self._total = len(places)
        self._size = sum(place.size for place in places)
        self._done = self._read = 0
        self._said = time.monotonic()
        self._lock = threading.Lock()

    def count(self, size: int, *, done: bool = False) -> None:
        """Note bytes that have been read, and whether a trace is done with them."""
        with self._lock:
            self._read += size
            self._done += done
            if self._progress and time.monotonic() - self._said >= _SECONDS_BETWEEN_LINES:
                self._said = time.monotonic()
                megabytes = f"{self._read / 1e6:.0f} of {self._size / 1e6:.0f} MB"
                self._progress(f"reading traces: {self._done} of {self._total}, {megabytes}")


class _Counted:
    """A stream that tells how much of it is read."""

    def __init__(self, stream: BinaryIO, told: _Told) -> None:
        self._stream = stream
        self._told = told

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self, size: int) -> bytes:
        """As any stream."""
        block = self._stream.read(size)
        self._told.count(len(block))
        return block

    def seek(self, at: int) -> int:
        """As any stream; what was read before is read again."""
        self._told.count(-self._stream.tell())
        return self._stream.seek(at)


if __name__ == "__main__":
    import ctypes
    import signal

    # Whatever ends the one that asks ends this, too: on Linux at once, else when it answers.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _serve(sys.stdin.buffer, sys.stdout.buffer)
