"""Places in the text of a trace: where events may end and begin, as far as the text itself tells."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from string import ascii_letters, digits
from typing import NamedTuple

import msgspec

from cvs.parsers.trace_text import Fault

OBJECT = re.compile(rb'\{\s*"')
"""Where an object begins that is not empty."""
LONGEST_WORD = 8
"""Of a text that goes on, the last word may be half a number, which looks like damage."""
_BLANKS = b" \t\r\n"
_WORD = b"+-." + (digits + ascii_letters).encode()
_PIECE = 1 << 10
_GUESSES = 64
"""Braces in a text behind which a cut is looked for."""


def backwards(byte: bytes, text: bytes) -> Iterator[int]:
    """Where a byte stands, from the end on."""
    at = text.rfind(byte)
    while at >= 0:
        yield at
        at = text.rfind(byte, 0, at)


def cuts(text: bytes) -> Iterator[tuple[int, int]]:
    """Guesses where one element ends and the next begins, at the last braces of a text."""
    for brace in islice(backwards(b"{", text), _GUESSES):
        end = _before_blanks(text, brace)
        if end and text[end - 1] == ord(","):
            before = _before_blanks(text, end - 1)
            if before and text[before - 1] == ord("}"):
                yield before, brace


def _before_blanks(text: bytes, end: int) -> int:
    while end:
        start = max(0, end - _PIECE)
        piece = text[start:end].rstrip(_BLANKS)
        if piece:
            return start + len(piece)
        end = start
    return 0


class Element(NamedTuple):
    """A whole element of a list: where it ends, and where the next begins, if that is an object."""

    end: int
    next: int | None


_VALUE = msgspec.json.Decoder(msgspec.Raw)
_NEXT_OBJECT = re.compile(rb"\s*,\s*(?=\{)")
_NEXT = re.compile(rb"\s*,\s*")


def elements(text: bytes, before: int | None = None) -> Iterator[Element]:
    """The elements that a text begins with, one after the other, up to the first that is not whole.

    Args: before: where to stop; None: nowhere.
    """
    view, at = memoryview(text), 0
    while before is None or at < before:
        try:
            _VALUE.decode(view[at:])
            end = len(text)
        except msgspec.DecodeError as error:
            fault = Fault(error)
            if not fault.ended or fault.at is None:
                return
            end = _before_blanks(text, at + fault.at - 1)
        except RecursionError:
            return
        following = _NEXT_OBJECT.match(text, end)
        yield Element(end, following.end() if following else None)
        comma = following or _NEXT.match(text, end)
        if comma is None:
            return
        at = comma.end()


class _AnyEvent(msgspec.Struct):
    ph: str


_ANY_EVENT = msgspec.json.Decoder(_AnyEvent)


def stands_alone(text: memoryview) -> bool | None:
    """Whether an event begins here that another, or the end of the list, follows; None: the text ends."""
    try:
        _ANY_EVENT.decode(text)
    except msgspec.ValidationError:
        return False
    except msgspec.DecodeError as error:
        fault = Fault(error)
        if fault.at is None or (not fault.ended and fault.at >= len(text) - LONGEST_WORD):
            return None
        return fault.ended and text[fault.at - 1] in b",]"
    except RecursionError:
        return False
    return None


def is_cut(text: bytes) -> bool:
    """Whether all that is wrong with the text is that it ends too soon, perhaps in a number or a word."""
    try:
        msgspec.json.decode(b"[" + text.rstrip(_WORD), type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        return Fault(error).at is None
    except RecursionError:
        return False
    return False
