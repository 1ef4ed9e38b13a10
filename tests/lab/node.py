"""One node: a root folder, namespaces around it, sshd and dockerd."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal

from lab.images import Image
from lab.machine import Done, LabError, run, spawn, wait_for
from lab.network import Cable
from lab.root_folder import PATH, RUNC_FOLDER

Service = Literal["sshd", "dockerd"]

GPUS = 2
_INIT = Path(__file__).with_name("init.sh")
_MARK = "cvs-lab-node"
"""An argument of every node's process 1, before its root folder."""
SERVICES: tuple[Service, ...] = ("sshd", "dockerd")
_PID_FILES: dict[Service, str] = {"sshd": "/run/sshd.pid", "dockerd": "/run/docker.pid"}
_START: dict[Service, str] = {
    "sshd": "/usr/sbin/sshd -E /var/log/sshd.log",
    # The nodes' own network has no way out, and their firewall is the lab's to break.
    "dockerd": f"rm -f /run/docker.pid; PATH={RUNC_FOLDER}:$PATH setsid dockerd --bridge=none"
    " --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false"
    " --exec-opt native.cgroupdriver=cgroupfs --cgroup-parent=/{cgroup}"
    " </dev/null >>/var/log/dockerd.log 2>&1 &",
}
_FIND = """\
pid=$(cat $1) && [ "$(cat /proc/$pid/comm)" = $2 ] && ! grep -q "^State:.Z" /proc/$pid/status && echo $pid"""


@dataclass(frozen=True)
class Node:
    """One node; it is on while its process 1 runs."""

    cable: Cable
    folder: Path
    shared: Path
    """Seen by all nodes as /shared."""

    @property
    def name(self) -> str:
        """Its host name."""
        return f"node{self.cable.number}"

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return self.cable.address

    @property
    def root(self) -> Path:
        """Its file system, seen from this machine; what is mounted in it is not seen."""
        return self.folder / "root"

    @property
    def broken(self) -> Path:
        """There while a fault is."""
        return self.folder / "broken"

    @property
    def _cgroup(self) -> str:
        return f"{self.cable.network.name}-{self.name}"

    def pid(self) -> int | None:
        """Process 1 of the node, by its number on this machine; None while the node is off."""
        return next((pid for pid, root in running() if root == self.root), None)

    def run(
        self, *words: str | Path, check: bool = True, timeout: float = 120, stdin: IO[bytes] | None = None
    ) -> Done:
        """Run a command on the node as root, past the network and sshd.

        Raises: LabError: the node is off; as `machine.run`.
        """
        pid = self.pid()
        if pid is None:
            raise LabError(f"{self.name} is off")
        inside = ("nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "--")
        environment = ("env", "-i", f"PATH={PATH}", "HOME=/root", "USER=root", "LANG=C.UTF-8")
        return run(*inside, *environment, *words, check=check, timeout=timeout, stdin=stdin)

    def up(self) -> None:
        """Bring it to the state of a sound node, whatever is missing; the root folder must be laid out."""
        self.cable.plug()
        self.power_on()
        self.start("sshd")
        self.start("dockerd")

    def power_on(self) -> None:
        """Start process 1."""
        if self.pid():
            return
        log = self.folder / "init.log"
        namespaces = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--propagation", "private")
        network = ("nsenter", f"--net=/run/netns/{self.cable.namespace}")
        init = ("bash", _INIT, _MARK, self.root, self.name, str(GPUS), self.shared)
        spawn(*network, *namespaces, *init, log=log)
        wait_for(f"{self.name}: process 1", self._booted, 20, log)

    def _booted(self) -> bool:
        pid = self.pid()
        return pid is not None and Path(f"/proc/{pid}/root/run/cvs-lab-ready").exists()

    def power_off(self) -> None:
        """Kill process 1: the kernel then kills all others of the node at once, as a power cut does."""
        pid = self.pid()
        if pid:
            os.kill(pid, signal.SIGKILL)
            wait_for(f"{self.name}: power off", lambda: not self.pid(), 30)
        _remove_cgroups(self._cgroup)

    def service(self, service: Service) -> int | None:
        """The process of a service, by its number on the node; None while it does not run."""
        said = self.run("sh", "-c", _FIND, "sh", _PID_FILES[service], service, check=False).stdout
        return int(said) if said else None

    def start(self, service: Service) -> None:
        """Start a service that does not run."""
        if not self.service(service):
            self.run("sh", "-c", _START[service].format(cgroup=self._cgroup))

    def stop(self, service: Service, signal_name: str = "TERM") -> None:
        """End a service that runs."""
        pid = self.service(service)
        if pid:
            self.run("kill", f"-{signal_name}", str(pid))
            wait_for(f"{self.name}: end of {service}", lambda: not self.service(service), 30)

    def wait_ready(self) -> None:
        """Wait until both services answer.

        Raises: LabError: they do not; shows the end of the log.
        """
        logs = self.root / "var/log"
        wait_for(f"{self.name}: dockerd", self._docker_answers, 60, logs / "dockerd.log")
        wait_for(f"{self.name}: sshd at {self.address}", self._sshd_answers, 15, logs / "sshd.log")

    def _docker_answers(self) -> bool:
        return self.run("docker", "version", check=False, timeout=30).returncode == 0

    def _sshd_answers(self) -> bool:
        with suppress(OSError), socket.create_connection((self.address, 22), 2) as connection:
            return connection.recv(4) == b"SSH-"
        return False

    def load(self, image: Image) -> None:
        """Load an image that the node has not."""
        have = self.run("docker", "image", "inspect", "-f", "{{.Id}}", image.tag, check=False).stdout.strip()
        if have != image.id:
            with image.archive.open("rb") as archive:
                self.run("docker", "load", "--quiet", stdin=archive, timeout=600)


def running() -> Iterator[tuple[int, Path]]:
    """Process 1 and root folder of every node on this machine.

    They are found by their arguments: a file with a number in it may name a process that is another's by now.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = process.joinpath("cmdline").read_bytes().decode(errors="replace").split("\0")
            if words[0].endswith("bash") and _MARK in words[2:4] and _is_first(process):
                yield int(process.name), Path(words[words.index(_MARK, 2) + 1])


def _is_first(process: Path) -> bool:
    """Whether it is process 1 of its namespace, not one that has just been forked from it."""
    status = process.joinpath("status").read_text().splitlines()
    return any(line.startswith("NSpid:") and line.split()[-1] == "1" for line in status)


def _remove_cgroups(name: str) -> None:
    """Remove what containers left, in every hierarchy; processes in them may just be ending."""
    hierarchies = Path("/sys/fs/cgroup")
    for top in (hierarchies, *filter(Path.is_dir, hierarchies.iterdir())):
        for folder, _, _ in os.walk(top / name, topdown=False):
            wait_for(f"{folder}: removal of the cgroup", partial(_removed, Path(folder)), 10)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
