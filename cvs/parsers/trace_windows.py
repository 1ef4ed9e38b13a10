"""Reads the events of a trace window by window, at cuts between events that the decoder proves.

JSON is read from left to right. Text that begins at an element of a list and decodes between brackets holds
exactly the elements that a reader of the whole file would see; so the next element begins behind the comma,
and by induction none is missed, split or invented, whatever strings contain. A wrong guess of a cut does not
decode. What does not fit before the end of a window is wrong in the file, too: there, events are lost one by
one.

`read_whole` decodes the file at once. It takes over where a trace does not begin or end as windows need it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Protocol, TypeVar

import msgspec

from cvs.errors import TraceError
from cvs.parsers.trace_bytes import Stream, blocks_of
from cvs.parsers.trace_losses import Losses
from cvs.parsers.trace_places import LONGEST_WORD, OBJECT, backwards, cuts, elements, is_cut, stands_alone
from cvs.parsers.trace_text import (
    ABSENT,
    NO_TRACE_EVENTS,
    Decoder,
    Event,
    Fault,
    has_number_too_big,
    mended,
    not_json,
)

_SEVERAL = "several documents or writers in one file"


class Reading(Protocol):
    """Takes events in, portion by portion."""

    losses: Losses
    event: type[Any]
    """What an event is decoded to."""
    wanted: Collection[str] | None
    """Categories of the events that count; None: all may."""

    def take(self, events: Sequence[Any]) -> None:
        """Take in the next events of the file."""


R = TypeVar("R", bound=Reading)


class Header(msgspec.Struct, rename="camel"):
    """Top level of a trace; a `traceEvents` further down is another thing."""

    trace_events: msgspec.Raw = ABSENT
    distributed_info: msgspec.Raw = ABSENT
    base_time_nanoseconds: msgspec.Raw = ABSENT


_HEADER = msgspec.json.Decoder(Header)


def read_events(stream: Stream, make: Callable[[], R]) -> tuple[R, Header]:
    """Have a reading that `make` gives take every event of the file; that reading, and the header.

    Raises: TraceError: nothing in the file can be trusted, or there is nothing in it.
    """
    try:
        reading = make()
        return reading, _Windows(stream, reading).read()
    except RecursionError:  # where an event is nested almost too deeply
        raise TraceError("not JSON that can be read: nested too deeply") from None
    except _NotInWindows as reason:
        reading = make()  # the other may have taken events that do not count
        if reason.second_list:
            reading.losses.drop("traceEvents given twice: the last one counts", vital=True)
        return reading, read_whole(stream, reading)


# --- the whole file ---------------------------------------------------------------------------------------


def read_whole(stream: Stream, reading: Reading) -> Header:
    """Have the reading take every event of a file that is decoded at once; the header.

    Raises: TraceError: not a trace.
    """
    text = _all(blocks_of(stream, reading.losses))
    if not text or text.isspace():
        raise TraceError(reading.losses.cut or "empty file")
    if re.match(rb"\s*\[", text):
        raise TraceError("the top level is a list, not an object with traceEvents")
    header = _whole_header(text, reading.losses)
    if bytes(header.trace_events) in (b"", b"null"):
        raise TraceError(NO_TRACE_EVENTS)
    if not bytes(header.trace_events).startswith(b"["):
        raise TraceError("not a profiler trace: traceEvents is no list")
    reading.take(Decoder(reading.event, reading.losses).events(bytes(header.trace_events)))
    return header


def _all(blocks: Iterator[bytes]) -> bytes:
    parts, size = [], 0
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size > _LONGEST_WHOLE:
            raise TraceError(
                f"no trace that can be read piece by piece, and more than {_LONGEST_WHOLE >> 20} MiB"
            )
    return b"".join(parts)


def _whole_header(text: bytes, losses: Losses) -> Header:
    try:
        return _decoded_header(text, losses)
    except msgspec.ValidationError as error:
        raise TraceError(f"not a profiler trace: {error}") from None
    except msgspec.DecodeError as error:
        if Fault(error).at is None:
            raise TraceError("cut off before the first complete event") from None
        raise not_json(error) from None
    except RecursionError:
        raise TraceError("not JSON that can be read: nested too deeply") from None


# --- windows ----------------------------------------------------------------------------------------------

_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_LONGEST_KEY = 64
"""With the blanks in it."""
_BEFORE_FOOTER = b'{"":[]'
_NOTHING = b"\0 \t\r\n"
_BLOCK = 1 << 16
_MUCH = 1 << 19
_LONGEST_HEADER = 1 << 24
_LONGEST_WINDOW = 1 << 26
_LONGEST_WHOLE = 1 << 29
"""What is read at once takes twice its size."""
_LONGEST_EVENT = 1 << 20
"""Of an event behind damage."""
_TRIES = 8
_SEARCHED_FOR_NUMBERS = 1 << 18
"""A number too big for a double, in a field that nobody reads, hides nothing; in a long text the search for
one would cost as much as all else."""


class _NotInWindows(Exception):
    """The file does not begin or end as windows need it."""

    def __init__(self, *, second_list: bool = False) -> None:
        self.second_list = second_list
        """Whether that is because the top level has a second list of events."""


class _Windows:
    def __init__(self, stream: Stream, reading: Reading) -> None:
        self._reading = reading
        self._losses = reading.losses
        self._decoder = Decoder[Event](reading.event, reading.losses, reading.wanted)
        self._blocks = blocks_of(stream, reading.losses)
        self._later: deque[bytes] = deque()
        """Blocks that were read and given back."""
        self._text = b""
        """What has not been taken: it begins at an element of the list."""
        self._at = 0
        """How far into the file that is."""
        self._footer: Header | None = None
        self._ends = 0
        """How often the list seemed to end."""

    def read(self) -> Header:
        header = self._open_list()
        while self._footer is None:
            if not self._take_block():
                self._take_more()
        return _joined(header, self._footer)

    # --- text ---

    def _append(self, wanted: int) -> bool:
        """Add so many bytes, or all that is left, to the text; whether there were any."""
        parts = [self._text]
        while wanted > 0 and (block := self._next_block()):
            parts.append(block)
            wanted -= len(block)
        self._text = b"".join(parts)
        return len(parts) > 1

    def _next_block(self) -> bytes:
        """A block; b"" at the end."""
        return self._later.popleft() if self._later else next(self._blocks, b"")

    def _give_back(self) -> None:
        """Keep a block of the text and read the rest again later: who meets damage in a text copies it."""
        text, self._text = self._text, self._text[:_BLOCK]
        starts = range(_BLOCK, len(text), _BLOCK)
        self._later.extendleft(text[start : start + _BLOCK] for start in reversed(starts))

    def _drop(self, size: int) -> None:
        self._text = self._text[size:]
        self._at += size

    def _lose(self, size: int, cause: str, *, vital: bool = False) -> None:
        lost = self._text[:size]
        if b'"traceEvents"' in lost:
            raise TraceError(_SEVERAL)
        self._losses.lose(self._at, lost, cause, vital=vital)
        self._drop(size)

    # --- beginning ---

    def _open_list(self) -> Header:
        """Read up to the bracket that opens the list of events at the top level."""
        searched = 0
        while len(self._text) < _LONGEST_HEADER and self._append(max(_BLOCK, len(self._text))):
            for key in _KEY.finditer(self._text, searched):
                header = self._header_before(key.end())
                if header:
                    self._drop(key.end())
                    return header
            searched = max(0, len(self._text) - _LONGEST_KEY)
        raise _NotInWindows()

    def _header_before(self, end: int) -> Header | None:
        """The header, if what stands before `end` is one; None where the list lies further down."""
        try:
            return _decoded_header(self._text[:end] + b"]}", self._losses)
        except msgspec.ValidationError:
            return None
        except RecursionError:
            return None
        except msgspec.DecodeError as error:
            fault = Fault(error)
            if fault.at is None or fault.at >= end or fault.ended:
                return None
        lost = self._text[:end]
        self._losses.lose(0, lost, f"header: {fault.cause}", vital=_tells_whose(lost))
        return Header()

    # --- events ---

    def _take(self, listed: bytes) -> None:
        """Take the events of a list that begins where the text does.

        Raises: msgspec.DecodeError, RecursionError: it is none.
        """
        events = self._decoder.events(listed, self._at - 1)
        if self._at < _SEARCHED_FOR_NUMBERS and has_number_too_big(listed):
            self._losses.repair("number beyond a double", at=self._at)
        self._reading.take(events)

    def _take_block(self) -> bool:
        """Take the text and one more block up to its last cut, as one nearly always can, copying them once.

        Where not, the block is added to the text.
        """
        block = self._next_block()
        cut = next(cuts(block), None)
        if cut is not None:
            end, start = cut
            with suppress(msgspec.DecodeError, RecursionError):
                self._take(b"".join((b"[", self._text, memoryview(block)[:end], b"]")))
                self._at += len(self._text) + start
                self._text = block[start:]
                return True
        self._text += block
        return False

    def _take_more(self) -> None:
        """Take what the text begins with, however much of the file that needs."""
        while not self._take_window():
            if not self._append(max(_BLOCK, len(self._text))):
                self._take_last()
                return
            if len(self._text) > _LONGEST_WINDOW:
                raise _NotInWindows()
        if len(self._text) > _MUCH:
            self._give_back()

    def _take_window(self) -> bool:
        """Take the events before the last cut, or skip what is damaged; False: more text is needed."""
        text = memoryview(self._text)
        for end, start in islice(cuts(self._text), _TRIES):
            try:
                self._take(b"".join((b"[", text[:end], b"]")))
            except msgspec.DecodeError as error:
                fault = Fault(error)
                if fault.at is None or (fault.at > end and not fault.ended):
                    continue  # a wrong guess
                self._meet(fault)
            except RecursionError:
                self._skip(None, "nested too deeply")
            else:
                self._drop(start)
            return True
        return False

    def _take_last(self) -> None:
        """Take what is left at the end of the file."""
        try:
            self._take(b"[" + self._text)
        except msgspec.DecodeError as error:
            fault = Fault(error)
            if fault.at is None or is_cut(self._text):
                self._take_before_cut()
            else:
                self._meet(fault)
        except RecursionError:
            self._skip(None, "nested too deeply")
        else:
            self._drop(len(self._text))
            self._cut()

    def _meet(self, fault: Fault) -> None:
        """Go on where the decoder stopped, in the text behind an added bracket: at the end, or at damage."""
        assert fault.at is not None
        if fault.ended:
            body = self._text[: fault.at - 2].rstrip()
            self._end(b"[" + body, len(body))
        elif not (fault.is_trailing_comma and self._end_behind_comma(fault.at)):
            self._skip(fault.at - 1, fault.cause)

    # --- end ---

    def _end_behind_comma(self, end: int) -> bool:
        """End the list before a comma that nothing follows; whether that is all that was wrong."""
        body = self._text[: end - 1].rstrip().removesuffix(b",")
        try:
            self._decoder.events(b"[%b]" % body, self._at - 1)
        except msgspec.DecodeError:
            return False
        self._losses.repair("trailing comma")
        self._end(b"[%b]" % body, end)
        return True

    def _end(self, listed: bytes, end: int) -> None:
        """Take the last events; what follows is the footer, unless the bracket was one too many."""
        self._ends += 1
        footer = self._read_footer(end)
        is_none = isinstance(footer, Fault) and footer.at is not None and not footer.ended
        if is_none and (self._ends > _TRIES or self._next_event(end)[0]):
            self._skip(end - 1, "a bracket too many", vital=self._may_be_inside)
            return
        self._take(listed)
        self._drop(end)
        if isinstance(footer, Header):
            self._footer = footer
        elif footer.at is None:
            self._cut()
        elif footer.ended:
            self._end_of_document(footer.at - 1 - len(_BEFORE_FOOTER))
        else:
            self._footer = Header()
            cause = f"after the events: {footer.cause}"
            self._lose(len(self._text), cause, vital=_tells_whose(self._text))

    def _read_footer(self, end: int) -> Header | Fault:
        """What follows the list that ends before `end`; all of it, unless it is none."""
        while True:
            found = self._footer_from(end)
            size = len(_BEFORE_FOOTER) + len(self._text) - end
            over = isinstance(found, Fault) and found.at is not None and found.at < size - LONGEST_WORD
            if over or not self._append(max(_BLOCK, len(self._text) - end)):
                return found
            if len(self._text) - end > _LONGEST_WINDOW:
                raise _NotInWindows()

    def _footer_from(self, end: int) -> Header | Fault:
        try:
            footer = self._decoded_footer(end)
        except (msgspec.ValidationError, RecursionError):
            raise _NotInWindows() from None
        except msgspec.DecodeError as error:
            return Fault(error)
        if bytes(footer.trace_events):
            raise _NotInWindows(second_list=True)
        return footer

    def _decoded_footer(self, start: int, end: int | None = None) -> Header:
        """What the text between is, behind a list of events."""
        at = self._at + start - len(_BEFORE_FOOTER)
        return _decoded_header(_BEFORE_FOOTER + self._text[start:end], self._losses, at)

    def _end_of_document(self, end: int) -> None:
        """Something follows the document; zeros are what a file system leaves behind a lost end."""
        self._footer = self._decoded_footer(0, end)
        self._drop(end)
        begun = self._at
        while not self._text.strip(_NOTHING):
            self._drop(len(self._text))
            if not self._append(_BLOCK):
                self._losses.repair("zero bytes after the end", at=begun)
                return
        vital = self._may_be_inside
        while self._text or self._append(_LONGEST_HEADER):
            self._lose(len(self._text), "text after the end", vital=vital)

    @property
    def _may_be_inside(self) -> bool:
        """Whether a list that seems to end may be one within an event whose beginning was lost."""
        return self._losses.has_lost_text

    def _cut(self) -> None:
        self._losses.cut = self._losses.cut or "cut off"
        self._footer = Header()

    def _take_before_cut(self) -> None:
        """Take the events that are whole."""
        end = max((element.end for element in elements(self._text)), default=0)
        if end:
            self._take(b"[%b]" % self._text[:end])
        self._cut()

    # --- damage ---

    def _skip(self, at: int | None, cause: str, *, vital: bool = False) -> None:
        """Take the events before the byte `at`, which does not fit, and go on behind it (None: unknown).

        The event before the damage is not taken: it may be two that grew together.
        """
        before = [each for each in elements(self._text, at) if each.next is not None]
        if before:
            self._take(b"[%b]" % self._text[: before[-1].end])
            start = before[-1].next or 0
            self._drop(start)
            at = None if at is None else at - start
        self._go_on_behind(1 if at is None else max(at, 1), cause, vital)

    def _go_on_behind(self, at: int, cause: str, vital: bool) -> None:
        """Lose the text up to the next event from `at` on that stands by itself, or up to the end."""
        while True:
            found, searched = self._next_event(at)
            if found:
                self._lose(searched, cause, vital=vital)
                return
            if searched > _LONGEST_HEADER:
                self._lose(searched, cause, vital=vital)
                searched = 0
            if not self._append(max(_BLOCK, len(self._text) - searched)):
                break
            at = searched
        self._footer = self._footer_behind(cause)

    def _next_event(self, at: int) -> tuple[bool, int]:
        """Where the next event begins, if there is one; else how far there is none."""
        text = memoryview(self._text)
        for brace in OBJECT.finditer(self._text, at):
            begin = brace.start()
            alone = stands_alone(text[begin : begin + _LONGEST_EVENT])
            if alone or (alone is None and begin + _LONGEST_EVENT > len(text)):
                return bool(alone), begin
        return False, max(at, len(text) - _LONGEST_KEY)

    def _footer_behind(self, cause: str) -> Header:
        """What follows the last bracket behind which a footer stands; all before it is lost."""
        for at in islice(backwards(b"]", self._text), _TRIES * _TRIES):
            try:
                footer = _decoded_header(_BEFORE_FOOTER[:-1] + self._text[at:], self._losses)
            except (msgspec.DecodeError, RecursionError):
                continue
            self._lose(at, cause)
            return footer
        self._lose(len(self._text), cause)
        self._losses.cut = self._losses.cut or "without an end"
        return Header()


# --- header -----------------------------------------------------------------------------------------------


def _decoded_header(text: bytes, losses: Losses, at: int = 0) -> Header:
    """Top level of a document, which begins `at` bytes into the file, mended as events are.

    Raises: msgspec.DecodeError: not JSON, or no object. RecursionError: nested too deeply.
    """
    header, _ = mended(_HEADER.decode, text, losses, at)
    if has_number_too_big(text):
        losses.repair("number beyond a double")
    return header


_WHOSE = re.compile(rb"distri|butedInfo|baseTime|Nanoseconds")
"""Halves of the keys that tell rank, world and clock: a key that is damaged has one of its halves still."""


def _tells_whose(text: bytes) -> bool:
    """Whether text at the top level that was lost told whose the trace is, or when it was."""
    return _WHOSE.search(text) is not None


def _joined(header: Header, footer: Header) -> Header:
    """What stands before and behind the events; of what is given twice the last counts."""
    return Header(
        **{
            field: getattr(footer, field) if bytes(getattr(footer, field)) else getattr(header, field)
            for field in ("trace_events", "distributed_info", "base_time_nanoseconds")
        }
    )
