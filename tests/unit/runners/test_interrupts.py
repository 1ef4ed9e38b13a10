"""Signals during a run, sent to this very process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cvs.runners._interrupts import Interrupts, ignore_from_here


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """No signal is switched off, as one is for what nohup or a shell's `&` has started."""
    on: dict[int, Any] = dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    on[signal.SIGINT] = signal.default_int_handler
    earlier = {number: signal.signal(number, handler) for number, handler in on.items()}
    yield
    for number, handler in earlier.items():
        signal.signal(number, handler)


def send(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)
    signal.getsignal(number)  # the handler runs before the next bytecode or two


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_breaks_off_and_later_ones_wait(number: int) -> None:
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            send(number)
        send(number)
        send(number)
        assert interrupts.count == 3
    assert signal.getsignal(number) is before


def test_who_is_about_to_end_is_not_disturbed() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        ignore_from_here()
        for number in before:
            send(number)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_behind_the_shield_none_breaks_off() -> None:
    with Interrupts() as interrupts:
        interrupts.shield()
        send()
        assert interrupts.count == 1


def test_breakable_work_is_broken_off_by_one_more() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            send()
        with pytest.raises(KeyboardInterrupt), interrupts.breakable():
            send()
        send()  # shielded again
        assert interrupts.count == 3


def test_two_in_a_hurry_skip_it() -> None:
    with Interrupts() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            send()
        send()
        begun = False
        with pytest.raises(KeyboardInterrupt), interrupts.breakable():
            begun = True
        assert not begun


def test_what_is_switched_off_stays_off() -> None:
    earlier = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            send(signal.SIGHUP)
            assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGHUP, earlier)


def test_in_another_thread_nothing_is_changed() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
