"""From file to model: read, fill placeholders, validate; every problem of a file in one `ConfigError`."""

from __future__ import annotations

import difflib
import getpass
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

import cvs
from cvs.config.aorta import AortaConfig
from cvs.config.cluster import ClusterConfig
from cvs.config.placeholders import fill, leftovers
from cvs.config.scalars import Plain
from cvs.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)
_SECRET = re.compile(r"\$\{(\w+)\}")


def load_cluster(path: str | Path) -> ClusterConfig:
    """The validated cluster file.

    Raises: ConfigError: the file cannot be read, or is not what a cluster file is; all problems at once.
    """
    file = Path(path)
    data = _without_comments(_read(file, json.loads, (ValueError,)))
    user = getpass.getuser()
    login = str(data.get("username", user)).replace("{user-id}", user).replace("{user}", user)
    values = {
        "user-id": user,
        "user": user,
        "home-mount-dir": str(data.get("home_mount_dir_name", "home")),
        "node-dir-name": str(data.get("node_dir_name", "root")),
        "home": str(Path.home()),
        "cvs": _package(),
    }
    filled = fill({**data, "username": login} if "username" in data else data, values)
    problems = [f"{file}: {line}" for line in leftovers(filled, values)]
    problems += _resolve_secrets(file, filled)
    return _validated(ClusterConfig, filled, file, problems)


def load_aorta(path: str | Path, cluster: ClusterConfig) -> AortaConfig:
    """The validated benchmark file; its placeholders take the cluster file's values.

    Raises: ConfigError: the file cannot be read, or is not what a benchmark file is; all problems at once.
    """
    file = Path(path)
    data = _read(file, lambda text: yaml.load(text, Loader=_AsWritten), (yaml.YAMLError,))
    values = {
        "user-id": cluster.username,
        "user": cluster.username,
        "home-mount-dir": cluster.home_mount_dir_name,
        "node-dir-name": cluster.node_dir_name,
        "home": f"/{cluster.home_mount_dir_name}/{cluster.username}",
        "cvs": _package(),
    }
    filled = fill(data, values)
    problems = [f"{file}: {line}" for line in leftovers(filled, values)]
    return _validated(AortaConfig, filled, file, problems)


def _package() -> str:
    return str(Path(cvs.__file__).resolve().parent)


class _AsWritten(yaml.SafeLoader):
    """Loads plain scalars as `Plain` text, since YAML 1.1 would turn `off`, `010` and dates into others."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {  # noqa: RUF012 - read by PyYAML as a class attribute
        "<": [("tag:yaml.org,2002:merge", re.compile(r"^(?:<<)$"))]
    }

    def construct_scalar(self, node: Any) -> Any:
        """The text of the node; `Plain` where it stands without quotes."""
        value = super().construct_scalar(node)
        return Plain(value) if node.style is None else value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """A mapping whose keys are ordinary text."""
        mapping = super().construct_mapping(node, deep=deep)
        return {str(key) if isinstance(key, Plain) else key: value for key, value in mapping.items()}


def _construct_text(loader: _AsWritten, node: Any) -> Any:
    return loader.construct_scalar(node)


_AsWritten.add_constructor("tag:yaml.org,2002:str", _construct_text)


def _read(file: Path, parse: Any, syntax_errors: tuple[type[Exception], ...]) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text (byte {error.start})"]) from None
    try:
        data = parse(text)
    except syntax_errors as error:
        raise ConfigError([f"{file}: syntax: {' '.join(str(error).split())}"]) from None
    if not isinstance(data, dict):
        raise ConfigError([f"{file}: holds {type(data).__name__}, a mapping of keys is expected"])
    return data


def _without_comments(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_comments(value) for key, value in data.items() if not key.startswith("_")}
    return data


def _resolve_secrets(file: Path, data: dict[str, Any]) -> list[str]:
    """Put environment values where a secret is written `${NAME}`; a line for each that is not set."""
    problems = []
    for key in ("password", "priv_key_passphrase"):
        found = _SECRET.fullmatch(str(data.get(key) or ""))
        if found and found[1] in os.environ:
            data[key] = os.environ[found[1]]
        elif found:
            problems.append(f"{file}: {key}: the environment variable {found[1]} is not set")
    return problems


def _validated(model: type[_Model], data: dict[str, Any], file: Path, problems: list[str]) -> _Model:
    try:
        config = model.model_validate(data)
    except ValidationError as error:
        problems += [f"{file}: {_line(model, detail)}" for detail in error.errors()]
        raise ConfigError(problems) from None
    if problems:
        raise ConfigError(problems)
    return config


def _line(model: type[BaseModel], detail: ErrorDetails) -> str:
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "value_error":
        text = str(detail["ctx"]["error"])
    elif detail["type"] == "missing":
        text = "is required and missing"
    elif detail["type"] == "extra_forbidden":
        text = f"unknown key{_hint(str(detail['loc'][-1]), _keys_at(model, detail['loc'][:-1]))}"
    else:
        text = _plain_words(detail)
    return f"{key}: {text}" if key else text


def _plain_words(detail: ErrorDetails) -> str:
    message = detail["msg"][0].lower() + detail["msg"][1:]
    value = detail["input"]
    return f"{message}, found {value}" if isinstance(value, (str, int, float)) else message


def _keys_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Keys that the model knows at `loc`."""
    for part in loc:
        field = model.model_fields.get(str(part))
        if field is None:
            return []
        inner = [kind for kind in (field.annotation, *get_args(field.annotation)) if _is_model(kind)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _hint(key: str, known: list[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
