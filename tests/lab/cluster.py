"""The lab as a whole: nodes brought up and down, and the files by which clients reach them.

All lies in one folder, and the folder's path decides the lab's name and addresses: two labs in two folders do
not meet, and what runs of a lab is found even when its folder is gone.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from lab import images, machine
from lab.faults import heal
from lab.leftovers import clear, leftovers
from lab.machine import Done, LabError, remove_tree, run, side_by_side, write
from lab.network import Network
from lab.node import Node
from lab.root_folder import CVS, User, host_key, lay_out

MOST_NODES = 16
_SSH_CONFIG = """\
User {user}
IdentityFile {key}
IdentitiesOnly yes
UserKnownHostsFile {known_hosts}
GlobalKnownHostsFile /dev/null
StrictHostKeyChecking yes
BatchMode yes
"""


class Lab:
    """The nodes of one folder."""

    def __init__(self, folder: Path, images_folder: Path | None = None) -> None:
        self.folder = folder.resolve()
        digest = hashlib.sha256(os.fsencode(self.folder)).digest()
        self.network = Network(f"lab{digest.hex()[:5]}", IPv4Network(f"10.77.{digest[0]}.0/24"))
        self.shared = self.folder / "shared"
        self.home = self.folder / "client"
        """Home of a user on this machine who can reach the nodes."""
        self.key = self.home / ".ssh/lab_key"
        self.other_key = self.home / ".ssh/other_key"
        """Accepted by no node."""
        self.known_hosts = self.home / ".ssh/known_hosts"
        self.ssh_config = self.home / ".ssh/config"
        self.images_folder = images_folder or self.folder / "images"
        """Several labs may have one."""

    @property
    def nodes(self) -> list[Node]:
        """The nodes that have been brought up, on or off."""
        return [self._node(number) for number in self.network.plugged()]

    def _node(self, number: int) -> Node:
        return Node(self.network.cable(number), self.folder / "nodes" / f"node{number}", self.shared)

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises: LabError: there is none.
        """
        names = [node.name for node in self.nodes]
        if name not in names:
            raise LabError(f"no node {name}; there are: {', '.join(names) or 'none, bring the lab up first'}")
        return self.nodes[names.index(name)]

    @property
    def password(self) -> str:
        """Of the user who logs in with one."""
        return self._password_file.read_text().strip()

    def _password_hash(self) -> str:
        # Of one salt: a hash that is another each time would lay out the nodes anew each time.
        words = ("openssl", "passwd", "-6", "-salt", "lab", "-in", self._password_file)
        return run(*words).stdout.strip()

    @property
    def _password_file(self) -> Path:
        return self.folder / "password"

    @contextmanager
    def held(self, seconds: float = 600) -> Iterator[None]:
        """Keep other processes from bringing the lab up or down, or testing on it.

        Raises: LabError: this machine cannot carry a lab, or others have not let go of it within `seconds`.
        """
        machine.check()
        # Users of a node are not those of this machine: whoever can write on a node's disk is root here.
        with machine.held(self.folder, seconds):
            yield

    def up(self, count: int) -> None:
        """Have at least `count` sound nodes; what is missing, or was left half done, is made.

        Raises: LabError: what cannot be made, and why.
        """
        if not 1 <= count <= MOST_NODES:
            raise LabError(f"{count} nodes: a lab has 1 to {MOST_NODES}")
        self._make_secrets()
        self.shared.mkdir(exist_ok=True)
        self.shared.chmod(0o1777)
        self.network.up()
        numbers = sorted({*range(count), *self.network.plugged()})
        side_by_side(self._bring_up, [self._node(number) for number in numbers])
        self._write_client_files()

    def _bring_up(self, node: Node) -> None:
        if not node.pid():
            lay_out(
                node.root,
                name=node.name,
                hosts="127.0.0.1 localhost\n" + self._for_each_node("{address} {name}\n"),
                public_key=self.key.with_suffix(".pub").read_text(),
                password_hash=self._password_hash(),
            )
        node.up()
        heal(node)
        node.wait_ready()

    def load(self, name: str, count: int = MOST_NODES) -> str:
        """Have an image on all nodes, or on the first `count`; built here where it was not yet.

        Returns: its tag.
        """
        image = images.build(name, self.images_folder)
        side_by_side(lambda node: node.load(image), self.nodes[:count])
        return image.tag

    def heal(self) -> None:
        """Undo every fault of every node."""
        side_by_side(heal, self.nodes)

    def leftovers(self) -> list[str]:
        """What tests left, on sound nodes, but for their own ground."""
        nodes = self.nodes
        return [
            f"{node.name}: {line}"
            for node, left in zip(nodes, side_by_side(leftovers, nodes), strict=True)
            for line in left.lines()
        ]

    def clear(self) -> None:
        """Remove what tests left, and all from their own ground."""
        side_by_side(clear, self.nodes)

    def off(self) -> None:
        """End all nodes and the network; disks stay, and so the next `up` is quick."""
        for number in range(MOST_NODES):
            self._node(number).power_off()
        self.network.remove()

    def down(self, purge: bool = False) -> None:
        """Remove everything but built images; with `purge` those, too."""
        self.off()
        for path in (self.folder / "nodes", self.shared, self.home, self._password_file):
            remove_tree(path)
        if purge:
            remove_tree(self.images_folder)

    def cluster(self, count: int) -> dict[str, Any]:
        """A cluster file of the first `count` nodes."""
        addresses = [node.address for node in self.nodes[:count]]
        assert len(addresses) == count, f"the lab has only {len(addresses)} nodes"
        return {
            "username": CVS.name,
            "priv_key_file": str(self.key),
            "known_hosts": str(self.known_hosts),
            "head_node_dict": {"mgmt_ip": addresses[0]},
            "node_dict": {address: {"vpc_ip": address} for address in addresses},
        }

    def ssh(self, node: Node, *words: str, user: User = CVS, timeout: float = 60) -> Done:
        """Run a command on a node over ssh; 255 is the exit code where ssh itself failed."""
        where = ("-F", self.ssh_config, "-o", "ConnectTimeout=5", f"{user.name}@{node.name}")
        return run("ssh", *where, *words, check=False, timeout=timeout)

    def _make_secrets(self) -> None:
        self.home.joinpath(".ssh").mkdir(parents=True, exist_ok=True, mode=0o700)
        for key in (self.key, self.other_key):
            if not key.exists():
                run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "cvs-lab", "-f", key)
        if not self._password_file.exists():
            write(self._password_file, secrets.token_hex(8), 0o600)

    def _write_client_files(self) -> None:
        common = _SSH_CONFIG.format(user=CVS.name, key=self.key, known_hosts=self.known_hosts)
        aliases = self._for_each_node("Host {name}\n    HostName {address}\n")
        write(self.ssh_config, common + aliases, 0o600)
        known = [f"{node.name},{node.address} {host_key(node.root)}\n" for node in self.nodes]
        write(self.known_hosts, "".join(known), 0o600)

    def _for_each_node(self, line: str) -> str:
        """The line for every node that there is or may be."""
        nodes = map(self._node, range(MOST_NODES))
        return "".join(line.format(name=node.name, address=node.address) for node in nodes)


def lab_folder() -> Path:
    """Where CVS_LAB says; it is kept between calls, so that images are built once."""
    return Path(os.environ.get("CVS_LAB") or "/var/tmp/cvs-lab")
