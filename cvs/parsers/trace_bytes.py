"""From a file to its text, block by block, unpacked on the way.

Blocks stay small because fresh memory is what costs most: text that lies in the cache is read fastest.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from cvs.errors import TraceError
from cvs.parsers.trace_losses import Losses

_inflating: Any = zlib
with suppress(ImportError):  # three times as fast; whether it is there changes nothing else
    from isal import isal_zlib as _inflating

_ERROR: type[Exception] = _inflating.error
_LIBRARY = re.compile(r"Error -?[0-9]+ (?:while decompressing data: )?")
"""What the libraries put before what is wrong."""
_GZIP = b"\x1f\x8b"
_BLOCK = 1 << 16
_PACKED_BLOCK = 1 << 14
_BOM = b"\xef\xbb\xbf"


class Stream(Protocol):
    """As much of a binary stream as reading a trace needs."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        ...

    def seek(self, at: int, /) -> int:
        """Go on reading at this byte."""
        ...


def blocks_of(stream: Stream, losses: Losses) -> Iterator[bytes]:
    """The text of a file from its start, in blocks that are not empty.

    Whether it is packed its first two bytes say, not the file's name. A gzip stream that merely ends early is
    a cut; what was unpacked before an error in it must not be used.

    Raises: TraceError: a gzip stream with a decoding error or a wrong checksum: none of it can be trusted.
    """
    stream.seek(0)
    packed = stream.read(len(_GZIP)) == _GZIP
    stream.seek(0)
    blocks = _unpacked(stream, losses) if packed else iter(partial(stream.read, _BLOCK), b"")
    first = next(blocks, b"")
    if first.startswith(_BOM):
        losses.repair("byte-order mark skipped")
        first = first[len(_BOM) :]
    if first:
        yield first
    yield from blocks


def _unpacked(stream: Stream, losses: Losses) -> Iterator[bytes]:
    member: Any = None
    try:
        for packed in iter(partial(stream.read, _PACKED_BLOCK), b""):
            while packed:
                if member is None:
                    packed = packed.lstrip(b"\0")  # padding, as some media need it
                    if not packed:
                        break
                    if not packed.startswith(_GZIP[: len(packed)]):
                        raise TraceError("gzip: other bytes follow the packed text")
                    member = _inflating.decompressobj(wbits=31)
                yield from _inflated(member, packed)
                packed = member.unused_data
                if member.eof:
                    member = None
    except (zlib.error, _ERROR) as error:
        raise TraceError(f"gzip: the packed text is damaged: {_LIBRARY.sub('', str(error))}") from None
    if member is not None:
        losses.cut = "cut off: the gzip stream ends early"


def _inflated(member: Any, packed: bytes) -> Iterator[bytes]:
    """What so much of a member unpacks to; never more at a time than a block, whatever it is packed to."""
    while True:
        block = member.decompress(packed, _BLOCK)
        packed = member.unconsumed_tail
        if block:
            yield block
        if member.eof or (not packed and len(block) < _BLOCK):
            return
