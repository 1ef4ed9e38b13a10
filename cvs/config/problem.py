"""What can be wrong with a key, before anybody knows where in a file it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from cvs.config.model import shown, shown_argument

Key = tuple[str | int, ...]
"""Way to a value from the top of a file: names of keys, indices of list items."""

Place = tuple[int, int]
"""Line and column, both from 1."""


@dataclass(frozen=True)
class Problem:
    """Something wrong at `key`."""

    key: Key
    text: str
    given_at: Place | None = None
    """Where it stands, if that is not where `key` stands first."""
    involves: tuple[Key, ...] = ()
    """Other keys that it holds only together with."""

    def __str__(self) -> str:
        """One line, with neither a secret nor a character that a terminal would take for a command."""
        key = ".".join(shown_argument(str(part)) or "''" for part in self.key)
        text = shown("", self.text)
        line = f"{key}: {text}" if key else text
        return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)


class Misfits(ValueError):
    """Keys that are good by themselves and do not fit together; all of them at once."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


def refuse_misfits(problems: Iterable[Problem]) -> None:
    """Raise what was found, if anything was.

    Raises: Misfits: at least one problem.
    """
    found = tuple(problems)
    if found:
        raise Misfits(found)


def nearest(name: str, names: Iterable[str], cutoff: float) -> str | None:
    """The one of `names` that was perhaps meant; None where none is as near as `cutoff` (0 to 1)."""
    near = difflib.get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return near[0] if near else None
