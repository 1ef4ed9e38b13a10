"""Ctrl-C, SIGTERM and a closed terminal during a run: the first breaks it off, none the clearing up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_from_here() -> None:
    """Let no further signal disturb a process that has been broken off and has only to tell of it and end."""
    if threading.current_thread() is threading.main_thread():
        for number in _NUMBERS:
            signal.signal(number, signal.SIG_IGN)


class Interrupts:
    """While entered, a signal raises KeyboardInterrupt once; later ones are counted, and wait.

    Signals reach only the main thread; elsewhere nothing is changed. One that the user's shell has switched
    off (nohup) stays so.
    """

    def __init__(self) -> None:
        self.count = 0
        """Signals that came."""
        self._shielded = False
        self._earlier: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._earlier[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if not self._shielded:
            self._shielded = True
            raise KeyboardInterrupt(signal.Signals(number).name)

    def shield(self) -> None:
        """From here on signals wait."""
        self._shielded = True

    @contextmanager
    def breakable(self) -> Iterator[None]:
        """Work that a further signal may break off; one that came twice does so before it begins."""
        if self.count > 1:
            raise KeyboardInterrupt
        self._shielded = False
        try:
            yield
        finally:
            self._shielded = True
