"""The lab's network: a switch, and a cable from it to each node.

The switch is a bridge in a namespace of its own, so that the firewall of this machine, where Docker drops
what is forwarded, has no say in what the nodes send each other. This machine is on it with the first address.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from lab.machine import LabError, run

_NAMESPACES = Path("/run/netns")
_FIRST = 10
"""Added to a node's number, gives the last part of its address."""
_WAYS = (("INPUT", "-i"), ("OUTPUT", "-o"))


@dataclass(frozen=True)
class Network:
    """The switch, and this machine's place on it."""

    name: str
    """Short: it begins the names of interfaces, which have 15 characters."""
    subnet: IPv4Network

    @property
    def switch(self) -> str:
        """The namespace of the bridge."""
        return f"{self.name}-sw"

    @property
    def uplink(self) -> str:
        """This machine's interface."""
        return f"{self.name}-up"

    def cable(self, number: int) -> Cable:
        """The cable of a node."""
        return Cable(self, number)

    def plugged(self) -> list[int]:
        """Numbers of the nodes that have a cable."""
        prefix = f"{self.name}-"
        ends = (name.removeprefix(prefix) for name in _namespaces() if name.startswith(prefix))
        return sorted(int(end) for end in ends if end.isdigit())

    def up(self) -> None:
        """Make what is missing.

        Raises: LabError: this machine reaches something else at these addresses.
        """
        if self.switch not in _namespaces():
            self._refuse_taken_addresses()
            run("ip", "netns", "add", self.switch)
        if not self._has("br0"):
            run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        if not self._has("host0"):
            peer = ("peer", "name", "host0", "netns", self.switch)
            run("ip", "link", "add", self.uplink, "type", "veth", *peer)
            run("ip", "addr", "add", f"{self.subnet[1]}/{self.subnet.prefixlen}", "dev", self.uplink)
        run("ip", "-n", self.switch, "link", "set", "host0", "master", "br0", "up")
        run("ip", "link", "set", self.uplink, "up")

    def _has(self, interface: str) -> bool:
        return run("ip", "-n", self.switch, "link", "show", interface, check=False).returncode == 0

    def _refuse_taken_addresses(self) -> None:
        taken = run("ip", "route", "show", "root", str(self.subnet)).stdout.strip()
        if taken:
            raise LabError(f"{self.subnet} is in use here ({taken}); name another folder in CVS_LAB")

    def remove(self) -> None:
        """Remove the switch, all cables, and with them the namespaces of the nodes."""
        run("ip", "link", "del", self.uplink, check=False)
        for number in self.plugged():
            run("ip", "netns", "del", self.cable(number).namespace)
        if self.switch in _namespaces():
            run("ip", "netns", "del", self.switch)


@dataclass(frozen=True)
class Cable:
    """What connects one node with the switch: its namespace's `eth0`, and a port."""

    network: Network
    number: int

    @property
    def address(self) -> str:
        """The node's IPv4 address."""
        return str(self.network.subnet[_FIRST + self.number])

    @property
    def namespace(self) -> str:
        """The network namespace of the node, which stays when the node is off."""
        return f"{self.network.name}-{self.number}"

    @property
    def port(self) -> str:
        """The end at the switch."""
        return f"{self.network.name}-p{self.number}"

    def plug(self) -> None:
        """Make what is missing, and the link up."""
        switch = self.network.switch
        if self.namespace not in _namespaces():
            run("ip", "netns", "add", self.namespace)
        if run("ip", "-n", self.namespace, "link", "show", "eth0", check=False).returncode:
            peer = ("peer", "name", "eth0", "netns", self.namespace)
            run("ip", "-n", switch, "link", "add", self.port, "type", "veth", *peer)
            address = f"{self.address}/{self.network.subnet.prefixlen}"
            run("ip", "-n", self.namespace, "addr", "add", address, "dev", "eth0")
        for interface in ("lo", "eth0"):
            run("ip", "-n", self.namespace, "link", "set", interface, "up")
        run("ip", "-n", switch, "link", "set", self.port, "master", "br0", "up")

    def pull(self) -> None:
        """Take the link down; this machine forgets at once where the node was."""
        run("ip", "-n", self.network.switch, "link", "set", self.port, "down")
        run("ip", "neigh", "flush", "to", self.address, "dev", self.network.uplink, check=False)

    def lose(self, percent: float) -> None:
        """Let packets vanish, both ways."""
        self.lose_nothing()
        some = ("-m", "statistic", "--mode", "random", "--probability", str(percent / 100))
        for chain, way in _WAYS:
            matches = some if percent < 100 else ()
            self._iptables("-I", chain, way, "eth0", *matches, "-j", "DROP")

    def close_ports(self) -> None:
        """Refuse every new connection to the node but those to port 22."""
        new = ("-p", "tcp", "--syn", "!", "--dport", "22")
        self._iptables("-I", "INPUT", "-i", "eth0", *new, "-j", "REJECT", "--reject-with", "tcp-reset")

    def lose_nothing(self) -> None:
        """Let every packet pass."""
        for chain, _ in _WAYS:
            self._iptables("-F", chain)

    def _iptables(self, *words: str) -> None:
        run("ip", "netns", "exec", self.namespace, "iptables", *words)

    def slow_down(self, *discipline: str) -> None:
        """Put a queueing discipline of `tc` on both ends."""
        self.full_speed()
        for namespace, interface in self._ends:
            run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *discipline)

    def full_speed(self) -> None:
        """Take any queueing discipline off."""
        for namespace, interface in self._ends:
            run("tc", "-n", namespace, "qdisc", "del", "dev", interface, "root", check=False)

    @property
    def _ends(self) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self.namespace, "eth0"), (self.network.switch, self.port)


def _namespaces() -> set[str]:
    return {path.name for path in _NAMESPACES.iterdir()} if _NAMESPACES.is_dir() else set()
