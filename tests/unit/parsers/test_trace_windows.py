"""Events window by window: the answer is that of the whole text, or says what is missing."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import time
import zlib
from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib
from traces import reference

from cvs import metrics
from cvs.errors import TraceError
from cvs.models import Quality
from cvs.parsers import trace_bytes
from cvs.parsers.gpu_reading import GpuReading
from cvs.parsers.trace_document import read_document
from cvs.parsers.trace_losses import Losses
from cvs.parsers.trace_text import Event
from cvs.parsers.trace_windows import read_events, read_whole

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7, "grid": [1, {}]}}
OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}
UNICODE = {"ph": "X", "cat": "cpu_op", "name": 'Mädchen "🎲" nan \\', "ts": 1, "dur": 2}


class _All:
    """Keeps every event."""

    event: type[Any] = Event
    wanted: Collection[str] | None = None

    def __init__(self) -> None:
        self.losses = Losses()
        self.taken: list[Event] = []

    def take(self, events: Sequence[Event]) -> None:
        self.taken += events


def trace(*events: Any, **header: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **header, "traceEvents": events, "traceName": "x"}).encode()


def read(text: bytes) -> tuple[list[Event], Quality]:
    reading, _ = read_events(io.BytesIO(text), _All)
    return reading.taken, reading.losses.quality()


def names(events: Sequence[Event]) -> list[Any]:
    return [json.loads(bytes(event.name) or b"null") for event in events]


@pytest.fixture(params=[1, 7, 100, 1 << 16])
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Blocks so small that a text has many windows."""
    monkeypatch.setattr(trace_bytes, "_BLOCK", request.param)
    monkeypatch.setattr("cvs.parsers.trace_windows._BLOCK", request.param)
    return int(request.param)


@pytest.fixture(params=["isal", "zlib"])
def either_library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What unpacks: the fast one and the one that is always there."""
    library = isal_zlib if request.param == "isal" else zlib
    monkeypatch.setattr(trace_bytes, "_inflating", library)


# --- what is whole ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_blocks")
def test_reads_events_and_header() -> None:
    text = trace(KERNEL, OPERATOR, distributedInfo={"rank": 3}, baseTimeNanoseconds=5)
    reading, header = read_events(io.BytesIO(text), _All)
    assert names(reading.taken) == ["k", "aten::mm"]
    assert [bytes(event.ts) for event in reading.taken] == [b"1", b"1"]
    assert json.loads(bytes(header.distributed_info)) == {"rank": 3}
    assert bytes(header.base_time_nanoseconds) == b"5"
    assert reading.losses.quality() == Quality(status="complete")


def test_what_stands_behind_the_events_counts_too() -> None:
    document = {"traceEvents": [KERNEL], "distributedInfo": {"rank": 1}, "baseTimeNanoseconds": 7}
    _, header = read_events(io.BytesIO(json.dumps(document).encode()), _All)
    assert (bytes(header.distributed_info), bytes(header.base_time_nanoseconds)) == (b'{"rank": 1}', b"7")


@pytest.mark.usefixtures("small_blocks", "either_library")
@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(gzip.compress, id="one member"),
        pytest.param(lambda text: gzip.compress(text[:50]) + gzip.compress(text[50:]), id="two members"),
        pytest.param(lambda text: gzip.compress(text) + bytes(7_000), id="padded with zeros"),
        pytest.param(
            lambda text: gzip.compress(text[:9]) + bytes(512) + gzip.compress(text[9:]), id="padded between"
        ),
    ],
)
def test_gzip_is_known_by_its_first_bytes(pack: Any) -> None:
    assert read(pack(trace(KERNEL, UNICODE))) == read(trace(KERNEL, UNICODE))


LOOK_ALIKES = [
    '}], "traceEvents": [{"cat": "kernel"',
    '}, {"ph": "X", "cat": "kernel", "ts": 1, "dur": 1}, {',
    '"}, {"ph": "X", "cat": "gpu_memcpy", "ts": 5, "dur": 5}',
    "]}", "}],", '\\"}, {\\"', "},{", "\\", '"', "{", "}", "[", "]", ",", "nan", "NaN, inf",
]  # fmt: skip


def hostile_event(random: Random, depth: int = 0) -> dict[str, Any]:
    """An event that is valid, and looks like something else."""
    event: dict[str, Any] = {
        "ph": "X",
        "cat": random.choice(["kernel", "gpu_memcpy", "cpu_op", "user_annotation", *LOOK_ALIKES[:3], None]),
        "name": random.choice(["ncclDevKernel", "gemm", *LOOK_ALIKES]),
        "ts": random.choice([random.randrange(1000), random.randrange(10**6) / 1000, "12.5"]),
        "dur": random.randrange(50),
        random.choice(LOOK_ALIKES): random.choice(LOOK_ALIKES),
        "args": {"correlation": random.randrange(9), random.choice(LOOK_ALIKES): random.choice(LOOK_ALIKES)},
    }
    if depth < 3 and random.random() < 0.3:
        event["args"]["traceEvents"] = [hostile_event(random, depth + 1) for _ in range(random.randrange(4))]
        event[random.choice(["x", "traceEvents"])] = [hostile_event(random, depth + 1)]
    items = list(event.items())
    random.shuffle(items)
    return dict(items)


def hostile_document(random: Random) -> bytes:
    """A valid document of such events, in any layout and order of keys."""
    items: list[tuple[str, Any]] = [
        ("traceEvents", [hostile_event(random) for _ in range(random.randrange(12))]),
        ("other", {"traceEvents": [hostile_event(random)]}),
        ("text", random.choice(LOOK_ALIKES)),
        ("list", [hostile_event(random), {"traceEvents": []}]),
        ("baseTimeNanoseconds", random.randrange(10**18)),
    ]
    random.shuffle(items)
    indent = random.choice([None, 0, 2])
    separators = random.choice([(",", ":"), (", ", ": "), (" ,\t", " : ")])
    text = json.dumps(dict(items), indent=indent, separators=separators, ensure_ascii=random.random() < 0.5)
    return text.replace("\n", random.choice(["\n", "\r\n"])).encode()


def _check_hostile(seed: int) -> None:
    text = hostile_document(Random(seed))
    whole = GpuReading()
    read_whole(io.BytesIO(text), whole)
    document = read_document(io.BytesIO(text), "gpu")
    assert document.buckets == whole.document().buckets, seed
    assert document.quality.status in ("complete", "no_gpu_events"), seed
    rows = metrics.timeline(document.buckets)
    assert (rows and rows.model_dump()) == reference.timeline(reference.document_of(text)), seed


@pytest.mark.usefixtures("small_blocks")
def test_hostile_documents_are_read_as_one_decode_reads_them() -> None:
    for seed in range(60):
        _check_hostile(seed)


@pytest.mark.full
@pytest.mark.usefixtures("small_blocks")
def test_two_thousand_hostile_documents() -> None:
    for seed in range(60, 2_060):
        _check_hostile(seed)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": {"traceEvents": [{"ph": "X"}]}, "traceEvents": []}',
        b'{"traceEvents": []}',
        b'{"traceEvents" :\n[ ] }',
        b'{"traceEvents": null, "traceEvents": []}',
    ],
)
def test_no_event(text: bytes) -> None:
    assert read(text) == ([], Quality(status="complete"))


def test_of_two_lists_the_last_counts_and_that_is_said() -> None:
    text = b'{"traceEvents": [%b], "x": 1, "traceEvents": [%b]}'
    events, quality = read(text % (json.dumps(KERNEL).encode(), json.dumps(OPERATOR).encode()))
    assert names(events) == ["aten::mm"]
    assert quality.status == "incomplete"
    assert quality.cause == "1 x traceEvents given twice: the last one counts"


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
        pytest.param(b'{"traceEvents": 5}', "not a profiler trace: .*list", id="traceEvents is a number"),
        pytest.param(b"5", "not a profiler trace: .*object", id="a number"),
        pytest.param(b"PK\x03\x04 zip", "not JSON", id="another format"),
        pytest.param(trace(KERNEL)[:10], "cut off before the first complete event", id="cut in the header"),
        pytest.param(trace(KERNEL) * 2, "several documents", id="two documents"),
        pytest.param(gzip.compress(trace(KERNEL))[:-8] + bytes(8), "gzip: ", id="wrong checksum"),
        pytest.param(b"\x1f\x8b" + bytes(30), "gzip: ", id="gzip in name only"),
        pytest.param(gzip.compress(trace(KERNEL)) + b"xyz", "gzip: ", id="text after gzip"),
        pytest.param(gzip.compress(trace(KERNEL))[:12], "gzip stream ends early", id="gzip without content"),
    ],
)
def test_what_cannot_be_trusted_is_refused_with_the_cause(text: bytes, cause: str) -> None:
    with pytest.raises(TraceError, match=cause):
        read(text)


# --- damage -----------------------------------------------------------------------------------------------

MANY = [{**OPERATOR, "name": f"aten::op{number}", "ts": number} for number in range(8)]


def damaged(index: int, before: bytes, after: bytes) -> bytes:
    """A trace in whose event of that number something is other than it should be."""
    texts = [json.dumps(event).encode() for event in MANY]
    assert before in texts[index]
    texts[index] = texts[index].replace(before, after, 1)
    return b'{"traceEvents": [%b], "baseTimeNanoseconds": 5}' % b", ".join(texts)


DAMAGES = [
    pytest.param(b"aten", b"a\\ten\\q", "invalid escaped character", id="bad escape"),
    pytest.param(b"aten", b"a\nten", "invalid character", id="control character"),
    pytest.param(b'"X"', b"X", "invalid character", id="lost quotes"),
    pytest.param(b'"X"', b'"X', "expected ',' or '}'", id="lost quote"),
    pytest.param(b"}", b"", "object keys must be strings", id="lost brace"),
    pytest.param(b'"dur": 2', b'"dur": 02', "invalid number", id="leading zero"),
    pytest.param(b'"dur": 2', b'"dur": ' + bytes(3), "invalid character", id="zeros"),
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("index", [0, 3, 6])
@pytest.mark.parametrize(("before", "after", "cause"), DAMAGES)
def test_damage_costs_an_event_or_two_and_is_placed(
    index: int, before: bytes, after: bytes, cause: str
) -> None:
    text = damaged(index, before, after)
    begins = text.index(json.dumps(MANY[index - 1]).encode()) + len(json.dumps(MANY[0])) + 2 if index else 17
    reading, header = read_events(io.BytesIO(text), _All)
    quality = reading.losses.quality()
    kept = names(reading.taken)
    assert set(kept) < {event["name"] for event in MANY}
    assert len(kept) >= len(MANY) - 2
    assert (quality.status, quality.dropped) == ("repaired", {cause: 1})
    [lost] = quality.lost
    assert lost.start <= begins < lost.end
    assert text[lost.start :].startswith(b'{"ph"')
    assert quality.lost_bytes == lost.end - lost.start
    assert bytes(header.base_time_nanoseconds) == b"5"


@pytest.mark.parametrize(
    ("event", "status"),
    [
        ({**OPERATOR, "name": "@"}, "repaired"),
        ({**KERNEL, "name": "@"}, "incomplete"),
        ({**KERNEL, "cat": "gpu_memset", "name": "@"}, "incomplete"),
        ({**OPERATOR, "cat": "user_annotation", "name": "ProfilerStep#3@"}, "incomplete"),
        ({**OPERATOR, "cat": "k@ernel"}, "incomplete"),
    ],
)
def test_lost_text_counts_where_it_names_what_counts(event: Any, status: str) -> None:
    text = trace(OPERATOR, event, OPERATOR, OPERATOR).replace(b"@", b"\\q")
    assert read(text)[1].status == status


def test_zeros_may_have_overwritten_anything() -> None:
    text = trace(OPERATOR, OPERATOR, OPERATOR, OPERATOR)
    at = text.index(b"aten", 200)
    assert read(text[:at] + bytes(16) + text[at + 16 :])[1].status == "incomplete"


def test_an_event_nested_too_deeply_costs_itself() -> None:
    deep = b'{"ph": "X", "cat": "cpu_op", "args": ' + b"[" * 5000 + b"]" * 5000 + b"}"
    text = trace(KERNEL, 5, KERNEL, KERNEL).replace(b" 5,", deep + b",")
    events, quality = read(text)
    assert names(events) == ["k", "k", "k"]
    assert quality.status == "repaired"


def test_a_header_that_is_damaged_does_not_cost_the_events() -> None:
    events, quality = read(trace(KERNEL, deviceProperties=[{"name": "A"}]).replace(b'"A"', b'"A\\q"'))
    assert names(events) == ["k"]
    assert quality.dropped == {"header: invalid escaped character": 1}


def test_a_footer_that_is_damaged_does_not_cost_the_events() -> None:
    events, quality = read(trace(KERNEL).replace(b'"x"', b"x"))
    assert names(events) == ["k"]
    assert (quality.status, quality.dropped) == ("repaired", {"after the events: invalid character": 1})


@pytest.mark.parametrize("key", ["distributedInfo", "baseTimeNanoseconds"])
@pytest.mark.parametrize("place", range(20))
def test_what_may_have_told_whose_the_trace_is_makes_it_incomplete(key: str, place: int) -> None:
    """Wherever in the key or behind it the damage is, before the events and behind them."""
    spot = f'"{key}": 5'
    before = trace(KERNEL, **{key: 5}).decode()
    for text in (before, trace(KERNEL).decode().replace('"traceName"', f'{spot}, "traceName"')):
        at = text.index(spot) + place % len(spot)
        damaged_text = f"{text[:at]}\x01{text[at + 1 :]}"
        events, quality = read(damaged_text.encode())
        assert names(events) == ["k"]
        assert quality.status == "incomplete"


def test_a_list_within_a_lost_event_is_not_taken_for_the_events_in_silence() -> None:
    inside = {**OPERATOR, "ts": "@", "args": {"x": [{**KERNEL, "name": "inside"}]}}
    for events in ([KERNEL, inside, OPERATOR], [KERNEL, inside, OPERATOR, KERNEL]):
        _, quality = read(trace(*events).replace(b'"@"', b"01"))
        assert quality.status == "incomplete"


def test_text_after_the_end_is_looked_through_however_long_it_is() -> None:
    far = b" " * 20_000_000 + json.dumps(KERNEL).encode()
    _, quality = read(trace(KERNEL) + b"," + far)
    assert quality.status == "incomplete"


@pytest.mark.parametrize("depth", range(940, 1000))
def test_nesting_that_is_nearly_too_deep_is_no_exception(depth: int) -> None:
    deep = b'{"ph": "X", "cat": "cpu_op", "args": ' + b"[" * depth + b"]" * depth + b"}"
    text = trace(KERNEL, 5).replace(b" 5]", deep + b"]")
    for basis in ("gpu", "cpu"):
        assert read_document(io.BytesIO(text), basis).quality.status != "duplicate"


def test_damage_behind_a_long_event_is_told_piece_by_piece() -> None:
    long = {**OPERATOR, "name": "x" * 3_000_000}
    text = trace(KERNEL, long, *[OPERATOR, 5, KERNEL] * 50).replace(b" 5,", b' {"ph": "X", 05},')
    events, quality = read(text)
    assert len(events) == 1 + 1 + 50 + 50
    assert quality.dropped == {"object keys must be strings": 50}


def test_a_trailing_comma_costs_nothing() -> None:
    events, quality = read(b'{"traceEvents": [%b,]}' % json.dumps(KERNEL).encode())
    assert names(events) == ["k"]
    assert quality == Quality(status="repaired", cause="trailing comma")


@pytest.mark.parametrize(("behind", "dropped"), [(bytes(600), {}), (b" x", {"text after the end": 1})])
def test_what_stands_behind_the_end_is_said(behind: bytes, dropped: dict[str, int]) -> None:
    events, quality = read(trace(KERNEL) + behind)
    assert names(events) == ["k"]
    assert (quality.status, quality.dropped) == ("repaired", dropped)


JSON_KERNEL = json.dumps(KERNEL).encode()


@pytest.mark.parametrize(
    "tail", [b"\nINFO: job killed by signal 9\n", b'"', b"}", b"\xff" * 100, b"\x00" * 9]
)
def test_a_text_whose_end_is_not_to_be_found_is_truncated(tail: bytes) -> None:
    text = b'{"traceEvents": [' + JSON_KERNEL + b", " + json.dumps(OPERATOR).encode() + tail
    events, quality = read(text)
    assert names(events)[:1] == ["k"]
    assert quality.status == "truncated"


def test_a_block_of_other_bytes_may_have_been_anything() -> None:
    text = trace(*[OPERATOR] * 40)
    noise = Random(1).randbytes(300)
    assert read(text[:900] + noise + text[1200:])[1].status == "incomplete"
    inside = trace(*[OPERATOR] * 3, {**OPERATOR, "name": "@" * 30}).replace(b"@" * 30, b"\xff" * 30)
    assert read(inside)[1].status == "incomplete"


def test_many_inner_objects_of_the_event_that_was_cut_cost_nothing_else() -> None:
    text = (
        b'{"traceEvents": [%b, {"ph": "X", "args": {"x": [' % b", ".join([JSON_KERNEL] * 50)
        + b'{"a":1},' * 500
    )
    assert len(read(text)[0]) == 50


def test_an_event_that_grew_together_before_a_false_end_does_not_count() -> None:
    text = trace(KERNEL, {**KERNEL, "name": "grown"}, OPERATOR, OPERATOR).replace(
        b'"grown", "ts": 1, "dur": 2', b'"grown", "ts": 1, "dur": 21}], .125'
    )
    events, quality = read(text)
    assert "grown" not in names(events)
    assert quality.status == "incomplete"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b",,".join([b'{"ph": "X"}'] * 4000), id="commas twice"),
        pytest.param(b"],".join([b'{"ph": "X"}'] * 4000), id="brackets"),
        pytest.param(b'{"name": "' + b"\xff" * 48_000 + b'"}', id="not UTF-8"),
        pytest.param(b'{"a": ' * 9000, id="nested"),
        pytest.param(b"{" * 50_000, id="braces"),
        pytest.param(b'],"x":[{"ph": "X"}' * 2800 + b"@", id="ends"),
        pytest.param(b'{"cat": "kernel", "ts": "' + b"1" * 48_000 + b'e", "dur": 1}', id="digits"),
    ],
)
def test_no_damage_takes_long(text: bytes) -> None:
    begun = time.process_time()
    document = read_document(io.BytesIO(b'{"traceEvents": [' + text + b"]}"), "gpu")
    assert time.process_time() - begun < 3  # 1 s, on a machine with nothing else to do
    assert document.quality.status != "complete"


# --- what can be mended -----------------------------------------------------------------------------------


def test_byte_order_mark_is_skipped() -> None:
    events, quality = read(b"\xef\xbb\xbf" + trace(KERNEL))
    assert names(events) == ["k"]
    assert quality == Quality(status="repaired", cause="byte-order mark skipped")


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bare", ["NaN", "nan", "-nan", "inf", "-inf", "Infinity", "-Infinity"])
def test_bare_numbers_are_none(bare: str) -> None:
    hostile = {**KERNEL, "name": f'{bare}: {bare}, "{bare}"', "args": {"a": [1]}}
    text = trace(hostile, OPERATOR).replace(b"[1]", f"[{bare},{bare}]".encode())
    events, quality = read(text)
    assert names(events) == [hostile["name"], "aten::mm"]
    at = text.index(b"[" + bare.encode()) + 1
    cause = f"2 x bare NaN or Infinity read as null (first at byte {at})"
    assert quality == Quality(status="repaired", cause=cause)


@pytest.mark.parametrize("number", ["1e999", "-1e400", "1" * 400])
def test_a_number_beyond_a_double_is_said_though_nobody_reads_it(number: str) -> None:
    events, quality = read(trace({**KERNEL, "args": {"a": 17}}).replace(b"17", number.encode()))
    assert names(events) == ["k"]
    assert quality.status == "repaired"
    assert read(trace({**KERNEL, "name": f"x{number} 1e9 1e300"}))[1].status == "complete"


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
    text = trace(where, OPERATOR).replace(b"@", b"\xff")
    events, quality = read(text)
    assert len(events) == 2
    assert quality.status == status
    at = text.index(b"\xff")
    assert f"text with invalid UTF-8 (first at byte {at})" in (quality.cause or "")


@pytest.mark.parametrize("shift", range(4))
def test_long_text_beyond_ascii_is_no_damage(shift: int) -> None:
    text = json.dumps({"pad": "x" * shift + "🎲" * 200_000, "traceEvents": [KERNEL]}, ensure_ascii=False)
    assert read(text.encode())[1] == Quality(status="complete")


@pytest.mark.parametrize(
    ("odd", "status"),
    [
        ({**OPERATOR, "cat": ["cpu_op"]}, "repaired"),
        (None, "repaired"),
        ([OPERATOR], "repaired"),
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
    begins = WHOLE.index(b'"traceEvents": [') + 16
    if length < begins:
        with pytest.raises(TraceError, match="cut off before the first complete event"):
            read(text)
        return
    ends = [WHOLE.index(json.dumps(event).encode()) for event in (KERNEL, UNICODE)]
    complete = sum(
        length >= start + len(json.dumps(event)) for start, event in zip(ends, (KERNEL, UNICODE), strict=True)
    ) + (length >= WHOLE.index(b'], "traceName"'))
    events, quality = read(text)
    assert names(events) == ["k", UNICODE["name"], "k"][:complete]
    assert quality == Quality(status="truncated", cause="cut off")


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
    text = b"\xef\xbb\xbf" + trace({**KERNEL, "args": [0]}, 5, KERNEL).replace(b"[0]", b"[nan]")
    events, quality = read(text[: text.rindex(b'"traceName"')])
    assert len(events) == 2
    assert quality.status == "truncated"
    assert [part.partition(" (")[0] for part in (quality.cause or "").split("; ")] == [
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


@pytest.mark.usefixtures("either_library")
@pytest.mark.parametrize("length", range(len(PACKED)))
def test_a_cut_gzip_is_never_complete(length: int) -> None:
    try:
        _, quality = read(PACKED[:length])
    except TraceError:
        return
    assert quality.status == "truncated"


@pytest.mark.usefixtures("either_library")
@pytest.mark.parametrize("position", range(len(PACKED)))
def test_a_flipped_byte_in_a_gzip_changes_no_number_unseen(position: int) -> None:
    for flip in (1, 0x80, 0xFF):
        damaged = bytearray(PACKED)
        damaged[position] ^= flip
        try:
            events, quality = read(bytes(damaged))
        except TraceError:
            continue
        assert quality.status == "truncated" or events == read(WHOLE)[0]
