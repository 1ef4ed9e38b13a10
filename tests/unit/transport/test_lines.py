"""Output as it comes in pieces, and lines as they are handed on."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.transport._lines import Lines


@given(st.lists(st.binary(max_size=20).map(lambda piece: piece.replace(b"\r", b"\n"))))
def test_whole_lines_however_they_come(pieces: list[bytes]) -> None:
    handed: list[bytes] = []
    lines = Lines(handed.append)
    for piece in pieces:
        lines.take(piece)
    lines.close()
    assert handed == b"".join(pieces).splitlines(keepends=True)
    assert b"".join(handed) == b"".join(pieces)


def test_a_line_that_is_too_long_comes_in_pieces() -> None:
    handed: list[bytes] = []
    Lines(handed.append).take(b"x" * 200_000)
    assert b"".join(handed) == b"x" * 200_000
    assert max(map(len, handed)) == 65536


def test_a_line_that_grows_is_handed_on_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    handed: list[bytes] = []
    lines = Lines(handed.append)
    for second, piece in enumerate((b"\rstep 1", b"\rstep 2", b"\rstep 3", b"\rstep 4")):
        monkeypatch.setattr(time, "monotonic", lambda now=second * 0.6: now)
        lines.take(piece)
    assert handed == [b"\rstep 1\rstep 2\rstep 3"]
