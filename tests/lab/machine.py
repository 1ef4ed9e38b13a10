"""This machine: what the lab asks of it, and how commands run on it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

Done = subprocess.CompletedProcess[str]
T = TypeVar("T")
R = TypeVar("R")

PACKAGES = {
    "busybox-static": ["busybox"],
    "crun": ["crun"],
    "docker-registry": ["docker-registry"],
    "docker.io": ["docker", "dockerd", "containerd", "runc"],
    "git": ["git"],
    "iproute2": ["ip", "tc"],
    "iptables": ["iptables"],
    "openssh-client": ["ssh", "ssh-keygen"],
    "openssh-server": ["sshd"],
    "openssl": ["openssl"],
    "podman": ["podman"],
    "procps": ["ps"],
    "python3": ["/usr/bin/pydoc3"],
    "rootlesskit": ["rootlesskit"],
    "rsync": ["rsync"],
    "sudo": ["sudo"],
    "uidmap": ["newuidmap"],
    "util-linux": ["nsenter", "setsid", "unshare"],
    "zstd": ["zstd"],
}
"""Debian packages, and their commands that are needed: here, or on the nodes, which take /usr from here."""
_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}
_POLICY = Path("/usr/sbin/policy-rc.d")
"""Asked by Debian's packages whether they may start their services; exit 101 is no."""


class LabError(Exception):
    """The lab cannot do what it was asked; says why in one line, before what a command said."""


def run(*argv: str | Path, check: bool = True, timeout: float = 120, stdin: IO[bytes] | None = None) -> Done:
    """Run a command to its end.

    Raises: LabError: it is not there, has not ended within `timeout` seconds, or, with `check`, failed.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, env={**os.environ, **_ENVIRONMENT}, stdin=stdin or subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=timeout, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise LabError(f"{words[0]}: no such command") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"{' '.join(words)}: no end after {timeout:.0f} s") from None
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise LabError(f"{' '.join(words)}: exit {done.returncode}\n{said}")
    return done


def spawn(*argv: str | Path, log: Path) -> None:
    """Start a command that outlives this process; its output goes to `log`."""
    with log.open("ab") as output:
        subprocess.run(
            ["setsid", "--fork", *map(str, argv)], env=_ENVIRONMENT, cwd="/",
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=30, check=True,
        )  # fmt: skip


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file that nobody but those of `mode` can read at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:  # noqa: PTH123
        os.fchmod(file.fileno(), mode)
        file.write(text)


def remove_tree(path: Path) -> None:
    """As `rm -rf`, but never into something that is mounted below.

    Raises: LabError: something is.
    """
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mounted = Path(line.split()[4])
        if mounted.is_relative_to(path):
            raise LabError(f"{mounted} is mounted: not removing {path}; unmount it, then do this again")
    run("rm", "-rf", "--one-file-system", path, timeout=600)


def wait_for(what: str, met: Callable[[], object], seconds: float, log: Path | None = None) -> None:
    """Wait until `met` gives something true.

    Raises: LabError: not within `seconds`; shows the end of `log`.
    """
    end = time.monotonic() + seconds
    while not met():
        if time.monotonic() > end:
            lines = log.read_text(errors="replace").splitlines()[-15:] if log and log.exists() else []
            raise LabError("\n".join([f"{what}: not within {seconds:.0f} s", *lines]))
        time.sleep(0.05)


@contextmanager
def held(folder: Path, seconds: float) -> Iterator[None]:
    """Keep other processes that ask for this folder out.

    Raises: LabError: another has not let go of it within `seconds`.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("a") as lock:
        wait_for(f"{folder}: end of its use by another process", partial(_locked, lock.fileno()), seconds)
        yield


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def side_by_side(do: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Do it to all at the same time; the first failure is raised when all have ended."""
    with ThreadPoolExecutor(16) as pool:
        running = [pool.submit(do, item) for item in items]
    return [one.result() for one in running]


def check() -> None:
    """Raises: LabError: this machine cannot carry a lab; says what to do."""
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes namespaces, mounts and network devices")
    missing = missing_packages()
    if missing:
        raise LabError(f"{_names(missing)}; `make test-lab` as root does it")
    if not any(Path("/sys/fs/cgroup").iterdir()):
        raise LabError("/sys/fs/cgroup: no cgroups are mounted there, without which dockerd does not start")


def missing_packages(among: Iterable[str] = ()) -> list[str]:
    """Debian packages of which a command is not here: of these, or of all that the lab needs."""
    wanted = {package: PACKAGES.get(package, [package]) for package in among} or PACKAGES
    return [
        package
        for package, commands in wanted.items()
        if not all(shutil.which(command, path=_ENVIRONMENT["PATH"]) for command in commands)
    ]


def install_missing(among: Iterable[str] = ()) -> None:
    """Install what is missing of these packages, else of all that the lab needs, with apt; starts no service.

    Raises: LabError: it cannot be installed from here; names what is missing.
    """
    missing = missing_packages(among)
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise LabError(f"{_names(missing)}; it needs root, on Debian or Ubuntu")
    with _services_stay_down():
        run("apt-get", "update", "-qq", timeout=600)
        run("apt-get", "install", "-qq", "--yes", "--no-install-recommends", *missing, timeout=1800)


def _names(missing: list[str]) -> str:
    return f"missing here: apt-get install --no-install-recommends {' '.join(missing)}"


@contextmanager
def _services_stay_down() -> Iterator[None]:
    if _POLICY.exists():
        if run(_POLICY, "docker", "start", check=False).returncode != 101:
            raise LabError(f"{_POLICY} lets services start: install {', '.join(missing_packages())} by hand")
        yield
        return
    write(_POLICY, "#!/bin/sh\nexit 101\n", 0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


def lacks_capabilities() -> bool:
    """Whether root here can do less than root at large, as in many containers and small machines."""
    status = Path("/proc/self/status").read_text().splitlines()
    bounding = int(next(line.split()[1] for line in status if line.startswith("CapBnd")), 16)
    every = (1 << int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1) - 1
    return bounding & every != every
