"""From bytes to events: packing, damage, and what is said about it."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.errors import TraceError
from cvs.models import Quality
from cvs.parsers.trace_text import Decoders, Event, Losses, read_events

DECODERS = Decoders(Event)
KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7, "grid": [1, {}]}}
OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}
UNICODE = {"ph": "X", "cat": "cpu_op", "name": 'Mädchen "🎲" nan \\', "ts": 1, "dur": 2}


def trace(*events: Any, **header: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": events, "traceName": "x"}).encode()


def read(text: bytes) -> tuple[list[Event], Quality]:
    taken: list[Event] = []
    losses = Losses()
    read_events(io.BytesIO(text), DECODERS, losses, taken.extend)
    return taken, losses.quality()


def names(events: Sequence[Event]) -> list[str | None]:
    return [event.name for event in events]


# --- what is whole ----------------------------------------------------------------------------------------


def test_reads_events_and_header() -> None:
    losses = Losses()
    taken: list[Event] = []
    text = trace(KERNEL, OPERATOR, distributedInfo={"rank": 3}, baseTimeNanoseconds=5)
    header = read_events(io.BytesIO(text), DECODERS, losses, taken.extend)
    assert names(taken) == ["k", "aten::mm"]
    assert [bytes(event.ts) for event in taken] == [b"1", b"1"]
    assert json.loads(bytes(header.distributed_info)) == {"rank": 3}
    assert bytes(header.base_time_nanoseconds) == b"5"
    assert losses.quality() == Quality(status="complete")


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(gzip.compress, id="one member"),
        pytest.param(lambda text: gzip.compress(text[:50]) + gzip.compress(text[50:]), id="two members"),
        pytest.param(lambda text: gzip.compress(text) + bytes(700_000), id="padded with zeros"),
        pytest.param(
            lambda text: gzip.compress(text[:9]) + bytes(512) + gzip.compress(text[9:]), id="padded between"
        ),
    ],
)
def test_gzip_is_known_by_its_first_bytes(pack: Any) -> None:
    assert read(pack(trace(KERNEL, UNICODE))) == read(trace(KERNEL, UNICODE))


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_layout_and_look_alikes_change_nothing(indent: int | None, newline: str) -> None:
    hostile = {"name": '}], "traceEvents": [{"cat": "kernel"', "args": {"traceEvents": [KERNEL, KERNEL]}}
    document = {"other": {"traceEvents": [KERNEL]}, "traceEvents": [hostile, KERNEL], "z": [KERNEL]}
    text = json.dumps(document, indent=indent).replace("\n", newline).encode()
    events, quality = read(text)
    assert names(events) == [hostile["name"], "k"]
    assert quality.status == "complete"


# --- what is no trace -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(b"", "empty file", id="empty"),
        pytest.param(b" \n", "empty file", id="blank"),
        pytest.param(b"[]", "the top level is a list", id="list"),
        pytest.param(
            b" [" + json.dumps(KERNEL).encode() + b"]", "the top level is a list", id="list of events"
        ),
        pytest.param(b"{}", "no traceEvents", id="no traceEvents"),
        pytest.param(b'{"traceEvents": null}', "no traceEvents", id="null traceEvents"),
        pytest.param(b'{"a": {"traceEvents": []}}', "no traceEvents", id="traceEvents further down"),
        pytest.param(b'{"traceEvents": 5}', "not a profiler trace: .*array", id="traceEvents is a number"),
        pytest.param(b"5", "not a profiler trace: .*object", id="a number"),
        pytest.param(b"PK\x03\x04 zip", "not JSON", id="another format"),
        pytest.param(trace(KERNEL).replace(b'"X"', b"X"), "not JSON: .*byte", id="a lost quote"),
        pytest.param(trace(KERNEL) + b" x", "not JSON: .*trailing", id="text after the end"),
        pytest.param(trace(KERNEL)[:-1] + b",}", "not JSON: .*trailing comma", id="trailing comma"),
        pytest.param(
            b'{"traceEvents":[' + b"[" * 99_999 + b"]" * 99_999 + b"]}", "nested too deeply", id="nesting"
        ),
        pytest.param(gzip.compress(trace(KERNEL))[:-8] + bytes(8), "gzip: .*check", id="wrong checksum"),
        pytest.param(b"\x1f\x8b" + bytes(30), "gzip: ", id="gzip in name only"),
        pytest.param(gzip.compress(trace(KERNEL)) + b"xyz", "gzip: .*header", id="text after gzip"),
        pytest.param(gzip.compress(trace(KERNEL))[:12], "gzip stream ends early", id="gzip without content"),
    ],
)
def test_what_cannot_be_trusted_is_refused_with_the_cause(text: bytes, cause: str) -> None:
    with pytest.raises(TraceError, match=cause):
        read(text)


# --- what can be mended -----------------------------------------------------------------------------------


def test_byte_order_mark_is_skipped() -> None:
    events, quality = read(b"\xef\xbb\xbf" + trace(KERNEL))
    assert names(events) == ["k"]
    assert quality == Quality(status="repaired", cause="byte-order mark skipped")


@pytest.mark.parametrize("bare", ["NaN", "nan", "-nan", "inf", "-inf", "Infinity", "-Infinity"])
def test_bare_numbers_are_null(bare: str) -> None:
    hostile = {**KERNEL, "name": f'{bare}: {bare}, "{bare}"', "args": {"a": [1]}}
    text = trace(hostile, OPERATOR).replace(b"[1]", f"[{bare},{bare}]".encode())
    events, quality = read(text)
    assert names(events) == [hostile["name"], "aten::mm"]
    assert quality == Quality(status="repaired", cause="2 x bare NaN or Infinity read as null")


def test_a_stamp_that_is_no_number_is_null() -> None:
    events, quality = read(trace(KERNEL).replace(b'"ts": 1', b'"ts": NaN'))
    assert bytes(events[0].ts) == b"null"
    assert quality.status == "repaired"


@pytest.mark.parametrize(
    ("where", "status"),
    [
        pytest.param({**KERNEL, "args": {"path": "@"}}, "repaired", id="in arguments"),
        pytest.param({**OPERATOR, "name": "@"}, "repaired", id="in the name of an operator"),
        pytest.param({**KERNEL, "name": "nc@cl"}, "incomplete", id="in the name of a kernel"),
        pytest.param({**OPERATOR, "cat": "@ernel"}, "incomplete", id="in a category"),
        pytest.param(
            {**OPERATOR, "cat": "user_annotation", "name": "@"}, "incomplete", id="perhaps in a step"
        ),
        pytest.param({"c@at": "kernel", "ts": 1}, "incomplete", id="in a key"),
    ],
)
def test_invalid_utf8_counts_only_where_it_may_hide_what_an_event_is(where: Any, status: str) -> None:
    events, quality = read(trace(where, OPERATOR).replace(b"@", b"\xff"))
    assert len(events) == 2
    assert quality.status == status
    assert "invalid UTF-8" in (quality.cause or "")


@pytest.mark.parametrize("shift", range(4))
def test_long_text_beyond_ascii_is_no_damage(shift: int) -> None:
    text = json.dumps({"pad": "x" * shift + "🎲" * 200_000, "traceEvents": [KERNEL]}, ensure_ascii=False)
    assert read(text.encode())[1] == Quality(status="complete")


@pytest.mark.parametrize(
    ("odd", "status"),
    [
        ({**OPERATOR, "name": 5}, "repaired"),
        ({**OPERATOR, "cat": ["cpu_op"]}, "repaired"),
        (None, "repaired"),
        ([OPERATOR], "repaired"),
        ({**KERNEL, "name": {"a": 1}}, "incomplete"),
        ({**KERNEL, "pid": [1]}, "incomplete"),
        ({**OPERATOR, "cat": 5, "name": "ProfilerStep#3"}, "incomplete"),
    ],
)
def test_an_odd_event_costs_itself_only(odd: Any, status: str) -> None:
    events, quality = read(trace(OPERATOR, odd, KERNEL))
    assert names(events) == ["aten::mm", "k"]
    assert quality.status == status
    assert quality.dropped == {"event of unexpected type": 1}
    assert quality.cause == "1 x event of unexpected type"


# --- what ends early --------------------------------------------------------------------------------------

WHOLE = trace(KERNEL, UNICODE, {**KERNEL, "ts": -1.5e3, "x": True}, deviceProperties=[{"id": 0}])


@pytest.mark.parametrize("length", range(1, len(WHOLE)))
def test_every_complete_event_before_the_cut_counts(length: int) -> None:
    text = WHOLE[:length]
    ends = [WHOLE.index(json.dumps(event).encode()) for event in (KERNEL, UNICODE)]
    complete = sum(
        length >= start + len(json.dumps(event)) for start, event in zip(ends, (KERNEL, UNICODE), strict=True)
    ) + (length >= WHOLE.index(b'], "traceName"'))
    if not complete:
        with pytest.raises(TraceError, match="cut off before the first complete event"):
            read(text)
        return
    events, quality = read(text)
    assert names(events) == ["k", UNICODE["name"], "k"][:complete]
    assert quality.status == "truncated"
    assert quality.cause == "cut off"


def test_a_gzip_that_ends_early_counts_up_to_there() -> None:
    many = trace(*({**KERNEL, "name": f"k{number}", "ts": number**3} for number in range(5000)))
    packed = gzip.compress(many)
    events, quality = read(packed[: len(packed) // 2])
    assert 100 < len(events) < 5000
    assert names(events) == [f"k{number}" for number in range(len(events))]
    assert quality == Quality(status="truncated", cause="cut off: the gzip stream ends early")


def test_a_gzip_without_its_checksum_is_truncated_though_the_text_is_whole() -> None:
    events, quality = read(gzip.compress(trace(KERNEL))[:-4])
    assert len(events) == 1
    assert quality.status == "truncated"


def test_a_cut_is_found_beside_other_damage() -> None:
    text = b"\xef\xbb\xbf" + trace({**KERNEL, "args": [0]}, {**KERNEL, "pid": [2]}, KERNEL).replace(
        b"[0]", b"[nan]"
    )
    events, quality = read(text[: text.rindex(b'"traceName"')])
    assert len(events) == 2
    assert quality.status == "truncated"
    assert (quality.cause or "").split("; ") == [
        "cut off",
        "1 x event of unexpected type",
        "byte-order mark skipped",
        "1 x bare NaN or Infinity read as null",
    ]


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,\\traceEvents 0nN', max_size=80).map(str.encode))
def test_no_bytes_raise_anything_else(text: bytes) -> None:
    with contextlib.suppress(TraceError):
        read(text)


PACKED = gzip.compress(WHOLE, mtime=0)


@pytest.mark.parametrize("length", range(len(PACKED)))
def test_a_cut_gzip_is_never_complete(length: int) -> None:
    try:
        _, quality = read(PACKED[:length])
    except TraceError:
        return
    assert quality.status == "truncated"


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_flipped_byte_in_a_gzip_changes_no_number_unseen(position: int, flip: int) -> None:
    damaged = bytearray(PACKED)
    damaged[position] ^= flip
    try:
        events, quality = read(bytes(damaged))
    except TraceError:
        return
    assert quality.status == "truncated" or events == read(WHOLE)[0]
