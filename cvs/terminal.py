"""Text for the user's terminal: that of others, such as names of files, made fit; numbers, made short."""

from __future__ import annotations

from collections.abc import Iterable


def printable(line: str) -> str:
    """The line with nothing in it that a terminal would obey: `�` in place of each such character."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() or char == "\t" else "�" for char in line)


def printable_lines(text: str) -> str:
    """As `printable`, for a text whose line ends are its own."""
    return "\n".join(map(printable, text.split("\n")))


def spans(numbers: Iterable[int]) -> list[str]:
    """Numbers in order, neighbours as one: `0-3`, `7`."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1][1:] = [number]
        else:
            found.append([number])
    return ["-".join(map(str, span)) for span in found]


def listed(what: str, numbers: Iterable[int]) -> str:
    """Numbers in words: `rank 3`, `ranks 0-3, 7`."""
    distinct = set(numbers)
    return f"{what}{'' if len(distinct) == 1 else 's'} {', '.join(spans(distinct))}"
