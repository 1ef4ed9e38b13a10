"""From files on disk to a result: the golden numbers, and what speaks against a set."""

from __future__ import annotations

import gzip
import json
import math
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cvs import metrics
from cvs.models import Accelerator, ParseOptions, ParseResult, ParseStatus, Ratios
from cvs.parsers.torch_trace import TorchTraceParser, trace_set_of

TRACES = Path(__file__).parents[2] / "data" / "traces"
GOLDENS = sorted(
    golden
    for golden in (*TRACES.glob("*.golden.json"), *TRACES.glob("multirank/*/*.golden.json"))
    if not golden.name.startswith("cpu.")
)
CPU_SETS = ["cpu_gloo_2x2", "cpu_gloo_2x2_straggler"]


def parse(path: Path, accelerator: Accelerator = "rocm", **known: Any) -> ParseResult:
    return TorchTraceParser().parse(trace_set_of(path, accelerator, **known))


# --- golden numbers ---------------------------------------------------------------------------------------


def microseconds(golden: dict[str, Any], row: str) -> float:
    return float(golden["gpu_timeline"]["all"][row]) * 1000


@pytest.mark.parametrize("path", GOLDENS, ids=lambda path: f"{path.parent.name}/{path.name[:-12]}")
def test_golden(path: Path) -> None:
    golden = json.loads(path.read_text())
    trace = path.with_name(golden["file"]["name"])
    options = ParseOptions(linked=True, micro_idle_ns=5_000)
    [rank] = TorchTraceParser(options).parse(trace_set_of(trace, "rocm")).ranks
    claimed = golden["distributedInfo"] or {}
    assert rank.rank == claimed.get("rank")
    assert rank.world_size == claimed.get("world_size")
    assert rank.files == (trace.name,)
    steps = [
        (int(step["name"].partition("#")[2]), int(Decimal(str(step["dur"])) * 1000))
        for step in golden["not_from_tracelens"]["profiler_steps"]
    ]
    assert [(step.number, step.duration_ns) for step in rank.steps] == steps
    if golden["counts"] is None:
        assert (rank.quality.status, rank.exact_ns, rank.counts, rank.ratios) == (
            "no_gpu_events",
            None,
            None,
            None,
        )
        return
    assert rank.quality.status == "complete"
    assert rank.exact_ns is not None
    linked = rank.exact_ns.linked and rank.exact_ns.linked.model_dump()
    assert rank.exact_ns.all.model_dump() == golden["exact_ns"]["all"]
    assert linked == golden["exact_ns"]["linked"]
    assert rank.counts is not None
    assert rank.counts.model_dump() == {key: golden["counts"][key] for key in rank.counts.model_dump()}
    assert rank.gpu_timeline is not None
    bound = (rank.counts.all_gpu + 2) * math.ulp(largest_stamp(trace))
    for row, value in rank.gpu_timeline.items():
        assert abs(value * 1000 - microseconds(golden, row)) <= bound
    assert rank.micro_idle_ns is not None
    assert rank.macro_idle_ns is not None
    assert rank.micro_idle_ns + rank.macro_idle_ns == rank.exact_ns.all.idle_time
    for row, idle_ns in (("micro_idle_time", rank.micro_idle_ns), ("macro_idle_time", rank.macro_idle_ns)):
        assert abs(idle_ns / 1000 - golden["gpu_timeline_micro5"]["all"][row] * 1000) <= bound


def largest_stamp(trace: Path) -> float:
    text = trace.read_bytes()
    document = json.loads(gzip.decompress(text) if trace.suffix == ".gz" else text)
    return max(
        float(event["ts"])
        for event in document["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )


@pytest.mark.parametrize("name", ["mi300_resnet_rccl", "sampled_rank-0"])
def test_steps_start_on_the_wall_clock(name: str) -> None:
    golden = json.loads((TRACES / f"{name}.golden.json").read_text())
    document = json.loads(gzip.decompress((TRACES / f"{name}.json.gz").read_bytes()))
    base = document.get("baseTimeNanoseconds", 0)
    starts = [
        base + int(Decimal(str(step["ts"])) * 1000) for step in golden["not_from_tracelens"]["profiler_steps"]
    ]
    [rank] = parse(TRACES / f"{name}.json.gz").ranks
    assert [step.start_ns for step in rank.steps] == starts
    assert rank.iteration_ns == (starts[-1] - starts[0]) / (len(starts) - 1)


def test_ratios_are_of_the_rows() -> None:
    [rank] = parse(TRACES / "mi300_resnet_rccl.json.gz").ranks
    total, comm, exposed = 86567708, 71516523, 55371257
    assert rank.ratios == Ratios(
        compute=26174953 / total,
        comm=comm / total,
        exposed_comm=exposed / total,
        overlap=(comm - exposed) / comm,
    )
    assert rank.total_time_us == 86567.708
    assert rank.exposed_communication_time_us == 55371.257


@pytest.mark.parametrize("name", CPU_SETS)
def test_cpu_golden(name: str) -> None:
    golden = json.loads((TRACES / name / "cpu.golden.json").read_text())["ranks"]
    result = parse(TRACES / name, "none", world_size=4, local_world_size=2)
    assert result.basis == "cpu"
    assert result.status is ParseStatus.SUCCESS
    assert (result.missing_ranks, result.problems, result.warnings) == ((), (), ())
    assert [(r.rank, r.node, r.local_rank) for r in result.ranks] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    for rank in result.ranks:
        expected = golden[str(rank.rank)]
        assert rank.files == (expected["file"],)
        assert (rank.exact_ns, rank.counts) == (None, None)
        assert {str(s.number): s.cpu_ns and s.cpu_ns.model_dump() for s in rank.steps} == expected["steps"]
        assert rank.cpu_ns is not None
        assert rank.cpu_ns.model_dump() == {
            row: sum(step[row] for step in expected["steps"].values()) for row in rank.cpu_ns.model_dump()
        }
        assert [step.duration_ns for step in rank.steps] == [s["step"] for s in expected["steps"].values()]


# Mean per step in ms: step, comm, compute, overlap, exposed comm, other (table in the README of the traces).
CPU_MEANS = {
    ("cpu_gloo_2x2", 0): (43.671, 30.760, 17.470, 6.341, 24.419, 1.783),
    ("cpu_gloo_2x2", 1): (41.493, 27.318, 18.939, 8.388, 18.930, 3.624),
    ("cpu_gloo_2x2", 2): (47.144, 35.068, 13.607, 3.447, 31.621, 1.915),
    ("cpu_gloo_2x2", 3): (42.651, 25.537, 22.228, 7.386, 18.151, 2.272),
    ("cpu_gloo_2x2_straggler", 0): (98.461, 91.129, 10.805, 4.536, 86.593, 1.063),
    ("cpu_gloo_2x2_straggler", 1): (86.481, 66.562, 12.861, 5.862, 60.700, 12.920),
    ("cpu_gloo_2x2_straggler", 2): (90.207, 29.359, 61.962, 3.665, 25.694, 2.551),
    ("cpu_gloo_2x2_straggler", 3): (94.306, 76.376, 21.717, 5.090, 71.286, 1.303),
}


@pytest.mark.parametrize("name", CPU_SETS)
def test_cpu_means(name: str) -> None:
    ranks = parse(TRACES / name, "none").ranks
    for rank in ranks:
        sums = rank.cpu_ns
        assert sums is not None
        rows = (sums.step, sums.comm, sums.compute, sums.overlap, sums.exposed_comm, sums.other)
        assert [round(row / 3e6, 3) for row in rows] == list(CPU_MEANS[name, rank.rank or 0])
    shares = [rank.cpu_ns.compute / rank.cpu_ns.step for rank in ranks if rank.cpu_ns]
    found = metrics.aggregates(ranks)
    assert found.avg_compute_ratio == pytest.approx(sum(shares) / 4)
    periods = [rank.iteration_ns for rank in ranks if rank.iteration_ns]
    assert found.avg_iteration_time_us == pytest.approx(sum(periods) / 4e3)


def test_a_set_of_ranks_on_gpus() -> None:
    result = parse(TRACES / "multirank" / "mr4", "cuda")
    assert [(rank.rank, rank.node, rank.local_rank) for rank in result.ranks] == [
        (number, None, None) for number in range(4)
    ]
    assert (result.status, result.world_size, result.missing_ranks) == (ParseStatus.SUCCESS, 4, ())
    assert (result.problems, result.warnings) == ((), ())
    assert result.collectives is not None
    assert {row.collective for row in result.collectives.collectives} == {
        "allgather",
        "allreduce",
        "alltoall",
        "reducescatter",
    }
    assert result.collectives.findings == (
        "12 of 108 communication kernels name no process group (ranks 0-3):"
        " they are matched by their order alone",
    )
    assert {left.file for left in result.left_out} == {
        f"rank{number}_trace.golden.json" for number in range(4)
    }
    assert metrics.aggregates(result.ranks).avg_iteration_time_us == 6000.0


# --- small sets -------------------------------------------------------------------------------------------

START = 1_750_000_000_000_000


def write(
    path: Path,
    rank: int | None = None,
    world_size: int | None = None,
    *,
    steps: tuple[int, ...] = (1, 2),
    kernels: int = 1,
    start: int = START,
    **more: Any,
) -> Path:
    """Write a trace of steps of 100 us with a kernel or more in the first; `start` in us since 1970."""
    info = {"rank": rank, "world_size": world_size}
    events = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{n}", "ts": start + 100 * n, "dur": 90}
        for n in steps
    ]
    events += [
        {"ph": "X", "cat": "kernel", "name": "ncclKernel", "pid": 0, "ts": start + 10 * n, "dur": 5}
        for n in range(kernels)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"distributedInfo": info, "traceEvents": events} | more))
    return path


def job(root: Path, nodes: int, local: int, **more: Any) -> Path:
    """Write what a job of `nodes` x `local` ranks leaves."""
    for rank in range(nodes * local):
        folder = root / f"node_{rank // local}" / "artifacts" / "torch_profiler" / f"rank{rank}"
        write(folder / "host.pt.trace.json", rank, nodes * local, **more)
    return root


def statuses(result: ParseResult) -> list[str]:
    return [rank.quality.status for rank in result.ranks]


def test_a_good_set(tmp_path: Path) -> None:
    result = parse(job(tmp_path, 2, 2), world_size=4, local_world_size=2)
    assert result.status is ParseStatus.SUCCESS
    assert [(r.rank, r.node, r.local_rank) for r in result.ranks] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    assert (result.missing_ranks, result.problems, result.warnings, result.left_out) == ((), (), (), ())
    assert result.parser == TorchTraceParser().identity == "torch_trace 3"


def test_each_failure_costs_its_rank_only(tmp_path: Path) -> None:
    job(tmp_path, 2, 4)
    files = sorted(tmp_path.rglob("*.json"))
    files[1].write_text(files[1].read_text()[:300])
    files[2].write_bytes(b"")
    write(files[3], 3, 8, kernels=0)
    files[4].unlink()
    files[5].write_text(files[5].read_text().replace('"dur": 5', '"dur": -5'))
    files[6].write_bytes(b"\xef\xbb\xbf" + files[6].read_bytes())
    result = parse(tmp_path, world_size=8, local_world_size=4)
    assert [rank.rank for rank in result.ranks] == [0, 1, 2, 3, 5, 6, 7]
    assert statuses(result) == [
        *("complete", "truncated", "unreadable", "no_gpu_events"),
        *("incomplete", "repaired", "complete"),
    ]
    assert result.missing_ranks == (4,)
    assert result.status is ParseStatus.PARTIAL
    assert result.problems == ()
    assert result.ranks[2].quality.cause == "empty file"
    assert [rank.exact_ns is None for rank in result.ranks] == [False, True, True, True, True, False, False]


def test_a_file_that_is_gone_costs_its_rank_only(tmp_path: Path) -> None:
    traces = trace_set_of(job(tmp_path, 1, 2), "rocm", world_size=2)
    (tmp_path / traces.files[1].path).unlink()
    result = TorchTraceParser().parse(traces)
    assert statuses(result) == ["complete", "unreadable"]
    assert (result.ranks[1].quality.cause or "").startswith("No such file or directory: ")


def test_the_basis_is_what_was_declared_not_what_is_found(tmp_path: Path) -> None:
    job(tmp_path, 1, 1)
    [rank] = parse(tmp_path, "none").ranks
    assert (rank.basis, rank.quality.status, rank.exact_ns) == ("cpu", "complete", None)
    assert rank.cpu_ns is not None
    assert (rank.cpu_ns.step, rank.cpu_ns.other) == (180_000, 180_000)
    assert rank.ratios == Ratios(compute=0.0, comm=0.0, exposed_comm=0.0, overlap=None)


def test_a_cpu_trace_without_steps_has_no_sums(tmp_path: Path) -> None:
    [rank] = parse(write(tmp_path / "t.json", 0, 1, steps=()), "none").ranks
    assert (rank.quality.status, rank.quality.cause) == ("incomplete", "no complete ProfilerStep")
    assert (rank.cpu_ns, rank.ratios, rank.iteration_ns) == (None, None, None)


def test_a_rank_outside_its_node_has_no_local_rank(tmp_path: Path) -> None:
    write(tmp_path / "node_1" / "rank0" / "t.json", 0, 2)
    write(tmp_path / "node_0" / "rank1" / "t.json", 1, 2)
    result = parse(tmp_path, local_world_size=1)
    assert [(rank.node, rank.local_rank) for rank in result.ranks] == [(1, None), (0, None)]


def test_what_was_asked_for_is_kept_with_the_numbers() -> None:
    options = ParseOptions(communication_kernels=("^one_shot",), micro_idle_ns=5, workers=3)
    identity = "torch_trace 3 micro_idle_ns=5 communication_kernels=('^one_shot',)"
    assert TorchTraceParser(options).identity == identity


def test_a_pattern_that_fits_no_kernel_is_told(tmp_path: Path) -> None:
    shutil.copy(TRACES / "mi300_resnet_rccl.json.gz", tmp_path / "rank0.json.gz")
    options = ParseOptions(communication_kernels=("nosuch", "Cijk", "gpu(\\d+)"))
    result = TorchTraceParser(options).parse(trace_set_of(tmp_path, "rocm"))
    assert [line for line in result.warnings if "communication_kernels" in line] == [
        "traces.communication_kernels: no rank has a kernel whose name fits 'gpu(\\d+)'",
        "traces.communication_kernels: no rank has a kernel whose name fits 'nosuch'",
    ]


# --- the world --------------------------------------------------------------------------------------------


def test_missing_ranks_are_of_the_started_world_else_of_the_claimed_one(tmp_path: Path) -> None:
    write(tmp_path / "rank1.json", 1, 4)
    assert parse(tmp_path).missing_ranks == (0, 2, 3)
    assert parse(tmp_path, world_size=2).missing_ranks == (0,)
    write(tmp_path / "rank1.json", 1)
    result = parse(tmp_path)
    assert (result.missing_ranks, result.world_size) == (None, None)


def test_ranks_of_a_world_of_one_each(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"node_{number // 2}" / f"rank{number}" / "t.json", 0, 1, kernels=number + 1)
    for started in (None, 4):
        result = parse(tmp_path, world_size=started)
        assert statuses(result) == ["complete"] * 4
        assert [problem.partition(":")[0] for problem in result.problems] == ["separate worlds"]
        assert result.status is ParseStatus.PARTIAL


def test_a_world_of_one_on_a_shared_disk_is_one(tmp_path: Path) -> None:
    for node in (0, 1):
        write(tmp_path / f"node_{node}" / "rank0" / "t.json", 0, 1)
    result = parse(tmp_path)
    assert (statuses(result), result.problems) == (["complete"], ())


def test_two_worlds_where_one_was_started(tmp_path: Path) -> None:
    for node in (0, 1):
        for number in (0, 1):
            write(tmp_path / f"node_{node}" / f"rank{number}" / "t.json", number, 2, kernels=node + 1)
    result = parse(tmp_path, world_size=4, local_world_size=2)
    assert [(rank.rank, rank.node) for rank in result.ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert statuses(result) == ["complete"] * 4
    assert result.missing_ranks == (2, 3)
    assert result.problems == (
        "separate worlds: ranks 0-1 (node 0, 1) claim a world of 2, but the job has 4 ranks",
    )


def test_claims_that_differ_are_separate_worlds(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", 0, 2)
    write(tmp_path / "rank1.json", 1, 8)
    result = parse(tmp_path)
    assert result.problems == ("separate worlds: rank 0 claim a world of 2, rank 1 claim a world of 8",)
    assert (result.world_size, result.missing_ranks) == (None, None)


def test_a_rank_outside_a_world(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", 0, 2)
    write(tmp_path / "rank5.json", 5, 2)
    result = parse(tmp_path)
    assert result.problems == ("separate worlds: rank5.json: rank 5 is outside its own world of 2",)
    write(tmp_path / "rank5.json", 5)
    result = parse(tmp_path, world_size=2)
    assert result.problems == (
        "separate worlds: rank5.json: rank 5 is outside the world of 2 that was started",
    )
    assert statuses(result) == ["complete", "complete"]


def test_unequal_traces_of_one_rank_are_a_duplicate(tmp_path: Path) -> None:
    write(tmp_path / "node_0" / "rank0" / "t.json", 0, 2)
    write(tmp_path / "node_0" / "rank1" / "t.json", 1, 2)
    write(tmp_path / "node_1" / "rank1" / "t.json", 1, 2, kernels=2)
    result = parse(tmp_path, world_size=2)
    assert statuses(result) == ["complete", "duplicate"]
    duplicate = result.ranks[1]
    assert duplicate.files == ("node_0/rank1/t.json", "node_1/rank1/t.json")
    assert (duplicate.exact_ns, duplicate.ratios, duplicate.iteration_ns) == (None, None, None)
    assert (duplicate.node, duplicate.local_rank) == (None, None)
    assert (result.missing_ranks, result.problems) == ((), ())


def test_unequal_traces_in_a_folder_of_many_ranks_are_a_duplicate(tmp_path: Path) -> None:
    write(tmp_path / "host_7.json", 0, 2)
    write(tmp_path / "host_8.json", 0, 2, kernels=2)
    write(tmp_path / "host_9.json", 1, 2)
    result = parse(tmp_path)
    assert statuses(result) == ["duplicate", "complete"]
    assert result.ranks[0].files == ("host_7.json", "host_8.json")
    assert result.left_out == ()


def test_a_trace_and_its_packed_copy_count_once(tmp_path: Path) -> None:
    trace = write(tmp_path / "rank0.json", 0, 1)
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    result = parse(tmp_path)
    assert statuses(result) == ["complete"]
    assert [left.why for left in result.left_out] == ["the same window as rank0.json.gz"]


def test_worlds_of_one_in_a_flat_folder_are_not_one(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"host_{number}.json", 0, 1, kernels=number + 1)
    assert parse(tmp_path).problems == (
        "separate worlds: 4 traces each claim to be all of a world of 1 rank",
    )


def test_a_shared_disk_is_counted_once(tmp_path: Path) -> None:
    for node in (0, 1):
        for number in (0, 1):
            write(tmp_path / f"node_{node}" / f"rank{number}" / "t.json", number, 2)
    result = parse(tmp_path, world_size=2, local_world_size=1)
    assert result.status is ParseStatus.SUCCESS
    assert [(rank.node, rank.local_rank) for rank in result.ranks] == [(0, 0), (1, 0)]
    assert len(result.warnings) == 1
    assert [left.file for left in result.left_out] == ["node_1/rank0/t.json", "node_0/rank1/t.json"]


# --- the set ----------------------------------------------------------------------------------------------


def test_an_unknown_rank_among_several_files_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path / "a.json")
    assert parse(tmp_path).problems == ()
    write(tmp_path / "rank0.json")
    result = parse(tmp_path)
    assert [rank.rank for rank in result.ranks] == [0, None]
    assert result.problems == (
        "a.json: rank unknown: neither the trace nor its folder nor its name tells it;"
        " set traces.rank_pattern to find it in the path",
    )


def test_a_folder_without_traces(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    result = parse(tmp_path, world_size=2)
    assert (result.status, result.missing_ranks) == (ParseStatus.NO_DATA, (0, 1))
    assert result.problems == (f"no trace among 1 file in {tmp_path}: a trace is a .json or .json.gz file",)
    assert [left.file for left in result.left_out] == ["notes.txt"]


def test_where_no_trace_counts_it_says_why_and_shows_the_pattern_as_it_is_written(tmp_path: Path) -> None:
    for number in (0, 1):
        write(tmp_path / f"RANK{number}" / "t.json", number, 2)
    (tmp_path / "notes.txt").touch()
    options = ParseOptions(rank_pattern=r"gpu(?P<rank>\d+)")
    result = TorchTraceParser(options).parse(trace_set_of(tmp_path, "rocm"))
    assert result.problems == (
        f"no trace among 3 files in {tmp_path}: traces.rank_pattern finds no rank in its path (2 files);"
        r" the pattern is gpu(?P<rank>\d+)",
    )
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "notes.txt").touch()
    assert parse(tmp_path).problems == (
        f"no trace among 4 files in {tmp_path}: not in a rank folder, where others are (2 files)",
    )


@pytest.mark.parametrize(("apart", "is_one_run"), [(600_000_000, True), (600_000_001, False)])
def test_windows_more_than_ten_minutes_apart_are_not_of_one_run(
    tmp_path: Path, apart: int, is_one_run: bool
) -> None:
    write(tmp_path / "rank0.json", 0, 2)
    write(tmp_path / "rank1.json", 1, 2, start=START + apart)
    problems = parse(tmp_path).problems
    expected = "not of one run: the window of rank1.json starts 10 minutes after that of rank0.json"
    assert problems == (() if is_one_run else (expected,))


def test_clocks_that_tell_no_wall_time_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", 0, 2)
    write(tmp_path / "rank1.json", 1, 2, start=5)
    assert parse(tmp_path).problems == ()


def test_different_windows_are_a_warning_and_common_steps_are_used(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", 0, 2, steps=(1, 2, 3))
    write(tmp_path / "rank1.json", 1, 2, steps=(2, 3, 4))
    result = parse(tmp_path)
    assert result.warnings == (
        "ranks measured different steps: for iteration times over ranks cvs uses only steps 2-3",
    )
    assert result.status is ParseStatus.SUCCESS
    assert metrics.aggregates(result.ranks).avg_iteration_time_us == 100.0


NOTHING_IN_COMMON = (
    "ranks measured different steps and have none in common, such as steps 1-2 of rank0.json"
    " and steps 7-8 of rank1.json"
)


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """Traces of ranks without a common step."""
    write(tmp_path / "rank0.json", 0, 3, steps=(1, 2))
    write(tmp_path / "rank2.json", 2, 3, steps=(1, 2, 3))
    write(tmp_path / "rank1.json", 1, 3, steps=(7, 8))
    return tmp_path


def test_ratios_stand_without_a_common_step_on_the_gpu_basis(apart: Path) -> None:
    result = parse(apart)
    assert result.warnings == (
        f"{NOTHING_IN_COMMON}: no iteration time over ranks; the ratios are of whole windows",
    )
    assert result.status is ParseStatus.SUCCESS
    found = metrics.aggregates(result.ranks)
    assert (found.avg_iteration_time_us, found.avg_comm_ratio) == (None, 1.0)


def test_without_a_common_step_there_is_nothing_to_judge_on_the_cpu_basis(apart: Path) -> None:
    result = parse(apart, "none")
    assert result.problems == (f"{NOTHING_IN_COMMON}: nothing can be measured over ranks",)
    assert not any("different steps" in warning for warning in result.warnings)
    assert set(metrics.aggregates(result.ranks).model_dump().values()) == {None}


def test_ranks_without_numbers_have_no_window_to_differ(tmp_path: Path) -> None:
    write(tmp_path / "rank0.json", 0, 3)
    write(tmp_path / "rank1.json", 1, 3, kernels=0, steps=(7,))
    (tmp_path / "rank2.json").touch()
    assert parse(tmp_path).warnings == ()


def test_two_devices_in_one_trace_are_a_warning(tmp_path: Path) -> None:
    kernels = [{"cat": "kernel", "name": "k", "pid": pid, "ts": START, "dur": 10 + pid} for pid in (0, 1)]
    result = parse(write(tmp_path / "t.json", 0, 1, traceEvents=kernels))
    assert result.warnings == ("t.json: GPU events of 2 devices; its timeline is the union over them",)


# --- sets from disk ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["node_3/rank7/t.json", "node_3/rank7", "node_3", "."])
def test_node_and_rank_are_known_from_wherever_one_starts(tmp_path: Path, given: str) -> None:
    write(tmp_path / "node_3" / "rank7" / "t.json")
    [rank] = parse(tmp_path / given).ranks
    assert (rank.rank, rank.node, rank.quality.status) == (7, 3, "complete")


def test_a_link_to_a_folder_is_followed_where_it_is_given(tmp_path: Path) -> None:
    job(tmp_path / "real", 1, 1)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert statuses(parse(tmp_path / "link")) == ["complete"]
    assert statuses(parse(tmp_path)) == ["complete"]
