"""One fault in a sound trace, as disks, networks and other people's programs make them."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

Fault = Callable[[bytes, Random], bytes]


def _at(text: bytes, random: Random) -> int:
    return random.randrange(len(text))


def _replace_a(pattern: bytes, by: bytes) -> Fault:
    """Put something else in the place of one that matches."""

    def fault(text: bytes, random: Random) -> bytes:
        found = list(re.finditer(pattern, text))
        if not found:
            return text
        match = random.choice(found)
        return text[: match.start()] + match.expand(by) + text[match.end() :]

    return fault


def _insert(*pieces: bytes) -> Fault:
    def fault(text: bytes, random: Random) -> bytes:
        at = _at(text, random)
        return text[:at] + random.choice(pieces) + text[at:]

    return fault


def _in_a_string(*pieces: bytes) -> Fault:
    """Put something into a string, between two of its letters."""

    def fault(text: bytes, random: Random) -> bytes:
        inside = [match.start() + 1 for match in re.finditer(rb"[A-Za-z][A-Za-z]", text)]
        at = random.choice(inside)
        return text[:at] + random.choice(pieces) + text[at:]

    return fault


def _flip(text: bytes, random: Random) -> bytes:
    at = _at(text, random)
    return text[:at] + bytes([text[at] ^ random.randrange(1, 256)]) + text[at + 1 :]


def _zeros(text: bytes, random: Random) -> bytes:
    at, size = _at(text, random), random.choice([1, 16, 512, 4096])
    return text[:at] + bytes(min(size, len(text) - at)) + text[at + size :]


def _lose_a_piece(text: bytes, random: Random) -> bytes:
    at = _at(text, random)
    return text[:at] + text[at + random.choice([1, 2, 30, 300, 3000]) :]


def _double_a_piece(text: bytes, random: Random) -> bytes:
    at, size = _at(text, random), random.choice([1, 20, 400, 4000])
    return text[: at + size] + text[at:]


def _cut(text: bytes, random: Random) -> bytes:
    return text[: _at(text, random)]


def _swap_pieces(text: bytes, random: Random) -> bytes:
    """What two writers make of one file."""
    first, second = sorted((_at(text, random), _at(text, random)))
    size = random.choice([50, 500, 4096])
    return text[:first] + text[second : second + size] + text[first + size :]


FAULTS: dict[str, Fault] = {
    "a byte flipped": _flip,
    "a bad escape": _in_a_string(b"\\", b"\\x41", b"\\q", b"\\u12", b"C:\\users\\new", b"\\ud800"),
    "a raw control character": _in_a_string(b"\n", b"\t", b"\0", b"\x1b[31m"),
    "not UTF-8": _in_a_string(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf"),
    "a lost quote": _replace_a(rb'"', b""),
    "an added quote": _insert(b'"'),
    "a lost brace": _replace_a(rb"[{}]", b""),
    "an added brace": _insert(b"{", b"}"),
    "a lost bracket": _replace_a(rb"[\[\]]", b""),
    "an added bracket": _insert(b"[", b"]"),
    "a lost comma": _replace_a(rb",", b""),
    "an added comma": _insert(b","),
    "a trailing comma": _replace_a(rb"([}\]])", rb",\1"),
    "a lost colon": _replace_a(rb":", b""),
    "a bare number": _replace_a(rb": *[0-9][0-9.]*", b": NaN"),
    "inf": _replace_a(rb": *[0-9][0-9.]*", b": -inf"),
    "over 64 bits": _replace_a(rb": *[0-9][0-9.]*", b": 123456789012345678901234567890"),
    "beyond a double": _replace_a(rb": *[0-9][0-9.]*", b": 1e999"),
    "a leading zero": _replace_a(rb": *([0-9]+)", rb": 0\1"),
    "a text for a number": _replace_a(rb": *([0-9][0-9.]*)", rb': "\1"'),
    "a word for a number": _replace_a(rb": *([0-9][0-9.]*)", rb': "soon"'),
    "null for a value": _replace_a(rb': *"[^"]*"', b": null"),
    "a number for a text": _replace_a(rb': *"[^"]*"', b": 5"),
    "a negative number": _replace_a(rb": *([0-9][0-9.]*)", rb": -\1"),
    "a byte-order mark": lambda text, _: b"\xef\xbb\xbf" + text,
    "zeros": _zeros,
    "zeros at the end": lambda text, random: text + bytes(random.choice([1, 512, 5000])),
    "cut": _cut,
    "a piece lost": _lose_a_piece,
    "a piece twice": _double_a_piece,
    "another piece": _swap_pieces,
    "two documents": lambda text, _: text + text,
    "text behind": lambda text, random: text + random.choice([b"x", b"}", b"]", b"\n\nDone.\n", b'{"a": 1}']),
    "traceEvents twice": _replace_a(rb'"traceEvents"', rb'"traceEvents": [], "traceEvents"'),
    "another unit": _replace_a(rb'"displayTimeUnit": *"[a-z]*"', b'"displayTimeUnit": "ns"'),
    "no traceEvents": _replace_a(rb'"traceEvents"', b'"events"'),
    "traceEvents is null": lambda _, __: b'{"traceEvents": null}',
    "a list": lambda text, _: b"[" + text + b"]",
    "nothing": lambda _, __: b"",
}  # fmt: skip


def _flip_packed(packed: bytes, random: Random) -> bytes:
    return _flip(packed, random)


PACKED_FAULTS: dict[str, Fault] = {
    "a packed byte flipped": _flip_packed,
    "packed and cut": _cut,
    "packed, zeros": _zeros,
    "packed, a piece lost": _lose_a_piece,
    "packed, text behind": lambda packed, random: packed + random.choice([b"x", b"\0" * 600, packed]),
}
"""Of the packed file."""
