"""A node's console output on disk: whole up to a cap, beyond it the beginning and the end.

The end is kept in two files beside the log, of which the older is dropped whenever the newer is full, so that
neither memory nor disk grows with the output. `close` puts all together.
"""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock
from typing import BinaryIO

CAP_BYTES = 64 * 1024 * 1024
"""Of one node's console output: up to half of it from the beginning, and at least a quarter from the end."""


class NodeLog:
    """Appends to one log; a second attempt at the job goes on where the first ended."""

    def __init__(self, path: Path, *, cap: int = CAP_BYTES) -> None:
        self.path = path
        self._cap = cap
        self._lock = Lock()
        self._head: BinaryIO | None = path.open("ab", buffering=0)
        self._room = cap // 2 - self._head.tell()
        self._older, self._newer = (path.with_name(f"{path.name}.{part}") for part in ("older", "newer"))
        self._tail: BinaryIO | None = None
        self._tail_size = 0
        self._left_out = 0

    def write(self, piece: bytes) -> bool:
        """Take a piece; False once the beginning is full. After `close` nothing is taken any more.

        Raises: OSError: it cannot be written.
        """
        with self._lock:
            if self._head is None:
                return False
            if self._room > 0:
                self._room -= len(piece)
                self._head.write(piece)
                return True
            self._write_tail(piece)
            return False

    def _write_tail(self, piece: bytes) -> None:
        if self._tail is None or self._tail_size >= self._cap // 4:
            self._turn_over()
        assert self._tail is not None
        self._tail.write(piece)
        self._tail_size += len(piece)

    def _turn_over(self) -> None:
        if self._tail is not None:
            self._tail.close()
            if self._older.exists():
                self._left_out += self._older.stat().st_size
            self._newer.replace(self._older)
        self._tail, self._tail_size = self._newer.open("wb", buffering=0), 0

    def close(self) -> None:
        """End the log: beginning, how much is left out, end.

        Raises: OSError: it cannot be written.
        """
        with self._lock:
            if self._head is None:
                return
            head, self._head = self._head, None
            with head:
                if self._tail is not None:
                    self._tail.close()
                    self._append_tail(head)

    def _append_tail(self, head: BinaryIO) -> None:
        if self._left_out:
            head.write(b"\n" + gap(self._left_out))
        for part in (self._older, self._newer):
            if part.exists():
                with part.open("rb") as file:
                    while block := file.read(1 << 20):
                        head.write(block)
                part.unlink()


def gap(size: int) -> bytes:
    """The line that stands in a log where so many bytes are left out."""
    return f"[cvs: {size} bytes of output are left out here]\n".encode()


def end_of(path: Path, at_most: int, *, start: int = 0) -> str:
    """The last bytes of a log as text, from `start` on; empty where there is no such file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - at_most, start))
        return file.read().decode(errors="replace")
