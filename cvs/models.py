"""What runners leave and parsers measure: small frozen results, the meeting place of both.

Runners never parse and parsers never run. A runner ends in a `RunResult`; its `trace_set` (or one made from
any folder) is what a parser gets; a parser ends in a `ParseResult`. Times are integer nanoseconds inside
(`…_ns`); `…_us` and `…_ms` appear only where a result leaves the program. A ratio is 0..1. What was not
measured is None, never 0.
"""

from __future__ import annotations

from enum import Enum
from pathlib import PurePosixPath
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION = 1
"""Of the files written from these models; it grows when a reader of an older version would misread them."""

Accelerator = Literal["rocm", "cuda", "none"]
Basis = Literal["gpu", "cpu"]


def basis_of(accelerator: Accelerator) -> Basis:
    """Basis on which metrics are taken where `accelerator` is declared; bases never mix."""
    return "cpu" if accelerator == "none" else "gpu"


class Frozen(BaseModel):
    """Base of all results: immutable, no unknown field."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --- what a run leaves ------------------------------------------------------------------------------------


class RunStatus(str, Enum):
    """Where a run stands; `timeout` is its own word because its cure is another one."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"


class Holder(Frozen):
    """Which run holds a node, as the others are told."""

    run_id: str
    user: str
    host: str
    """Where its cvs runs."""
    since: str
    """UTC, ISO 8601, to the second."""
    machine: str = ""
    """Where a folder was taken: a mark of that machine, which several of its names share."""

    def __str__(self) -> str:
        return f"run {self.run_id} of {self.user}@{self.host}, since {self.since}"


class CommandResult(Frozen):
    """One finished command on one node."""

    argv: tuple[str, ...]
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0


class TraceFile(Frozen):
    """One collected file, as the node had it."""

    path: str
    """Below the folder of collected traces, `node_<node rank>/<path below aorta_path>`."""
    node_rank: int | None
    size: int
    sha256: str

    @property
    def is_trace(self) -> bool:
        """Whether it lies below a `torch_profiler` folder (metrics and rank logs lie beside it)."""
        return "torch_profiler" in PurePosixPath(self.path).parts

    @property
    def is_workbook(self) -> bool:
        """Whether it is a workbook, such as TraceLens makes of traces."""
        return self.path.endswith(".xlsx")


class Failure(Frozen):
    """Why a run failed, and who failed first, as far as what the nodes left tells."""

    reason: str
    """One sentence for the user."""
    node_rank: int | None = None
    node: str | None = None
    ranks: tuple[int, ...] = ()
    """Global ranks that failed first or did not arrive; empty where only the node is known."""
    log: str | None = None
    """The log to read first, below the run's folder."""
    tail: tuple[str, ...] = ()
    """Last lines of that log."""


class NodeResult(Frozen):
    """How the job went on one node."""

    node_rank: int
    node: str
    exit_code: int | None = None
    """Of torchrun; negative: the signal that ended it; None: never started, or its end was never seen."""
    seconds: float | None = None
    stopped_by_cvs: bool = False
    """True where cvs ended it after another node had failed, at a time-out or an interrupt."""
    left_running: tuple[int, ...] = ()
    """Process ids that survived everything; always empty unless something is badly wrong."""
    log: str | None = None
    facts: dict[str, str] = Field(default_factory=dict)
    """What the run was made with on this node: versions of torch, ROCm, RCCL, names of GPUs, …"""
    error: str | None = None
    """What failed on this node outside the job itself: set-up, collection, teardown."""


class TraceSet(Frozen):
    """What a parser is given: collected traces and what is known about the job that made them."""

    root: str
    """Folder that the paths in `files` are relative to."""
    files: tuple[TraceFile, ...]
    accelerator: Accelerator
    world_size: int | None = None
    """Ranks that were started; None where nobody knows (traces from anywhere)."""
    local_world_size: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    """What else lay where the files were found: links, empty folders, what is no file."""
    warnings: tuple[str, ...] = ()
    """What could not be looked at there."""


class ParseOptions(Frozen):
    """What a user may ask of a parser beyond the traces."""

    linked: bool = False
    """Also the timeline of only those GPU events that a runtime call is known to have launched."""
    micro_idle_ns: int | None = Field(default=None, ge=1)
    """Idle gaps shorter than this are told apart from the longer ones."""
    rank_pattern: str | None = None
    """Regular expression whose group `rank` finds the rank in a trace's path."""
    communication_kernels: tuple[str, ...] = ()
    """Further regular expressions for names of kernels that communicate."""
    workers: int | None = Field(default=None, ge=1)
    """Processes that read side by side; None: as many as cores, memory and traces ask for."""


class RunResult(Frozen):
    """One run of one benchmark, good or bad, as its runner left it."""

    benchmark: str
    run_id: str
    status: RunStatus
    started: str
    """UTC, ISO 8601."""
    ended: str | None = None
    """Likewise; from the start to here it is not `duration_seconds` where the clock was set meanwhile."""
    duration_seconds: float | None = None
    accelerator: Accelerator
    num_nodes: int
    local_world_size: int
    gpus_per_node: int
    nodes: tuple[NodeResult, ...] = ()
    files: tuple[TraceFile, ...] = ()
    failure: Failure | None = None
    excluded: dict[str, str] = Field(default_factory=dict)
    """Nodes of the cluster file that took no part, and why; none of the counts has them."""
    warnings: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks that were started over all nodes."""
        return self.num_nodes * self.local_world_size

    def trace_set(self, root: str) -> TraceSet:
        """Traces of this run, collected below `root`, and the workbooks that were made of them.

        Where there are no traces there is no workbook either: those alone are no evidence of a run.
        """
        workbooks = [file for file in self.files if file.is_workbook]
        traces = [file for file in self.files if file.is_trace and not file.is_workbook]
        return TraceSet(
            root=root,
            files=(*traces, *workbooks) if traces else (),
            accelerator=self.accelerator,
            world_size=self.world_size,
            local_world_size=self.local_world_size,
        )


# --- what a parser measures -------------------------------------------------------------------------------

QualityStatus = Literal[
    "complete", "repaired", "incomplete", "truncated", "no_gpu_events", "unreadable", "duplicate"
]


class LostText(Frozen):
    """A piece of a trace that could not be read: bytes of the unpacked text, [start, end)."""

    start: int
    end: int
    cause: str


class Quality(Frozen):
    """How much of a rank's trace could be read, and what was lost."""

    status: QualityStatus
    cause: str | None = None
    dropped: dict[str, int] = Field(default_factory=dict)
    """Number of events, or of places in the text, that were dropped, by cause."""
    lost: tuple[LostText, ...] = ()
    """The first places that could not be read; `dropped` counts all."""
    lost_bytes: int = 0
    window_ns: tuple[int, int] | None = None
    """First start and last end of what counts, on the clock of the steps."""
    complete_steps: int = 0
    announced_steps: int = 0
    """Steps that the trace names anywhere, complete or not."""

    @property
    def is_evidence(self) -> bool:
        """Whether nothing that counts can be missing."""
        return self.status in ("complete", "repaired")


class Timeline(Frozen):
    """The eight rows of one rank's GPU timeline, integer ns.

    Source: TraceLens `gpu_timeline`; computation + exposed_comm + exposed_memcpy = busy, busy + idle = total.
    """

    computation_time: int
    exposed_comm_time: int
    exposed_memcpy_time: int
    busy_time: int
    idle_time: int
    total_time: int
    total_comm_time: int
    total_memcpy_time: int


class ExactNs(Frozen):
    """The timeline rows by selection mode: every GPU event, or only those linked to a runtime call."""

    all: Timeline
    linked: Timeline | None = None


class CpuSums(Frozen):
    """The six sums of the `cpu` basis, integer ns; step = compute + exposed_comm + other."""

    step: int
    comm: int
    compute: int
    overlap: int
    exposed_comm: int
    other: int


class Counts(Frozen):
    """Number of GPU events, in all and per bucket."""

    all_gpu: int
    computation: int
    communication: int
    memcpy: int


class KernelTime(Frozen):
    """All GPU events of one name: their durations added up, which overlap where they ran side by side."""

    name: str
    bucket: Literal["computation", "communication", "memcpy"]
    count: int
    total_ns: int
    min_ns: int
    max_ns: int


class Ratios(Frozen):
    """Shares of a rank's total time, and of its communication that is hidden (overlap)."""

    compute: float | None
    comm: float | None
    exposed_comm: float | None
    overlap: float | None


class Spread(Frozen):
    """How several values lie; p95 is between the two nearest of them, in proportion."""

    mean: float
    median: float
    p95: float
    min: float
    max: float


class Step(Frozen):
    """One complete `ProfilerStep` of one rank."""

    number: int
    start_ns: int
    """On the clock of the trace: since 1970 where the trace tells its `baseTimeNanoseconds` or stamps so."""
    duration_ns: int
    cpu_ns: CpuSums | None = None
    gpu_ns: Timeline | None = None
    """Rows of the GPU events that were launched in the step, wherever they ran; the total is device time."""
    counts: Counts | None = None


Source = Literal["trace", "workbook"]
WorkbookMode = Literal["all", "rocprof", "unknown"]
"""Which GPU events the rows of a workbook are of: all of a trace, what rocprof recorded, or nobody knows."""


class LeftOut(Frozen):
    """A file that was not used, and why."""

    file: str
    why: str


class RankMetrics(Frozen):
    """What one rank's trace tells, or its workbook where that is all there is."""

    rank: int | None
    """Global rank; None where no one knows it (one file by itself)."""
    node: int | None = None
    """Node rank."""
    local_rank: int | None = None
    world_size: int | None = None
    """As the trace itself claims."""
    backend: str | None = None
    """Likewise: what the ranks communicate with."""
    files: tuple[str, ...]
    basis: Basis
    quality: Quality
    exact_ns: ExactNs | None = None
    cpu_ns: CpuSums | None = None
    counts: Counts | None = None
    ratios: Ratios | None = None
    steps: tuple[Step, ...] = ()
    iteration_ns: float | None = None
    """Mean step period; the step's own duration where there is only one."""
    step_ns: Spread | None = None
    """Durations of the steps on the host."""
    period_ns: Spread | None = None
    """Differences of the starts of steps with consecutive numbers."""
    micro_idle_ns: int | None = None
    """Idle gaps of the GPU below the threshold that was asked for; None where none was."""
    macro_idle_ns: int | None = None
    """The other gaps."""
    kernel_time_ns: dict[str, int] | None = None
    """By bucket, durations added up: more than the rows where events ran side by side."""
    kernels: tuple[KernelTime, ...] = ()
    """The names with the most time."""
    memory_peak_bytes: dict[str, int] = Field(default_factory=dict)
    """Most memory that PyTorch had allocated at a time, by device; only where the profiler recorded it."""
    start_ns: int | None = None
    """Wall clock of the first GPU event, else of the first step, where the trace tells it."""
    source: Source = "trace"
    mode: WorkbookMode | None = None
    """Of a workbook; a trace tells its modes apart itself (`exact_ns`)."""
    workbook_ms: dict[str, float] | None = None
    """Rows of a workbook in ms, under its names and as it rounds them, and `idle_time` where it has parts."""

    @property
    def gpu_timeline(self) -> dict[str, float] | None:
        """Rows of mode all in ms; of a workbook those of its mode, as far as it has them."""
        if self.workbook_ms is not None:
            return {row: self.workbook_ms[row] for row in Timeline.model_fields if row in self.workbook_ms}
        rows = self.exact_ns and self.exact_ns.all.model_dump()
        return {name: value / 1e6 for name, value in rows.items()} if rows else None

    @property
    def total_time_us(self) -> float | None:
        """First GPU start to last GPU end; on the `cpu` basis the sum of the complete steps."""
        return self._us("total_time", "step")

    @property
    def compute_time_us(self) -> float | None:
        """Time in which at least one computation ran."""
        return self._us("computation_time", "compute")

    @property
    def communication_time_us(self) -> float | None:
        """Time in which at least one collective ran, hidden or not."""
        return self._us("total_comm_time", "comm")

    @property
    def exposed_communication_time_us(self) -> float | None:
        """Communication that no computation hides."""
        return self._us("exposed_comm_time", "exposed_comm")

    def _us(self, gpu_row: str, cpu_row: str) -> float | None:
        if self.exact_ns is not None:
            return int(getattr(self.exact_ns.all, gpu_row)) / 1e3
        if self.cpu_ns is not None:
            return int(getattr(self.cpu_ns, cpu_row)) / 1e3
        if self.workbook_ms is not None and gpu_row in self.workbook_ms:
            return self.workbook_ms[gpu_row] * 1e3
        return None


# --- collectives across ranks -----------------------------------------------------------------------------


class Straggler(Frozen):
    """How one rank arrives at the collectives that synchronise; None where no arrivals compare."""

    rank: int
    total_wait_ns: int | None
    """Time for which it waited for others: the straggler has the least."""
    mean_wait_ns: float | None
    arrived_last: int | None
    arrived_first: int | None
    arrived_last_ratio: float | None
    """Share of the `collectives`."""
    took_part: int
    """Of these in how many it was."""
    others_waited_ns: int | None
    """For which the others waited, added up, where it was the last."""
    collectives: int
    """Of all ranks, as far as arrivals compare."""
    comm_ns: int
    """Sum of the durations of all its communication kernels."""


class CollectiveSummary(Frozen):
    """The collectives of one kind in one process group that synchronise their ranks."""

    collective: str | None
    """Kind; where the trace tells no more, that of the kernel's name."""
    group: str
    group_ranks: tuple[int, ...] | str | None
    """Text where the trace does not list all."""
    group_size: int | None
    count: int
    total_latency_ns: int
    latency_ns: Spread
    start_skew_ns: Spread | None
    end_skew_ns: Spread | None
    algo_gb_per_s: float | None
    """10⁹ bytes per second: all messages over the total latency, of collectives whose size is known."""
    algo_gib_per_s: float | None
    """2³⁰ bytes per second, which TraceLens calls GB/s."""
    bus_gb_per_s: float | None
    bus_gib_per_s: float | None


class CollectiveReport(Frozen):
    """What the collectives of a set of traces tell, and what speaks against trusting it."""

    is_simplified: bool
    """No trace names process groups: the collectives were matched by their order alone."""
    collectives: tuple[CollectiveSummary, ...]
    """The longest in all first."""
    stragglers: tuple[Straggler, ...]
    """The straggler first."""
    findings: tuple[str, ...]
    """One line each."""


class ParseStatus(str, Enum):
    """How a parse ended."""

    SUCCESS = "success"
    PARTIAL = "partial"
    FAILED = "failed"
    NO_DATA = "no_data"


class ParseResult(Frozen):
    """Everything that a set of traces tells, rank by rank, and what speaks against trusting it."""

    parser: str
    basis: Basis
    world_size: int | None
    """Ranks that were started, else what the traces agree on, else None."""
    missing_ranks: tuple[int, ...] | None = None
    """Ranks of the world without a trace; None where the world is unknown."""
    ranks: tuple[RankMetrics, ...] = ()
    collectives: CollectiveReport | None = None
    """None where no rank tells of its collectives, as on the `cpu` basis."""
    problems: tuple[str, ...] = ()
    """Findings about the whole set that make it no evidence: two worlds, two runs, an unknown rank."""
    warnings: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

    @property
    def absent_ranks(self) -> tuple[int, ...]:
        """Missing ranks of which there is not even a workbook."""
        present = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in self.missing_ranks or () if rank not in present)

    @property
    def status(self) -> ParseStatus:
        """Success only where every expected rank is there and readable."""
        readable = sum(rank.quality.is_evidence for rank in self.ranks)
        if not self.ranks:
            return ParseStatus.NO_DATA
        if not readable:
            return ParseStatus.FAILED
        whole = readable == len(self.ranks) and not self.missing_ranks and not self.problems
        return ParseStatus.SUCCESS if whole else ParseStatus.PARTIAL


# --- what another tool measures ---------------------------------------------------------------------------

TraceLensMode = Literal["report", "check"]


class RowDifference(Frozen):
    """A row of a timeline that TraceLens has otherwise than cvs, by more than its rounding explains."""

    row: str
    cvs_ns: int
    tracelens_ns: float | None
    """None: it has no such row."""


class RowsCompared(Frozen):
    """The rows of one rank's timeline, all GPU events, beside those of TraceLens."""

    rank: int
    bound_ns: float
    """How far its rows may lie from the exact ones: it adds up in doubles of microseconds."""
    agree_within_ns: float
    """By how much those rows differ that agree."""
    differences: tuple[RowDifference, ...] = ()


class TraceLensResult(Frozen):
    """What TraceLens made of a run's traces on the machine that runs cvs; no verdict hangs on it."""

    mode: TraceLensMode
    version: str | None
    """None where there was none to ask, or it was not installed and only lay where Python looks."""
    seconds: float
    workbooks: tuple[str, ...] = ()
    """That it wrote, below the run's folder."""
    compared: tuple[RowsCompared, ...] = ()
    warnings: tuple[str, ...] = ()
    """Rows that differ; where rows were to be compared also why some were not."""
    notes: tuple[str, ...] = ()
    """Workbooks that were not written, and why."""

    @property
    def agreeing(self) -> tuple[RowsCompared, ...]:
        """Ranks without a difference."""
        return tuple(rank for rank in self.compared if not rank.differences)


class Aggregates(Frozen):
    """Values over all ranks that have them; `avg` is the mean over ranks of the rank's value.

    Where the ranks' windows differ, iteration times and the sums of the `cpu` basis use common steps only.
    """

    avg_iteration_time_us: float | None = None
    std_iteration_time_us: float | None = None
    """Sample standard deviation (n - 1) over ranks; 0 with one rank."""
    time_variance_ratio: float | None = None
    """std / mean of the iteration time over ranks: a spread, not a variance."""
    avg_compute_ratio: float | None = None
    avg_comm_ratio: float | None = None
    avg_overlap_ratio: float | None = None
    """Over the ranks that communicate."""
    iteration_time_us: Spread | None = None
    """Over ranks, as the following."""
    compute_ratio: Spread | None = None
    comm_ratio: Spread | None = None
    overlap_ratio: Spread | None = None


class NodeMetrics(Frozen):
    """Values over the ranks of one node."""

    node: int
    """Node rank."""
    ranks: tuple[int, ...]
    aggregates: Aggregates


class Coverage(Frozen):
    """On how much of a run its numbers stand."""

    ranks: int
    """Ranks whose numbers count, whether or not something is missing in their traces."""
    world_size: int | None
    """Ranks that should be there; None where nobody knows."""
    steps: int
    """Complete steps that all these ranks have."""
    of_steps: int
    """Steps that any rank has, whatever its trace is worth."""

    @property
    def is_whole(self) -> bool:
        """Whether every rank that should be there has every step."""
        return (self.ranks, self.steps) == (self.world_size, self.of_steps)

    def __str__(self) -> str:
        if self.world_size is None:
            ranks = f"{self.ranks} rank{'' if self.ranks == 1 else 's'} of an unknown world"
        else:
            ranks = f"{self.ranks} of {self.world_size} ranks"
        return f"{ranks}, {f'{self.steps} of {self.of_steps}' if self.of_steps else 'no'} steps"


class TraceResult(Frozen):
    """Traces of one job, measured, whether or not cvs ran it: what the verdict is taken on."""

    schema_version: int = SCHEMA_VERSION
    accelerator: Accelerator | None
    """As declared; None where nobody did, and the traces themselves told the basis."""
    parse: ParseResult
    aggregates: Aggregates


class BenchmarkResult(TraceResult):
    """One run, measured."""

    accelerator: Accelerator
    benchmark: str
    run_id: str
    run_status: RunStatus
    duration_seconds: float | None
    num_nodes: int
    gpus_per_node: int
    tracelens: TraceLensResult | None = None
    """None where it was not asked."""
    job_started: bool = False
    """Whether the job is known to have been started on any node."""
    failure: Failure | None = None
    excluded: dict[str, str] = Field(default_factory=dict)
    """As in the run."""
    warnings: tuple[str, ...] = ()

    @property
    def total_gpus(self) -> int:
        """Accelerators of all nodes."""
        return self.num_nodes * self.gpus_per_node

    @property
    def per_rank_metrics(self) -> tuple[RankMetrics, ...]:
        """One entry per rank found."""
        return self.parse.ranks

    @property
    def avg_iteration_time_us(self) -> float | None:
        """Mean over ranks of the rank's mean step period."""
        return self.aggregates.avg_iteration_time_us

    @property
    def avg_compute_ratio(self) -> float | None:
        """Mean over ranks of computation / total."""
        return self.aggregates.avg_compute_ratio

    @property
    def avg_comm_ratio(self) -> float | None:
        """Mean over ranks of total communication / total."""
        return self.aggregates.avg_comm_ratio

    @property
    def avg_overlap_ratio(self) -> float | None:
        """Mean over the ranks that communicate of hidden / total communication."""
        return self.aggregates.avg_overlap_ratio


# --- what the verdict says --------------------------------------------------------------------------------


class Violation(Frozen):
    """One thing that makes the verdict red: a missed limit, or evidence that is not there."""

    name: str
    """`evidence`, or the key in `expected_results`."""
    message: str
    value: float | None = None
    limit: float | None = None
    unit: str = ""
