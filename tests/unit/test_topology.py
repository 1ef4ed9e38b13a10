"""Node ranks follow the file, but the head comes first."""

from __future__ import annotations

import pytest

from cvs.config import ClusterConfig
from cvs.topology import NodeAddress, topology_of


def cluster(*names: str, head: str | None = None) -> ClusterConfig:
    nodes = {name: {"vpc_ip": f"ip-of-{name}"} for name in names}
    head_node = {"mgmt_ip": head} if head else {}
    return ClusterConfig.model_validate({"username": "u", "head_node_dict": head_node, "node_dict": nodes})


@pytest.mark.parametrize(
    ("names", "head", "order"),
    [
        ("a", None, "a"),
        ("a b c", None, "a b c"),
        ("c b a", None, "c b a"),
        ("a b c d", "c", "c a b d"),
        ("a b c", "a", "a b c"),
        ("a b c", "c", "c a b"),
    ],
)
def test_order(names: str, head: str | None, order: str) -> None:
    topology = topology_of(cluster(*names.split(), head=head))
    assert [node.name for node in topology.nodes] == order.split()
    assert [node.node_rank for node in topology.nodes] == list(range(len(order.split())))


@pytest.mark.parametrize(
    ("without", "order"), [("a", "c b d"), ("c", "a b d"), ("c a", "b d"), ("x", "c a b d")]
)
def test_order_without_some(without: str, order: str) -> None:
    topology = topology_of(cluster("a", "b", "c", "d", head="c"), without.split())
    assert [node.name for node in topology.nodes] == order.split()
    assert [node.node_rank for node in topology.nodes] == list(range(len(order.split())))


def test_the_head_hosts_the_rendezvous_at_the_address_that_the_others_use() -> None:
    assert topology_of(cluster("a", "b", head="b")).head == NodeAddress(0, "b", "ip-of-b")
