"""From data to a model, with every problem of the data at once, in words for the user."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from copy import deepcopy
from typing import Any, TypeGuard, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cvs.config.aorta import AortaConfig
from cvs.config.cluster import ClusterConfig
from cvs.config.model import HIDDEN, is_secret, shown
from cvs.config.problem import Key, Misfits, Problem, nearest
from cvs.config.scalars import NESTED, shown_value

_Model = TypeVar("_Model", bound=BaseModel)


def validated(
    model: type[_Model], data: dict[str, Any], known: Collection[Problem] = ()
) -> tuple[_Model | None, list[Problem]]:
    """The model made of `data`, or None and what is wrong with it, what is `known` to be wrong first.

    Keys that are wrong by themselves do not hide those that do not fit together.
    """
    problems = list(known)
    try:
        config = model.model_validate(data)
    except ValidationError as error:
        told = {problem.key for problem in known}
        problems += [problem for problem in _wrong_keys(model, data, error) if problem.key not in told]
    else:
        if not problems:
            return config, []
    problems += _doubts(model, data)
    touched = {key for problem in problems for key in (problem.key, *problem.involves)}
    repaired = _repaired(model, data, touched)
    return None, problems + [misfit for misfit in _misfits(model, repaired) if not _hangs_on(misfit, touched)]


def _wrong_keys(model: type[BaseModel], data: dict[str, Any], error: ValidationError) -> Iterator[Problem]:
    """What is wrong with keys by themselves."""
    for detail in error.errors():
        if isinstance(detail.get("ctx", {}).get("error"), Misfits):
            continue
        key = tuple(part for part in detail["loc"] if part != "[key]")
        text = _words(model, data, key, detail)
        if key and is_secret(str(key[-1])) and isinstance(detail["input"], (str, int, float)):
            text = text.replace(shown_value(detail["input"]), HIDDEN, 1)
        yield Problem(key, text)


# --- what does not fit together ---------------------------------------------------------------------------


def _misfits(model: type[BaseModel], data: dict[str, Any]) -> Iterator[Problem]:
    try:
        model.model_validate(data)
    except ValidationError as error:
        for detail in error.errors():
            reason = detail.get("ctx", {}).get("error")
            if isinstance(reason, Misfits):
                yield from reason.problems


def _hangs_on(misfit: Problem, touched: Collection[Key]) -> bool:
    """Whether it is about something that is wrong by itself, or below that."""
    keys = (misfit.key, *misfit.involves)
    return any(key[:length] in touched for key in keys for length in range(1, len(key) + 1))


_STAND_IN = "/stand-in"


def _repaired(model: type[BaseModel], data: dict[str, Any], wrong: Iterable[Key]) -> dict[str, Any]:
    """The data without what is wrong; something good in its place where something must stand."""
    rest = deepcopy(data)
    for key in wrong:
        around: Any = rest
        for part in key[:-1]:
            around = _inner(around, part)
        if isinstance(around, list) and key[-1] in range(len(around)):
            around[int(key[-1])] = _STAND_IN
        elif isinstance(around, dict):
            around.pop(key[-1], None)
            around.update(_required(model, key))
    return rest


def _inner(data: Any, part: str | int) -> Any:
    try:
        return data[part]
    except (LookupError, TypeError):  # below a key that is given twice, and differently
        return None


def _required(model: type[BaseModel], key: Key) -> dict[str | int, Any]:
    """A good entry for `key`, if a model needs one there."""
    around, here = model_at(model, key[:-1]), model_at(model, key)
    field = around.model_fields.get(str(key[-1])) if around else None
    if field is not None:
        return {key[-1]: _good(field.annotation)} if field.is_required() else {}
    return {key[-1]: _good(here)} if here else {}  # in a map, whose entries others may name


def _good(kind: Any) -> Any:
    """The smallest value that is good for a key of this kind."""
    if _is_model(kind):
        fields = kind.model_fields.items()
        return {name: _good(field.annotation) for name, field in fields if field.is_required()}
    values = get_args(kind)
    return {"stand-in": _good(values[-1])} if values else _STAND_IN


def _doubts(model: type[BaseModel], data: dict[str, Any]) -> Iterator[Problem]:
    """Keys that a model keeps without using them, where the cause of what is wrong may be their spelling."""
    fields = model.model_fields
    absent = [name for name in fields if name not in data and not fields[name].is_required()]
    for name in data if model.model_config.get("extra") == "allow" else ():
        near = None if name in fields else nearest(name, absent, cutoff=0.75)
        if near:
            yield Problem((name,), f"has no effect here (did you mean {near}?)", involves=((near,),))


# --- words ------------------------------------------------------------------------------------------------


def _words(model: type[BaseModel], data: dict[str, Any], key: Key, detail: ErrorDetails) -> str:
    kind, found = detail["type"], shown_value(detail["input"])
    limits = detail.get("ctx", {})
    if kind == "value_error":
        return str(limits["error"])
    if kind == "missing":
        return f"is required and missing{_misspelt(model, data, key)}"
    if kind == "extra_forbidden":
        return f"unknown key{_hint(model, key)}"
    if kind == NESTED:
        return f"{detail['msg']}; write {_with_points(key[1:], detail['input'])}"
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


def _misspelt(model: type[BaseModel], data: Any, key: Key) -> str:
    """Whether a key that is missing stands there under nearly its name."""
    for part in key[:-1]:
        data = data[part]
    around = model_at(model, key[:-1])
    known = around.model_fields if around else {}
    names = [name for name in data if name not in known]
    near = nearest(str(key[-1]), names, cutoff=0.75) or _beginning_of(str(key[-1]), names)
    return f" (is {near} meant for it?)" if near else ""


def _beginning_of(key: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is the beginning of `key`, perhaps of several such: `nodes` for `node_dict`."""
    stems = {name: name.rstrip("s") for name in names}
    return next((name for name, stem in stems.items() if len(stem) > 2 and key.startswith(stem)), None)


def _hint(model: type[BaseModel], key: Key) -> str:
    """Where a key that is unknown at its place belongs, or which one was meant."""
    name = str(key[-1])
    for way in _ways(model):
        if way[-1] == name:
            return f" (it belongs {'below ' + way[0] if way[1:] else 'at the top of the file'})"
    if model is AortaConfig and any(way[-1] == name for way in _ways(ClusterConfig)):
        return " (it belongs in the cluster file)"
    around = model_at(model, key[:-1])
    near = nearest(name, around.model_fields if around else (), cutoff=0.6)
    return f" (did you mean {near}?)" if near else ""


def _with_points(key: Key, value: Any) -> str:
    """The first value of a nested mapping, as `training.max_steps: 10`."""
    while isinstance(value, dict) and value:
        name, value = next(iter(value.items()))
        key = (*key, name)
    written = shown(str(key[-1]), value) if isinstance(value, str) else "…"
    return f"{'.'.join(map(str, key))}: {written}"


# --- models -----------------------------------------------------------------------------------------------


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
        here = kind if _is_model(kind) else None
    return here


def _is_model(kind: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(kind, type) and not get_args(kind) and issubclass(kind, BaseModel)


def _ways(model: type[BaseModel], way: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The way to every key that the models name."""
    for name, field in model.model_fields.items():
        yield (*way, name)
        kind = (field.annotation, *get_args(field.annotation))[-1]
        if _is_model(kind):
            yield from _ways(kind, (*way, name))
