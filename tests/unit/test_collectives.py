"""Collectives across ranks: goldens, worked examples, a slow reference, and every reason for doubt."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cvs.collective_findings import findings
from cvs.collective_tables import (
    AllToAllV,
    ImplicitSync,
    Sent,
    all_to_allv,
    all_to_allv_summary,
    collective_report,
    heat_map,
    implicit_sync,
    rank_summary,
    stragglers,
    sync_summary,
)
from cvs.collectives import (
    UNKNOWN_GROUP,
    CommKernel,
    CommMeta,
    Matching,
    Part,
    RankKernels,
    comm_meta,
    match,
    whole_numbers,
)
from cvs.errors import TraceError
from cvs.kernels import bucket_of
from cvs.models import CollectiveReport, Spread

TRACES = Path(__file__).parents[1] / "data" / "traces"
GOLDENS = {path.name.partition(".")[0]: path for path in (TRACES / "collectives").glob("*.golden.json")}
REFUSED = "mr2_mismatch"
"""TraceLens has no sheet for it."""
MIB, GIB = 2**20, 2**30

NO_META = CommMeta(*[None] * 10)
ALLREDUCE = NO_META._replace(
    collective="allreduce", group="0", group_ranks="[0, 1]", group_size=2, dtype="Float",
    in_nelems=65536, out_nelems=65536, in_split="[]", out_split="[]",
)  # fmt: skip


def kernel(start: float, duration: float, meta: CommMeta = ALLREDUCE, stream: int | None = 13) -> CommKernel:
    """Times in us."""
    return CommKernel(round(start * 1000), round(duration * 1000), stream, meta)


def rank(number: int, *kernels: CommKernel, base_ns: int | None = 0, **known: Any) -> RankKernels:
    return RankKernels(number, kernels, base_ns, **known)


# --- goldens ----------------------------------------------------------------------------------------------


def read(trace: Path, number: int) -> RankKernels:
    """The communication kernels of a trace, all digits kept."""
    text = trace.read_bytes()
    document = json.loads(gzip.decompress(text) if trace.suffix == ".gz" else text, parse_float=Decimal)
    kernels = [
        CommKernel(int(event["ts"] * 1000), int(event["dur"] * 1000), event["args"].get("stream"), meta)
        for event in document["traceEvents"]
        if event.get("cat") == "kernel" and bucket_of("kernel", event["name"]) == "communication"
        if (meta := comm_meta(event["name"], event["args"]))
    ]
    return RankKernels(number, kernels, document.get("baseTimeNanoseconds"))


class Golden(NamedTuple):
    """One golden and what cvs makes of its traces."""

    sheets: dict[str, dict[str, Any]]
    error: str | None
    matching: Matching
    ulp_us: float
    """Of the largest stamp: TraceLens adds and subtracts doubles."""

    def rows(self, sheet: str) -> list[dict[str, Any]]:
        """Rows of a sheet; the columns of nodes are made up of the number of GPUs, and not ours."""
        if sheet not in self.sheets:
            return []
        columns = self.sheets[sheet]["columns"]
        return [
            {
                name: cell
                for name, cell in zip(columns, row, strict=True)
                if name not in ("node_id", "node_span")
            }
            for row in self.sheets[sheet]["rows"]
        ]

    def check(self, sheet: str, ours: Sequence[dict[str, Any]]) -> None:
        """Same rows in the same order, the columns of the golden each."""
        theirs = self.rows(sheet)
        assert len(ours) == len(theirs)
        for own, row in zip(ours, theirs, strict=True):
            assert own.keys() >= row.keys()
            # At most one interval of each rank enters a value.
            bound = (len(self.matching.ranks) + 2) * self.ulp_us
            for name, cell in row.items():
                assert agrees(own[name], cell, bound if is_time(name) else 0), (sheet, name, own[name], cell)


def is_time(column: str) -> bool:
    """Whether it holds microseconds; a rate is derived."""
    return "bw" not in column and any(
        word in column for word in ("ts", "dur", "skew", "wait", "latency", "wall_time")
    )


def agrees(own: Any, cell: Any, bound_us: float) -> bool:
    if isinstance(cell, int | float) and isinstance(own, int | float):
        return math.isclose(own, cell, rel_tol=1e-12, abs_tol=bound_us)
    return bool((list(own) if isinstance(own, tuple) else own) == cell)


@cache
def golden_of(name: str) -> Golden:
    golden = json.loads(GOLDENS[name].read_text())
    folder = TRACES / "multirank" / name if (TRACES / "multirank" / name).is_dir() else TRACES
    ranks = [read(folder / trace["file"]["name"], number) for number, trace in enumerate(golden["traces"])]
    largest = max(kernel.start_ns for rank in ranks for kernel in rank.kernels) / 1000
    return Golden(golden.get("sheets", {}), golden["error"], match(ranks), math.ulp(largest))


@pytest.fixture(params=sorted(GOLDENS.keys() - {REFUSED}))
def golden(request: pytest.FixtureRequest) -> Golden:
    return golden_of(request.param)


def us(time_ns: float | None) -> float | None:
    return None if time_ns is None else time_ns / 1e3


def mib(size: float | None) -> float | None:
    return None if size is None else size / MIB


def gib(size: float | None) -> float | None:
    return None if size is None else size / GIB


def described(meta: CommMeta, group: str) -> dict[str, Any]:
    return {
        "Process Group Name": group,
        "Process Group Ranks": meta.group_ranks,
        "Collective name": meta.collective,
        "Group size": meta.group_size,
        "dtype": meta.dtype,
        "In msg nelems": meta.in_nelems,
        "Out msg nelems": meta.out_nelems,
        "In msg size (MB)": mib(meta.in_bytes),
        "Out msg size (MB)": mib(meta.out_bytes),
        "In split size": meta.in_split,
        "Out split size": meta.out_split,
        "Full msg size (MB)": mib(meta.full_bytes),
    }


def spread(name: str, found: Spread | None, unit: Callable[[float], float | None]) -> dict[str, Any]:
    return {
        f"{name}_{which}": None if found is None else unit(getattr(found, which))
        for which in ("mean", "median", "min", "max")
    }


def stamp_us(golden: Golden, part: Part) -> float:
    """As in the trace."""
    base = next(rank.base_ns for rank in golden.matching.ranks if rank.rank == part.rank)
    return (part.start_ns - (base or 0)) / 1e3


def test_every_sheet_has_a_test() -> None:
    sheets = {sheet for path in GOLDENS.values() for sheet in json.loads(path.read_text()).get("sheets", ())}
    assert sheets == {
        "nccl_long", "nccl_implicit_sync", "nccl_summary_implicit_sync", "nccl_summary_long",
        "straggler_summary", "nccl_all2allv", "nccl_summary_all2allv", "nccl_all2allv_heatmap",
    }  # fmt: skip


def test_each_kernel_is_in_the_collective_of_the_golden(golden: Golden) -> None:
    ours = [
        {
            **described(part.meta, one.group),
            "collective_id": one.id,
            "index_in_group": one.index,
            "rank": part.rank,
            "stream": part.stream,
            "ts": stamp_us(golden, part),
            "dur": part.duration_ns / 1e3,
        }
        for one in golden.matching.collectives
        for part in one.parts
    ]
    place = {(row["rank"], row["collective_id"]): at for at, row in enumerate(golden.rows("nccl_long"))}
    golden.check("nccl_long", sorted(ours, key=lambda row: place[row["rank"], row["collective_id"]]))


def test_implicit_sync(golden: Golden) -> None:
    golden.check("nccl_implicit_sync", [sync_row(golden, row) for row in implicit_sync(golden.matching)])


def sync_row(golden: Golden, row: ImplicitSync) -> dict[str, Any]:
    assert row.waits_ns is not None
    parts = dict(zip(row.collective.parts, row.waits_ns, strict=True))
    absent = {
        f"rank_{rank.rank}_{what}" for rank in golden.matching.ranks for what in ("ts", "dur", "wait_time")
    }
    return {
        **dict.fromkeys(absent),
        **described(row.meta, row.collective.group),
        "collective_id": row.collective.id,
        "comm_latency": us(row.latency_ns),
        "skew in start time": us(row.collective.start_skew_ns),
        "earliest arrival rank": row.first_rank,
        "avg_wait_time": us(row.mean_wait_ns),
        "skew in end time": us(row.end_skew_ns),
        "algo bw (GB/s)": gib(row.algo_bytes_per_s),
        "bus bw (GB/s)": gib(row.bus_bytes_per_s),
        **{f"rank_{part.rank}_ts": stamp_us(golden, part) for part in parts},
        **{f"rank_{part.rank}_dur": us(part.duration_ns) for part in parts},
        **{f"rank_{part.rank}_wait_time": us(wait) for part, wait in parts.items()},
    }


def test_summary_of_implicit_sync(golden: Golden) -> None:
    ours = [
        {
            "Collective name": row.meta.collective or "Unknown",
            "dtype": row.meta.dtype or "Unknown",
            "In msg nelems": "Unknown" if row.meta.in_nelems is None else row.meta.in_nelems,
            "Process Group Name": row.group,
            "Group size": row.meta.group_size,
            "Full msg size (MB)": mib(row.meta.full_bytes),
            **spread("comm_latency", row.latency_ns, us),
            **spread("skew in start time", row.start_skew_ns, us),
            **spread("skew in end time", row.end_skew_ns, us),
            **spread("algo bw (GB/s)", row.algo_bytes_per_s, gib),
            **spread("bus bw (GB/s)", row.bus_bytes_per_s, gib),
            "count": row.count,
            "Total comm latency (ms)": row.total_latency_ns / 1e6,
        }
        for row in sync_summary(implicit_sync(golden.matching), by_group=False)
    ]
    golden.check("nccl_summary_implicit_sync", ours)


def test_summary_per_rank(golden: Golden) -> None:
    ours = [
        {
            **described(row.meta, row.group),
            "rank": row.rank,
            "stream": row.stream,
            "In msg size (MB)_first": mib(row.meta.in_bytes),
            "Out msg size (MB)_first": mib(row.meta.out_bytes),
            "dur_sum": us(row.total_ns),
            "dur_mean": us(row.mean_ns),
            "dur_std": us(row.std_ns),
            "dur_min": us(row.min_ns),
            "dur_max": us(row.max_ns),
            "operation_count": row.count,
        }
        for row in rank_summary(golden.matching)
    ]
    theirs = golden.rows("nccl_summary_long")
    assert [row["dur_sum"] for row in ours] == pytest.approx([row["dur_sum"] for row in theirs], rel=1e-12)
    # TraceLens sorts by this column alone, and not stably.
    place = {alike(row): at for at, row in enumerate(theirs)}
    golden.check("nccl_summary_long", sorted(ours, key=lambda row: place[alike(row)]))


def alike(row: dict[str, Any]) -> str:
    call = (row[name] for name in ("Process Group Name", "Collective name", "In split size"))
    return json.dumps([row["rank"], int(row["In msg nelems"]), *call])


def test_stragglers(golden: Golden) -> None:
    found = stragglers(golden.matching, implicit_sync(golden.matching))
    theirs = golden.rows("straggler_summary")
    assert [row.rank for row in found] == [row["rank"] for row in theirs]
    for row, golden_row in zip(found, theirs, strict=True):
        assert row.total_wait_ns is not None
        assert row.arrived_last_ratio is not None
        rounded = {
            "total_wait_time_us": us(row.total_wait_ns),
            "mean_wait_time_us": us(row.mean_wait_ns),
            "pct_arrived_last": 100 * row.arrived_last_ratio,
            "total_nccl_dur_us": us(row.comm_ns),
        }
        for name, value in rounded.items():
            assert value == pytest.approx(golden_row[name], abs=0.05 + 1e-9, rel=0)
        assert (row.arrived_last, row.arrived_first, row.collectives) == tuple(
            golden_row[name] for name in ("times_arrived_last", "times_arrived_first", "num_collectives")
        )


def test_all_to_allv(golden: Golden) -> None:
    golden.check("nccl_all2allv", [all_to_allv_row(golden, row) for row in all_to_allv(golden.matching)])


def all_to_allv_row(golden: Golden, row: AllToAllV) -> dict[str, Any]:
    parts = row.collective.parts
    per_rank = {
        f"rank_{part.rank}_{name}": value
        for part, start, end in zip(parts, row.start_skews_ns or (), row.end_skews_ns or (), strict=True)
        for name, value in {
            **described(part.meta, row.collective.group),
            "ts": stamp_us(golden, part),
            "dur": us(part.duration_ns),
            "skew in start time": us(start),
            "skew in end time": us(end),
        }.items()
    }
    return {
        **described(parts[0].meta, row.collective.group),
        **per_rank,
        "collective_id": row.collective.id,
        "stream": parts[0].stream,
        "total data communicated (MB)": mib(row.total_bytes),
        "total nelems communicated": row.total_nelems,
        "wall_time (us)": us(row.wall_ns),
        "max_rank_dur (us)": us(max(row.durations_ns)),
        "min_rank_dur (us)": us(min(row.durations_ns)),
        "avg_rank_dur (us)": us(sum(row.durations_ns) / len(parts)),
        "throughput (GB/s)": gib(row.bytes_per_s),
        "max_rank_throughput (GB/s)": gib(max(row.rank_bytes_per_s)),
        "min_rank_throughput (GB/s)": gib(min(row.rank_bytes_per_s)),
        "size_imbalance": row.size_imbalance,
        "skew in start time": us(row.collective.start_skew_ns),
        "skew in end time": us(max(row.end_skews_ns or (0,))),
    }


def test_summary_of_all_to_allv(golden: Golden) -> None:
    ours = [
        {
            **described(row.meta, row.group),
            **spread("total data communicated (MB)", row.total_bytes, mib),
            **spread("wall_time (us)", row.wall_ns, us),
            **spread("throughput (GB/s)", row.bytes_per_s, gib),
            **spread("size_imbalance", row.size_imbalance, lambda ratio: ratio),
            **spread("max_rank_dur (us)", row.max_duration_ns, us),
            **spread("skew in start time", row.start_skew_ns, us),
            **spread("skew in end time", row.end_skew_ns, us),
            "count": row.count,
            "Total wall_time (us)": us(row.total_wall_ns),
            "Total wall_time (ms)": (row.total_wall_ns or 0) / 1e6,
        }
        for row in all_to_allv_summary(all_to_allv(golden.matching))
    ]
    golden.check("nccl_summary_all2allv", ours)


def test_heat_map(golden: Golden) -> None:
    found = heat_map(golden.matching)
    assert all(row.group == "0" and row.target == row.place for row in found)
    ours = [
        {
            "src_rank": row.source,
            "dst_rank": row.place,
            "total_sent_MB": mib(row.total_bytes),
            "avg_sent_MB": row.total_bytes / row.collectives / MIB,
            "count": row.collectives,
        }
        for row in found
    ]
    golden.check("nccl_all2allv_heatmap", ours)


BY_ORDER = "they are matched by their order alone"
UNPAIRED = "from the first that is missing on, kernels that do not belong together are matched"
ALONE = "only rank 0 has communication kernels here: what its collectives were across ranks cannot be told"
FINDINGS = {
    "mr4": (f"12 of 108 communication kernels name no process group (ranks 0-3): {BY_ORDER}",),
    "mr2_nopg": (
        "no trace names process groups: the communication kernels are matched by their order alone",
    ),
    "mr2_mismatch": (
        "group 0: the ranks contradict each other in 1 of 3 collectives, which are left out; first in 0_2: "
        "In msg nelems is 3072 on rank 0, 3080 on rank 1",
    ),
    "mr3_missing": (f"group 0: only 4 collectives on rank 2, 6 on others: {UNPAIRED}",),
    "hta_trace_filter": (f"20 of 20 communication kernels name no process group (ranks 0-1): {BY_ORDER}",),
    "hta_nccl_parser_config_rank0": (ALONE,),
    "tl_resnet_act_checkpoint": (ALONE,),
}


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_findings_of_the_goldens(name: str) -> None:
    assert findings(golden_of(name).matching) == FINDINGS[name]


def test_a_contradiction_costs_one_collective_where_tracelens_refuses_all() -> None:
    golden = golden_of(REFUSED)
    assert golden.error == (
        "ValueError: Metadata mismatch in 'In msg nelems' for collective 0_2: [3072 3080]"
    )
    assert [(one.id, one.differs) for one in golden.matching.collectives] == [
        ("0_0", ()),
        ("0_1", ()),
        ("0_2", ("in_nelems", "out_nelems")),
    ]
    rows = implicit_sync(golden.matching)
    assert [(row.collective.id, row.latency_ns, row.waits_ns, row.end_skew_ns) for row in rows] == [
        ("0_0", 100_000, (1000, 0), 1000),
        ("0_1", 100_000, (1000, 0), 1000),
    ]
    assert [row.algo_bytes_per_s for row in rows] == [4096 / 100e-6, 8192 / 100e-6]
    [first, second] = stragglers(golden.matching, rows)
    assert (first.rank, first.arrived_last, first.total_wait_ns, first.comm_ns) == (1, 2, 0, 300_000)
    assert (second.rank, second.arrived_first, second.total_wait_ns, second.collectives) == (0, 2, 2000, 2)


# --- worked examples --------------------------------------------------------------------------------------


def test_worked_example_of_an_all_gather() -> None:
    meta = ALLREDUCE._replace(
        collective="_allgather_base", group_ranks="[0, 1, 2, 3]", group_size=4, dtype="BFloat16",
        in_nelems=1048576, out_nelems=4194304,
    )  # fmt: skip
    times = [(250.0, 1350.0), (285.25, 1316.25), (262.5, 1340.5), (330.125, 1274.375)]
    [row] = implicit_sync(match([rank(at, kernel(*pair, meta)) for at, pair in enumerate(times)]))
    assert (meta.in_bytes, meta.out_bytes, meta.full_bytes) == (2 * MIB, 8 * MIB, 8 * MIB)
    assert row.latency_ns == 1_274_375
    assert row.waits_ns == (80_125, 44_875, 67_625, 0)
    assert (row.collective.start_skew_ns, row.end_skew_ns) == (80_125, 4_500)
    assert (row.first_rank, row.last_rank, row.mean_wait_ns) == (0, 3, 48_156.25)
    assert row.algo_bytes_per_s == pytest.approx(6.130456105934282 * GIB, rel=1e-15)
    assert row.bus_bytes_per_s == pytest.approx(4.597842079450712 * GIB, rel=1e-15)


def test_worked_examples_of_all_reduces() -> None:
    [two] = implicit_sync(match([rank(0, kernel(0, 335.25)), rank(1, kernel(35.25, 300))]))
    assert two.meta.full_bytes == MIB / 4
    assert two.bus_bytes_per_s == two.algo_bytes_per_s == pytest.approx(0.8138020833 * GIB, rel=1e-9)

    meta = ALLREDUCE._replace(
        group_ranks="[0, 1, 2]", group_size=3, dtype="Double", in_nelems=4096, out_nelems=4096
    )
    [three] = implicit_sync(match([rank(at, kernel(3 * at, 100 - at, meta)) for at in range(3)]))
    assert (three.latency_ns, three.collective.start_skew_ns, three.end_skew_ns) == (98_000, 6_000, 4_000)
    assert three.meta.full_bytes == MIB / 32
    assert three.algo_bytes_per_s == pytest.approx(0.31140385841836743 * GIB, rel=1e-15)
    assert three.bus_bytes_per_s == pytest.approx(0.4152051445578231 * GIB, rel=1e-15)


# --- one kernel -------------------------------------------------------------------------------------------

ARGS = {
    "correlation": 7, "stream": 13, "Collective name": "all_to_allv", "Process Group Name": "3",
    "Process Group Ranks": [4, 5], "Group size": 2, "dtype": "Half", "In msg nelems": 30,
    "Out msg nelems": 8.0, "In split size": "[10, 20]", "Out split size": [4, 4],
}  # fmt: skip
GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def test_meta_holds_what_the_trace_tells() -> None:
    meta = comm_meta("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", ARGS)
    assert meta == CommMeta(
        kernel="sendrecv", collective="all_to_allv", group="3", group_ranks=(4, 5), group_size=2,
        dtype="Half", in_nelems=30, out_nelems=8, in_split="[10, 20]", out_split=(4, 4),
    )  # fmt: skip
    assert (meta.kind, meta.ranks, meta.sends, meta.in_bytes, meta.out_bytes) == (
        "alltoallv", (4, 5), (10, 20), 60, 16
    )  # fmt: skip
    assert meta.bus_factor is None
    assert meta._replace(group_size=3).sends is None


def test_only_a_kernel_with_a_launch_counts() -> None:
    assert comm_meta(GENERIC, {"stream": 13, "correlation": None}) is None
    assert comm_meta(GENERIC, {"stream": 13, "correlation": 0}) == NO_META
    assert comm_meta(GENERIC, {"stream": 13, "External id": 1}) == NO_META


@pytest.mark.parametrize(
    ("name", "kernel_collective", "collective"),
    [
        (GENERIC, None, None),
        ("void vllm::Cross_Device_Reduce_2stage<float, 8>", "allreduce", "allreduce"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "allreduce", None),
        ("ncclKernel_ReduceScatter_TREE_LL_Sum_half(x)", "reducescatter", None),
        ("ncclAllGatherRingLLKernel_copy_i8(x)", "allgather", None),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)", "broadcast", None),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", "reduce", None),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(x)", "sendrecv", None),
    ],
)
def test_collective_by_the_name_of_the_kernel(
    name: str, kernel_collective: str | None, collective: str | None
) -> None:
    meta = comm_meta(name, {"correlation": 1})
    assert meta == NO_META._replace(kernel=kernel_collective, collective=collective)
    named = comm_meta(name, {"correlation": 1, "Collective name": "reduce"})
    assert named is not None
    assert named.collective == "reduce"


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (8, 8),
        ("8", 8),
        (8.0, 8),
        (8.5, None),
        (0, 0),
        (-1, None),
        ("many", None),
        ([8], None),
        (1e999, None),
        (None, None),
    ],
)
def test_a_count_is_a_whole_number(value: object, count: int | None) -> None:
    meta = comm_meta(GENERIC, {"correlation": 1, "Group size": value})
    assert meta is not None
    assert meta.group_size == count


def test_whatever_the_trace_has_can_be_interned() -> None:
    strange = {"a": [1]}
    args = {"correlation": 1, **{key: [strange, [1, None, 2.5]] for key in ARGS.keys() - {"correlation"}}}
    meta = comm_meta(GENERIC, args)
    assert meta is not None
    assert {meta, comm_meta(GENERIC, args)} == {meta}
    assert meta.group_ranks == (str(strange), (1, None, "2.5"))
    assert (meta.ranks, meta.sends) == (str(meta.group_ranks), None)


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [
        ("[0, 1, 2]", (0, 1, 2)),
        ("[]", ()),
        ((3, 4), (3, 4)),
        ("[0, 1, ..., 7]", None),
        ("[0, 1", None),
        ("0, 1", None),
        ((0, None), None),
        (None, None),
    ],
)
def test_lists_of_numbers(listed: str | tuple[Any, ...] | None, numbers: tuple[int, ...] | None) -> None:
    assert whole_numbers(listed) == numbers


@pytest.mark.parametrize(
    ("meta", "full_bytes", "factor"),
    [
        (ALLREDUCE, 262144, 1.0),
        (ALLREDUCE._replace(group_size=1), 262144, 0.0),
        (ALLREDUCE._replace(group_size=0), 262144, None),
        (ALLREDUCE._replace(collective="_reduce_scatter_base", out_nelems=1), 262144, 0.5),
        (ALLREDUCE._replace(collective="all_gather", out_nelems=131072), 524288, 0.5),
        (ALLREDUCE._replace(collective="all_to_all", dtype="Float8_e4m3fnuz"), 65536, 0.5),
        (ALLREDUCE._replace(dtype="ComplexFloat"), None, 1.0),
        (ALLREDUCE._replace(in_nelems=None), None, 1.0),
        (ALLREDUCE._replace(out_nelems=None), None, 1.0),
        (ALLREDUCE._replace(collective="all_gather", in_nelems=None), None, 0.5),
        (ALLREDUCE._replace(collective="broadcast"), None, None),
    ],
)
def test_size_and_bus_factor(meta: CommMeta, full_bytes: int | None, factor: float | None) -> None:
    assert (meta.full_bytes, meta.bus_factor) == (full_bytes, factor)


# --- matching, against a slow reference -------------------------------------------------------------------

NAMES = ("allreduce", "_allgather_base", "broadcast", "all_to_allv", None)
metas = st.builds(
    NO_META._replace,
    collective=st.sampled_from(NAMES),
    group=st.sampled_from(["0", "0", "1", None]),
    group_ranks=st.sampled_from(["[0, 1]", (0, 1), "[2, 3]", None]),
    group_size=st.sampled_from([2, None]),
    dtype=st.sampled_from(["Float", "Complex"]),
    in_nelems=st.sampled_from([4, 8]),
    out_nelems=st.sampled_from([4, None]),
)
kernels = st.builds(CommKernel, st.integers(0, 30), st.integers(0, 9), st.sampled_from([3, 4, None]), metas)
groupless = st.builds(
    NO_META._replace,
    kernel=st.sampled_from([None, None, "allreduce", "sendrecv"]),
    collective=st.sampled_from([None, *NAMES]),
)
groupless_kernels = st.builds(CommKernel, st.integers(0, 30), st.integers(0, 9), st.just(3), groupless)
bases = st.sampled_from([None, 0, 7])


def sets_of(of_kernels: st.SearchStrategy[CommKernel]) -> st.SearchStrategy[list[RankKernels]]:
    one_rank = st.tuples(st.lists(of_kernels, max_size=8), bases)
    return st.lists(one_rank, min_size=1, max_size=4).map(
        lambda ranks: [RankKernels(number, *pair) for number, pair in enumerate(ranks)]
    )


rank_sets = st.one_of(sets_of(kernels), sets_of(groupless_kernels))

Slow = dict[str, list[tuple[int, int]]]
"""Rank and place in its file of each kernel, by the id of its collective."""


def slow_match(ranks: Sequence[RankKernels]) -> Slow:
    """For every kernel, count those of its group that come before it."""
    everything = [(rank, at, kernel) for rank in ranks for at, kernel in enumerate(rank.kernels)]
    simplified = all(kernel.meta.group is None for _, _, kernel in everything) and all(
        len({kernel.stream for kernel in rank.kernels if kernel.stream is not None}) <= 1 for rank in ranks
    )

    def known_ranks(meta: CommMeta) -> str | None:
        return None if meta.group_ranks is None else str(list(whole_numbers(meta.group_ranks) or ()))

    def group(meta: CommMeta) -> str:
        if simplified:
            return "all"
        sets = {known_ranks(kernel.meta) for _, _, kernel in everything if kernel.meta.group == meta.group}
        several = len(sets - {None}) > 1
        name = meta.group or "Unknown_Group"
        return f"{name} {known_ranks(meta)}" if several and known_ranks(meta) else name

    found: Slow = {}
    for rank, at, kernel in everything:
        before = sum(
            group(other.meta) == group(kernel.meta) and (other.start_ns, place) < (kernel.start_ns, at)
            for place, other in enumerate(rank.kernels)
        )
        found.setdefault(str(before) if simplified else f"{group(kernel.meta)}_{before}", []).append(
            (rank.rank, at)
        )
    return found


@given(rank_sets)
def test_matching_is_what_the_reference_tells(ranks: list[RankKernels]) -> None:
    # The duration says which kernel it is.
    named = [
        rank._replace(kernels=[kernel._replace(duration_ns=at) for at, kernel in enumerate(rank.kernels)])
        for rank in ranks
    ]
    matching = match(named)
    found = {one.id: [(part.rank, part.duration_ns) for part in one.parts] for one in matching.collectives}
    assert list(found.items()) == list(slow_match(named).items())
    assert len(found) == len(matching.collectives)
    assert all(
        one.id == (str(one.index) if matching.is_simplified else f"{one.group}_{one.index}")
        for one in matching.collectives
    )


def slow_is_row(of: Sequence[CommMeta], simplified: bool) -> bool:
    """Whether these are a collective that synchronises, as far as they tell."""
    if simplified:
        told = [{meta.kernel for meta in of} - {None}, {meta.collective for meta in of} - {None}]
        return of[0].collective != "all_to_allv" and all(len(values) <= 1 for values in told)
    calls = {(meta.collective, *meta[4:8]) for meta in of}
    return of[0].collective in ("allreduce", "_allgather_base") and len(calls) == 1


def slow_row(parts: Sequence[tuple[int, int, CommKernel]]) -> tuple[Any, ...]:
    """Latency, waits, first, last, skews of (rank, start, kernel), each as its definition reads."""
    last = max(start for _, start, _ in parts)
    waits = [last - start for _, start, _ in parts]
    ends = [start + kernel.duration_ns for _, start, kernel in parts]
    ranks = [number for number, _, _ in parts]
    return (
        min(kernel.duration_ns for _, _, kernel in parts),
        tuple(waits),
        max(number for number, wait in zip(ranks, waits, strict=True) if wait == max(waits)),
        min(number for number, wait in zip(ranks, waits, strict=True) if wait == min(waits)),
        last - min(start for _, start, _ in parts),
        max(ends) - min(ends),
    )


@given(rank_sets)
def test_rows_and_stragglers_are_what_the_reference_tells(ranks: list[RankKernels]) -> None:
    matching = match(ranks)
    rows = {row.collective.id: row for row in implicit_sync(matching)}
    waits: dict[int, list[int]] = {}
    for identity, members in slow_match(ranks).items():
        of = [ranks[number].kernels[at] for number, at in members]
        if not slow_is_row([one.meta for one in of], matching.is_simplified):
            assert identity not in rows
            continue
        row = rows.pop(identity)
        based = {ranks[number].base_ns is not None for number, _ in members}
        parts = [
            (number, (ranks[number].base_ns or 0) + one.start_ns, one)
            for (number, _), one in zip(members, of, strict=True)
        ]
        latency, *of_arrivals = slow_row(parts)
        assert row.latency_ns == latency
        assert [
            row.waits_ns, row.first_rank, row.last_rank, row.collective.start_skew_ns, row.end_skew_ns
        ] == (of_arrivals if len(based) == 1 else [None] * 5)  # fmt: skip
        for (number, _), wait in zip(members, row.waits_ns or (), strict=False):
            waits.setdefault(number, []).append(wait)
    assert not rows
    found = stragglers(matching, implicit_sync(matching))
    assert {row.rank: row.total_wait_ns for row in found if row.total_wait_ns is not None} == {
        number: sum(those) for number, those in waits.items()
    }
    totals = [row.total_wait_ns for row in found]
    known = [total for total in totals if total is not None]
    assert totals == sorted(known) + [None] * (len(totals) - len(known))
    if found and found[0].collectives:
        assert sum(row.arrived_last or 0 for row in found) == found[0].collectives
        assert sum(row.arrived_first or 0 for row in found) == found[0].collectives


@given(rank_sets, st.permutations(range(4)), st.integers(-5, 5))
def test_neither_order_nor_clock_of_the_ranks_matters(
    ranks: list[RankKernels], order: list[int], shift: int
) -> None:
    """Each rank's clock may count from anywhere that its base tells."""
    moved = [
        one if one.base_ns is None else one._replace(
            base_ns=one.base_ns + shift * one.rank,
            kernels=[each._replace(start_ns=each.start_ns - shift * one.rank) for each in one.kernels],
        )
        for one in ranks
    ]  # fmt: skip
    shuffled = [moved[number] for number in order if number < len(moved)]
    assert match(shuffled).collectives == match(ranks).collectives


@given(rank_sets)
def test_every_kernel_is_in_one_collective_and_the_summaries_lose_none(ranks: list[RankKernels]) -> None:
    matching = match(ranks)
    rows = implicit_sync(matching)
    every = sum(len(one.kernels) for one in ranks)
    assert sum(len(one.parts) for one in matching.collectives) == every
    for by_group in (False, True):
        assert sum(row.count for row in sync_summary(rows, by_group=by_group)) == len(rows)
    report = collective_report(matching)
    whole = [row for row in rows if matching.is_whole(row.collective)]
    assert sum(row.count for row in report.collectives) == len(whole)
    assert sum(row.total_latency_ns for row in report.collectives) == sum(row.latency_ns for row in whole)
    assert report.findings == findings(matching)


def test_two_traces_of_one_rank_are_refused() -> None:
    with pytest.raises(TraceError, match="rank 3 has two traces"):
        match([rank(3), rank(1), rank(3)])


def test_nothing_makes_nothing() -> None:
    report = collective_report(match([rank(0), rank(1)]))
    assert (report.collectives, report.stragglers, report.findings) == ((), (), ())
    assert match([]).collectives == ()


# --- what cvs does differently ----------------------------------------------------------------------------


def of_group(*members: int, **changed: Any) -> CommMeta:
    return ALLREDUCE._replace(group_ranks=str(list(members)), group_size=len(members), **changed)


def test_subgroups_of_one_name_are_matched_by_themselves() -> None:
    pairs = [(0, 1), (0, 1), (2, 3), (2, 3)]
    matching = match([rank(at, kernel(at, 10, of_group(*pair, group="1"))) for at, pair in enumerate(pairs)])
    assert [(one.id, [part.rank for part in one.parts]) for one in matching.collectives] == [
        ("1 [0, 1]_0", [0, 1]),
        ("1 [2, 3]_0", [2, 3]),
    ]
    assert findings(matching) == (
        "group name 1 stands for 2 sets of ranks, such as 1 [0, 1] and 1 [2, 3]: each is matched by itself",
    )


def test_a_list_and_its_text_are_one_group() -> None:
    matching = match([rank(0, kernel(0, 10)), rank(1, kernel(2, 8, ALLREDUCE._replace(group_ranks=(0, 1))))])
    [row] = implicit_sync(matching)
    assert (row.collective.id, row.waits_ns) == ("0_0", (2000, 0))
    assert findings(matching) == ()


def test_summary_by_group_keeps_groups_apart() -> None:
    pairs = [(0, 1), (0, 1), (2, 3), (2, 3)]
    ranks = [
        rank(at, kernel(0, 10 + at, of_group(*pair, group=str(pair[0])))) for at, pair in enumerate(pairs)
    ]
    rows = implicit_sync(match(ranks))
    [together] = sync_summary(rows, by_group=False)
    assert (together.group, together.count, together.total_latency_ns) == ("0", 2, 22_000)
    assert together.latency_ns == Spread(mean=11_000, median=11_000, p95=11_900, min=10_000, max=12_000)
    apart = sync_summary(rows, by_group=True)
    assert [(row.group, row.count, row.meta.ranks) for row in apart] == [("2", 1, (2, 3)), ("0", 1, (0, 1))]


def test_report_weighs_rates_by_time() -> None:
    small, large = of_group(0, 1, in_nelems=1, out_nelems=1), of_group(0, 1, in_nelems=999, out_nelems=999)
    report = collective_report(
        match([rank(at, kernel(0, 10, small), kernel(100, 30 - at, large)) for at in range(2)])
    )
    [row] = report.collectives
    assert (row.collective, row.group, row.group_ranks, row.group_size, row.count) == (
        "allreduce", "0", (0, 1), 2, 2
    )  # fmt: skip
    assert row.total_latency_ns == 39_000
    assert row.algo_gb_per_s == pytest.approx(4000 / 39_000)
    assert row.algo_gib_per_s == pytest.approx(4000 / 39e-6 / GIB)
    assert (row.bus_gb_per_s, row.bus_gib_per_s) == (row.algo_gb_per_s, row.algo_gib_per_s)
    assert json.loads(report.model_dump_json())["stragglers"][0]["rank"] == 0


def test_report_names_a_kind_by_its_kernel_where_nothing_else_does() -> None:
    meta = NO_META._replace(kernel="allgather")
    report = collective_report(match([rank(number, kernel(0, 0, meta)) for number in (0, 1)]))
    assert report.is_simplified
    [row] = report.collectives
    assert (row.collective, row.group, row.algo_gb_per_s, row.bus_gb_per_s) == (
        "allgather",
        "all",
        None,
        None,
    )


def test_collectives_that_lack_a_rank_are_not_in_the_report() -> None:
    meta = NO_META._replace(collective="allreduce", group="0", group_size=3)
    three = [kernel(start, 10, meta) for start in (0, 100, 200)]
    matching = match([rank(0, *three), rank(1, *three), rank(2, *three[:1])])
    report = collective_report(matching)
    assert [row.count for row in report.collectives] == [1]
    assert any("rank 2" in finding for finding in report.findings)


def of_job(*numbers: int) -> CollectiveReport:
    """Of some of four ranks: pairs 0-1 and 2-3 in groups of their own, and kernels that name no group."""
    groups = {0: of_group(0, 1), 1: of_group(0, 1), 2: of_group(2, 3), 3: of_group(2, 3)}
    nameless = NO_META._replace(collective="allreduce")
    return collective_report(
        match([rank(n, kernel(n, 10, groups[n]), kernel(100 + n, 10, nameless)) for n in numbers])
    )


def test_a_group_that_nobody_knows_the_ranks_of_needs_all_of_the_job() -> None:
    every, some = of_job(0, 1, 2, 3), of_job(2, 3)
    assert {row.group for row in every.collectives} == {"0 [0, 1]", "0 [2, 3]", UNKNOWN_GROUP}
    assert {row.group for row in some.collectives} == {"0"}
    assert [(row.rank, row.took_part) for row in some.stragglers] == [(3, 1), (2, 1)]
    assert (
        "group Unknown_Group: nobody knows its ranks, and of the 4 ranks of the job only ranks 2-3 have "
        "kernels in it here: who was waited for in it cannot be told"
    ) in some.findings


def test_so_do_kernels_that_are_matched_by_order_alone() -> None:
    two = [rank(number, kernel(number, 10, NO_META)) for number in (0, 1)]
    assert [row.count for row in collective_report(match(two)).collectives] == [1]
    found = collective_report(match(two, world_size=3))
    assert (found.is_simplified, found.collectives, found.stragglers) == (True, (), ())
    assert found.findings[-1].startswith("group all: nobody knows its ranks, and of the 3 ranks of the job ")


def test_a_group_has_as_many_ranks_as_are_listed_where_its_size_is_not_told() -> None:
    meta = ALLREDUCE._replace(group_size=None, group_ranks="[0, 1, 2]")
    assert (
        collective_report(match([rank(number, kernel(0, 10, meta)) for number in (0, 1)])).collectives == ()
    )


def test_nobody_is_waited_for_where_the_matching_is_in_doubt() -> None:
    """Some kernels of these may not belong together, those of the other group still do."""
    sound, three = of_group(0, 1), of_group(0, 1, 2)
    kernels = [kernel(at, 10, three) for at in (0, 20, 40)]
    short = match([rank(0, *kernels), rank(1, *kernels), rank(2, *kernels[:2])])
    assert collective_report(short).stragglers == ()
    contradicting = [kernel(0, 10), kernel(20, 10, ALLREDUCE._replace(in_nelems=1))]
    assert collective_report(match([rank(0, *contradicting), rank(1, kernel(0, 10))])).stragglers == ()
    other = [rank(0, *kernels, kernel(60, 10, sound)), rank(1, *kernels[1:], kernel(60, 10, sound))]
    assert {row.took_part for row in collective_report(match(other)).stragglers} == {1}


@pytest.mark.parametrize(
    ("meta", "of_first", "of_second"),
    [
        (ALLREDUCE, {"step_numbers": (3, 4)}, {"step_numbers": (4, 5)}),
        (NO_META._replace(kernel="sendrecv"), {}, {}),
    ],
)
def test_some_doubts_are_about_every_group(
    meta: CommMeta, of_first: dict[str, Any], of_second: dict[str, Any]
) -> None:
    first, second = rank(0, kernel(0, 10, meta), **of_first), rank(1, kernel(0, 10, meta), **of_second)
    found = collective_report(match([first, second]))
    assert found.collectives
    assert found.stragglers == ()


def test_for_whom_the_others_waited() -> None:
    meta = NO_META._replace(collective="allreduce", group="0", group_size=2)
    late = [
        rank(0, kernel(0, 50, meta), kernel(100, 10, meta)),
        rank(1, kernel(40, 10, meta), kernel(95, 15, meta)),
    ]
    found = {row.rank: row for row in collective_report(match(late)).stragglers}
    assert (found[1].arrived_last, found[1].others_waited_ns, found[1].took_part) == (1, 40_000, 2)
    assert (found[0].arrived_last, found[0].others_waited_ns) == (1, 5_000)


def test_a_latency_of_nothing_has_no_rate() -> None:
    [row] = implicit_sync(match([rank(0, kernel(0, 5)), rank(1, kernel(5, 0))]))
    assert (row.latency_ns, row.algo_bytes_per_s, row.bus_bytes_per_s) == (0, None, None)


def test_starts_are_compared_on_the_wall_clock() -> None:
    [row] = implicit_sync(match([rank(0, kernel(5, 10), base_ns=1000), rank(1, kernel(0, 10), base_ns=7000)]))
    assert (row.waits_ns, row.last_rank) == ((1000, 0), 1)


def test_starts_without_a_common_clock_are_not_compared() -> None:
    matching = match([rank(0, kernel(5, 10), base_ns=None), rank(1, kernel(0, 8), base_ns=7000)])
    rows = implicit_sync(matching)
    assert [
        (row.latency_ns, row.waits_ns, row.mean_wait_ns, row.first_rank, row.last_rank) for row in rows
    ] == [(8000, None, None, None, None)]
    assert rows[0].bus_bytes_per_s == 262144 / 8e-6
    found = stragglers(matching, rows)
    assert [(row.rank, row.comm_ns, row.collectives) for row in found] == [(0, 10_000, 0), (1, 8_000, 0)]
    assert all(
        value is None
        for row in found
        for value in (
            row.total_wait_ns,
            row.mean_wait_ns,
            row.arrived_last,
            row.arrived_first,
            row.arrived_last_ratio,
        )
    )
    [summary] = collective_report(matching).collectives
    assert (summary.start_skew_ns, summary.end_skew_ns) == (None, None)
    assert findings(matching) == (
        "only rank 1 told baseTimeNanoseconds: arrivals, and so waits and skews, cannot be compared with "
        "the other ranks",
    )


def test_all_to_allv_without_a_common_clock_has_no_wall_time() -> None:
    meta = of_group(0, 1, collective="all_to_allv", in_split="[1, 65535]")
    matching = match([rank(0, kernel(5, 10, meta)), rank(1, kernel(0, 8, meta), base_ns=None)])
    [row] = all_to_allv(matching)
    assert (row.wall_ns, row.start_skews_ns, row.end_skews_ns, row.bytes_per_s) == (None, None, None, None)
    assert row.rank_bytes_per_s == pytest.approx((262144 / 10e-6, 262144 / 8e-6))
    [summary] = all_to_allv_summary([row])
    assert (summary.total_wall_ns, summary.wall_ns, summary.start_skew_ns) == (None, None, None)
    assert summary.total_bytes is not None


def test_all_to_allv_of_unknown_size_has_none() -> None:
    meta = of_group(0, 1, collective="all_to_allv")
    matching = match([rank(0, kernel(0, 10, meta)), rank(1, kernel(0, 8, meta._replace(in_nelems=None)))])
    [row] = all_to_allv(matching)
    assert (row.total_bytes, row.total_nelems, row.bytes_per_s, row.size_imbalance) == (
        None,
        None,
        None,
        None,
    )
    assert row.rank_bytes_per_s == ()
    assert heat_map(matching) == []
    assert findings(matching) == (
        "2 all_to_allv kernels do not list what they send to whom: the heat map lacks them",
    )


def test_all_to_allv_of_nothing_is_not_imbalanced() -> None:
    meta = of_group(0, 1, collective="all_to_allv", in_nelems=0, in_split="[0, 0]")
    [row] = all_to_allv(match([rank(at, kernel(0, 10, meta)) for at in range(2)]))
    assert (row.total_bytes, row.size_imbalance, row.rank_bytes_per_s) == (0, None, ())


def test_heat_map_tells_ranks_and_keeps_groups_apart() -> None:
    def sends(members: tuple[int, int], split: str) -> CommMeta:
        return of_group(
            *members, group=str(members[0]), collective="all_to_allv", dtype="Half", in_split=split
        )

    ranks = [
        rank(0, kernel(0, 1, sends((0, 1), "[1, 2]")), kernel(9, 1, sends((0, 1), "[3, 4]"))),
        rank(2, kernel(0, 1, sends((2, 3), "[5, 6]"))),
    ]
    assert heat_map(match(ranks)) == [
        Sent("0", 0, 0, 0, 8, 2),
        Sent("0", 0, 1, 1, 12, 2),
        Sent("2", 2, 0, 2, 10, 1),
        Sent("2", 2, 1, 3, 12, 1),
    ]


# --- reasons for doubt ------------------------------------------------------------------------------------


def doubts(*ranks: RankKernels) -> tuple[str, ...]:
    return findings(match(ranks))


def pair_of(*metas: CommMeta, **known: Any) -> tuple[RankKernels, RankKernels]:
    """Two ranks that do the same."""
    same = [kernel(100 * at, 10, meta) for at, meta in enumerate(metas)]
    return rank(0, *same, **known), rank(1, *same, **known)


def test_nothing_speaks_against_a_sound_set() -> None:
    steps = {"step_numbers": (3, 4), "step_ns": 5e6, "node": 0}
    assert doubts(*pair_of(ALLREDUCE, ALLREDUCE, ALLREDUCE._replace(collective="broadcast"), **steps)) == ()


def test_clocks_of_several_nodes() -> None:
    first, second = pair_of(ALLREDUCE)
    assert doubts(first._replace(node=0), second._replace(node=1)) == (
        "the ranks are of 2 nodes: waits and skews contain what their clocks differ by",
    )


def test_profiles_of_other_steps() -> None:
    first, second = pair_of(ALLREDUCE)
    assert doubts(first._replace(step_numbers=(3, 4)), second._replace(step_numbers=(4, 5))) == (
        "the profiles are not of the same steps (rank 0: steps 3-4; rank 1: steps 4-5): collectives of "
        "different steps are matched",
    )
    assert doubts(first._replace(step_numbers=(3, 4)), second) == ()


def test_starts_more_than_a_step_apart() -> None:
    late = [kernel(100, 10), kernel(9100, 10)]
    early = [kernel(0, 10), kernel(3000, 10)]
    assert doubts(rank(0, *early, step_ns=5e6), rank(1, *late, step_ns=5.5e6)) == (
        "group 0: in 1 of 2 collectives, first in 0_1, ranks begin more than a step (5.000 ms) apart: their "
        "profiles, or their clocks, do not agree",
    )
    assert doubts(rank(0, *early, step_ns=6.1e6), rank(1, *late)) == ()


def test_kernels_between_two_ranks_in_simplified_mode() -> None:
    assert doubts(*pair_of(NO_META._replace(kernel="sendrecv"), NO_META)) == (
        "no trace names process groups: the communication kernels are matched by their order alone",
        "2 kernels between two ranks (SendRecv) are matched as if all ranks took part",
    )


def test_kernels_of_other_collectives_in_simplified_mode() -> None:
    """Where RCCL or NCCL names them, order alone need not be trusted."""
    reduce, gather = NO_META._replace(kernel="allreduce"), NO_META._replace(kernel="allgather")
    matching = match([
        rank(0, kernel(0, 9, reduce), kernel(20, 9, gather), kernel(40, 9, NO_META)),
        rank(1, kernel(0, 9, reduce), kernel(20, 9, reduce), kernel(40, 9, reduce)),
    ])  # fmt: skip
    assert [row.collective.id for row in implicit_sync(matching)] == ["0", "2"]
    assert findings(matching)[1:] == (
        "group all: the ranks contradict each other in 1 of 3 collectives, which are left out; first in 1: "
        "kernel name is allgather on rank 0, allreduce on rank 1",
    )


def test_two_streams_or_a_group_end_simplified_mode() -> None:
    one, two = kernel(0, 10, NO_META, stream=1), kernel(20, 10, NO_META, stream=2)
    nameless = kernel(30, 10, NO_META, stream=None)
    assert match([rank(0, one, nameless), rank(1, two)]).is_simplified
    assert not match([rank(0, one, two), rank(1, one)]).is_simplified
    assert not match([rank(0, one), rank(1, kernel(0, 10, ALLREDUCE, stream=1))]).is_simplified


def test_a_rank_without_any_kernel_of_its_group() -> None:
    three = of_group(0, 1, 2)
    assert doubts(rank(0, kernel(0, 10, three)), rank(1, kernel(0, 10, three)), rank(2)) == (
        "group 0 has 3 ranks, and kernels of ranks 0-1 are here: its numbers are of these alone",
        f"group 0: only 0 collectives on rank 2, 1 on others: {UNPAIRED}",
    )


def test_ranks_that_lack_different_numbers() -> None:
    three = of_group(0, 1, 2)
    some = [kernel(at, 1, three) for at in range(5)]
    assert doubts(rank(0, *some), rank(1, *some[:3]), rank(2, *some[:2])) == (
        f"group 0: only 2 to 3 collectives on ranks 1-2, 5 on others: {UNPAIRED}",
    )


def test_a_rank_that_is_not_of_the_group() -> None:
    assert doubts(rank(0, kernel(0, 10)), rank(5, kernel(0, 10))) == (
        "group 0 is of ranks 0-1, but kernels of rank 5 are in it: the traces may be of other ranks than "
        "they are taken for",
    )


def test_more_ranks_than_the_group_has() -> None:
    meta = ALLREDUCE._replace(group_ranks="[0, ..., 9]")
    assert doubts(*(rank(at, kernel(0, 10, meta)) for at in range(3)))[1:] == (
        "group 0 has 2 ranks, but kernels of ranks 0-2 are in it: the traces may be of other ranks than "
        "they are taken for",
    )


@pytest.mark.parametrize(
    ("ranks", "how"),
    [(None, "do not list its ranks"), ("[0, ..., 1]", "list its ranks only as [0, ..., 1]")],
)
def test_ranks_of_a_group_that_are_not_listed(ranks: str | None, how: str) -> None:
    assert doubts(*pair_of(ALLREDUCE._replace(group_ranks=ranks))) == (
        f"group 0: the traces {how}: who belongs to it cannot be checked",
    )


@pytest.mark.parametrize(
    ("changed", "differs", "words"),
    [
        ({"dtype": "Half"}, ("dtype",), "dtype is Float on rank 0, Half on rank 1"),
        ({"dtype": None}, ("dtype",), "dtype is Float on rank 0, absent on rank 1"),
        ({"group_size": 4}, ("group_size",), "Group size is 2 on rank 0, 4 on rank 1"),
        ({"out_nelems": 7}, ("out_nelems",), "Out msg nelems is 65536 on rank 0, 7 on rank 1"),
        ({"collective": "send"}, ("collective",), "Collective name is allreduce on rank 0, send on rank 1"),
    ],
)
def test_a_contradiction_is_marked_and_the_others_go_on(
    changed: dict[str, Any], differs: tuple[str, ...], words: str
) -> None:
    other = ALLREDUCE._replace(**changed)
    matching = match([
        rank(0, kernel(0, 10), kernel(20, 10)),
        rank(1, kernel(0, 10), kernel(20, 10, other)),
    ])  # fmt: skip
    assert [one.differs for one in matching.collectives] == [(), differs]
    assert [row.collective.id for row in implicit_sync(matching)] == ["0_0"]
    assert findings(matching) == (
        "group 0: the ranks contradict each other in 1 of 2 collectives, which are left out; first in 0_1: "
        f"{words}",
    )


def test_what_may_differ_is_no_contradiction() -> None:
    """Sizes of an all_to_allv, the two ends of a message, the kernel that RCCL chose."""
    sends = of_group(0, 1, collective="all_to_allv", in_split="[1, 1]")
    ends = [ALLREDUCE._replace(collective=collective) for collective in ("send", "recv")]
    matching = match([
        rank(0, kernel(0, 1, sends), kernel(2, 1, ends[0]), kernel(4, 1)),
        rank(1, kernel(0, 1, sends._replace(in_nelems=2)), kernel(2, 1, ends[1]),
             kernel(4, 1, ALLREDUCE._replace(kernel="allreduce"))),
    ])  # fmt: skip
    assert [one.differs for one in matching.collectives] == [(), (), ()]
    assert findings(matching) == ()


def test_an_all_to_allv_beside_another_call_is_a_contradiction() -> None:
    sends = of_group(0, 1, collective="all_to_allv", in_split="[1, 1]")
    matching = match([rank(0, kernel(0, 1, sends)), rank(1, kernel(0, 1, sends._replace(collective="recv")))])
    assert [one.differs for one in matching.collectives] == [("collective",)]
    assert all_to_allv(matching) == ()
