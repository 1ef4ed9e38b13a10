"""Output of a job as it comes, handed on line by line."""

from __future__ import annotations

import time

from cvs.transport.base import Sink

_LONGEST_PIECE = 64 * 1024
_LONGEST_WAIT = 1.0
"""Seconds for which the end of a line is waited for while more of it comes, as from a progress bar."""


class Lines:
    """Hands on whole lines, or pieces of those that are too long or take too long."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._rest = b""
        self._since = 0.0

    def take(self, piece: bytes) -> None:
        """Take what came, of any size."""
        now = time.monotonic()
        if not self._rest:
            self._since = now
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            self._hand_on(line + b"\n")
            self._since = now
        if len(self._rest) > _LONGEST_PIECE or now - self._since > _LONGEST_WAIT:
            self.close()

    def close(self) -> None:
        """Hand on the rest."""
        if self._rest:
            self._hand_on(self._rest)
            self._rest = b""

    def _hand_on(self, line: bytes) -> None:
        for start in range(0, len(line), _LONGEST_PIECE):
            self._sink(line[start : start + _LONGEST_PIECE])
