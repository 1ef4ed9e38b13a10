"""`cluster.json`: the machines, and how to reach them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from cvs.config.environment import EnvVars, gloo_misfits
from cvs.config.model import ConfigModel
from cvs.config.problem import Problem, nearest, refuse_misfits
from cvs.config.scalars import Digits, Integer, Name, Optional, Port, Text, is_misread, is_null, native

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_IPV6 = re.compile(r"(?P<address>[0-9A-Fa-f:.]+)(?:%[A-Za-z0-9._-]+)?")
_WITH_PORT = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*):(?P<port>\d+)")


class _ClusterModel(ConfigModel):
    """The cluster file is shared with other suites: their keys are kept, and named in a warning."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Annotated[Any, BeforeValidator(native)]]

    def unknown_keys(self, where: str = "") -> list[str]:
        """Keys that are not ours, each with the nearest of ours where one is near."""
        return [where + _with_hint(key, list(type(self).model_fields)) for key in self.model_extra or {}]


def _with_hint(key: str, known: list[str]) -> str:
    near = nearest(key, known, cutoff=0.75)
    return f"{key} (did you mean {near}?)" if near else key


class HeadNode(_ClusterModel):
    """Which node is the head: node rank 0 and host of the rendezvous."""

    mgmt_ip: Optional[Name] = None
    """A key of `node_dict`; the first node where it is not given."""


class Node(_ClusterModel):
    """One machine."""

    vpc_ip: Name
    """Address by which the other nodes reach it."""
    bmc_ip: Optional[Text] = None
    """Kept for other suites; without effect here."""
    env_vars: EnvVars = Field(default_factory=dict)
    """Exported before every command on this node, over those of the whole cluster."""


def _secret(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return value
    if is_null(value):
        return None
    # Never shown, not even in the message about it.
    if not isinstance(value, str) or isinstance(value, Digits) or is_misread(value):
        raise ValueError("a secret is text; write it in quotes, or as ${VARIABLE}")
    return SecretStr(str(value))


Secret = Annotated[SecretStr | None, BeforeValidator(_secret)]


class ClusterConfig(_ClusterModel):
    """The cluster file, validated; what planning and runners get."""

    username: Name
    priv_key_file: Optional[Name] = None
    password: Secret = None
    head_node_dict: HeadNode = HeadNode()
    node_dict: Annotated[dict[str, Node], Field(min_length=1)]
    env_vars: EnvVars = Field(default_factory=dict)
    home_mount_dir_name: Name = "home"
    node_dir_name: Name = "root"
    transport: Literal["ssh", "local"] = "ssh"
    ssh_port: Optional[Port] = None
    jump_host: Optional[Name] = None
    ssh_config: Optional[Name] = None
    known_hosts: Optional[Name] = None
    host_key_policy: Literal["strict", "accept-new"] = "strict"
    priv_key_passphrase: Secret = None
    max_parallel: Annotated[Integer, Field(ge=1, le=10000)] = 64

    @model_validator(mode="after")
    def _fits_together(self) -> ClusterConfig:
        refuse_misfits(self._misfits())
        return self

    def _misfits(self) -> Iterator[Problem]:
        yield from _strange_names(list(self.node_dict))
        yield from self._unknown_head()
        if self.transport != "local":
            yield from _twins(self.node_dict)
        yield from gloo_misfits(self.env_vars, ("env_vars",))
        for name, node in self.node_dict.items():
            yield from gloo_misfits(node.env_vars, ("node_dict", name, "env_vars"))

    def _unknown_head(self) -> Iterator[Problem]:
        head = self.head_node_dict.mgmt_ip
        if head is not None and head not in self.node_dict:
            near = nearest(head, self.node_dict, cutoff=0.0)
            text = f"{head} is no key of node_dict (did you mean {near}?)"
            yield Problem(("head_node_dict", "mgmt_ip"), text, involves=(("node_dict",),))

    @property
    def head(self) -> str:
        """Key of the head node in `node_dict`."""
        return self.head_node_dict.mgmt_ip or next(iter(self.node_dict))

    def warnings(self) -> list[str]:
        """One line that names every key which is not ours; comments (`_…`) are none."""
        keys = self.unknown_keys() + self.head_node_dict.unknown_keys("head_node_dict.")
        for name, node in self.node_dict.items():
            keys += node.unknown_keys(f"node_dict.{name}.")
        return [f"keys that have no effect here: {', '.join(keys)}"] if keys else []


def _strange_names(names: list[str]) -> Iterator[Problem]:
    for name in names:
        if _HOST.fullmatch(name) or _is_ipv6(name):
            continue
        with_port = _WITH_PORT.fullmatch(name)
        hint = f"; the port goes into ssh_port: {with_port['port']}" if with_port else ""
        yield Problem(("node_dict", name), f"{name!r} is no host name, IPv4 or IPv6 address{hint}")


def _is_ipv6(name: str) -> bool:
    found = _IPV6.fullmatch(name)
    try:
        return bool(found and ipaddress.IPv6Address(found["address"]))
    except ValueError:
        return False


def _twins(nodes: dict[str, Node]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for name, node in nodes.items():
        if node.vpc_ip in first:
            text = f"{node.vpc_ip} is the vpc_ip of {first[node.vpc_ip]}, too; each node has its own"
            yield Problem(("node_dict", name, "vpc_ip"), text, involves=(("transport",),))
        first.setdefault(node.vpc_ip, name)
