"""Words of others, fit for a terminal."""

from __future__ import annotations

import pytest

from cvs.terminal import printable, printable_lines


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("plain, ünï – ✓", "plain, ünï – ✓"),
        ("a\tb", "a\tb"),
        ("\x1b[31mred\x1b[0m", "�[31mred�[0m"),
        ("\x1b]0;title\x07", "�]0;title�"),
        ("10%\r20%\x08", "10%�20%�"),
        ("\x9b31m \x00 \x7f", "�31m � �"),
        ("from right to left: \u202e", "from right to left: �"),
        ("a\nb", "a�b"),
        ("bell\a, half a pair \udcff, ü", "bell�, half a pair �, ü"),
    ],
)
def test_nothing_is_left_that_a_terminal_obeys(line: str, told: str) -> None:
    assert printable(line) == told


def test_lines_stay_lines() -> None:
    assert printable_lines("a\033\nb\x85c\n") == "a�\nb�c\n"
