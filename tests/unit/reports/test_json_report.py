"""The report for machines: the keys that users already read, and ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cvs.config import AortaConfig, ClusterConfig, ExpectedResults
from cvs.launch import Site, plan_aorta
from cvs.models import (
    Aggregates,
    BenchmarkResult,
    CpuSums,
    Failure,
    LeftOut,
    NodeResult,
    ParseResult,
    Quality,
    RankMetrics,
    Ratios,
    RowDifference,
    RowsCompared,
    RunResult,
    RunStatus,
    Step,
    TraceLensResult,
    TraceResult,
)
from cvs.reports.json_report import json_report, traces_json
from cvs.run_folder import Manifest

NODES = {"a": {"vpc_ip": "10.0.0.1"}, "b": {"vpc_ip": "10.0.0.2"}}


def rank_of(rank: int) -> RankMetrics:
    """Two steps of 50 ms: compute 20, communication 40 of which 10 are hidden, in each."""
    sums = CpuSums(
        step=100_000_000,
        comm=80_000_000,
        compute=40_000_000,
        overlap=20_000_000,
        exposed_comm=60_000_000,
        other=0,
    )
    return RankMetrics(
        rank=rank,
        node=0,
        local_rank=rank,
        world_size=2,
        files=(f"node_0/artifacts/torch_profiler/rank{rank}/t.json",),
        basis="cpu",
        quality=Quality(status="complete"),
        cpu_ns=sums,
        ratios=Ratios(compute=0.4, comm=0.8, exposed_comm=0.6, overlap=0.25),
        steps=(
            Step(number=2, start_ns=0, duration_ns=50_000_000),
            Step(number=3, start_ns=50_000_000, duration_ns=50_000_000),
        ),
        iteration_ns=50_000_000.0,
    )


def result_of(**keys: Any) -> BenchmarkResult:
    parse: dict[str, Any] = {
        "parser": "torch_trace",
        "basis": "cpu",
        "world_size": 2,
        "missing_ranks": (),
        "ranks": (rank_of(0), rank_of(1)),
        **keys.pop("parse", {}),
    }
    values: dict[str, Any] = {
        "benchmark": "aorta",
        "run_id": "r1",
        "run_status": RunStatus.COMPLETED,
        "duration_seconds": 9.5,
        "num_nodes": 2,
        "gpus_per_node": 8,
        "accelerator": "none",
        "parse": ParseResult(**parse),
        "aggregates": Aggregates(
            avg_iteration_time_us=50_000.0,
            std_iteration_time_us=0.0,
            time_variance_ratio=0.0,
            avg_compute_ratio=0.4,
            avg_comm_ratio=0.8,
            avg_overlap_ratio=0.25,
        ),
        **keys,
    }
    return BenchmarkResult(**values)


def report_of(result: BenchmarkResult, limits: ExpectedResults | None = None, **bench: Any) -> dict[str, Any]:
    cluster = ClusterConfig.model_validate({"username": "u", "node_dict": NODES})
    aorta = AortaConfig.model_validate({"aorta_path": "/srv/aorta", "accelerator": "none", **bench})
    manifest = Manifest(
        cluster_file=None,
        config_file=None,
        cluster=cluster.resolved(),
        benchmark=aorta.resolved(),
        plan=plan_aorta(cluster, aorta, Site(run_id="r1")),
        run=RunResult(
            benchmark="aorta",
            run_id="r1",
            status=result.run_status,
            started="2026-11-30T12:00:00+00:00",
            accelerator="none",
            num_nodes=2,
            local_world_size=8,
            gpus_per_node=8,
            nodes=(
                NodeResult(node_rank=0, node="a", exit_code=0),
                NodeResult(node_rank=1, node="b", exit_code=0),
            ),
        ),
    )
    report: dict[str, Any] = json.loads(json_report(result, limits or ExpectedResults(), manifest))
    return report


def test_the_keys_that_users_read() -> None:
    """Contract section 5."""
    report = report_of(result_of(), environment={"NCCL_MAX_NCHANNELS": 64}, rccl={"branch": "main"})
    assert report["status"] == "completed"
    assert report["duration_seconds"] == 9.5
    assert report["cluster"] == {"nodes": 2, "gpus_per_node": 8, "total_gpus": 16}
    assert report["configuration"]["nccl_channels"] == 64
    assert report["configuration"]["compute_channels"] == 192
    assert report["configuration"]["rccl_branch"] == "main"
    assert report["performance"] == {
        "avg_iteration_time_ms": 50.0,
        "std_iteration_time_us": 0.0,
        "time_variance_ratio": 0.0,
        "avg_compute_ratio": 0.4,
        "avg_comm_ratio": 0.8,
        "avg_overlap_ratio": 0.25,
    }
    ranks = report["per_rank_summary"]
    assert [(rank["rank"], rank["total_time_us"], rank["compute_ratio"]) for rank in ranks] == [
        (0, 100_000.0, 0.4),
        (1, 100_000.0, 0.4),
    ]


def test_our_own_stand_beside_them() -> None:
    report = report_of(result_of(), training_overrides={"a": "1"}, runtime="process")
    assert report["schema_version"] == 1
    assert (report["benchmark"], report["run_id"], report["basis"]) == ("aorta", "r1", "cpu")
    assert report["started"] == "2026-11-30T12:00:00+00:00"
    assert (report["world_size"], report["missing_ranks"]) == (2, [])
    assert report["configuration"]["training_overrides"] == {"a": "1"}
    assert report["configuration"]["accelerator"] == "none"
    assert report["configuration"]["runtime"] == "process"
    assert report["configuration"]["launch_mode"] == "torchrun"
    assert report["configuration"]["ranks_per_node"] == 8
    assert [node["node"] for node in report["nodes"]] == ["a", "b"]
    assert (report["failure"], report["warnings"], report["left_out"]) == (None, [], [])


def test_a_rank() -> None:
    [rank, _] = report_of(result_of())["per_rank_summary"]
    assert rank["compute_time_us"] == 40_000.0
    assert rank["communication_time_us"] == 80_000.0
    assert rank["exposed_communication_time_us"] == 60_000.0
    assert rank["iteration_time_us"] == 50_000.0
    assert (rank["comm_ratio"], rank["exposed_comm_ratio"], rank["overlap_ratio"]) == (0.8, 0.6, 0.25)
    assert rank["steps"] == [2, 3]
    told = rank["quality"]
    assert (told["status"], told["cause"], told["dropped"]) == ("complete", None, {})
    assert rank["cpu_ns"]["overlap"] == 20_000_000
    assert (rank["exact_ns"], rank["counts"]) == (None, None)
    assert rank["files"] == ["node_0/artifacts/torch_profiler/rank0/t.json"]


def test_a_good_verdict() -> None:
    report = report_of(result_of(), ExpectedResults(max_avg_iteration_ms=50, min_overlap_ratio=0.25))
    assert (report["verdict"], report["violations"]) == ("good", [])
    assert report["limits"] == [
        {"name": "max_avg_iteration_ms", "limit": 50.0, "value": 50.0, "unit": "ms"},
        {"name": "min_overlap_ratio", "limit": 0.25, "value": 0.25, "unit": ""},
    ]


def test_coverage() -> None:
    assert report_of(result_of())["coverage"] == {"ranks": 2, "world_size": 2, "steps": 2, "of_steps": 2}


def test_limits_that_were_checked_on_a_part_of_the_run_say_so() -> None:
    limits = ExpectedResults(max_avg_iteration_ms=50, min_overlap_ratio=0.6)
    part = {"world_size": 3, "missing_ranks": (2,)}
    report = report_of(result_of(parse=part), limits)
    on = "2 of 3 ranks, 2 of 2 steps"
    assert report["coverage"] == {"ranks": 2, "world_size": 3, "steps": 2, "of_steps": 2}
    assert report["limits"] == [
        {"name": "max_avg_iteration_ms", "limit": 50.0, "value": 50.0, "unit": "ms", "measured_on": on},
        {"name": "min_overlap_ratio", "limit": 0.6, "value": 0.25, "unit": "", "measured_on": on},
    ]
    assert [violation["name"] for violation in report["violations"]] == ["evidence", "min_overlap_ratio"]
    assert report["violations"][1]["message"].endswith(f"; expected at least 0.6 (measured on {on})")


def test_a_missed_limit() -> None:
    report = report_of(result_of(), ExpectedResults(min_overlap_ratio=0.6))
    assert report["verdict"] == "red"
    assert report["status"] == "completed"
    assert report["violations"] == [
        {
            "name": "min_overlap_ratio",
            "message": "min_overlap_ratio: average overlap ratio is 0.25; expected at least 0.6",
            "value": 0.25,
            "limit": 0.6,
            "unit": "",
        }
    ]


@pytest.mark.parametrize("status", [RunStatus.FAILED, RunStatus.TIMEOUT])
def test_a_failed_run_is_reported_with_its_reason(status: RunStatus) -> None:
    failure = Failure(
        reason="rank 3 on b was ended by signal 9", node_rank=1, node="b", ranks=(3,), tail=("x",)
    )
    report = report_of(result_of(run_status=status, failure=failure))
    assert (report["status"], report["verdict"]) == (status.value, "red")
    assert report["failure"]["ranks"] == [3]
    assert report["failure"]["tail"] == ["x"]
    assert failure.reason in report["violations"][0]["message"]


def test_what_was_not_measured_is_null_and_never_zero() -> None:
    empty = RankMetrics(
        rank=0, files=(), basis="cpu", quality=Quality(status="unreadable", cause="empty file")
    )
    report = report_of(
        result_of(
            parse={"ranks": (empty,), "missing_ranks": (1,)}, aggregates=Aggregates(), duration_seconds=None
        )
    )
    assert set(report["performance"].values()) == {None}
    [rank] = report["per_rank_summary"]
    absent = [key for key in rank if key.endswith(("_us", "_ratio", "_ns"))]
    assert len(absent) == 11
    assert [key for key in absent if rank[key] is not None] == []
    assert report["missing_ranks"] == [1]
    assert report["duration_seconds"] is None


def test_warnings_and_left_out_files() -> None:
    parse = {"warnings": ("two disks",), "left_out": (LeftOut(file="node_0/x", why="not of this run"),)}
    report = report_of(result_of(parse=parse, warnings=("keys that have no effect here: racks",)))
    assert report["warnings"] == ["keys that have no effect here: racks", "two disks"]
    assert report["left_out"] == [{"file": "node_0/x", "why": "not of this run"}]


def test_what_tracelens_made_of_it() -> None:
    assert report_of(result_of())["tracelens"] is None
    difference = RowDifference(row="busy_time", cvs_ns=5, tracelens_ns=7.5)
    compared = RowsCompared(rank=1, bound_ns=1.0, agree_within_ns=0.5, differences=(difference,))
    found = TraceLensResult(
        mode="check", version="0.1.0", seconds=2.5, compared=(compared,), warnings=("rank 1: …",)
    )
    report = report_of(result_of(tracelens=found))
    assert report["tracelens"] == json.loads(found.model_dump_json())
    assert report["verdict"] == "good"


def test_no_secret_is_reported() -> None:
    report = report_of(
        result_of(), training_overrides={"wandb.api_key": "s3cret"}, environment={"HF_TOKEN": "s3cret"}
    )
    assert "s3cret" not in json.dumps(report)


# --- traces without a run ---------------------------------------------------------------------------------


def test_traces_have_what_a_run_has_but_for_the_run() -> None:
    run, limits = result_of(), ExpectedResults(min_overlap_ratio=0.9)
    traces = TraceResult(accelerator=None, parse=run.parse, aggregates=run.aggregates)
    found, report = json.loads(traces_json(traces, limits)), report_of(run, limits)
    shared = "verdict violations basis performance coverage limits world_size missing_ranks left_out".split()
    assert {key: found[key] for key in shared} == {key: report[key] for key in shared}
    assert found["warnings"] == list(run.parse.warnings)
    assert (found["accelerator"], found["parser"]) == (None, run.parse.parser)
    for rank, entry in zip(run.parse.ranks, found["ranks"], strict=True):
        assert RankMetrics.model_validate({name: entry[name] for name in RankMetrics.model_fields}) == rank
        assert entry["gpu_timeline"] is None
