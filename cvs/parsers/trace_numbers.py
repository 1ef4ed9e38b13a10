"""Numbers as a trace writes them, exactly what their digits say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation

import msgspec

MAX_NS = 2**63 - 1
_PLAIN = re.compile(rb"(-?[0-9]{1,16})\.([0-9]{1,3})")
_THREE_DECIMALS = re.compile(rb"\.[0-9]{3}(?=,|\Z)")
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
    """The same for many at once, as profilers write them; None where any is written in another way.

    Three decimals each, or none in all of them; one by one takes three times as long.
    """
    text = b",".join(values)
    dots = text.count(b".")
    try:
        if not dots:
            numbers = [number * 1000 for number in map(int, text.split(b","))]
        elif dots == len(values) == len(_THREE_DECIMALS.findall(text)):
            numbers = list(map(int, text.replace(b".", b"").split(b",")))
        else:
            return None
    except ValueError:
        return None
    return numbers if min(numbers) >= -MAX_NS and max(numbers) <= MAX_NS else None


def _rare_nanoseconds(text: bytes) -> int | None:
    """The same for a number with other than three decimals."""
    plain = _PLAIN.fullmatch(text)
    if plain is None:
        return _unusual_nanoseconds(text)
    whole, fraction = plain.groups()
    return _in_64_bits(int(whole + fraction.ljust(3, b"0")))


def _unusual_nanoseconds(text: bytes) -> int | None:
    """The same for a number written as a string, with an exponent or with more digits."""
    written = msgspec.json.decode(text, type=str).strip() if text.startswith(b'"') else text.decode()
    if not _UNUSUAL.fullmatch(written):
        return None
    try:
        number = Decimal(written)
    except InvalidOperation:  # an exponent of 19 digits and more
        return None
    if abs(number) > MAX_NS:  # far too big; what is not fits into the precision of the next line
        return None
    return _in_64_bits(int(number.quantize(_ONE_NS, context=_EXACT).scaleb(3, context=_EXACT)))


def _in_64_bits(number: int) -> int | None:
    return number if abs(number) <= MAX_NS else None


def whole_number(text: bytes, *, most: int) -> int | None:
    """A number of plain digits; None where it is something else, or beyond `most`."""
    number = int(text) if re.fullmatch(rb"[0-9]{1,19}", text) else None
    return number if number is not None and number <= most else None
