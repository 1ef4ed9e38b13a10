"""The programs that cvs needs on a node and in an image; what is missing is told at once, by its name."""

from __future__ import annotations

from collections.abc import Sequence

from cvs.errors import EnvironmentFault
from cvs.transport.base import Transport

Programs = Sequence[str | tuple[str, ...]]
"""By name; of a tuple any one will do."""

ON_NODE: Programs = (
    *("cat", "dd", "head", "ls", "mkdir", "mv", "rm", "sleep", "tail", "timeout", "wc"),
    *("find", "grep", "tar", "xargs", ("gzip", "zstd"), ("sha256sum", "openssl")),
)
"""Needed to run and follow a job, and to bring home what it left, whatever it runs in."""

_COREUTILS = "coreutils"
_PACKAGES = {
    "bash": "bash",
    "docker": "Docker",
    "find": "findutils",
    "flock": "util-linux",
    "git": "git",
    "getent": "libc-bin (glibc-common on RHEL)",
    "grep": "grep",
    "gzip": "gzip",
    "kill": "procps (util-linux on RHEL)",
    "python3": "python3",
    "sed": "sed",
    "setsid": "util-linux",
    "tar": "tar",
    "torchrun": "PyTorch",
    "xargs": "findutils",
}
"""Of Debian and, where nothing else is said, of RHEL; all others are of coreutils."""
_LOOK = """\
set -f
has() (
    IFS=:
    for folder in $PATH; do [ -x "$folder/$1" ] && [ ! -d "$folder/$1" ] && exit 0; done
    exit 1
)
for names; do
    found=
    for name in $names; do has "$name" && found=yes; done
    [ -n "$found" ] || echo "$names"
done
:
"""
"""Prints what is missing. Looks for files: `timeout`, which most commands are started by, runs no builtin."""


def demand_programs(transport: Transport, names: Programs) -> None:
    """Have all of these programs on the node.

    Raises: EnvironmentFault: names those that are missing, and the packages to install; TransportError: the
    node cannot be asked.
    """
    said: list[bytes] = []
    # Not `run`, which needs some of them itself.
    code = transport.stream(look_command(names), said.append)
    if code:
        raise EnvironmentFault(f"{transport.node}: sh cannot be run on the node (exit code {code})")
    demand_found(b"".join(said).decode(errors="replace"), names, f"{transport.node}:", "on the node")


def look_command(names: Programs) -> list[str]:
    """Command that prints, line by line, which of these programs are missing where it runs."""
    return ["sh", "-c", _LOOK, "sh", *map(_together, names)]


def demand_found(said: str, names: Programs, who: str, where: str) -> None:
    """Take what `look_command` printed.

    Raises: EnvironmentFault: something is missing `where`.
    """
    lines = set(said.splitlines())
    if missing := [name for name in names if _together(name) in lines]:
        firsts = [name if isinstance(name, str) else name[0] for name in missing]
        packages = dict.fromkeys(_PACKAGES.get(name, _COREUTILS) for name in firsts)
        told = ", ".join(_together(name).replace(" ", " or ") for name in missing)
        raise EnvironmentFault(f"{who} programs missing {where}: {told}; install {', '.join(packages)}")


def _together(name: str | tuple[str, ...]) -> str:
    return name if isinstance(name, str) else " ".join(name)
