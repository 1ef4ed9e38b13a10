"""What is wrong with the nodes, before a job costs anything: pure functions over what each of them says.

A `NodeLook` is what a node says of itself before any image is pulled, a `JobLook` what is seen where the job
will run. What some nodes have and others lack, or have in another form, only all looks together tell.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Literal, TypeVar

from pydantic import Field

from cvs.launch import LaunchPlan, NodePlan
from cvs.models import Frozen

FREE_BYTES = 1 << 30
"""Room that a node needs for its logs and traces, and a little more than that for an image."""
_GIB = 1 << 30
_CHECKS = "reach docker free disk gpus files interfaces ready image devices write rendezvous port".split()
"""What is looked at, in this order; a table has a column for each."""
_MARKS = {"good": "ok", "warning": "warn", "bad": "BAD"}
_Value = TypeVar("_Value", bound=Hashable)


class Finding(Frozen):
    """What one check found on one node."""

    node: str
    check: str
    status: Literal["good", "warning", "bad"] = "good"
    text: str = ""
    """For the user, without the node; empty where all is well."""

    def __str__(self) -> str:
        return f"{self.node}: {self.text}"


class NodeLook(Frozen):
    """What a node says of itself; what it cannot tell is None."""

    gpus: int | None = None
    free_bytes: int | None = None
    """On the disk of `aorta_path`."""
    interfaces: tuple[str, ...] = ()
    digests: dict[str, str] = Field(default_factory=dict)
    """Of the plan's files below `aorta_path` that are there."""
    revision: str | None = None
    """Commit of the checkout at `aorta_path`."""


class JobLook(Frozen):
    """What is seen where the job will run: in the container, if there is one."""

    addresses: tuple[str, ...] = ()
    """Of the rendezvous host, as its name is resolved there."""
    own_addresses: tuple[str, ...] = ()
    """Of the host name that Gloo looks up, as it is resolved there."""
    problems: dict[str, str] = Field(default_factory=dict)
    """By check: what does not work there."""
    interfaces: tuple[str, ...] = ()
    image: str | None = None
    """Id of the image that the container is made of."""


Checks = Iterator[Finding]


def findings_of_nodes(plan: LaunchPlan, looks: Mapping[str, NodeLook]) -> list[Finding]:
    """What is found before any image is pulled, on the nodes that could be looked at."""
    nodes = {node.node: node for node in plan.nodes if node.node in looks}
    found = [
        finding
        for name, node in nodes.items()
        for finding in (
            _disk(node, looks[name]),
            _gpus(plan, node, looks[name]),
            _interfaces(plan, node, looks[name].interfaces) if _sees_host_network(node) else None,
        )
        if finding
    ]
    return [*found, *_files(looks)]


def findings_of_jobs(plan: LaunchPlan, looks: Mapping[str, JobLook]) -> list[Finding]:
    """What is found where the job will run, on the nodes that are ready for it."""
    nodes = {node.node: node for node in plan.nodes if node.node in looks}
    found = [
        finding
        for name, node in nodes.items()
        for finding in (
            *_tried(plan, name, looks[name]),
            None if _sees_host_network(node) else _interfaces(plan, node, looks[name].interfaces),
        )
        if finding
    ]
    images = {name: look.image for name, look in looks.items() if look.image}
    return [*found, *_one_image(plan, images), *_rendezvous(plan, looks)]


def _tried(plan: LaunchPlan, node: str, look: JobLook) -> Checks:
    for check in ("devices", "write") if plan.accelerator == "rocm" else ("write",):
        text = look.problems.get(check, "")
        yield Finding(node=node, check=check, status="bad" if text else "good", text=text)
    if "owner" in look.problems:
        yield Finding(node=node, check="write", status="warning", text=look.problems["owner"])


def _sees_host_network(node: NodePlan) -> bool:
    return node.container is None or node.container.network_mode == "host"


def _disk(node: NodePlan, look: NodeLook) -> Finding | None:
    if look.free_bytes is None:
        return None
    if look.free_bytes >= FREE_BYTES:
        return Finding(node=node.node, check="disk")
    text = f"only {look.free_bytes >> 20} MiB are free at aorta_path {node.aorta_path}; a run needs"
    return Finding(
        node=node.node, check="disk", status="bad", text=f"{text} {FREE_BYTES >> 20} MiB for what it leaves"
    )


def _gpus(plan: LaunchPlan, node: NodePlan, look: NodeLook) -> Finding | None:
    if plan.accelerator == "none":
        return None
    if look.gpus is None:
        text = "its GPUs cannot be counted: there is no nvidia-smi that lists them"
        return Finding(node=node.node, check="gpus", status="warning", text=text)
    if look.gpus == plan.gpus_per_node:
        return Finding(node=node.node, check="gpus")
    seen = {"rocm": "in /dev/dri", "cuda": "that nvidia-smi lists"}[plan.accelerator]
    status: Literal["bad", "warning"] = "bad" if look.gpus < plan.gpus_per_node else "warning"
    text = f"{look.gpus} GPUs {seen}, and gpus_per_node is {plan.gpus_per_node}"
    return Finding(node=node.node, check="gpus", status=status, text=text)


# --- interfaces -------------------------------------------------------------------------------------------


def _interfaces(plan: LaunchPlan, node: NodePlan, there: tuple[str, ...]) -> Finding | None:
    """That what the libraries are told to use is there; a name that nothing bears costs them a long wait."""
    variables = node.variables()
    nccl = variables.get("NCCL_SOCKET_IFNAME", "")
    # Gloo takes whole names, each of which it needs.
    gloo = [name for name in variables.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
    asked = [("NCCL_SOCKET_IFNAME", nccl, nccl_interfaces(nccl, there))] if nccl else []
    asked += [("GLOO_SOCKET_IFNAME", name, [name] if name in there else []) for name in gloo]
    if not asked or not there:
        return None
    for name, value, used in asked:
        if not used:
            text = f"{name}={value} names no interface of this node, which has {', '.join(there)}"
            return Finding(node=node.node, check="interfaces", status="bad", text=text)
        if used == ["lo"] and plan.num_nodes > 1 and node.connection.transport != "local":
            text = f"{name}={value} leaves only the loopback, over which no other node is reached"
            return Finding(node=node.node, check="interfaces", status="bad", text=text)
    return Finding(node=node.node, check="interfaces")


def nccl_interfaces(value: str, there: tuple[str, ...]) -> list[str]:
    """Which of these interfaces NCCL and RCCL take for NCCL_SOCKET_IFNAME.

    A list of beginnings of names; `^` before it takes all others, `=` makes them whole names. Source: NCCL's
    documentation of the variable.
    """
    excludes, value = value.startswith("^"), value.removeprefix("^")
    whole, value = value.startswith("="), value.removeprefix("=")
    names = [name.partition(":")[0] for name in value.split(",") if name]  # a port may follow
    if not names:
        return [] if excludes else list(there)
    matches: Callable[[str], bool] = (
        (lambda name: name in names) if whole else (lambda name: name.startswith(tuple(names)))
    )
    return [name for name in there if matches(name) != excludes]


# --- what must be the same everywhere ---------------------------------------------------------------------


def _files(looks: Mapping[str, NodeLook]) -> Checks:
    names = dict.fromkeys(name for look in looks.values() for name in look.digests)
    parted: set[str] = set()
    for name in names:
        digests = {node: look.digests[name] for node, look in looks.items() if name in look.digests}
        for node, others in _minority(digests).items():
            parted.add(node)
            text = f"{name} below aorta_path is not what it is on {_some(others)}; make them the same"
            yield Finding(node=node, check="files", status="bad", text=text)
    revisions = {node: look.revision for node, look in looks.items() if look.revision}
    for node, others in _minority(revisions).items():
        if node not in parted:
            parted.add(node)
            text = f"aorta_path is at commit {revisions[node][:12]}, on {_some(others)} at"
            text = f"{text} {revisions[others[0]][:12]}"
            yield Finding(node=node, check="files", status="bad", text=text)
    for node, look in looks.items():
        if look.digests and node not in parted:
            yield Finding(node=node, check="files")


def _one_image(plan: LaunchPlan, images: Mapping[str, str]) -> Checks:
    parted = _minority(images)
    for node, image in images.items():
        if node not in parted:
            yield Finding(node=node, check="image")
            continue
        container = plan.head.container
        others = parted[node]
        text = (
            f"image {container.image if container else ''} is {_brief(image)} here, and"
            f" {_brief(images[others[0]])} on {_some(others)}; docker.pull: always, or one digest in"
            " docker.image, makes them one"
        )
        yield Finding(node=node, check="image", status="bad", text=text)


def _brief(image: str) -> str:
    return image.removeprefix("sha256:")[:12]


def _minority(values: Mapping[str, _Value]) -> dict[str, list[str]]:
    """The nodes whose value is not that of most, of the first where none has more; with the nodes of most."""
    groups: dict[_Value, list[str]] = {}
    for node, value in values.items():
        groups.setdefault(value, []).append(node)
    if len(groups) < 2:
        return {}
    most = max(groups.values(), key=len)
    return {node: most for group in groups.values() if group is not most for node in group}


def _some(nodes: list[str]) -> str:
    """At most three of them by name."""
    return ", ".join(nodes[:3]) + (f" and {len(nodes) - 3} more" if len(nodes) > 3 else "")


# --- where the nodes meet ---------------------------------------------------------------------------------


def _rendezvous(plan: LaunchPlan, looks: Mapping[str, JobLook]) -> Checks:
    if plan.num_nodes == 1:
        return
    address = plan.rendezvous.address
    is_one_machine = plan.head.connection.transport == "local"
    turned_home = {node for node, look in looks.items() if any(map(_is_loopback, look.addresses))}
    # Debian has the head call itself 127.0.1.1; in which order addresses come depends on who asks.
    parted = _minority(
        {
            node: frozenset(look.addresses)
            for node, look in looks.items()
            if look.addresses and node not in turned_home
        }
    )
    for node, look in looks.items():
        text = look.problems.get("rendezvous", "")
        if not text and not is_one_machine and node in turned_home - {plan.head.node}:
            text = (
                f"the rendezvous address {address} is {', '.join(look.addresses)} here, this node itself;"
                " mend its /etc/hosts, or give the head's address as vpc_ip"
            )
        elif not text and node in parted:
            theirs = looks[parted[node][0]].addresses
            text = (
                f"the rendezvous address {address} is {', '.join(look.addresses)} here, and"
                f" {', '.join(theirs)} on {_some(parted[node])}"
            )
        if text:
            yield Finding(node=node, check="rendezvous", status="bad", text=text)
        elif not is_one_machine and _gloo_would_stay_at_home(plan, node, look):
            text = (
                f"its own name is {', '.join(look.own_addresses)} here, which Gloo tells the other nodes;"
                " set GLOO_SOCKET_IFNAME, or mend /etc/hosts"
            )
            yield Finding(node=node, check="rendezvous", status="warning", text=text)
        else:
            yield Finding(node=node, check="rendezvous")


def _gloo_would_stay_at_home(plan: LaunchPlan, node: str, look: JobLook) -> bool:
    variables = next(each for each in plan.nodes if each.node == node).variables()
    loops = bool(look.own_addresses) and all(map(_is_loopback, look.own_addresses))
    return loops and plan.accelerator == "none" and not variables.get("GLOO_SOCKET_IFNAME")


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


# --- for the user -----------------------------------------------------------------------------------------


def bad(findings: list[Finding]) -> list[Finding]:
    """Those for which no job may start, in the order of their nodes."""
    return [finding for finding in findings if finding.status == "bad"]


def table(nodes: list[str], findings: list[Finding]) -> str:
    """A line for each node, a column for each check that was made; many nodes where all is well in one."""
    worst: dict[str, dict[str, str]] = {node: {} for node in nodes}
    for finding in findings:
        row = worst.setdefault(finding.node, {})
        ranks = list(_MARKS)
        if ranks.index(finding.status) >= ranks.index(row.get(finding.check, "good")):
            row[finding.check] = finding.status
    columns = [check for check in _CHECKS if any(check in row for row in worst.values())]
    sound = [node for node in nodes if set(worst[node].values()) <= {"good"}]
    rows = [["node", *columns]]
    rows += [
        [node, *(_MARKS.get(row.get(check, ""), "–") for check in columns)]
        for node, row in worst.items()
        if node not in sound or len(sound) <= 8
    ]
    if len(sound) > 8:
        made = {check for node in sound for check in worst[node]}
        rows.append([f"{len(sound)} others", *("ok" if check in made else "–" for check in columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
