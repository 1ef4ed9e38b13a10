"""The rank that a path tells, as trainers name their folders and files. Pure."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

_RANK_FOLDER = re.compile(r"rank[_-]?([0-9]{1,9})")
_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[_-]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)


def rank_folder(path: str) -> tuple[str, int] | None:
    """The folder `rank<R>`, `rank_<R>` or `rank-<R>` that a file lies in, the nearest one, and its R."""
    for folder in PurePosixPath(path).parents:
        match = _RANK_FOLDER.fullmatch(folder.name)
        if match:
            return str(folder), int(match[1])
    return None


def rank_in_name(path: str) -> int | None:
    """R where the file's own name holds exactly one `rank<R>`, not after a letter; else None."""
    found = _RANK_IN_NAME.findall(PurePosixPath(path).name)
    return int(found[0]) if len(found) == 1 else None
