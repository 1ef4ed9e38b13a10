"""Words of others, fit for a terminal."""

from __future__ import annotations

import pytest

from cvs.config.terminal import printable, printable_lines


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("esc\033[31m.json", "esc�[31m.json"),
        ("a\tb", "a\tb"),
        ("a\nb", "a�b"),
        ("bell\a, half a pair \udcff, ü", "bell�, half a pair �, ü"),
    ],
)
def test_nothing_is_left_that_a_terminal_obeys(line: str, told: str) -> None:
    assert printable(line) == told


def test_lines_stay_lines() -> None:
    assert printable_lines("a\033\nb\x85c\n") == "a�\nb�c\n"
