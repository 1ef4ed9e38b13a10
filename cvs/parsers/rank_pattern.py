"""The ranks that a user's pattern finds in paths.

Nothing stops a regular expression from within that goes back and forth for ever. So one is asked in a process
of its own, about all paths at once, and has `SECONDS` for that.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence

from cvs.config.patterns import RANK, with_rank
from cvs.errors import ConfigError
from cvs.rank_paths import BY_FOLDER, RankNames, RankPlace

KEY = "traces.rank_pattern"
SECONDS = 10.0
"""For all paths together; a pattern that goes straight on takes less than a hundredth."""

_FIND = """\
import json, re, sys
pattern, group, paths = json.load(sys.stdin)
for path in paths:
    found = re.search(pattern, path)
    print(json.dumps(found and (found[group], found.end(group))), flush=True)
"""
_NUMBER = re.compile("[0-9]{1,9}")


def rank_names(pattern: str | None, paths: Sequence[str], *, seconds: float = SECONDS) -> RankNames:
    """How `paths` tell of ranks: by folders and file names, or as `pattern` finds them.

    Raises: ConfigError: the pattern is none, or takes too long.
    """
    if pattern is None:
        return BY_FOLDER
    try:
        with_rank(pattern)
    except ValueError as error:
        raise ConfigError([f"{KEY}: {error}"]) from None
    found = zip(paths, _found(pattern, paths, seconds), strict=True)
    places = {path: place for path, answer in found if answer and (place := _place(path, *answer))}
    return RankNames(KEY, places.get, f"{KEY} finds no rank in its path", always=True)


def _found(pattern: str, paths: Sequence[str], seconds: float) -> Iterable[tuple[str | None, int] | None]:
    """What the group finds in each path, and where that ends."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _FIND],
            input=json.dumps([pattern, RANK, paths]).encode(),
            stdout=subprocess.PIPE,
            timeout=seconds,
            check=True,
        )
    except subprocess.TimeoutExpired as late:
        answered = (late.stdout or b"").count(b"\n")
        problem = f"takes more than {seconds:g} s, and came through {answered} of {len(paths)} paths"
        cure = "write it without repeats within repeats"
        raise ConfigError([f"{KEY}: '{pattern}' {problem}: {cure}"]) from None
    return map(json.loads, done.stdout.splitlines())


def _place(path: str, number: str | None, end: int) -> RankPlace | None:
    """The folder that a rank is the name of, or lies in, and the rank."""
    if number is None or not _NUMBER.fullmatch(number):
        return None
    folder_end = path.find("/", end)
    return path[:folder_end] if folder_end >= 0 else path.rpartition("/")[0], int(number)
