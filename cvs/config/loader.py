"""The two files: read, placeholders filled, validated; every problem of a file in one `ConfigError`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

import cvs
from cvs.config.account import home_folder, user_name
from cvs.config.aorta import AortaConfig
from cvs.config.cluster import ClusterConfig, Node
from cvs.config.document import Document, read_document
from cvs.config.placeholders import changeme, fill, leftovers
from cvs.config.problem import Problem
from cvs.config.validation import model_at, validated
from cvs.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)
_SECRETS = ("password", "priv_key_passphrase")
_PATTERNS = ("traces",)
"""Keys of the benchmark file below which braces are those of regular expressions."""
_FOLDERS = {"home_mount_dir_name": "home-mount-dir", "node_dir_name": "node-dir-name"}
"""Keys of the cluster file that are the values of placeholders."""
_SECRET = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Loaded(Generic[_Model]):
    """A validated file, and the text it came from."""

    config: _Model
    document: Document


def load_cluster(path: str | Path) -> ClusterConfig:
    """The validated cluster file.

    Raises: ConfigError: the file cannot be read, or is not what a cluster file is; all problems at once.
    """
    return read_cluster(path).config


def load_aorta(path: str | Path, cluster: ClusterConfig | None = None) -> AortaConfig:
    """The validated benchmark file; its placeholders take the cluster file's values.

    By itself, without a cluster, it is read as for one node and the user of this machine.

    Raises: ConfigError: the file cannot be read, or is not what a benchmark file is; all problems at once.
    """
    return read_aorta(path, cluster).config


def load_files(cluster_path: str | Path, aorta_path: str | Path) -> tuple[ClusterConfig, AortaConfig]:
    """Both files, validated.

    Raises: ConfigError: one or both cannot be used; the problems of both at once.
    """
    cluster, bench = read_files(cluster_path, aorta_path)
    return cluster.config, bench.config


def read_cluster(path: str | Path) -> Loaded[ClusterConfig]:
    """As `load_cluster`, with the text it came from."""
    document = read_document(Path(path))
    if "aorta_path" in document.data and "node_dict" not in document.data:
        raise ConfigError([f"{path}: looks like a benchmark file; give it as --config_file"])
    data = _without_comments(document.data)
    values = _values_here()
    folders = {key: data.pop(key) for key in _FOLDERS if key in data}
    document.problems += leftovers(folders, values)
    folders = fill(folders, values)
    for key, name in _FOLDERS.items():
        values[name] = str(folders.get(key, ClusterConfig.model_fields[key].default))
    # Braces in a secret are the secret's own.
    secrets = {key: data.pop(key) for key in _SECRETS if key in data}
    document.problems += leftovers(_ours(ClusterConfig, data), values)
    document.problems += _secret_problems(secrets)
    filled = {**fill(data, values), **folders, **secrets}
    return Loaded(_checked(ClusterConfig, filled, document), document)


def read_aorta(path: str | Path, cluster: ClusterConfig | None = None) -> Loaded[AortaConfig]:
    """As `load_aorta`, with the text it came from."""
    cluster = cluster or ClusterConfig(username=user_name(), node_dict={"node": Node(vpc_ip="127.0.0.1")})
    document = read_document(Path(path))
    if "node_dict" in document.data and "aorta_path" not in document.data:
        raise ConfigError([f"{path}: looks like a cluster file; give it as --cluster_file"])
    values: dict[str, str | None] = {
        "user-id": cluster.username,
        "user": cluster.username,
        "home-mount-dir": cluster.home_mount_dir_name,
        "node-dir-name": cluster.node_dir_name,
        "home": f"/{cluster.home_mount_dir_name}/{cluster.username}",
        "cvs": _package(),
    }
    data = {key: value for key, value in document.data.items() if key != "$schema"}
    patterns = {key: data.pop(key) for key in _PATTERNS if key in data}
    document.problems += [*leftovers(data, values), *leftovers(patterns, None)]
    filled = {**fill(data, values), **patterns}
    document.problems += _contradictions(filled, cluster)
    return Loaded(_checked(AortaConfig, filled, document), document)


def read_files(
    cluster_path: str | Path, aorta_path: str | Path
) -> tuple[Loaded[ClusterConfig], Loaded[AortaConfig]]:
    """Both files; the problems of both at once.

    Raises: ConfigError: one or both cannot be used.
    """
    try:
        cluster = read_cluster(cluster_path)
    except ConfigError as error:
        raise ConfigError([*error.problems, *_problems_beside(aorta_path)]) from None
    return cluster, read_aorta(aorta_path, cluster.config)


def _problems_beside(aorta_path: str | Path) -> tuple[str, ...]:
    """Problems of a benchmark file whose cluster file cannot be used."""
    try:
        read_aorta(aorta_path)
    except ConfigError as error:
        return error.problems
    return ()


def _values_here() -> dict[str, str | None]:
    user, home = user_name(), home_folder()
    return {"user-id": user, "user": user, "home": None if home is None else str(home), "cvs": _package()}


def _package() -> str:
    return str(Path(cvs.__file__).resolve().parent)


def _without_comments(data: Any) -> Any:
    """The data without keys that begin with `_` or `$` (an editor's `$schema`)."""
    if isinstance(data, dict):
        return {key: _without_comments(value) for key, value in data.items() if key[:1] not in ("_", "$")}
    return data


def _ours(model: type[BaseModel], data: Any) -> Any:
    """What of the data stands under keys of ours: in other suites' keys braces are none of our business."""
    if not isinstance(data, dict):
        return data
    kept: dict[str, Any] = {}
    for key in model.model_fields.keys() & data.keys():
        inner = model_at(model, (key,))
        named = model_at(model, (key, "any"))
        value = data[key]
        if inner is not None:
            value = _ours(inner, value)
        elif named is not None and isinstance(value, dict):
            value = {name: _ours(named, item) for name, item in value.items()}
        kept[key] = value
    return kept


def _secret_problems(data: dict[str, Any]) -> Iterator[Problem]:
    """Put environment values where a secret is written `${NAME}`; a problem for each that has no value."""
    for key, value in data.items():
        yield from changeme(str(value), (key,))
        found = _SECRET.fullmatch(str(value))
        if found and found[1] in os.environ:
            data[key] = os.environ[found[1]]
        elif found:
            yield Problem((key,), f"the environment variable {found[1]} is not set")


def _contradictions(data: dict[str, Any], cluster: ClusterConfig) -> Iterator[Problem]:
    """Where the benchmark file does not fit the cluster file."""
    many = data.get("multi_node")
    nodes = len(cluster.node_dict)
    if isinstance(many, dict) and many.get("master_launch_mode") == "script" and nodes > 1:
        text = f"script runs on one node, the cluster file has {nodes}; torchrun runs on several"
        yield Problem(("multi_node", "master_launch_mode"), text)


def _checked(model: type[_Model], data: dict[str, Any], document: Document) -> _Model:
    config, problems = validated(model, data, document.problems)
    if config is None:
        told = dict.fromkeys(map(document.line, sorted(problems, key=document.order)))
        raise ConfigError(list(told))
    return config
