"""What is on a node that was not there when it was bare."""

from __future__ import annotations

from dataclasses import dataclass

from lab.faults import WORK
from lab.node import Node

_CONTAINERS = """\
ids=$(docker ps -aq)
[ -z "$ids" ] || docker inspect -f '{{slice .Name 1}} ({{.State.Status}}, execs: {{len .ExecIDs}})' $ids"""
_PROCESSES = ("ps", "-e", "-o", "pid=,user=,args=")
_FILES = (
    *("sh", "-c", 'find "$@" -mindepth 1 -maxdepth 1 -not -name .ssh', "sh"),
    *("/tmp", "/var/tmp", "/dev/shm", "/root", "/home/cvs", "/home/nodocker", "/home/pwuser"),
)
_OWN_GROUND = (WORK, "/shared/*", "/opt/node/bin/*")
"""Where tests put what they like; removed after each."""
_BARE = ("/bin/bash -c", "sleep 86400", "sshd: /usr/sbin/sshd", "dockerd ", "containerd ", "ps -e")


@dataclass(frozen=True)
class Leftovers:
    """Of one node."""

    containers: list[str]
    processes: list[str]
    files: list[str]

    def lines(self) -> list[str]:
        """Each by its name."""
        kinds = {"container": self.containers, "process": self.processes, "file": self.files}
        return [f"{kind} {name}" for kind, names in kinds.items() for name in names]


def leftovers(node: Node) -> Leftovers:
    """What is left of tests on a sound node, but for their own ground."""
    processes = (line.split(maxsplit=2) for line in _said(node, *_PROCESSES))
    return Leftovers(
        containers=_said(node, "sh", "-c", _CONTAINERS),
        processes=[" ".join(words) for words in processes if not words[2].startswith(_BARE)],
        files=[path for path in _said(node, *_FILES) if path != WORK],
    )


def clear(node: Node) -> None:
    """Remove what is left, and all from the tests' own ground."""
    left = leftovers(node)
    for container in left.containers:
        node.run("docker", "rm", "--force", container.split()[0], check=False)
    for process in left.processes:
        node.run("kill", "-KILL", process.split()[0], check=False)
    node.run("rm", "-rf", *left.files)
    node.run("sh", "-c", f"rm -rf {' '.join(_OWN_GROUND)}")


def _said(node: Node, *words: str) -> list[str]:
    return node.run(*words).stdout.splitlines()
