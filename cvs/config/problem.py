"""What can be wrong with a key, before anybody knows where in a file it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

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
        key = ".".join(map(str, self.key))
        return f"{key}: {self.text}" if key else self.text


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
