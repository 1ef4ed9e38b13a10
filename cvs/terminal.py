"""Text of others, such as names of their files, made fit for the user's terminal."""

from __future__ import annotations


def printable(line: str) -> str:
    """The line with nothing in it that a terminal would obey: `�` in place of each such character."""
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() or char == "\t" else "�" for char in line)


def printable_lines(text: str) -> str:
    """As `printable`, for a text whose line ends are its own."""
    return "\n".join(map(printable, text.split("\n")))
