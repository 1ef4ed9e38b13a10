"""The log of a node: whole up to its cap, beyond it beginning and end."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.runners._node_log import NodeLog, end_of, gap


def logged(path: Path, pieces: list[bytes], cap: int) -> bytes:
    log = NodeLog(path, cap=cap)
    for piece in pieces:
        log.write(piece)
    log.close()
    return path.read_bytes()


def test_a_short_output_is_whole(tmp_path: Path) -> None:
    assert logged(tmp_path / "log", [b"one\n", b"\xff\x00", b"three"], cap=1000) == b"one\n\xff\x00three"


def test_of_a_long_one_the_ends_are_kept_and_the_gap_is_stated(tmp_path: Path) -> None:
    pieces = [b"%04d\n" % number for number in range(1000)]
    text = logged(tmp_path / "log", pieces, cap=400)
    head, _, tail = text.partition(b"\n[cvs: ")
    left_out = int(tail.split(b" ")[0])
    tail = tail.partition(b"]\n")[2]
    assert head == b"".join(pieces[:40])
    assert b"".join(pieces).endswith(tail)
    assert 100 <= len(tail) <= 205
    assert len(head) + left_out + len(tail) == 5000
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@given(sizes=st.lists(st.integers(1, 90), max_size=60), cap=st.integers(8, 400))
def test_no_byte_is_lost_but_those_that_are_stated(
    sizes: list[int], cap: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pieces = [bytes([65 + number % 26]) * size for number, size in enumerate(sizes)]
    whole = b"".join(pieces)
    text = logged(tmp_path_factory.mktemp("log") / "log", pieces, cap)
    if text != whole:
        head, _, rest = text.partition(b"\n[cvs: ")
        number, _, tail = rest.partition(b" bytes of output are left out here]\n")
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert len(head) + int(number) + len(tail) == len(whole)
        assert len(text) <= cap + 3 * 90 + len(gap(int(number))) + 1


def test_what_is_written_to_the_beginning_is_told(tmp_path: Path) -> None:
    log = NodeLog(tmp_path / "log", cap=8)
    assert [log.write(piece) for piece in (b"12", b"34", b"56", b"78")] == [True, True, False, False]
    log.close()


def test_a_second_attempt_goes_on(tmp_path: Path) -> None:
    logged(tmp_path / "log", [b"first\n"], cap=100)
    assert logged(tmp_path / "log", [b"second\n"], cap=100) == b"first\nsecond\n"


def test_a_closed_log_takes_nothing(tmp_path: Path) -> None:
    log = NodeLog(tmp_path / "log")
    log.close()
    assert not log.write(b"late")
    log.close()
    assert (tmp_path / "log").read_bytes() == b""


def test_memory_does_not_grow_with_the_output(tmp_path: Path) -> None:
    piece = b"x" * 65536
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    logged(tmp_path / "log", [piece] * 1600, cap=4 << 20)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB
    assert (tmp_path / "log").stat().st_size < (4 << 20) + 100


def test_the_end_of_a_log(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert end_of(file, 10) == ""
    file.write_bytes(b"0123456789\xff")
    assert end_of(file, 3) == "89\N{REPLACEMENT CHARACTER}"
    assert end_of(file, 100, start=8) == "89\N{REPLACEMENT CHARACTER}"
    assert end_of(file, sys.maxsize).startswith("0123")
