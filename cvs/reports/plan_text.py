"""A launch plan for people: everything that would happen on every node.

A path is followed by the side on which it lies: here (where cvs runs), on the node, or in the container.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from cvs.launch import Connection, ContainerPlan, LaunchPlan, Limits, NodePlan, RcclBuild, TraceLensPlan

_COLLECTED = "torch_profiler/** and beside it rank_*_metrics.jsonl, rank*.log, tracelens_analysis/**"
_NOTHING = "nothing (multi_node.collect_traces: false)"
_HERE, _ON_NODE, _INSIDE = "[here]", "[on the node]", "[in the container]"
_LINK = "; an aorta_path that is here, too, gets a link to it: combined_traces"


def plan_text(plan: LaunchPlan, ways: Mapping[str, str]) -> str:
    """The whole plan, node by node; secrets hidden.

    Args: ways: how each node is reached, in words.
    """
    # Through its own serialized form, which is the one without secrets.
    shown = LaunchPlan.model_validate_json(plan.model_dump_json())
    parts = [_job(shown), *(_node(node, shown, ways[node.node]) for node in shown.nodes)]
    return "\n\n".join("\n".join(lines) for lines in parts)


def _job(plan: LaunchPlan) -> Iterator[str]:
    shape = f"{_count(plan.num_nodes, 'node')} x {_count(plan.local_world_size, 'rank')}"
    devices = f"accelerator {plan.accelerator}, {plan.gpus_per_node} per node"
    checks = ["evidence", *(f"{name} {limit:g}" for name, limit in plan.checks.items())]
    yield f"{plan.benchmark}: {shape} = {_count(plan.world_size, 'rank')}"
    yield f"  mode         {plan.mode}; runtime {plan.runtime}; {devices}"
    yield f"  rendezvous   {_meeting(plan)}"
    yield f"  limits       {_limits(plan.limits)}"
    yield f"  side by side {_count(plan.max_parallel, 'node')}"
    if plan.min_nodes:
        yield f"  unfit nodes  are left out, while at least {_count(plan.min_nodes, 'node')} can be had"
    yield f"  collected    {_COLLECTED if plan.collect_traces else _NOTHING}"
    yield f"  kept         in the run's folder {_HERE}{_LINK if plan.collect_traces else ''}"
    if plan.tracelens:
        yield f"  TraceLens    {_tracelens(plan.tracelens)}"
    yield f"  checked      {', '.join(checks)}"


def _tracelens(plan: TraceLensPlan) -> str:
    python = plan.python or "the Python that runs cvs"
    return f"{plan.mode}, by {python} {_HERE}, at most {plan.seconds:g} s"


def _meeting(plan: LaunchPlan) -> str:
    if plan.mode == "script":
        return "the script's own"
    meeting = plan.rendezvous
    return f"{meeting.address}, port {meeting.port or 'a free one on the head'}, id {meeting.id}"


def _limits(limits: Limits) -> str:
    seconds = {
        "set-up and run": limits.total,
        "join": limits.join,
        "grace": limits.grace,
        "stall": limits.stall,
        "shutdown": limits.shutdown,
        "after the first end": limits.after_first_end,
        "analysis": limits.analysis,
        "collection": limits.transfer,
        "teardown": limits.teardown,
    }
    return ", ".join(
        f"{name} {'never' if limit is None else f'{limit:g} s'}" for name, limit in seconds.items()
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _node(node: NodePlan, plan: LaunchPlan, way: str) -> Iterator[str]:
    there = _HERE if node.connection.transport == "local" else _ON_NODE
    inside = _INSIDE if node.container else there
    yield f"{node.node}: node rank {node.node_rank}{' (head)' if node is plan.head else ''}"
    yield f"  reached      {way}{_files(node.connection)}"
    yield f"  vpc_ip       {node.vpc_ip}"
    yield f"  aorta_path   {node.aorta_path} {there}{_origin(node)}"
    yield f"  must exist   below aorta_path: {', '.join(node.required_files)}"
    if node.container:
        yield from _container(node.container, there)
        if node.rccl_build:
            yield f"  builds RCCL  {_rccl(node.rccl_build, node.container, there)}"
    yield f"  works in     {node.workdir} {inside}"
    yield f"  runs         {shlex.join(node.argv)}"
    for step in node.analyses:
        once = " (unless it is there)" if step.skip_if_exists else ""
        yield f"  analyses     {step.name}{once}: {shlex.join(step.argv)}"
    yield "  environment"
    width = max(len(f"{variable.name}={variable.value}") for variable in node.environment)
    for variable in node.environment:
        yield f"    {f'{variable.name}={variable.value}':{width}}  [{variable.source}]"


def _files(connection: Connection) -> str:
    """Where the files lie that the way to a node is told with."""
    if connection.transport == "local":
        return ""
    config = f", ssh config {connection.ssh_config}" if connection.ssh_config else ""
    return f"{config}; files {_HERE}"


def _origin(node: NodePlan) -> str:
    copied = f", a copy of {node.copied_from} {_HERE}" if node.copied_from else ""
    cloned = f", cloned from {node.clone_url} if it is not there" if node.clone_url else ""
    return f"{copied}{cloned}{f', at {node.revision}' if node.revision else ''}"


def _rccl(build: RcclBuild, container: ContainerPlan, there: str) -> str:
    outside = _outside(build.build_path, container.mounts)
    lies = f", which is {outside} {there}" if outside else ", and gone with it"
    where = f"{build.build_path} {_INSIDE}{lies}"
    return f"{build.clone_url} {build.branch} in {where}: {shlex.join(build.argv)}"


def _outside(path: str, mounts: Iterable[Sequence[str]]) -> str | None:
    """Where what lies at `path` in the container lies outside of it; None: nowhere."""
    found = [(target, source) for source, target, *_ in mounts if PurePosixPath(path).is_relative_to(target)]
    if not found:
        return None
    target, source = max(found)  # of those around the path, the longest is the innermost
    return str(PurePosixPath(source) / PurePosixPath(path).relative_to(target))


def _container(container: ContainerPlan, there: str) -> Iterator[str]:
    loaded = f", loaded from {container.image_tar} {there}" if container.image_tar else ""
    yield f"  container    {container.name}-…, image {container.image}, pull {container.pull}{loaded}"
    mounts = ", ".join(
        f"{outside} {there} at {inside} {_INSIDE}{''.join(f' ({option})' for option in options)}"
        for outside, inside, *options in container.mounts
    )
    yield f"    mounts     {mounts}"
    groups = ", ".join(container.groups) or "none"
    gpus = ", all GPUs" if container.all_gpus else ""
    yield f"    devices    {', '.join(container.devices) or 'none'}{gpus}; groups {groups}"
    limits = ", ".join(f"{name} {_size(size)}" for name, size in container.ulimits.items())
    yield (
        f"    settings   user {container.user}, privileged {str(container.privileged).lower()}, network"
        f" {container.network_mode}, ipc {container.ipc_mode}, shm {container.shm_size},"
        f" {', '.join((*container.cap_add, *container.security_opt))}, {limits}; ends by itself after"
        f" {container.seconds:g} s"
    )


def _size(size: int) -> str:
    return "unlimited" if size < 0 else f"{size / 2**20:g} MiB"
