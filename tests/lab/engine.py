"""A Docker engine on this machine itself, beside any that is here: its socket and data lie in one folder."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from lab.images import Image
from lab.machine import lacks_capabilities, run, spawn, wait_for
from lab.root_folder import PATH, put_before_runc


class Engine:
    """One dockerd of this machine's root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/docker.sock"
        self._pid_file = folder / "docker.pid"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        runc = self.folder / "runc"
        if lacks_capabilities():
            put_before_runc(runc, seen_as=str(runc))
        log = self.folder / "dockerd.log"
        spawn(
            *("env", f"PATH={runc}:{PATH}", "dockerd", f"--host={self.url}", f"--pidfile={self._pid_file}"),
            *(f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec", "--bridge=none"),
            *("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false"),
            *("--exec-opt", "native.cgroupdriver=cgroupfs"),
            log=log,
        )
        wait_for("dockerd", lambda: self.docker("version") is not None, 60, log)

    def docker(self, *words: str) -> str | None:
        """What the command says; None where it fails."""
        done = run("docker", "--host", self.url, *words, check=False)
        return done.stdout if done.returncode == 0 else None

    def load(self, image: Image) -> None:
        """Load an image."""
        run("docker", "--host", self.url, "load", "--quiet", "--input", image.archive, timeout=600)

    def stop(self) -> None:
        """End it, and its containers."""
        for container in (self.docker("ps", "--all", "--quiet") or "").split():
            self.docker("rm", "--force", container)
        pid = int(self._pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
        wait_for("the end of dockerd", lambda: not Path(f"/proc/{pid}").exists(), 30)
        for mount in Path("/proc/mounts").read_text().splitlines():
            place = mount.split()[1]
            if place.startswith(f"{self.folder}/"):
                run("umount", "--lazy", place)
