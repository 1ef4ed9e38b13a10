"""`cvs parse`: traces from anywhere, as a user gives them; what is told of them, and the exit code."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from conftest import LOCAL_AORTA, TRACES, Command, Done, Files, SaveRun, assert_refused, run_cvs
from cvs.models import Counts, CpuSums, RankMetrics, Ratios, Timeline

RCCL = TRACES / "mi300_resnet_rccl.json.gz"
"""Rank 0 of 8."""
GLOO = TRACES / "cpu_gloo_2x2"
"""Four ranks on two nodes, without a GPU."""
MR4 = TRACES / "multirank" / "mr4"
"""Four ranks with GPUs."""


def event(category: str, name: str, start: int, duration: int = 10, **keys: Any) -> dict[str, Any]:
    span = {"ts": start, "dur": duration}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, **span, **keys}


KERNEL = event("kernel", "ncclKernel", 0)
STEP = event("user_annotation", "ProfilerStep#4", 0, 100)
OPERATOR = event("cpu_op", "aten::mm", 10, 40)


def write(path: Path, *events: dict[str, Any], **header: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**header, "traceEvents": events}))
    return path


def answer(done: Done) -> dict[str, Any]:
    """What the command printed as JSON; the exit code is that of its verdict."""
    # Where the machine is busy it may say how far it is.
    assert [line for line in done.stderr.splitlines() if not line.startswith("reading traces: ")] == []
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == {"good": 0, "red": 1}[found["verdict"]]
    return found


def messages(found: dict[str, Any]) -> list[str]:
    return [violation["message"] for violation in found["violations"]]


# --- JSON -------------------------------------------------------------------------------------------------


def test_json_of_a_trace_with_gpu_events(command: Command) -> None:
    found = answer(command("parse", str(RCCL), "--json"))
    golden = json.loads(RCCL.with_name("mi300_resnet_rccl.golden.json").read_text())
    assert found["schema_version"] == 1
    assert found["verdict"] == "good"
    assert [found[key] for key in ("violations", "left_out")] == [[], []]
    [ahead] = found["warnings"]
    assert ahead.startswith(
        "rank 0: the host ran ahead of the GPU: the step period is 16.394 ms, and the GPU"
    )
    [rank] = found["ranks"]
    assert (rank["rank"], rank["node"], rank["files"], rank["basis"]) == (0, None, [RCCL.name], "gpu")
    assert (rank["quality"]["status"], rank["quality"]["cause"]) == ("complete", None)
    assert rank["quality"]["dropped"] == {}
    assert rank["exact_ns"] == {"all": golden["exact_ns"]["all"], "linked": None}
    assert rank["gpu_timeline"] == {row: ns / 1e6 for row, ns in golden["exact_ns"]["all"].items()}
    assert rank["counts"] == {kind: golden["counts"][kind] for kind in Counts.model_fields}
    assert set(rank["ratios"]) == set(Ratios.model_fields) == {"compute", "comm", "exposed_comm", "overlap"}
    assert [step["number"] for step in rank["steps"]] == [15, 16, 17]
    assert {"number", "start_ns", "duration_ns"} <= rank["steps"][0].keys()
    assert rank["cpu_ns"] is None


def test_json_of_traces_without_a_gpu(command: Command) -> None:
    found = answer(command("parse", str(GLOO), "--json"))
    golden = json.loads((GLOO / "cpu.golden.json").read_text())["ranks"]
    assert (found["verdict"], found["world_size"], found["missing_ranks"]) == ("good", 4, [])
    assert [(rank["rank"], rank["node"]) for rank in found["ranks"]] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    for rank in found["ranks"]:
        steps = golden[str(rank["rank"])]["steps"]
        assert (rank["basis"], rank["exact_ns"], rank["gpu_timeline"]) == ("cpu", None, None)
        assert {str(step["number"]): step["cpu_ns"] for step in rank["steps"]} == steps
        assert rank["cpu_ns"] == {
            row: sum(step[row] for step in steps.values()) for row in CpuSums.model_fields
        }
    assert {"file": "cpu.golden.json", "why": "not in a rank folder, where others are"} in found["left_out"]


def test_what_else_may_be_asked_for(command: Command) -> None:
    golden = json.loads(RCCL.with_name("mi300_resnet_rccl.golden.json").read_text())
    [rank] = answer(command("parse", str(RCCL), "--json", "--linked", "--micro_idle_us=5"))["ranks"]
    assert rank["exact_ns"] == golden["exact_ns"]
    micro, macro = rank["micro_idle_ns"], rank["macro_idle_ns"]
    assert micro == pytest.approx(golden["gpu_timeline_micro5"]["all"]["micro_idle_time"] * 1e6, abs=1000)
    assert micro + macro == rank["exact_ns"]["all"]["idle_time"]


def test_every_field_of_a_rank_is_in_the_json(command: Command) -> None:
    [rank] = answer(command("parse", str(RCCL), "--json"))["ranks"]
    assert rank.keys() == {*RankMetrics.model_fields, "gpu_timeline"}
    assert rank["gpu_timeline"].keys() == Timeline.model_fields.keys()


# --- the world --------------------------------------------------------------------------------------------


def test_one_file_is_judged_alone(command: Command) -> None:
    found = answer(command("parse", str(RCCL), "--json"))
    assert (found["verdict"], found["world_size"], found["missing_ranks"]) == ("good", 8, [])
    assert "missing" not in command("parse", str(RCCL)).stdout


def test_so_it_is_where_the_size_of_the_world_is_given(command: Command, tmp_path: Path) -> None:
    trace = write(tmp_path / "rank1.json", KERNEL)
    found = answer(command("parse", str(trace), "--json", "--world_size=4"))
    assert (found["verdict"], found["world_size"], found["missing_ranks"]) == ("good", 4, [])


def test_of_a_folder_every_rank_must_be_there(command: Command, tmp_path: Path) -> None:
    shutil.copy(RCCL, tmp_path)
    found = answer(command("parse", str(tmp_path), "--json"))
    assert (found["verdict"], found["missing_ranks"]) == ("red", [1, 2, 3, 4, 5, 6, 7])
    assert messages(found) == ["1 of 8 ranks left a trace; missing: ranks 1-7"]


def test_and_of_several_files(command: Command) -> None:
    done = command("parse", *(str(TRACES / f"sampled_rank-{rank}.json.gz") for rank in (0, 1)), "--json")
    found = answer(done)
    assert (found["verdict"], found["world_size"]) == ("red", 128)
    assert found["missing_ranks"] == list(range(2, 128))
    names = [["sampled_rank-0.json.gz"], ["sampled_rank-1.json.gz"]]
    assert [rank["files"] for rank in found["ranks"]] == names


@pytest.mark.parametrize("option", ["--world_size", "--world-size"])
def test_a_world_that_only_the_user_knows(option: str, command: Command, tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / "t" / f"rank{rank}.json", KERNEL)
    found = answer(command("parse", "t", "--json"))
    assert (found["verdict"], found["world_size"], found["missing_ranks"]) == ("good", None, None)
    assert answer(command("parse", "t", "--json", option, "2"))["verdict"] == "good"
    found = answer(command("parse", "t", "--json", option, "4"))
    assert (found["verdict"], found["world_size"], found["missing_ranks"]) == ("red", 4, [2, 3])


def test_a_world_that_contradicts_the_traces(command: Command) -> None:
    found = answer(command("parse", str(MR4), "--json", "--world_size=8"))
    assert found["missing_ranks"] == [4, 5, 6, 7]
    assert any("but the job has 8 ranks" in message for message in messages(found))


def test_a_rank_that_nobody_knows(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "t" / "a.json", KERNEL)
    found = answer(command("parse", "t/a.json", "--json"))
    assert (found["verdict"], found["ranks"][0]["rank"]) == ("good", None)
    write(tmp_path / "t" / "rank0.json", KERNEL)
    for paths in (["t"], ["t/a.json", "t/rank0.json"]):
        found = answer(command("parse", *paths, "--json"))
        assert [rank["rank"] for rank in found["ranks"]] == [0, None]
        assert [message.partition(": ")[0] for message in messages(found)] == [found["ranks"][1]["files"][0]]


# --- the paths --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["empty", "notes.txt", "report.json"])
def test_a_path_without_a_trace_is_red(name: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("{}")
    (tmp_path / "report.json").write_text('{"verdict": "good"}')
    assert answer(command("parse", name, "--json"))["verdict"] == "red"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("empty", "it is empty"),
        ("notes.txt", "not a .json or .json.gz file"),
        ("report.json", "no traceEvents: not a profiler trace"),
        ("rank0_report.json", "no traceEvents: not a profiler trace"),
    ],
)
def test_so_is_one_beside_others(path: str, why: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "report.json", "rank0_report.json"):
        (tmp_path / name).write_text("{}")
    write(tmp_path / "rank0.json", KERNEL)
    found = answer(command("parse", "rank0.json", path, "--json"))
    assert messages(found) == [f"{path}: no trace that counts: {why}"]


def test_a_path_whose_traces_give_way_to_others_is_not(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "rank0" / "trace_step3.json", KERNEL, {**STEP, "name": "ProfilerStep#3"})
    write(tmp_path / "rank0" / "trace_step4.json", KERNEL, STEP)
    found = answer(command("parse", "rank0/trace_step3.json", "rank0/trace_step4.json", "--json"))
    assert [rank["files"] for rank in found["ranks"]] == [["rank0/trace_step4.json"]]
    assert found["verdict"] == "good"


def test_a_file_that_is_named_twice_counts_once(command: Command, tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / "t" / f"rank{rank}" / "trace.json", KERNEL)
    (tmp_path / "same").symlink_to("t")
    for paths in (["t", "t"], ["t", "t/rank1"], ["t/rank0/trace.json", "t/."], ["same", "t"]):
        found = answer(command("parse", *paths, "--json"))
        assert [(rank["rank"], rank["quality"]["status"]) for rank in found["ranks"]] == [
            (0, "complete"),
            (1, "complete"),
        ]
        assert found["verdict"] == "good"
        assert {left["why"] for left in found["left_out"]} <= {"the same folder as t"}


def test_folders_of_nodes(command: Command) -> None:
    found = answer(command("parse", str(GLOO / "node_0"), str(GLOO / "node_1"), "--json"))
    assert [(rank["rank"], rank["node"]) for rank in found["ranks"]] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert (found["verdict"], found["missing_ranks"]) == ("good", [])
    found = answer(command("parse", str(GLOO / "node_1"), "--json"))
    assert (found["verdict"], found["missing_ranks"]) == ("red", [0, 1])


def test_the_folder_of_a_run(command: Command, save_run: SaveRun) -> None:
    found = answer(command("parse", str(save_run().path), "--json"))
    assert (found["verdict"], len(found["ranks"])) == ("good", 4)
    assert {"file": "manifest.json", "why": "not in a rank folder, where others are"} in found["left_out"]


def test_paths_that_are_not_there_are_all_told(command: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    done = command("parse", str(RCCL), "none", "gone.json", "pipe.json", "--json")
    assert_refused(done, 2)
    assert done.stderr.splitlines() == [
        "none: No such file or directory",
        "gone.json: No such file or directory",
        "pipe.json: neither a folder nor a file",
    ]


def test_one_broken_trace_costs_the_others_nothing(command: Command, tmp_path: Path) -> None:
    shutil.copytree(MR4, tmp_path / "t")
    (tmp_path / "t" / "rank2_trace.json.gz").write_bytes(b"no trace")
    found = answer(command("parse", "t", "--json"))
    statuses = ["complete", "complete", "unreadable", "complete"]
    assert [rank["quality"]["status"] for rank in found["ranks"]] == statuses
    assert (found["verdict"], found["missing_ranks"]) == ("red", [])
    [message] = messages(found)
    assert message.startswith("rank 2: trace is unreadable: ")


# --- the basis --------------------------------------------------------------------------------------------


def test_a_rank_without_gpu_events_among_others_is_red(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "t" / "rank0.json", KERNEL, STEP)
    write(tmp_path / "t" / "rank1.json", OPERATOR, STEP)
    found = answer(command("parse", "t", "--json"))
    assert [(rank["basis"], rank["quality"]["status"]) for rank in found["ranks"]] == [
        ("gpu", "complete"),
        ("gpu", "no_gpu_events"),
    ]
    assert messages(found) == ["other ranks used a GPU, but there are no GPU events in the trace of rank 1"]


def test_without_any_the_basis_is_the_cpu(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", OPERATOR, STEP)
    found = answer(command("parse", "rank0.json", "--json"))
    [rank] = found["ranks"]
    assert (found["verdict"], found["accelerator"], found["basis"]) == ("good", None, "cpu")
    assert (rank["basis"], rank["cpu_ns"]["compute"]) == ("cpu", 40_000)


def test_a_cpu_trace_of_which_something_is_lost_is_still_one(command: Command, tmp_path: Path) -> None:
    broken = {**STEP, "name": "ProfilerStep#5", "dur": None}
    write(tmp_path / "rank0.json", OPERATOR, STEP, broken)
    [rank] = answer(command("parse", "rank0.json", "--json"))["ranks"]
    assert (rank["basis"], rank["quality"]["status"]) == ("cpu", "incomplete")
    assert rank["cpu_ns"]["compute"] == 40_000


@pytest.mark.parametrize(
    ("events", "status"),
    [
        ([{**KERNEL, "dur": None}], "incomplete"),
        ([{**KERNEL, "dur": -1}], "incomplete"),
        ([event("cuda_runtime", "cudaLaunchKernel", 0, pid=pid) for pid in (1, 2)], "unreadable"),
    ],
    ids=["its times are lost", "its times are wrong", "merged"],
)
def test_a_gpu_that_was_not_measured_is_no_cpu_run(
    events: list[dict[str, Any]], status: str, command: Command, tmp_path: Path
) -> None:
    write(tmp_path / "rank0.json", *events, OPERATOR, STEP)
    [rank] = answer(command("parse", "rank0.json", "--json"))["ranks"]
    assert (rank["basis"], rank["quality"]["status"], rank["cpu_ns"]) == ("gpu", status, None)


def test_a_backend_for_gpus_whose_events_were_not_recorded(command: Command, tmp_path: Path) -> None:
    info = {"rank": 0, "world_size": 1, "backend": "nccl"}
    write(tmp_path / "t.json", OPERATOR, STEP, distributedInfo=info)
    found = answer(command("parse", "t.json", "--json"))
    assert (found["verdict"], found["ranks"][0]["basis"]) == ("red", "gpu")
    assert found["ranks"][0]["quality"]["status"] == "no_gpu_events"
    [message] = messages(found)
    assert message.startswith("the backend is nccl, but there are no GPU events in the trace of rank 0: ")
    assert answer(command("parse", "t.json", "--json", "--accelerator=none"))["verdict"] == "good"
    write(tmp_path / "t.json", OPERATOR, STEP, distributedInfo={**info, "backend": "gloo"})
    assert answer(command("parse", "t.json", "--json"))["basis"] == "cpu"


@pytest.mark.parametrize("accelerator", ["rocm", "cuda"])
def test_a_gpu_that_is_declared_must_have_been_used(accelerator: str, command: Command) -> None:
    found = answer(command("parse", str(GLOO), "--json", "--accelerator", accelerator))
    assert {rank["quality"]["status"] for rank in found["ranks"]} == {"no_gpu_events"}
    [message] = messages(found)
    assert message.startswith(f"accelerator is {accelerator}, but there are no GPU events in the trace of ")


def test_where_none_is_declared_the_basis_is_the_cpu(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", KERNEL, OPERATOR, STEP)
    found = answer(command("parse", "rank0.json", "--json", "--accelerator=none"))
    [rank] = found["ranks"]
    assert (rank["basis"], rank["exact_ns"], rank["cpu_ns"]["step"]) == ("cpu", None, 100_000)


# --- the benchmark file -----------------------------------------------------------------------------------


def test_its_limits_enter_the_verdict(command: Command, files: Files) -> None:
    option = f"--config_file={files.config_file}"
    found = answer(command("parse", str(GLOO), "--json", option))
    assert (found["verdict"], found["accelerator"]) == ("good", "none")
    assert [limit["name"] for limit in found["limits"]] == ["max_avg_iteration_ms", "min_compute_ratio"]
    files.edit("min_compute_ratio: 0.02", "min_compute_ratio: 0.9")
    found = answer(command("parse", str(GLOO), "--json", option))
    assert [violation["name"] for violation in found["violations"]] == ["min_compute_ratio"]
    shown = command("parse", str(GLOO), option)
    assert shown.returncode == 1
    assert "min_compute_ratio 0.9: 0.4166 missed\n" in shown.stdout


def test_its_accelerator_counts_unless_one_is_given(command: Command, files: Files) -> None:
    files.edit("accelerator: none", "accelerator: cuda")
    option = f"--config-file={files.config_file}"
    found = answer(command("parse", str(GLOO), "--json", option))
    assert (found["accelerator"], found["basis"], found["verdict"]) == ("cuda", "gpu", "red")
    found = answer(command("parse", str(GLOO), "--json", option, "--accelerator=none"))
    assert (found["accelerator"], found["basis"], found["verdict"]) == ("none", "cpu", "good")


def test_it_needs_no_cluster_file(command: Command, tmp_path: Path) -> None:
    bench = tmp_path / "aorta.yaml"
    bench.write_text('aorta_path: "{home}/{user-id}/aorta"\nexpected_results: {min_overlap_ratio: 0.9}\n')
    found = answer(command("parse", str(MR4), "--json", "--config_file=aorta.yaml"))
    assert (found["accelerator"], found["basis"]) == (None, "gpu")
    assert [violation["name"] for violation in found["violations"]] == ["min_overlap_ratio"]


def test_an_accelerator_that_it_does_not_give_is_not_declared(command: Command, tmp_path: Path) -> None:
    (tmp_path / "aorta.yaml").write_text("aorta_path: /a\nexpected_results: {min_compute_ratio: 0.02}\n")
    found = answer(command("parse", str(GLOO), "--json", "--config_file=aorta.yaml"))
    assert (found["accelerator"], found["basis"], found["verdict"]) == (None, "cpu", "good")


def test_it_tells_how_traces_are_read(command: Command, files: Files, tmp_path: Path) -> None:
    for worker in (0, 1):
        kernels = event("kernel", "gemm", 0), event("kernel", "one_shot", 20, 30)
        write(tmp_path / "t" / f"worker{worker}" / "t.json", *kernels)
    files.edit("accelerator: none", "accelerator: rocm")
    files.edit("expected_results:", "unused: x\nexpected_results:")
    traces = "traces: {rank_pattern: 'worker(?P<rank>\\d)/', communication_kernels: ['^one_shot']}"
    files.edit("unused: x", traces)
    files.edit("max_avg_iteration_ms: 2000", "max_avg_iteration_ms: null")
    found = answer(command("parse", "t", "--json", f"--config_file={files.config_file}"))
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert [rank["counts"]["communication"] for rank in found["ranks"]] == [1, 1]
    assert found["verdict"] == "good"


def test_mistakes_in_it(command: Command, files: Files) -> None:
    files.edit("accelerator: none", "accelerator: amd")
    done = command("parse", str(GLOO), f"--config_file={files.config_file}", "--json")
    assert_refused(done, 2, f"{files.config_file}:9:1: accelerator: ")
    done = command("parse", str(GLOO), "--config_file=none.yaml")
    assert_refused(done, 2, "none.yaml: cannot be read: No such file or directory")


# --- tables -----------------------------------------------------------------------------------------------


def rows(text: str) -> list[list[str]]:
    """Cells of all tables, line by line."""
    lines = [line.replace("┃", "│") for line in text.splitlines() if line[:1] in "┃│"]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_a_table_like_the_suites(command: Command) -> None:
    done = command("parse", str(GLOO))
    assert (done.returncode, done.stderr) == (0, "")
    head, *ranks = rows(done.stdout)
    assert head[:5] == ["rank", "node", "steps", "iteration ms", "total ms"]
    assert [(row[0], row[-1]) for row in ranks] == [(str(rank), "complete") for rank in range(4)]
    lines = done.stdout.splitlines()
    assert lines[0].strip() == f"{GLOO} · basis cpu"
    assert "coverage: 4 of 4 ranks, 3 of 3 steps" in lines
    assert lines[-1] == "verdict: good"


def test_a_red_verdict_tells_why(command: Command, tmp_path: Path) -> None:
    shutil.copy(RCCL, tmp_path)
    done = command("parse", str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert ["1-7", *["–"] * 8, "missing"] in rows(done.stdout)
    assert done.stdout.splitlines()[-2:] == [
        "evidence: 1 of 8 ranks left a trace; missing: ranks 1-7",
        "verdict: red",
    ]


MR4_TRACES = [str(MR4 / f"rank{number}_trace.json.gz") for number in range(4)]
KEPT_WAITING = "kept the others waiting longest"


def about_collectives(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith((KEPT_WAITING, "collectives:"))]


def test_who_kept_the_others_waiting_stands_below_what_speaks_against_it(command: Command) -> None:
    against, last = about_collectives(command("parse", *MR4_TRACES).stdout)
    assert against.startswith("collectives: 12 of 108 communication kernels name no process group")
    assert last == f"{KEPT_WAITING}: rank 3, last at 21 of its 21 collectives; they waited 3.295 ms in all"


def test_of_a_part_of_the_ranks_only_whole_groups_tell_it(command: Command) -> None:
    shown = command("parse", *MR4_TRACES[:2]).stdout
    assert about_collectives(shown)[-1].startswith(
        f"{KEPT_WAITING} in the groups whose ranks are all here: rank 1, last at 6 of its 6 collectives"
    )
    assert [row[:2] for row in rows(shown) if row[0] == "allreduce"] == [["allreduce", "1"]]


def test_nobody_is_named_where_kernels_may_not_belong_together(command: Command) -> None:
    traces = [str(TRACES / "multirank" / "mr3_missing" / f"rank{number}_trace.json") for number in range(3)]
    against, last = about_collectives(command("parse", *traces).stdout)
    assert against.endswith("kernels that do not belong together are matched")
    assert last == f"{KEPT_WAITING}: cannot be told"


def test_collectives_across_separate_worlds(command: Command) -> None:
    done = command("parse", *MR4_TRACES[:3], "--world_size=3")
    assert about_collectives(done.stdout) == [
        "collectives: not looked at, for the traces are of separate worlds"
    ]


def test_of_one_rank_alone_one_line_is_enough(command: Command) -> None:
    assert about_collectives(command("parse", MR4_TRACES[1]).stdout) == [
        "collectives: only rank 1 has communication kernels here: what its collectives were across ranks "
        "cannot be told"
    ]


def test_what_was_lost_and_where(command: Command, tmp_path: Path) -> None:
    trace = write(tmp_path / "rank0.json", OPERATOR, KERNEL)
    text = trace.read_text()
    trace.write_text(text.replace('"ts": 10', '#ts": 10'))
    done = command("parse", "rank0.json")
    start, end = text.index("{", 1), text.index(", {") + len(", ")
    assert done.returncode == 0
    assert (
        "repaired: rank 0: 1 x object keys must be strings; the first are bytes "
        f"{start} to {end} of the text of rank0.json\n"
    ) in done.stdout


def test_several_paths_have_a_short_title(command: Command) -> None:
    done = command("parse", str(GLOO / "node_0"), str(GLOO / "node_1"))
    assert done.stdout.splitlines()[0].strip() == f"{GLOO / 'node_0'} and 1 more · basis cpu"


def test_a_second_table_has_the_steps(command: Command) -> None:
    done = command("parse", str(GLOO), "--steps")
    steps = rows(done.stdout)[5:]
    assert steps[0] == "rank,node,step,start ms,duration ms,compute,comm,exposed comm,overlap".split(",")
    assert [row[:3] for row in steps[1:]] == [
        [str(rank), str(rank // 2), str(step)] for rank in range(4) for step in (2, 3, 4)
    ]
    assert steps[1][3:5] == ["0.000", "42.679"]


def test_what_is_asked_for_has_a_table(command: Command) -> None:
    titles = ["linked GPU events alone, ms", "idle time of the GPU, ms"]
    done = command("parse", str(RCCL))
    assert not any(title in done.stdout for title in titles)
    done = command("parse", str(RCCL), "--linked", "--micro-idle-us", "5")
    assert all(title in done.stdout for title in titles)
    assert ["0", "–", "2.566", "0.076", "2.490"] in rows(done.stdout)


def test_a_terminal_that_knows_no_such_letters(tmp_path: Path) -> None:
    done = run_cvs("parse", str(GLOO), "--steps", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "verdict: good" in done.stdout


# --- CSV --------------------------------------------------------------------------------------------------


def table(done: Done) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(done.stdout)))


def test_csv_has_a_row_per_rank(command: Command) -> None:
    done = command("parse", str(MR4), "--csv")
    assert (done.returncode, done.stderr) == (0, "")
    found = answer(command("parse", str(MR4), "--json"))["ranks"]
    assert [int(row["rank"]) for row in table(done)] == [0, 1, 2, 3]
    for row, rank in zip(table(done), found, strict=True):
        assert row["quality.status"] == "complete"
        assert int(row["exact_ns.all.idle_time"]) == rank["exact_ns"]["all"]["idle_time"]
        assert float(row["ratios.overlap"]) == rank["ratios"]["overlap"]
        assert (row["cpu_ns.step"], row["steps"]) == ("", "3")


def test_csv_has_a_row_per_rank_and_step(command: Command) -> None:
    done = command("parse", str(GLOO), "--csv", "--steps")
    golden = json.loads((GLOO / "cpu.golden.json").read_text())["ranks"]
    found = {(row["rank"], row["steps.number"]): int(row["steps.cpu_ns.comm"]) for row in table(done)}
    assert found == {
        (rank, number): step["comm"]
        for rank, told in golden.items()
        for number, step in told["steps"].items()
    }


def test_csv_has_the_missing_ranks_and_the_reasons_stand_beside_it(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "t" / "rank0.json", KERNEL, distributedInfo={"rank": 1, "world_size": 3})
    write(tmp_path / "t" / "rank2" / "trace.json", KERNEL, distributedInfo={"rank": 1, "world_size": 3})
    done = command("parse", "t", "--csv")
    assert done.returncode == 1
    assert [(row["rank"], row["quality.status"]) for row in table(done)] == [
        ("1", "complete"),
        ("0", "missing"),
        ("2", "missing"),
    ]
    assert done.stderr.splitlines() == [
        "warning: rank2/trace.json: the folder says rank 2, the trace itself rank 1, which counts",
        "1 of 3 ranks left a trace; missing: ranks 0, 2",
    ]


def test_names_of_files_cannot_do_harm(command: Command, tmp_path: Path) -> None:
    name = "=cmd|' ,\"rank0\n\033[31m\u202e.json"
    write(tmp_path / "t" / name, KERNEL)
    write(tmp_path / "t" / os.fsdecode(b"rank1 \xff.json"), KERNEL)
    done = command("parse", "t", "--csv")
    names = [row["files"] for row in table(done)]
    assert names == ["'=cmd|' ,\"rank0��[31m�.json", "rank1 \\xff.json"]
    assert "\033" not in command("parse", "t").stdout
    done = command("parse", "t", "--json")
    assert done.stdout.isascii()
    assert [rank["files"] for rank in answer(done)["ranks"]] == [[name], ["rank1 \\xff.json"]]


# --- usage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: PATH"),
        (["x", "--json", "--csv"], "not allowed with argument"),
        (["x", "--accelerator", "amd"], "invalid choice: 'amd'"),
        (["x", "--world_size", "0"], "'0' is no whole number of ranks from 1 to 1000000"),
        (["x", "--world_size", "1000001"], "'1000001' is no whole number of ranks"),
        (["x", "--world_size", "٣"], "'٣' is no whole number of ranks"),
        (["x", "--world_size", "9" * 5000], "is no whole number of ranks"),
        (["x", "--micro_idle_us", "0.000"], "'0.000' is no number of microseconds, such as 5 or 0.25"),
        (["x", "--micro-idle-us", "0.0001"], "'0.0001' is no number of microseconds"),
        (["x", "--micro_idle_us", "1e3"], "'1e3' is no number of microseconds"),
    ],
)
def test_words_that_mean_nothing(words: list[str], message: str, command: Command) -> None:
    assert_refused(command("parse", *words), 2, message)


HEAVY = {"docker", "paramiko", "pytest", "_pytest", "cryptography", "openpyxl"}


def test_it_loads_nothing_that_it_does_not_need() -> None:
    script = """
import sys
from cvs.cli import main
main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
"""
    words = ["parse", str(GLOO), f"--config_file={LOCAL_AORTA}"]
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "msgspec" in loaded
    assert not loaded & HEAVY


@pytest.mark.parametrize("words", [[], ["--json"], ["--csv"]], ids=["table", "json", "csv"])
def test_a_reader_that_has_gone_is_no_news(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "cvs.cli", "parse", str(RCCL), *words],
            stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_disk_that_is_full() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cvs.cli", "parse", str(RCCL)],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        3, "the result cannot be written: No space left on device\n"
    )  # fmt: skip


def test_ctrl_c(tmp_path: Path) -> None:
    """While it reads a trace that takes a while."""
    trace = tmp_path / "rank0.json"
    event = b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": {}},'
    trace.write_bytes(b'{"traceEvents": [%b{}]}' % (event * 1_000_000))
    process = subprocess.Popen(
        [sys.executable, "-m", "cvs.cli", "parse", str(trace)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while str(trace) not in open_files(process.pid) and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    told = process.communicate(timeout=60)
    assert (process.returncode, *told) == (130, "", "")


def open_files(pid: int) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    return found
