"""Engines of other kinds than cvs takes, each in the place of a node's for as long as a test needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

from lab.machine import wait_for
from lab.node import Node
from lab.root_folder import CVS

_DOCKERD = "dockerd --bridge=none --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false"
_SOCKET = "/run/docker.sock"

_RUNTIME = f"/run/user/{CVS.uid}"
_HOME = f"/home/{CVS.name}"
_DATA = f"{_HOME}/.local/share/docker"
_USERS_SOCKET = f"unix://{_RUNTIME}/docker.sock"
_REMAPPED = "/var/lib/docker-remapped"


@contextmanager
def podman(node: Node) -> Iterator[None]:
    """Podman behind Docker's socket."""
    start = f"""\
rm -f {_SOCKET}
setsid podman --storage-driver=vfs --cgroup-manager=cgroupfs --runtime=crun system service --time=0 \\
    unix://{_SOCKET} </dev/null >>/var/log/podman.log 2>&1 &
until [ -S {_SOCKET} ]; do sleep 0.1; done
chgrp docker {_SOCKET}; chmod 660 {_SOCKET}"""
    leaves = ("/var/lib/containers", "/run/containers", "/run/libpod", "/run/crun", "/dev/shm/libpod_lock")
    with _instead_of_dockerd(node, start, "podman", _SOCKET, leaves):
        yield


@contextmanager
def rootless(node: Node) -> Iterator[None]:
    """Docker's engine as the login user, whose docker program asks it."""
    inside = (
        f"rm -f /run/docker /run/containerd; exec {_DOCKERD} --rootless --storage-driver=vfs"
        f" --data-root={_DATA} --exec-root={_RUNTIME}/docker --pidfile={_RUNTIME}/docker.pid"
        f" --host={_USERS_SOCKET}"
    )
    start = f"""\
echo {CVS.name}:200000:65536 | tee /etc/subuid >/etc/subgid
mkdir -p {_RUNTIME} && chown {CVS.name} {_RUNTIME}
su {CVS.name} -s /bin/sh -c '
    cd; export XDG_RUNTIME_DIR={_RUNTIME}
    docker context create rootless --docker host={_USERS_SOCKET} && docker context use rootless
    setsid rootlesskit --net=host --copy-up=/etc --copy-up=/run --state-dir={_RUNTIME}/rootlesskit \\
        sh -c "{inside}" </dev/null >>rootless.log 2>&1 &'"""
    leaves = (_RUNTIME, *(f"{_HOME}/{name}" for name in (".local", ".docker", ".config", "rootless.log")))
    with _instead_of_dockerd(node, start, "rootlesskit", f"{_RUNTIME}/docker.sock", leaves):
        yield


@contextmanager
def remapped(node: Node) -> Iterator[None]:
    """Docker's engine as root, whose containers have other users than the node."""
    start = f"""\
echo {CVS.name}:200000:65536 | tee /etc/subuid >/etc/subgid
rm -f {_SOCKET}
setsid {_DOCKERD} --userns-remap={CVS.name} --data-root={_REMAPPED} --pidfile=/run/remapped.pid \\
    </dev/null >>/var/log/remapped.log 2>&1 &"""
    with _instead_of_dockerd(node, start, "dockerd", _SOCKET, (_REMAPPED,)):
        yield


@contextmanager
def _instead_of_dockerd(
    node: Node, start: str, program: str, socket: str, leaves: Iterable[str]
) -> Iterator[None]:
    """Another engine while it lasts, started by a shell; `faults.heal` then starts the node's own again."""
    node.broken.touch()
    node.stop("dockerd")
    try:
        node.run("sh", "-c", start)
        ask = ("docker", "--host", f"unix://{socket}", "version")
        wait_for(f"{node.name}: {program}", lambda: node.run(*ask, check=False).returncode == 0, 60)
        yield
    finally:
        node.run("pkill", "-x", program, check=False)
        wait_for(
            f"{node.name}: end of {program}",
            lambda: node.run("pgrep", "-x", program, check=False).returncode == 1,
            30,
        )
        node.run("rm", "-rf", socket, "/etc/subuid", "/etc/subgid", *leaves)


Engine = Callable[[Node], AbstractContextManager[None]]
ENGINES: dict[str, Engine] = {engine.__name__: engine for engine in (podman, rootless, remapped)}
