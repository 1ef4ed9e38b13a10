"""What can go wrong on a node, for real; `heal` undoes all of it."""

from __future__ import annotations

from collections.abc import Callable

from lab.machine import LabError, run
from lab.node import Node
from lab.root_folder import CVS, HOST_KEY

WORK = f"/{CVS.home}/work"
_KEPT_KEY = "etc/ssh/kept_host_key"
_SMALL_DISK = "cvs-lab-small"
"""The device of a small disk, as /proc/mounts has it."""
_SESSIONS = """\
for process in /proc/[0-9]*; do
    case "$(tr '\\0' ' ' <$process/cmdline)" in
        "sshd: "*@* | "sshd: "*"[priv]"* | "sshd-session: "*) kill ${process#/proc/} ;;
    esac
done 2>/dev/null
:"""
_MOUNT_SMALL = """\
[ -d "$1" ] || { mkdir -p "$1" && chown "$3:" "$1"; }
owner=$(stat -c %u:%g "$1")
mount -t tmpfs -o "size=$2,mode=755" "$4" "$1" && chown "$owner" "$1\""""


def link_down(node: Node) -> None:
    """The cable is out: no route to host."""
    node.broken.touch()
    node.cable.pull()


def blackhole(node: Node) -> None:
    """Packets vanish, both ways: whoever waits for an answer waits until its time is up."""
    loss(node, percent=100)


def loss(node: Node, percent: float = 5) -> None:
    """Some packets vanish, both ways."""
    node.broken.touch()
    node.cable.lose(percent)


def firewall(node: Node) -> None:
    """Nothing on the node can be reached from outside any more but its sshd."""
    node.broken.touch()
    node.cable.close_ports()


def slow(node: Node, rate: str = "", delay: str = "") -> None:
    """The cable is slow: a `rate` (1mbit where nothing is given), a `delay` each way such as 100ms, or both.

    Raises: LabError: a delay, and this kernel has no sch_netem.
    """
    node.broken.touch()
    if not delay:
        node.cable.slow_down("tbf", "rate", rate or "1mbit", "burst", "32kb", "latency", "400ms")
        return
    try:
        node.cable.slow_down("netem", "delay", delay, *(("rate", rate) if rate else ()))
    except LabError as error:
        raise LabError(f"no delay without sch_netem in this kernel; a rate can be had\n{error}") from None


def hang(node: Node) -> None:
    """Every process stands still: connections open, and nothing answers."""
    node.broken.touch()
    node.run("sh", "-c", "kill -STOP -1", check=False)


def power_off(node: Node) -> None:
    """Every process is killed at once, and nobody answers any more."""
    link_down(node)
    node.power_off()


def stop_sshd(node: Node) -> None:
    """No new logins: connection refused; open sessions go on."""
    node.broken.touch()
    node.stop("sshd")


def drop_sessions(node: Node) -> None:
    """Open ssh sessions are cut; new ones work."""
    node.run("sh", "-c", _SESSIONS)


def stop_dockerd(node: Node) -> None:
    """The Docker Engine ends in good order, and its containers with it."""
    node.broken.touch()
    node.stop("dockerd")


def kill_dockerd(node: Node) -> None:
    """The Docker Engine is killed; containers go on until it starts again, which ends them."""
    node.broken.touch()
    node.stop("dockerd", "KILL")


def host_key(node: Node) -> None:
    """The node answers with another host key than clients know."""
    node.broken.touch()
    for end in ("", ".pub"):
        key, kept = node.root / f"{HOST_KEY}{end}", node.root / f"{_KEPT_KEY}{end}"
        key.unlink() if kept.exists() else key.rename(kept)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", node.root / HOST_KEY)
    node.stop("sshd")
    node.start("sshd")


def small_disk(node: Node, path: str = WORK, size: str = "16m", fill: bool = False) -> None:
    """A small disk lies at `path`, or a full one; a container that runs already does not see it."""
    node.broken.touch()
    node.run("sh", "-c", _MOUNT_SMALL, "sh", path, size, CVS.name, _SMALL_DISK)
    if fill:
        node.run("sh", "-c", 'cat /dev/zero >"$1/filler" 2>/dev/null; :', "sh", path)


Fault = Callable[..., None]
FAULTS: dict[str, Fault] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        link_down,
        blackhole,
        loss,
        firewall,
        slow,
        hang,
        power_off,
        stop_sshd,
        drop_sessions,
        stop_dockerd,
        kill_dockerd,
        host_key,
        small_disk,
    )
}


def heal(node: Node) -> None:
    """Undo every fault of the node, and wait until it answers."""
    if not node.broken.exists():
        return
    node.cable.plug()
    node.cable.lose_nothing()
    node.cable.full_speed()
    node.power_on()
    node.run("sh", "-c", "kill -CONT -1", check=False)
    _unmount_small_disks(node)
    _restore_host_key(node)
    node.up()
    node.wait_ready()
    node.broken.unlink()


def _unmount_small_disks(node: Node) -> None:
    for line in reversed(node.run("cat", "/proc/self/mounts").stdout.splitlines()):
        device, path = line.split()[:2]
        if device == _SMALL_DISK:
            node.run("umount", "-l", path.encode().decode("unicode_escape"))


def _restore_host_key(node: Node) -> None:
    if not (node.root / _KEPT_KEY).exists():
        return
    for end in ("", ".pub"):
        (node.root / f"{_KEPT_KEY}{end}").replace(node.root / f"{HOST_KEY}{end}")
    node.stop("sshd")
