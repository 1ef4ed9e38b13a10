"""What nodes say, made fit for the user's terminal."""

from __future__ import annotations

import pytest

from cvs.runners._terminal import printable


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("plain, ünï – ✓", "plain, ünï – ✓"),
        ("a\tb", "a\tb"),
        ("\x1b[31mred\x1b[0m", "�[31mred�[0m"),
        ("\x1b]0;title\x07", "�]0;title�"),
        ("10%\r20%\x08", "10%�20%�"),
        ("\x9b31m \x00 \x7f", "�31m � �"),
        ("from right to left: \u202e", "from right to left: �"),
    ],
)
def test_what_a_terminal_would_obey_is_replaced(line: str, shown: str) -> None:
    assert printable(line) == shown
