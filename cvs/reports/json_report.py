"""What was measured, for machines: the report of a run, `aorta_benchmark_report.json`, and that of traces."""

from __future__ import annotations

import json
from typing import Any

import orjson

from cvs.config import ExpectedResults
from cvs.metrics import coverage, per_node
from cvs.models import SCHEMA_VERSION, BenchmarkResult, RankMetrics, TraceResult
from cvs.run_folder import Manifest
from cvs.thresholds import check, measured, verdict_of


def json_report(result: BenchmarkResult, limits: ExpectedResults, manifest: Manifest) -> str:
    """The report's text: verdict, what it is taken on, and every rank."""
    violations = check(result, limits)
    report = {
        "schema_version": SCHEMA_VERSION,
        "benchmark": result.benchmark,
        "run_id": result.run_id,
        "verdict": verdict_of(violations),
        "violations": [violation.model_dump() for violation in violations],
        "status": result.run_status.value,
        "started": manifest.run.started,
        "duration_seconds": result.duration_seconds,
        "cvs_version": manifest.cvs_version,
        "cluster": {
            "nodes": result.num_nodes,
            "gpus_per_node": result.gpus_per_node,
            "total_gpus": result.total_gpus,
        },
        "configuration": _configuration(manifest),
        "basis": result.parse.basis,
        "performance": _performance(result),
        "coverage": coverage(result.parse).model_dump(),
        "limits": [_limit(result, name, limit) for name, limit in limits.limits().items()],
        "world_size": result.parse.world_size,
        "missing_ranks": result.parse.missing_ranks,
        "per_rank_summary": [_rank(rank) for rank in result.per_rank_metrics],
        **_over_ranks(result),
        "tracelens": result.tracelens and result.tracelens.model_dump(),
        "nodes": [node.model_dump(mode="json") for node in manifest.run.nodes],
        "excluded": result.excluded,
        "failure": result.failure and result.failure.model_dump(mode="json"),
        "warnings": [*result.warnings, *result.parse.warnings],
        "left_out": [left.model_dump() for left in result.parse.left_out],
    }
    return orjson.dumps(report, option=orjson.OPT_INDENT_2).decode()


def traces_json(result: TraceResult, limits: ExpectedResults) -> str:
    """Verdict, what it is taken on, and all that is known of every rank."""
    violations, parse = check(result, limits), result.parse
    report = {
        "schema_version": SCHEMA_VERSION,
        "verdict": verdict_of(violations),
        "violations": [violation.model_dump() for violation in violations],
        "parser": parse.parser,
        "accelerator": result.accelerator,
        "basis": parse.basis,
        "world_size": parse.world_size,
        "missing_ranks": parse.missing_ranks,
        "performance": _performance(result),
        **_over_ranks(result),
        "coverage": coverage(parse).model_dump(),
        "limits": [_limit(result, name, limit) for name, limit in limits.limits().items()],
        "warnings": parse.warnings,
        "left_out": [left.model_dump() for left in parse.left_out],
        "ranks": [{**rank.model_dump(), "gpu_timeline": rank.gpu_timeline} for rank in parse.ranks],
    }
    # Not orjson: here whatever is no ASCII is an escape, so that no terminal finds anything to obey.
    return json.dumps(report, indent=2)


def _configuration(manifest: Manifest) -> dict[str, Any]:
    channels = manifest.benchmark["environment"]["NCCL_MAX_NCHANNELS"]
    return {
        "nccl_channels": channels,
        "compute_channels": 256 - channels,
        "rccl_branch": manifest.benchmark["rccl"]["branch"],
        "accelerator": manifest.plan.accelerator,
        "runtime": manifest.plan.runtime,
        "launch_mode": manifest.plan.mode,
        "ranks_per_node": manifest.plan.local_world_size,
        "training_overrides": manifest.benchmark["training_overrides"],
    }


def _performance(result: TraceResult) -> dict[str, float | None]:
    values = result.aggregates
    time_us = values.avg_iteration_time_us
    return {
        "avg_iteration_time_ms": None if time_us is None else time_us / 1e3,
        "std_iteration_time_us": values.std_iteration_time_us,
        "time_variance_ratio": values.time_variance_ratio,
        "avg_compute_ratio": values.avg_compute_ratio,
        "avg_comm_ratio": values.avg_comm_ratio,
        "avg_overlap_ratio": values.avg_overlap_ratio,
    }


_SPREADS = {"iteration_time_us", "compute_ratio", "comm_ratio", "overlap_ratio"}


def _over_ranks(result: TraceResult) -> dict[str, Any]:
    """How values scatter over ranks, and what nodes and collectives tell."""
    parse = result.parse
    return {
        "spread": result.aggregates.model_dump(include=_SPREADS),
        "per_node_summary": [node.model_dump() for node in per_node(parse.ranks)],
        "collectives": parse.collectives and parse.collectives.model_dump(),
    }


def _limit(result: TraceResult, name: str, limit: float) -> dict[str, Any]:
    found = measured(result, name)
    entry = {"name": name, "limit": limit, "value": found.value, "unit": found.unit}
    return {**entry, "measured_on": str(found.part)} if found.part else entry


def _rank(rank: RankMetrics) -> dict[str, Any]:
    ratios = rank.ratios
    return {
        "rank": rank.rank,
        "node": rank.node,
        "local_rank": rank.local_rank,
        "quality": rank.quality.model_dump(),
        "total_time_us": rank.total_time_us,
        "compute_time_us": rank.compute_time_us,
        "communication_time_us": rank.communication_time_us,
        "exposed_communication_time_us": rank.exposed_communication_time_us,
        "compute_ratio": ratios and ratios.compute,
        "comm_ratio": ratios and ratios.comm,
        "exposed_comm_ratio": ratios and ratios.exposed_comm,
        "overlap_ratio": ratios and ratios.overlap,
        "iteration_time_us": None if rank.iteration_ns is None else rank.iteration_ns / 1e3,
        "steps": [step.number for step in rank.steps],
        "exact_ns": rank.exact_ns and rank.exact_ns.model_dump(),
        "cpu_ns": rank.cpu_ns and rank.cpu_ns.model_dump(),
        "counts": rank.counts and rank.counts.model_dump(),
        "files": list(rank.files),
    }
