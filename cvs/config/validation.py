"""From data to a model, with every problem of the data at once, in words for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cvs.config.model import HIDDEN, is_secret
from cvs.config.problem import Key, Misfits, Problem
from cvs.config.scalars import shown_value

_Model = TypeVar("_Model", bound=BaseModel)


def validated(model: type[_Model], data: dict[str, Any]) -> tuple[_Model | None, list[Problem]]:
    """The model made of `data`, or None and what is wrong with it.

    Keys that are wrong by themselves do not hide those that do not fit together.
    """
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        problems = list(_problems(model, data, error))
    wrong = {problem.key for problem in problems}
    try:
        model.model_validate(_without(data, wrong))
    except ValidationError as error:
        problems += [
            misfit
            for misfit in _misfits(error)
            if misfit not in problems and wrong.isdisjoint({misfit.key, *misfit.involves})
        ]
    return None, problems


def _without(data: dict[str, Any], keys: Iterable[Key]) -> dict[str, Any]:
    rest = deepcopy(data)
    for key in keys:
        inner: Any = rest
        for part in key[:-1]:
            inner = inner.get(part) if isinstance(inner, dict) else None
        if key and isinstance(inner, dict):
            inner.pop(key[-1], None)
    return rest


def _misfits(error: ValidationError) -> Iterator[Problem]:
    for detail in error.errors():
        reason = detail.get("ctx", {}).get("error")
        if isinstance(reason, Misfits):
            yield from reason.problems


def _problems(model: type[BaseModel], data: dict[str, Any], error: ValidationError) -> Iterator[Problem]:
    yield from _misfits(error)
    for detail in error.errors():
        if isinstance(detail.get("ctx", {}).get("error"), Misfits):
            continue
        key = tuple(part for part in detail["loc"] if part != "[key]")
        text = _words(model, data, key, detail)
        if key and is_secret(str(key[-1])) and isinstance(detail["input"], (str, int, float)):
            text = text.replace(str(detail["input"]), HIDDEN)
        yield Problem(key, text)


def _words(model: type[BaseModel], data: dict[str, Any], key: Key, detail: ErrorDetails) -> str:
    kind, found = detail["type"], shown_value(detail["input"])
    limits = detail.get("ctx", {})
    if kind == "value_error":
        return str(limits["error"])
    if kind == "missing":
        return f"is required and missing{_misspelt(model, data, key)}"
    if kind == "extra_forbidden":
        return f"unknown key{_hint(str(key[-1]), _keys_at(model, key[:-1]))}"
    words = {
        "greater_than_equal": "must be at least {ge}, found {found}",
        "less_than_equal": "must be at most {le}, found {found}",
        "too_short": "needs at least {min_length} entry",
        "literal_error": "must be {expected}, found {found}",
        "model_type": "needs a mapping of keys, found {found}",
        "model_attributes_type": "needs a mapping of keys, found {found}",
        "dict_type": "needs a mapping of keys, found {found}",
        "tuple_type": "needs a list, found {found}",
    }.get(kind)
    return words.format(found=found, **limits) if words else f"{detail['msg']}, found {found}"


def _keys_at(model: type[BaseModel], key: Key) -> list[str]:
    """Keys that the model knows at `key`."""
    here = model_at(model, key)
    return list(here.model_fields) if here else []


def model_at(model: type[BaseModel], key: Key) -> type[BaseModel] | None:
    """The model of the mapping at `key`; None where there is none, as in a free map."""
    here: type[BaseModel] | None = model
    rest = list(key)
    while rest and here is not None:
        field = here.model_fields.get(str(rest.pop(0)))
        kind: object = field.annotation if field else None
        values = get_args(kind)
        if rest and values:  # a map of models: the next part is a name in it
            kind = values[-1]
            rest.pop(0)
        here = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return here


def _misspelt(model: type[BaseModel], data: Any, key: Key) -> str:
    """Whether a key that is missing stands there under nearly its name."""
    for part in key[:-1]:
        data = data[part]
    strangers = [name for name in data if name not in _keys_at(model, key[:-1])]
    near = difflib.get_close_matches(str(key[-1]), strangers, n=1, cutoff=0.75)
    return f" (is {near[0]} meant for it?)" if near else ""


def _hint(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
