"""From the text of a list of events to the events: decoding, and mending what needs no guess.

Of an event little is decoded at once: what most events are asked is their category. The rest stays text until
an event counts; digits stay text, too, because a double cannot hold the nanoseconds of a stamp since 1970.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Generic, TypeVar

import msgspec

from cvs.errors import TraceError
from cvs.kernels import GPU_CATEGORIES
from cvs.parsers.trace_losses import Losses

UNDECODABLE = (msgspec.DecodeError, RecursionError)
"""What the decoder raises: a text that is no JSON, or nested too deeply for it."""

NO_TRACE_EVENTS = "no traceEvents: not a profiler trace"
"""What is wrong with a JSON object that is no trace at all."""

ABSENT = msgspec.Raw(b"")
"""Text of a field that is not there."""

ANNOTATION = "user_annotation"
"""Category of ranges on the host that a program names: steps, and gloo's collectives."""


class Event(msgspec.Struct, gc=False):
    """Fields of an event that the `gpu` basis reads; the others are checked and skipped."""

    cat: str | None = None
    name: msgspec.Raw = ABSENT
    ts: msgspec.Raw = ABSENT
    dur: msgspec.Raw = ABSENT
    pid: msgspec.Raw = ABSENT
    args: msgspec.Raw = ABSENT


E = TypeVar("E", bound=Event)


@lru_cache(maxsize=1 << 16)
def text_of(value: bytes) -> str | None:
    """The string that a JSON value is; "" where it is null or absent, None where it is something else."""
    if value in (b"", b"null"):
        return ""
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.DecodeError:
        return None


# --- mending ----------------------------------------------------------------------------------------------
# What is mended keeps its length, so that positions stay those of the file.

MARK = "\x7f"
"""Stands for each byte that is no UTF-8; no trace has it otherwise."""

_MARKED_KEY = re.compile(rb'\x7f[^"\x7f]*"\s*:|\x7f{8}')
"""A key that may be another one, or so much that whole events may be gone."""
codecs.register_error("cvs-mark", lambda error: (MARK * (error.end - error.start), error.end))  # type: ignore[attr-defined]


def _first_fault(text: bytes) -> int | None:
    """Start of the first bytes that are no UTF-8: the decoder does not check what it skips."""
    if text.isascii():
        return None
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


_STRING_OR_BARE = re.compile(
    rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'
    rb"|(?P<bare>[+-]?\b(?:nan|inf|infinity)\b)",
    re.IGNORECASE,
)
"""A string (perhaps cut off), so that what it holds is passed over, or a number that JSON does not know."""

_TOO_BIG = re.compile(rb"[0-9][eE]\+?[0-9]{3}|[0-9]{200}")
"""Perhaps a number that a double cannot hold, which strict readers refuse."""


_BARE = re.compile(rb"\b(?:nan|inf|infinity)\b", re.IGNORECASE)


def _stops_at_bare_number(error: msgspec.DecodeError, text: bytes) -> bool:
    at = Fault(error).at
    return at is not None and _BARE.search(text, max(0, at - 2), at + 10) is not None


def _without_bare_numbers(text: bytes) -> tuple[bytes, list[int]]:
    """The text with an empty string for each bare NaN, Infinity, inf or nan, and where these were."""
    places: list[int] = []

    def empty_string(match: re.Match[bytes]) -> bytes:
        if not match["bare"]:
            return match[0]
        places.append(match.start())
        return b'""'.ljust(len(match[0]))

    return _STRING_OR_BARE.sub(empty_string, text), places


# --- decoding ---------------------------------------------------------------------------------------------


T = TypeVar("T")


def mended(decode: Callable[[bytes], T], text: bytes, losses: Losses, at: int = 0) -> tuple[T, bool]:
    """What `decode` makes of a text, `at` bytes into the file, and whether some of it is no UTF-8.

    Nothing is noted of a text that does not decode, so that one may try.

    Raises: msgspec.DecodeError: not JSON, even mended. RecursionError: nested too deeply.
    """
    fault = _first_fault(text)
    if fault is not None:
        text = text.decode(errors="cvs-mark").encode()
    places: list[int] = []
    try:
        value = decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if not _stops_at_bare_number(error, text):
            raise
        without, places = _without_bare_numbers(text)
        value = decode(without)
    if places:
        losses.repair("bare NaN or Infinity read as null", at=at + places[0], times=len(places))
    if fault is not None:
        losses.repair("text with invalid UTF-8", at=at + fault)
        losses.vital |= bool(_MARKED_KEY.search(text))
    return value, fault is not None


class _ByCategory:
    """Decodes events of known categories to types of their own: those that count, and others without fields.

    Most events of a trace are only asked what they are. These cost little more than to be checked.
    """

    _MOST = 64
    """Categories that are learned."""

    def __init__(self, event: type[Event], wanted: Collection[str]) -> None:
        fields = [each for each in msgspec.structs.fields(event) if each.name != _TAG]
        self._types = {
            category: _type_of(category, [(each.name, each.type, each.default) for each in fields])
            for category in wanted
        }
        self.learn(set())

    def learn(self, categories: set[str | None]) -> bool:
        """Know these, too, which do not count; whether all of them are known then."""
        new = categories - self._types.keys()
        if None in new or len(self._types) + len(new) > self._MOST:
            return False
        self._types.update({category: _type_of(category, []) for category in new if category is not None})
        self._decoder = msgspec.json.Decoder(list[reduce(or_, self._types.values())])  # type: ignore[misc]
        return True

    def decode(self, listed: bytes) -> list[Any]:
        """Events of a list.

        Raises: msgspec.ValidationError: one is of another category, or no event; DecodeError: no list.
        """
        events: list[Any] = self._decoder.decode(listed)
        return events


_TAG = "cat"


def _type_of(category: str, fields: Sequence[tuple[str, Any, Any]]) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        "Event", fields, tag_field=_TAG, tag=category, namespace={_TAG: category}, gc=False
    )


class Decoder(Generic[E]):
    """Decodes lists of one kind of event, and notes what it mended or could not use."""

    _texts = msgspec.json.Decoder(list[msgspec.Raw])

    def __init__(self, event: type[E], losses: Losses, wanted: Collection[str] | None = None) -> None:
        """Take the categories of events that count; None: all do."""
        self._events = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._event = msgspec.json.Decoder(event)
        self._losses = losses
        self._known = None if wanted is None else _ByCategory(event, wanted)
        self._is_usual = True
        """Whether all events of the list before were of categories that are known by now."""

    def events(self, listed: bytes, at: int = 0) -> Sequence[E]:
        """Events of a list, `at` bytes into the file; one that is no event costs itself only.

        Events of categories that do not count may have no other field.

        Raises: msgspec.DecodeError: not a JSON list, even mended. RecursionError: nested too deeply.
        """
        events, marked = mended(self._decoded, listed, self._losses, at)
        if marked:
            self._losses.vital |= any(map(_is_obscured, events))
        return events

    def _decoded(self, listed: bytes) -> Sequence[E]:
        if self._known and self._is_usual:
            with suppress(msgspec.ValidationError):
                return self._known.decode(listed)
        try:
            events: list[E] = self._events.decode(listed)
        except msgspec.ValidationError:
            return self._singly(listed)
        if self._known:
            self._is_usual = self._known.learn({event.cat for event in events})
        return events

    def _singly(self, listed: bytes) -> Sequence[E]:
        events: list[E] = []
        odd: list[bytes] = []
        for text in self._texts.decode(listed):
            try:
                events.append(self._event.decode(text))
            except msgspec.ValidationError:
                odd.append(_with_keys_once(text))
        for one in odd:
            try:
                events.append(self._event.decode(one))
            except msgspec.ValidationError:
                self._losses.drop("event of unexpected type", vital=self._losses.counts(one))
        return events


def _with_keys_once(text: msgspec.Raw) -> bytes:
    """The same value, whose keys are each there once: the last one counts, whatever the others were."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text))
    except UNDECODABLE:  # something in it that was only skipped before
        return bytes(text)


def _is_obscured(event: Event) -> bool:
    """Whether replaced bytes may hide what the event is."""
    category = event.cat or ""
    counts = category in GPU_CATEGORIES or category == ANNOTATION
    return MARK in category or (counts and MARK.encode() in bytes(event.name))


def has_number_too_big(text: bytes) -> bool:
    """Whether JSON text has a number, outside strings, that a double cannot hold."""
    if not _TOO_BIG.search(text):
        return False
    bare = _STRING_OR_BARE.sub(b'""', text)
    return any(float(number) in (float("inf"), float("-inf")) for number in _NUMBER.findall(bare))


_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


# --- where decoding stopped -------------------------------------------------------------------------------

_BYTE = re.compile(r" \(byte ([0-9]+)\)$")


class Fault:
    """Why a text between brackets is no list, and where."""

    def __init__(self, error: msgspec.DecodeError) -> None:
        words = str(error)
        found = _BYTE.search(words)
        self.at = int(found[1]) if found else None
        """Index of the byte that does not fit; None: the text ends too soon."""
        self.cause = _BYTE.sub("", words).removeprefix("JSON is malformed: ")
        """In the decoder's words."""

    @property
    def ended(self) -> bool:
        """Whether the list ended before the text did; `at` is then behind the next byte that is no blank."""
        return self.cause == "trailing characters"

    @property
    def is_trailing_comma(self) -> bool:
        """Whether all that is wrong is a comma before the bracket at `at`."""
        return self.cause == "trailing comma in array"


def not_json(error: msgspec.DecodeError) -> TraceError:
    """The error for a file that is no JSON at all."""
    return TraceError(f"not JSON: {error}")
