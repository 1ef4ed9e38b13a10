"""A launch plan for people: everything that would happen on every node."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping

from cvs.launch import ContainerPlan, LaunchPlan, Limits, NodePlan

_COLLECTED = "torch_profiler/** and beside it rank_*_metrics.jsonl, rank*.log, tracelens_analysis/**"
_NOTHING = "nothing (multi_node.collect_traces: false)"


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
    yield f"  collected    {_COLLECTED if plan.collect_traces else _NOTHING}"
    yield f"  checked      {', '.join(checks)}"


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
        "collection": limits.transfer,
        "teardown": limits.teardown,
    }
    return ", ".join(
        f"{name} {'never' if limit is None else f'{limit:g} s'}" for name, limit in seconds.items()
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _node(node: NodePlan, plan: LaunchPlan, way: str) -> Iterator[str]:
    yield f"{node.node}: node rank {node.node_rank}{' (head)' if node is plan.head else ''}"
    yield f"  reached      {way}"
    yield f"  vpc_ip       {node.vpc_ip}"
    yield f"  aorta_path   {node.aorta_path}{_origin(node)}"
    yield f"  must exist   {', '.join(node.required_files)}"
    if node.container:
        yield from _container(node.container)
    if node.rccl_build:
        build = node.rccl_build
        source = f"{build.clone_url} {build.branch}"
        yield f"  builds RCCL  {source} in {build.build_path}: {shlex.join(build.argv)}"
    yield f"  works in     {node.workdir}"
    yield f"  runs         {shlex.join(node.argv)}"
    for step in node.analyses:
        once = " (unless it is there)" if step.skip_if_exists else ""
        yield f"  analyses     {step.name}{once}: {shlex.join(step.argv)}"
    yield "  environment"
    width = max(len(f"{variable.name}={variable.value}") for variable in node.environment)
    for variable in node.environment:
        yield f"    {f'{variable.name}={variable.value}':{width}}  [{variable.source}]"


def _origin(node: NodePlan) -> str:
    if node.copied_from:
        return f", a copy of {node.copied_from}"
    return f", cloned from {node.clone_url} if it is not there" if node.clone_url else ""


def _container(container: ContainerPlan) -> Iterator[str]:
    loaded = f", loaded from {container.image_tar}" if container.image_tar else ""
    yield f"  container    {container.name}-…, image {container.image}, pull {container.pull}{loaded}"
    mounts = ", ".join(
        f"{here} at {there}{''.join(f' ({option})' for option in options)}"
        for here, there, *options in container.mounts
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
