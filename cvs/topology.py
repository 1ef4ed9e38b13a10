"""Which node has which rank, and where the nodes meet. Pure: knows the cluster file and nothing else."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from cvs.config import ClusterConfig


@dataclass(frozen=True)
class NodeAddress:
    """One node's place in the job."""

    node_rank: int
    name: str
    """Key in `node_dict`: by which cvs reaches the node."""
    vpc_ip: str
    """By which the other nodes reach it."""


@dataclass(frozen=True)
class Topology:
    """The nodes in rank order, the head first."""

    nodes: tuple[NodeAddress, ...]

    @property
    def head(self) -> NodeAddress:
        """Node rank 0, host of the rendezvous."""
        return self.nodes[0]


def topology_of(cluster: ClusterConfig, without: Collection[str] = ()) -> Topology:
    """Node ranks of a cluster: the head is 0, the others follow in the order of the file.

    Nodes that the job goes on `without` have none; the first of the others is the head where that is one.
    """
    every = [cluster.head, *(name for name in cluster.node_dict if name != cluster.head)]
    names = [name for name in every if name not in without]
    return Topology(
        tuple(NodeAddress(rank, name, cluster.node_dict[name].vpc_ip) for rank, name in enumerate(names))
    )
