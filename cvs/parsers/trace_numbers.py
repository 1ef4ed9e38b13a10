"""Numbers as a trace writes them, exactly what their digits say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

import msgspec

from cvs.parsers.trace_text import text_of

MAX_NS = 2**63 - 1
_PLAIN = re.compile(rb"(-?[0-9]{1,16})\.([0-9]{1,3})")
_UNUSUAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_EXACT = Context(prec=40, rounding=ROUND_HALF_EVEN)
_ONE_NS = Decimal("0.001")


def nanoseconds(text: bytes) -> int | None:
    """Nanoseconds that a JSON value of microseconds means, exactly what its digits say.

    Digits beyond the nanosecond round to the nearest, half to even. A string that holds a number counts as
    it. None: not usable, that is absent, null, bool, no number, or beyond 64-bit nanoseconds.
    """
    try:
        # As profilers write it. Else the dot is elsewhere, or int() does not take it.
        number = int(text[:-4] + text[-3:]) if text[-4:-3] == b"." else int(text) * 1000
    except ValueError:
        return _rare_nanoseconds(text)
    return number if -MAX_NS <= number <= MAX_NS else None


def nanoseconds_of(values: Sequence[msgspec.Raw]) -> list[int] | None:
    """The same for many at once, plain numbers of at most three decimals; None where any is another thing.

    One by one takes twice as long.
    """
    parts = b",".join(values).split(b",")
    try:
        whole = b",".join([part if part[-4:-3] == b"." else _with_decimals(part) for part in parts])
        numbers = list(map(int, whole.replace(b".", b"").split(b",")))
    except ValueError:
        return None
    return numbers if min(numbers) >= -MAX_NS and max(numbers) <= MAX_NS else None


def _with_decimals(number: bytes) -> bytes:
    whole, _, decimals = number.partition(b".")
    if not whole or len(decimals) > 3:
        raise ValueError
    return b"%b.%b" % (whole, decimals.ljust(3, b"0"))


def _rare_nanoseconds(text: bytes) -> int | None:
    """The same for a number with other than three decimals."""
    plain = _PLAIN.fullmatch(text)
    if plain is None:
        return _unusual_nanoseconds(text)
    whole, fraction = plain.groups()
    return _in_64_bits(int(whole + fraction.ljust(3, b"0")))


def _unusual_nanoseconds(text: bytes) -> int | None:
    """The same for a number written as a string, with an exponent or with more digits."""
    written = text_of(text) if text.startswith(b'"') else text.decode()
    if written is None or not _UNUSUAL.fullmatch(written.strip()):
        return None
    try:
        number = Decimal(written)
    except InvalidOperation:  # an exponent of 19 digits and more
        return None
    if number.copy_abs() > MAX_NS:  # far too big; what is not fits into the precision of the next line
        return None
    return _in_64_bits(int(number.quantize(_ONE_NS, context=_EXACT).scaleb(3, context=_EXACT)))


def _in_64_bits(number: int) -> int | None:
    return number if abs(number) <= MAX_NS else None


def whole_number(text: bytes, *, most: int) -> int | None:
    """A number of plain digits; None where it is something else, or beyond `most`."""
    number = int(text) if re.fullmatch(rb"[0-9]{1,19}", text) else None
    return number if number is not None and number <= most else None
