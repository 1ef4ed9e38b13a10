"""A file as it comes from a node."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import IO

_BLOCK = 1 << 20


def written(source: IO[bytes], target: Path) -> str:
    """Write what `source` gives, to its end, and make the folders above; SHA-256 of it, in hex.

    Half a file is worse than none: where this fails, nothing is left.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    try:
        with target.open("wb") as file:
            while block := source.read(_BLOCK):
                file.write(block)
                digest.update(block)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return digest.hexdigest()
