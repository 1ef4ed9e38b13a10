"""The rank that a path tells, as trainers name their folders and files. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

_RANK_FOLDER = re.compile(r"rank[_-]?([0-9]{1,9})")
_RANK_IN_NAME = re.compile(r"(?<![a-z])rank[_-]?([0-9]{1,9})(?![0-9])", re.IGNORECASE)

RankPlace = tuple[str, int]
"""A folder in which what is of this rank lies together, and the rank."""


def rank_folder(path: str) -> RankPlace | None:
    """The folder `rank<R>`, `rank_<R>` or `rank-<R>` that a file lies in, the nearest one, and its R."""
    *folders, _ = path.split("/")
    for depth in range(len(folders), 0, -1):
        match = _RANK_FOLDER.fullmatch(folders[depth - 1])
        if match:
            return "/".join(folders[:depth]), int(match[1])
    return None


def rank_in_name(path: str) -> int | None:
    """R where the file's own name holds exactly one `rank<R>`, not after a letter; else None."""
    found = _RANK_IN_NAME.findall(PurePosixPath(path).name)
    return int(found[0]) if len(found) == 1 else None


@dataclass(frozen=True, slots=True)
class RankNames:
    """How paths tell which rank lies where."""

    teller: str
    """Who tells it, in words."""
    place: Callable[[str], RankPlace | None]
    missing: str
    """Why a file is left out whose path has no such place."""
    always: bool = False
    """Whether it is left out even where no other path has one."""


BY_FOLDER = RankNames("the folder", rank_folder, "not in a rank folder, where others are")
