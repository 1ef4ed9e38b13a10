"""Files that come in one compressed stream, as a node packs them."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import zstandard

from cvs.transport._written import written

PACK = (
    'cd "$1" || exit 1; if command -v zstd > /dev/null; then echo zstd; pack="zstd -q -1 -c";'
    ' elif command -v gzip > /dev/null; then echo gzip; pack="gzip -1 -c";'
    ' else echo "there is neither zstd nor gzip" >&2; exit 1; fi;'
    " tar --null -T - -chf - | $pack"
)
"""Run by a shell in the folder `$1`, takes paths on its input; says first how it packs."""
_LONGEST_WORD = 8
_BLOCK = 1 << 20


class Reader(io.RawIOBase):
    """A stream of bytes over a function that gives the next piece, empty at the end."""

    def __init__(self, receive: Callable[[int], bytes]) -> None:
        self._receive = receive

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill what the next piece fills."""
        piece = self._receive(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)


def unpack(stream: IO[bytes], wanted: set[str], into: Path) -> Iterator[tuple[str, str | OSError]]:
    """Write each file of `wanted` as it comes, below `into`: its path, and its digest or why there is none.

    Raises: ValueError, EOFError, OSError, tarfile.TarError: the stream is not what it should be.
    """
    with _unpacked(stream) as plain, tarfile.open(fileobj=plain, mode="r|", bufsize=_BLOCK) as archive:
        for member in archive:
            source = archive.extractfile(member) if member.name in wanted else None
            if source is None:
                continue
            try:
                yield member.name, written(source, into / member.name)
            except OSError as error:
                if error.filename is None and error.errno is None:
                    raise  # of the stream, not of the disk
                yield member.name, error


def _unpacked(stream: IO[bytes]) -> IO[bytes]:
    word = stream.readline(_LONGEST_WORD).strip()
    if word == b"zstd":
        return cast("IO[bytes]", zstandard.ZstdDecompressor().stream_reader(stream))
    if word == b"gzip":
        return cast("IO[bytes]", gzip.GzipFile(fileobj=stream))
    raise ValueError(f"packed in an unknown way ({word.decode(errors='replace')!r})")
