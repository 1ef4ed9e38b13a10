"""Words for a terminal: those of others, made fit; numbers, made short."""

from __future__ import annotations

import pytest

from cvs.terminal import listed, printable, printable_lines, spans


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


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([3], "rank 3"),
        ([3, 3], "rank 3"),
        ([7, 1, 0, 2], "ranks 0-2, 7"),
        ([4, 2], "ranks 2, 4"),
        (range(1, 129), "ranks 1-128"),
    ],
)
def test_numbers_in_words(numbers: list[int], text: str) -> None:
    assert listed("rank", numbers) == text


def test_neighbours_are_one() -> None:
    assert spans([9, 5, 6, 0, 5]) == ["0", "5-6", "9"]
