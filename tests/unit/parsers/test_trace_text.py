"""Decoding events by category finds what decoding every event finds."""

from __future__ import annotations

import json
from random import Random

import msgspec
import pytest

from cvs.parsers.trace_losses import Losses
from cvs.parsers.trace_text import Decoder, Event

COUNTED = ("kernel", "gpu_memcpy")
KERNEL = '{"ph": "X", "cat": "kernel", "name": "k"}'


def kernels(events: list[Event]) -> list[tuple[str | None, bytes, bytes]]:
    return [(event.cat, bytes(event.name), bytes(event.args)) for event in events if event.cat in COUNTED]


def check(*lists: str) -> None:
    """Whether lists, one after the other, are decoded as by a decoder that wants all."""
    losses, losses_of_all = Losses(), Losses()
    by_category, every = Decoder(Event, losses, COUNTED), Decoder(Event, losses_of_all)
    for listed in map(str.encode, lists):
        assert kernels([*by_category.events(listed)]) == kernels([*every.events(listed)])
    assert losses.quality() == losses_of_all.quality()


@pytest.mark.parametrize(
    "event",
    [
        '{"name": "last", "args": {"cat": "kernel"}, "cat": "kernel"}',
        '{"cat": "kernel", "name": "twice the same", "cat": "kernel"}',
        '{"cat": "cpu_op", "name": "the last counts", "cat": "kernel"}',
        '{"cat": "kernel", "name": "the last counts", "cat": "cpu_op"}',
        '{"cat": "cpu_op", "cat": null}',
        '{"cat": "kernel", "cat": null}',
        r'{"\u0063at": "\u006bernel", "name": "escaped"}',
        '{"cat": "gpu_memcpy", "name": 5, "args": []}',
        '{"cat": "cpu_op", "cat": 7}',
        r'{"cat": 5, "cat": "k\u0065rnel", "name": "the last counts"}',
        '{"cat": null, "name": "k"}',
        '{"name": "k"}',
        "{}",
        "null",
        "[]",
        '"kernel"',
    ],
)
def test_odd_events(event: str) -> None:
    check(f"[{event}]", f"[{KERNEL}, {event}, {KERNEL}]", f"[{KERNEL}]", "[]", f"[{event}]")


def test_many_categories() -> None:
    random = Random(4)
    names = [f"category {number}" for number in range(100)]
    events = [json.dumps({"cat": random.choice([*names, *COUNTED]), "name": "n"}) for _ in range(1000)]
    check(*(f"[{', '.join(events[at : at + 10])}]" for at in range(0, 1000, 10)))


def test_what_is_no_list() -> None:
    decoder = Decoder(Event, Losses(), COUNTED)
    for text in (b'[{"cat": "new"}, {"cat":]', b'[{"cat": "kernel", "name": bad}]', b'[{"cat": "kernel"}'):
        with pytest.raises(msgspec.DecodeError):
            decoder.events(text)
