"""Ranks that a user's pattern finds in paths."""

from __future__ import annotations

import time

import pytest

from cvs.errors import ConfigError
from cvs.parsers.rank_pattern import rank_names
from cvs.rank_paths import BY_FOLDER


@pytest.mark.parametrize(
    ("pattern", "path", "place"),
    [
        (r"worker(?P<rank>\d+)/", "worker12/t.json", ("worker12", 12)),
        (r"worker(?P<rank>\d+)/", "a/worker12_of_16/t.json", None),
        (r"worker(?P<rank>\d+)", "a/worker012_of_16/x/t.json", ("a/worker012_of_16", 12)),
        (r"_(?P<rank>[0-9]+)\.json", "a/host_7/t_3.json", ("a/host_7", 3)),
        (r"_(?P<rank>[0-9]+)\.json", "t_3.json", ("", 3)),
        (r"(?i)GPU(?P<rank>\d+)", "gpu4/t.json", ("gpu4", 4)),
        (r"(?<![a-z])r(?P<rank>\d{1,3})(?!\d)", "bar1/r2/t.json", ("bar1/r2", 2)),
        (r"w(?P<rank>\d+)|v(?P<other>\d+)", "v3/t.json", None),
        (r"w(?P<rank>\w*)", "wx3/t.json", None),
        (r"w(?P<rank>\d*)", "w/t.json", None),
        (r"w(?P<rank>\d+)", "w1234567890/t.json", None),
        (r"w(?P<rank>\d+)", "w\u0663/t.json", None),
        ("line\n(?P<rank>.)", "line\n3/t.json", ("line\n3", 3)),
    ],
)
def test_a_pattern_finds_a_rank_and_the_folder_of_that_rank(
    pattern: str, path: str, place: tuple[str, int] | None
) -> None:
    assert rank_names(pattern, ["w9/x.json", path]).place(path) == place


def test_without_a_pattern_folders_tell() -> None:
    assert rank_names(None, ["a"]) is BY_FOLDER


def test_without_a_file_nothing_is_found() -> None:
    names = rank_names("(?P<rank>x)", [])
    assert (names.place("x"), names.always) == (None, True)


def test_hundreds_of_paths_are_asked_at_once() -> None:
    paths = [f"node_{n // 8}/r{n}/{'x' * 200}.json" for n in range(800)]
    names = rank_names(r"/r(?P<rank>\d+)/", paths)
    assert [names.place(path) for path in paths] == [(f"node_{n // 8}/r{n}", n) for n in range(800)]


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [("(", "'(' is no regular expression: missing )"), ("x", "'x' has no group that finds the rank")],
)
def test_a_pattern_that_is_none_is_told_with_its_key(pattern: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rank_names(pattern, ["x"])
    assert str(caught.value).startswith(f"traces.rank_pattern: {reason}")


@pytest.mark.parametrize(
    "pattern", [r"(\w+\w*)+(?P<rank>\d)!", r"(a|aa)+(?P<rank>\d)!", r"(.*)*(?P<rank>\d)!"]
)
def test_a_pattern_that_would_take_forever_is_ended(pattern: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        rank_names(pattern, ["1!", "2!", f"{'a' * 60}.json", "3!"], seconds=1)
    assert time.monotonic() - begin < 10
    [problem] = caught.value.problems
    assert problem == (
        f"traces.rank_pattern: '{pattern}' takes more than 1 s, and came through 2 of 4 paths: "
        "write it without repeats within repeats"
    )
