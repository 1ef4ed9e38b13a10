"""From collected PyTorch-profiler traces to metrics, rank by rank, and what speaks against trusting the set.

Traces may come from a run of cvs or from anywhere: `trace_set_of` makes a set of any folder or file. Each
rank's failure costs that rank only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from cvs import metrics
from cvs.collective_tables import collective_report
from cvs.collectives import RankKernels, match
from cvs.errors import ConfigError
from cvs.kernels import KernelClasses
from cvs.models import (
    Basis,
    CollectiveReport,
    LeftOut,
    ParseOptions,
    ParseResult,
    RankMetrics,
    TraceFile,
    TraceSet,
    basis_of,
)
from cvs.parsers import trace_files
from cvs.parsers.rank_pattern import rank_names
from cvs.parsers.rank_trace import Question
from cvs.parsers.side_by_side import Place, Progress, read_all
from cvs.parsers.trace_document import TraceDocument
from cvs.parsers.trace_files import Entry
from cvs.parsers.trace_sets import trace_set_of
from cvs.terminal import listed

__all__ = ["TorchTraceParser", "trace_set_of"]

_IDENTITY = "torch_trace 3"
"""The version grows when a number changes its meaning, or there are more of them."""

ONE_RUN_NS = 10 * 60 * 10**9
"""Windows of one run start within it of each other."""


class TorchTraceParser:
    """Metrics of PyTorch-profiler traces."""

    def __init__(self, options: ParseOptions | None = None, progress: Progress | None = None) -> None:
        """Take what is asked for beyond the traces, and who is told how far the reading is."""
        self._options = options or ParseOptions()
        self._progress = progress

    @property
    def identity(self) -> str:
        """Name and version of what measures, and what it was asked for; numbers of another may differ."""
        asked = self._options.model_dump(exclude_defaults=True, exclude={"workers"})
        return " ".join([_IDENTITY, *(f"{name}={value!r}" for name, value in asked.items())])

    def parse(self, traces: TraceSet) -> ParseResult:
        """Measure every rank of the set on the basis of the accelerator that was declared.

        Nothing in the files can raise: what is wrong with a rank stands in its quality, with the set in
        `problems` (it is no evidence) or `warnings`. Missing ranks are those of the world that was started,
        else of the world that the traces agree on, also where the set is a single file.

        Raises: ConfigError: a pattern among the options is none, or takes too long.
        """
        basis = basis_of(traces.accelerator)
        names = rank_names(self._options.rank_pattern, [file.path for file in traces.files])
        files, left_out = trace_files.candidates(traces.files, names)
        read = list(zip(files, self._documents(traces.root, files, basis), strict=True))
        places = trace_files.one_per_place(read, names)
        worlds = [
            *_separate_worlds(places.entries, traces.world_size),
            *_outside(places.entries, traces.world_size),
        ]
        chosen = trace_files.one_per_rank(
            places.entries, separate_worlds=bool(worlds), local_world_size=traces.local_world_size
        )
        entries = chosen.entries
        measured = tuple(_rank(entry, basis, traces.local_world_size) for entry in entries)
        world_size = traces.world_size or _claimed_world(entries)
        collectives = None if worlds else _collectives(entries, world_size)
        return ParseResult(
            parser=self.identity,
            basis=basis,
            world_size=world_size,
            missing_ranks=_missing(entries, world_size),
            ranks=measured,
            collectives=collectives,
            problems=(
                *([] if entries else [_no_trace(traces, left_out, self._options.rank_pattern)]),
                *_unknown_ranks(entries),
                *worlds,
                *_several_runs(measured),
                *_nothing_over_ranks(measured),
            ),
            warnings=(
                *traces.warnings,
                *places.warnings,
                *chosen.warnings,
                *(_several_devices(entries) if basis == "gpu" else _ignored_gpu_events(entries)),
                *_different_windows(measured),
                *_idle_steps(measured),
                *metrics.host_ahead(measured),
                *metrics.without_communication(measured, world_size),
                *_unused_patterns(entries),
            ),
            left_out=(*traces.left_out, *left_out, *places.left_out, *chosen.left_out),
        )

    def _documents(self, root: str, files: Sequence[TraceFile], basis: Basis) -> list[TraceDocument]:
        options = self._options
        _check_patterns(options.communication_kernels)
        question = Question(
            basis=basis,
            linked=options.linked,
            micro_idle_ns=options.micro_idle_ns,
            communication_kernels=options.communication_kernels,
        )
        places = [Place(root, file.path, file.size) for file in files]
        return read_all(places, question, workers=options.workers, progress=self._progress)


def _check_patterns(communication_kernels: Sequence[str]) -> None:
    try:
        KernelClasses(communication_kernels)
    except ValueError as error:
        raise ConfigError([f"traces.communication_kernels: {error}"]) from None


# --- one rank ---------------------------------------------------------------------------------------------


def _rank(entry: Entry, basis: Basis, local_world_size: int | None) -> RankMetrics:
    """Metrics of an entry; without numbers where its files contradict each other or cannot be read."""
    document = entry.document
    measured = document.measured or RankMetrics(
        rank=None, world_size=document.world_size, files=(), basis=basis, quality=document.quality
    )
    return measured.model_copy(
        update={
            "rank": entry.rank,
            "node": entry.node_rank,
            "local_rank": _local_rank(entry, local_world_size),
            "files": tuple(file.path for file in entry.files),
        }
    )


def _local_rank(entry: Entry, local_world_size: int | None) -> int | None:
    if entry.rank is None or entry.node_rank is None or local_world_size is None:
        return None
    local = entry.rank - entry.node_rank * local_world_size
    return local if 0 <= local < local_world_size else None


# --- across ranks -----------------------------------------------------------------------------------------


def _collectives(entries: Sequence[Entry], world_size: int | None) -> CollectiveReport | None:
    """What the kernels that communicate tell over the ranks of one world."""
    ranks = {
        entry.rank: _rank_kernels(entry.rank, entry)
        for entry in entries
        if entry.rank is not None and entry.document.comm_kernels
    }
    return collective_report(match(list(ranks.values()), world_size)) if ranks else None


def _unused_patterns(entries: Sequence[Entry]) -> Iterator[str]:
    unused = [set(entry.document.unused_patterns) for entry in entries]
    for pattern in sorted(set.intersection(*unused)) if unused else ():
        yield f"traces.communication_kernels: no rank has a kernel whose name fits '{pattern}'"


def _rank_kernels(rank: int, entry: Entry) -> RankKernels:
    document = entry.document
    return RankKernels(
        rank=rank,
        kernels=document.comm_kernels,
        base_ns=document.base_ns or None,
        node=entry.node_rank,
        step_numbers=tuple(document.steps),
        step_ns=document.measured.iteration_ns if document.measured else None,
    )


# --- the world --------------------------------------------------------------------------------------------


def _claimed_world(entries: Sequence[Entry]) -> int | None:
    """World size that the traces agree on."""
    claims = {entry.document.world_size for entry in entries} - {None}
    return claims.pop() if len(claims) == 1 else None


def _missing(entries: Sequence[Entry], world_size: int | None) -> tuple[int, ...] | None:
    if world_size is None:
        return None
    found = {entry.rank for entry in entries}
    return tuple(rank for rank in range(world_size) if rank not in found)


def _separate_worlds(entries: Sequence[Entry], started: int | None) -> list[str]:
    """Whether the traces are of several jobs that did not find each other, said in one sentence."""
    claims = sorted({size for entry in entries if (size := entry.document.world_size) is not None})
    strangers = [size for size in claims if size != started]
    if started is not None:
        claimed = " and ".join(_claim(entries, size) for size in strangers)
        return [f"separate worlds: {claimed}, but the job has {started} ranks"] if claimed else []
    if len(claims) > 1:
        return [f"separate worlds: {', '.join(_claim(entries, size) for size in claims)}"]
    alone = {entry.files[0].sha256 or entry.place for entry in entries if entry.document.world_size == 1}
    if len(alone) > 1:
        return [f"separate worlds: {len(alone)} traces each claim to be all of a world of 1 rank"]
    return []


def _claim(entries: Sequence[Entry], size: int) -> str:
    claiming = [entry for entry in entries if entry.document.world_size == size]
    nodes = sorted({entry.node_rank for entry in claiming if entry.node_rank is not None})
    where = f" (node {', '.join(map(str, nodes))})" if nodes else ""
    return f"{_of(claiming)}{where} claim a world of {size}"


def _of(entries: Sequence[Entry]) -> str:
    known = [entry.rank for entry in entries if entry.rank is not None]
    return listed("rank", known) if known else ", ".join(entry.place for entry in entries)


def _outside(entries: Sequence[Entry], started: int | None) -> list[str]:
    """Ranks that their own world, or the one that was started, has no place for."""
    problems = []
    for entry in entries:
        worlds = (
            ("its own world of {}", entry.document.world_size),
            ("the world of {} that was started", started),
        )
        outside = [world.format(size) for world, size in worlds if size and (entry.rank or 0) >= size]
        if outside:
            where = " and ".join(outside)
            problems.append(f"separate worlds: {entry.place}: rank {entry.rank} is outside {where}")
    return problems


# --- the set ----------------------------------------------------------------------------------------------


def _no_trace(traces: TraceSet, left_out: Sequence[LeftOut], pattern: str | None) -> str:
    """What there is in place of traces, and why nothing of it counts that has the name of one."""
    found = f"no trace among {_files(len(traces.files))} in {traces.root}"
    whys = Counter(left.why for left in left_out if left.file.endswith(trace_files.SUFFIXES))
    if not whys:
        return f"{found}: a trace is a .json or .json.gz file"
    reasons = "; ".join(f"{why} ({_files(number)})" for why, number in whys.items())
    # As it is written in the benchmark file, so that it can be found there.
    return f"{found}: {reasons}{f'; the pattern is {pattern}' if pattern is not None else ''}"


def _files(number: int) -> str:
    return f"{number} file{'' if number == 1 else 's'}"


def _unknown_ranks(entries: Sequence[Entry]) -> list[str]:
    if len(entries) < 2:
        return []
    return [
        f"{entry.place}: rank unknown: neither the trace nor its folder nor its name tells it;"
        " set traces.rank_pattern to find it in the path"
        for entry in entries
        if entry.rank is None
    ]


def _several_runs(measured: Sequence[RankMetrics]) -> list[str]:
    """Whether ranks were recorded too far apart to be of one run."""
    starts = sorted((rank.start_ns, rank.files[0]) for rank in measured if rank.start_ns is not None)
    if not starts:
        return []
    (first, early), (last, late) = starts[0], starts[-1]
    apart = last - first
    if apart <= ONE_RUN_NS:
        return []
    return [f"not of one run: the window of {late} starts {apart / 60e9:.0f} minutes after that of {early}"]


def _several_devices(entries: Sequence[Entry]) -> list[str]:
    return [
        f"{entry.place}: GPU events of {entry.document.devices} devices; its timeline is the union over them"
        for entry in entries
        if entry.document.devices > 1
    ]


def _ignored_gpu_events(entries: Sequence[Entry]) -> list[str]:
    having = [entry for entry in entries if entry.document.devices]
    return (
        [f"GPU events do not count where accelerator is none; there are some of {_of(having)}"]
        if having
        else []
    )


def _different_windows(measured: Sequence[RankMetrics]) -> list[str]:
    counted = metrics.counted(measured)
    windows = {tuple(step.number for step in rank.steps) for rank in counted}
    common = metrics.common_steps(counted)
    if len(windows) > 1 and common:
        used = listed("step", common)
        return [f"ranks measured different steps: for iteration times over ranks cvs uses only {used}"]
    if _has_nothing_in_common(counted) and counted[0].basis == "gpu":
        return [f"{_told_apart(counted)}: no iteration time over ranks; the ratios are of whole windows"]
    return []


def _nothing_over_ranks(measured: Sequence[RankMetrics]) -> list[str]:
    """Whether no value over ranks exists: those of the `cpu` basis are all of common steps."""
    counted = metrics.counted(measured)
    if _has_nothing_in_common(counted) and counted[0].basis == "cpu":
        return [f"{_told_apart(counted)}: nothing can be measured over ranks"]
    return []


def _has_nothing_in_common(counted: Sequence[RankMetrics]) -> bool:
    return any(rank.steps for rank in counted) and not metrics.common_steps(counted)


def _told_apart(counted: Sequence[RankMetrics]) -> str:
    """That there is no common step, with the window that ends first and the one that begins last."""
    windows = [rank for rank in counted if rank.steps]
    apart = (
        min(windows, key=lambda rank: rank.steps[-1].number),
        max(windows, key=lambda rank: rank.steps[0].number),
    )
    told = " and ".join(
        f"{listed('step', (step.number for step in rank.steps))} of {' and '.join(rank.files)}"
        for rank in apart
    )
    return f"ranks measured different steps and have none in common, such as {told}"


def _idle_steps(measured: Sequence[RankMetrics]) -> list[str]:
    """Steps in which no GPU event was launched, though some were in others."""
    warnings = []
    for rank in measured:
        idle = [step.number for step in rank.steps if step.gpu_ns is None]
        if rank.exact_ns and 0 < len(idle) < len(rank.steps):
            what = f"no GPU event was launched in {listed('step', idle)}: the profiler may have lost them"
            warnings.append(f"{' and '.join(rank.files)}: {what}")
    return warnings
