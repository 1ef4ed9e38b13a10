"""Placeholders are filled in strings, and in nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.config.placeholders import fill, leftovers
from cvs.config.scalars import Plain

VALUES = {"user-id": "alice", "user": "alice", "home": "/home/alice", "cvs": "/opt/cvs"}


def told(data: object, known: dict[str, str]) -> list[str]:
    return [str(problem) for problem in leftovers(data, known)]


@pytest.mark.parametrize(
    ("written", "filled"),
    [
        ("{user-id}", "alice"),
        ("/home/{user}/aorta", "/home/alice/aorta"),
        ("{home}/{cvs}{user-id}", "/home/alice//opt/cvsalice"),
        ("{nobody}", "{nobody}"),
        ("{User-Id}", "{User-Id}"),
        ("{{user}}", "{alice}"),
        ("${HOME} and ${user}", "${HOME} and ${user}"),
        ("user-id", "user-id"),
        ("", ""),
    ],
)
def test_fill(written: str, filled: str) -> None:
    assert fill(written, VALUES) == filled


def test_values_are_filled_at_any_depth_and_keys_are_not() -> None:
    data = {"{user}": ["{user}", {"deep": "{home}/x"}], "number": 3, "nothing": None, "switch": True}
    assert fill(data, VALUES) == {
        "{user}": ["alice", {"deep": "/home/alice/x"}],
        "number": 3,
        "nothing": None,
        "switch": True,
    }


def test_what_is_filled_in_is_not_filled_again() -> None:
    assert fill("{a}", {"a": "{b}", "b": "wrong"}) == "{b}"


def test_plain_text_stays_plain() -> None:
    assert type(fill(Plain("{user}"), VALUES)) is Plain
    assert type(fill("{user}", VALUES)) is str


@given(st.text(alphabet=st.characters(exclude_characters="{}")))
def test_text_without_braces_is_left_alone(text: str) -> None:
    assert fill(text, VALUES) == text


def test_a_left_over_placeholder_is_told_with_its_key_and_the_known_ones() -> None:
    [line] = told({"docker": {"image": "reg/{usr}/x"}}, {"user": "", "home": ""})
    assert line == "docker.image: unknown placeholder {usr} (known here: {user}, {home})"


@pytest.mark.parametrize("written", ["<changeme>", "/home/<CHANGEME>/aorta", "a <ChangeMe>"])
def test_changeme_is_told(written: str) -> None:
    [line] = told({"aorta_path": written}, VALUES)
    assert line == "aorta_path: <changeme> is still there; write your own value"


def test_in_a_name_too() -> None:
    [line] = told({"node_dict": {"<changeme>": {"vpc_ip": "10.0.0.1"}}}, VALUES)
    assert line == "node_dict.<changeme>: <changeme> is still there; write your own name"


def test_every_left_over_is_told() -> None:
    data = {
        "a": "{x}{y}",
        "b": ["fine", "{z}"],
        "c": {"d": "<changeme>"},
        "e": "${ENV}",
    }
    assert [line.split(" (")[0].split(";")[0] for line in told(data, {})] == [
        "a: unknown placeholder {x}",
        "a: unknown placeholder {y}",
        "b.1: unknown placeholder {z}",
        "c.d: <changeme> is still there",
    ]


def test_where_braces_mean_something_else_only_changeme_is_told() -> None:
    data = {"traces": {"rank_pattern": "r{1,3}{user}", "communication_kernels": ["<changeme>"]}}
    assert [str(problem) for problem in leftovers(data, None)] == [
        "traces.communication_kernels.0: <changeme> is still there; write your own value"
    ]


def test_nothing_is_left_over() -> None:
    assert list(told(fill({"a": "{user}", "b": [3, None]}, VALUES), VALUES)) == []


def test_one_that_has_no_value_here() -> None:
    values: dict[str, str | None] = {"home": None, "user": ""}
    assert fill({"a": "{home}/x{user}"}, values) == {"a": "{home}/x"}
    assert [str(problem) for problem in leftovers({"a": "{home}/x", "b": "{user}"}, values)] == [
        "a: {home} has no value here: no home is known for this user; set HOME"
    ]
