"""How the nodes of a cluster are reached: on this machine, or over SSH."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from cvs.config import ClusterConfig
from cvs.transport._ssh_target import describe, resolve, warnings
from cvs.transport.base import Transport
from cvs.transport.local import LocalTransport
from cvs.transport.ssh import SshTransport

_AT_ONCE = 16


class Way(NamedTuple):
    """How a node is reached, as far as it can be told without reaching it."""

    text: str
    """For people, without secrets."""
    warnings: tuple[str, ...] = ()
    """What works, and yet should be mended."""


def transport_to(node: str, cluster: ClusterConfig) -> Transport:
    """What reaches a node of the cluster; connects when it is first used."""
    return LocalTransport(node) if cluster.transport == "local" else SshTransport(node, cluster)


def ways(cluster: ClusterConfig) -> dict[str, Way]:
    """How each node is reached, in order; no connection is opened.

    Raises: ConfigError: the ssh configuration cannot be used for a node, the first such one;
    EnvironmentFault: there is no `ssh` to read it.
    """
    if cluster.transport == "local":
        return dict.fromkeys(cluster.node_dict, Way(f"on this machine, as {cluster.username}"))
    with ThreadPoolExecutor(_AT_ONCE) as asking:  # `ssh` is started for each node and each of its hops
        found = asking.map(lambda node: _way_over_ssh(node, cluster), cluster.node_dict)
        return dict(zip(cluster.node_dict, found, strict=True))


def _way_over_ssh(node: str, cluster: ClusterConfig) -> Way:
    target = resolve(node, cluster)
    return Way(f"by SSH as {describe(target)}", tuple(warnings(target)))
