"""`cluster.json`: the machines, and how to reach them."""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from cvs.config.model import ConfigModel
from cvs.config.scalars import Integer, OptionalInteger, OptionalText, Text

_HOST = re.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9._:%-]*[A-Za-z0-9:])?")
"""Host name, IPv4 or IPv6 address; what else could be in it would be a path or an option."""

EnvVars = dict[str, Text]


class _ClusterModel(ConfigModel):
    """The cluster file is shared with other suites: their keys are kept, and named in a warning."""

    model_config = ConfigDict(frozen=True, extra="allow")

    def unknown_keys(self, where: str = "") -> list[str]:
        """Keys that are not ours, each with the nearest of ours where one is near."""
        known = [name for name in type(self).model_fields if name not in (self.model_extra or {})]
        return [where + _with_hint(key, known) for key in (self.model_extra or {})]


def _with_hint(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    return f"{key} (did you mean {near[0]}?)" if near else key


class HeadNode(_ClusterModel):
    """Which node is the head: node rank 0 and host of the rendezvous."""

    mgmt_ip: OptionalText = None
    """A key of `node_dict`; the first node where it is not given."""


class Node(_ClusterModel):
    """One machine."""

    vpc_ip: Text
    """Address by which the other nodes reach it."""
    bmc_ip: OptionalText = None
    """Kept for other suites; without effect here."""
    env_vars: EnvVars = Field(default_factory=dict)
    """Exported before every command on this node, over those of the whole cluster."""


def _secret(value: Any) -> Any:
    return value if isinstance(value, SecretStr) else SecretStr(_as_text(value))


def _as_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a secret is text; write it in quotes, or as ${VARIABLE}")
    return str(value)


Secret = Annotated[SecretStr | None, BeforeValidator(lambda value: None if value is None else _secret(value))]


class ClusterConfig(_ClusterModel):
    """The cluster file, validated; what planning and runners get."""

    username: Text
    priv_key_file: OptionalText = None
    password: Secret = None
    head_node_dict: HeadNode = HeadNode()
    node_dict: Annotated[dict[str, Node], Field(min_length=1)]
    env_vars: EnvVars = Field(default_factory=dict)
    home_mount_dir_name: Text = "home"
    node_dir_name: Text = "root"
    transport: Literal["ssh", "local"] = "ssh"
    ssh_port: Annotated[OptionalInteger, Field(ge=1, le=65535)] = None
    jump_host: OptionalText = None
    ssh_config: OptionalText = None
    known_hosts: OptionalText = None
    host_key_policy: Literal["strict", "accept-new"] = "strict"
    priv_key_passphrase: Secret = None
    max_parallel: Annotated[Integer, Field(ge=1)] = 64

    @model_validator(mode="after")
    def _nodes_are_hosts(self) -> ClusterConfig:
        strange = [name for name in self.node_dict if not _HOST.fullmatch(name)]
        if strange:
            raise ValueError(f"node_dict: {', '.join(strange)}: a node is a host name or an IP address")
        return self

    @model_validator(mode="after")
    def _head_is_a_node(self) -> ClusterConfig:
        head = self.head_node_dict.mgmt_ip
        if head is not None and head not in self.node_dict:
            near = difflib.get_close_matches(head, self.node_dict, n=1, cutoff=0.0)
            raise ValueError(
                f"head_node_dict.mgmt_ip: {head} is no key of node_dict (did you mean {near[0]}?)"
                if near
                else f"head_node_dict.mgmt_ip: {head} is no key of node_dict"
            )
        return self

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
