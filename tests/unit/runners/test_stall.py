"""When a job counts as standing still."""

from __future__ import annotations

import time

import pytest

from cvs.launch import Limits
from cvs.runners._stall import Stall

LIMITS = Limits(total=1000, join=10, grace=5, stall=5)


class Clock:
    """The monotonic clock, as far as the test has turned it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_before_the_first_line_joining_has_its_time_too(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, said = Clock(monkeypatch), list[str]()
    stall = Stall([], LIMITS, said.append)
    for clock.now in range(101, 115):
        assert stall() is None
    clock.now = 115
    assert stall() == "no line and no step for 5 s; no rank was found"
    assert said == ["cvs | no line and no step for 5 s: looking where each rank is"]


def test_while_cvs_itself_stood_still_nothing_could_be_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stall = Stall([], LIMITS, print)
    for clock.now in (101, 150, 151, 152, 153, 154):
        assert stall() is None
    clock.now = 155
    assert stall() is not None


def test_without_a_limit_nothing_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    stall = Stall([], Limits(total=1000, join=10, grace=5, stall=None), print)
    clock.now = 10_000
    assert stall() is None
