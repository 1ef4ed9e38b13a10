"""What counts as text, number or switch: contract section 3, the paragraph on scalars."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from cvs.config.scalars import (
    Digits,
    Integer,
    Name,
    NotNegative,
    Number,
    Optional,
    OverrideValue,
    Plain,
    Ratio,
    Switch,
    Text,
    is_null,
)

OPTIONAL_TEXT: Any = Optional[Text]  # type: ignore[misc]
OPTIONAL_INTEGER: Any = Optional[Integer]  # type: ignore[misc]
LIMIT: Any = Optional[NotNegative]  # type: ignore[misc]
RATIO: Any = Optional[Ratio]  # type: ignore[misc]

QUOTES = "write it in quotes"
WHOLE = "no whole number (digits only, no quotes)"
PLAIN_NUMBER = "no plain number (digits and a point, no quotes)"
EITHER = "neither true nor false (without quotes)"

YAML_BOOLS = "true True TRUE false False yes Yes no NO on On off OFF y N".split()
YAML_NULLS = ["", "~", "null", "Null", "NULL"]
YAML_DATES = ["2024-01-31", "2001-12-14t21:59:43.10-05:00", "2001-12-14 21:59:43"]


def take(kind: Any, value: object) -> Any:
    """What a key of this kind makes of a value."""
    return TypeAdapter(kind).validate_python(value)


def refusal(kind: Any, value: object) -> str:
    """The one message of a key of this kind that does not take the value."""
    with pytest.raises(ValidationError) as caught:
        take(kind, value)
    [detail] = caught.value.errors()
    return detail["msg"]


# --- text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written", ["03", "1:30:00", "0x1F", "1_000", "1e3", ".inf", "3.10", "=", "<<", "nullable", "2024-01"]
)
def test_plain_text_stays_as_written(written: str) -> None:
    taken = take(Text, Plain(written))
    assert taken == written
    assert type(taken) is str


@pytest.mark.parametrize("word", [*YAML_BOOLS, *YAML_NULLS, *YAML_DATES])
def test_an_unquoted_word_that_yaml_would_turn_is_no_text(word: str) -> None:
    message = refusal(Text, Plain(word))
    assert QUOTES in message
    assert (f"`{word}`" if word else "null") in message


@pytest.mark.parametrize("word", [*YAML_BOOLS, *YAML_NULLS, *YAML_DATES])
def test_the_same_word_in_quotes_is(word: str) -> None:
    assert take(Text, word) == word


@pytest.mark.parametrize(
    ("value", "found"),
    [(3, "3"), (1.5, "1.5"), (True, "true"), (Digits("7"), "`7`"), (None, "null")],
)
def test_what_json_gives_another_type_is_no_text(value: object, found: str) -> None:
    assert f"{found} is no text; {QUOTES}" in refusal(Text, value)


@pytest.mark.parametrize(("value", "found"), [([], "a list"), ({}, "a mapping")])
def test_nor_is_what_holds_several(value: object, found: str) -> None:
    assert refusal(Text, value).endswith(f"{found} is no text")


@pytest.mark.parametrize("value", ["a\0b", "\ud800"])
def test_what_no_argument_can_hold_is_no_text(value: str) -> None:
    assert "holds a character that no text may hold" in refusal(Text, value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Plain("true"), "true"),
        (Plain("false"), "false"),
        (True, "true"),
        (False, "false"),
        (Plain("15"), "15"),
    ],
)
def test_true_and_false_stand_for_themselves_in_overrides(value: object, text: str) -> None:
    assert take(OverrideValue, value) == text


@pytest.mark.parametrize("word", ["True", "yes", "off", "null", "", "2024-01-31"])
def test_other_words_do_not(word: str) -> None:
    assert QUOTES in refusal(OverrideValue, Plain(word))


@pytest.mark.parametrize("value", ["", "  ", "\t"])
def test_a_name_is_never_empty(value: str) -> None:
    assert "is empty; a value is expected" in refusal(Name, value)
    assert take(Text, value) == value


def test_a_long_value_is_shown_by_its_beginning_and_length() -> None:
    assert f"`{'x' * 40}… (81 characters)` is {WHOLE}" in refusal(Integer, Plain("x" * 81))
    assert f"'{'x' * 80}' is {WHOLE}" in refusal(Integer, "x" * 80)


# --- numbers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number"), [(Plain("0"), 0), (Plain("10800"), 10800), (Plain("-7"), -7), (8, 8), (-1, -1)]
)
def test_whole_numbers(value: object, number: int) -> None:
    taken = take(Integer, value)
    assert taken == number
    assert type(taken) is int


NO_INTEGER = "010 00 -01 +5 1_000 0x10 0o7 1:30:00 1e3 8.0 .5 ８ true null ten".split()  # one fullwidth digit


@pytest.mark.parametrize("written", [*NO_INTEGER, "8 "])
def test_anything_else_is_no_whole_number(written: str) -> None:
    assert f"`{written}` is {WHOLE}" in refusal(Integer, Plain(written))


@pytest.mark.parametrize("value", ["8", True, 8.0, None, [8], {}])
def test_neither_in_quotes_nor_of_another_type(value: object) -> None:
    assert WHOLE in refusal(Integer, value)


@pytest.mark.parametrize(
    ("value", "number"),
    [(Plain("0.85"), 0.85), (Plain("-2.50"), -2.5), (Plain("7"), 7.0), (0.85, 0.85), (7, 7.0)],
)
def test_plain_numbers(value: object, number: float) -> None:
    taken = take(Number, value)
    assert taken == number
    assert type(taken) is float


NO_NUMBER = "1e3 1.5e-3 .5 5. 01.5 +1.5 1_0.0 1:30.5 0x1p3 .inf inf -.inf .nan nan".split()


@pytest.mark.parametrize("written", NO_NUMBER)
def test_exponents_and_their_kind_are_no_plain_numbers(written: str) -> None:
    assert f"`{written}` is {PLAIN_NUMBER}" in refusal(Number, Plain(written))


@pytest.mark.parametrize("value", ["0.5", True, float("inf"), float("nan"), None])
def test_quotes_and_what_is_not_finite_are_refused(value: object) -> None:
    assert PLAIN_NUMBER in refusal(Number, value)


@pytest.mark.parametrize("kind", [Integer, Number])
@pytest.mark.parametrize("written", [Plain("9" * 301), Digits("9" * 5000)])
def test_a_number_beyond_all_measure_is_refused(kind: Any, written: str) -> None:
    assert "no quotes" in refusal(kind, written)


@given(st.integers())
def test_every_integer_survives_being_written(number: int) -> None:
    assert take(Integer, Plain(str(number))) == number


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_every_decimal_survives_being_written(number: Any) -> None:
    assert take(Number, Plain(f"{number:f}")) == float(number)


# --- switches, null, limits -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, Plain("true")])
def test_true(value: object) -> None:
    assert take(Switch, value) is True


@pytest.mark.parametrize("value", [False, Plain("false")])
def test_false(value: object) -> None:
    assert take(Switch, value) is False


NO_SWITCH: list[object] = [
    *map(Plain, "yes no on off y n True FALSE 0 1 null".split()),
    "true",
    "false",
    0,
    1,
    None,
]


@pytest.mark.parametrize("value", NO_SWITCH)
def test_anything_else_is_no_switch(value: object) -> None:
    assert EITHER in refusal(Switch, value)


@pytest.mark.parametrize("value", [None, *map(Plain, YAML_NULLS)])
@pytest.mark.parametrize("kind", [OPTIONAL_TEXT, OPTIONAL_INTEGER, LIMIT, RATIO])
def test_null_is_nothing_where_nothing_may_be(kind: Any, value: object) -> None:
    assert is_null(value)
    assert take(kind, value) is None


def test_null_in_quotes_is_text() -> None:
    assert not is_null("null")
    assert take(OPTIONAL_TEXT, "null") == "null"


@pytest.mark.parametrize(
    ("kind", "written", "bound"),
    [
        (LIMIT, "-0.1", "greater than or equal to 0"),
        (RATIO, "-0.1", "greater than or equal to 0"),
        (RATIO, "1.01", "less than or equal to 1"),
        (RATIO, "85", "less than or equal to 1"),
    ],
)
def test_a_limit_outside_its_range(kind: Any, written: str, bound: str) -> None:
    assert bound in refusal(kind, Plain(written))


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (LIMIT, "0"),
        (LIMIT, "2000"),
        (RATIO, "0"),
        (RATIO, "1"),
    ],
)
def test_a_limit_on_the_edge(kind: Any, written: str) -> None:
    assert take(kind, Plain(written)) == float(written)
