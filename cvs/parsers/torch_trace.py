"""From collected PyTorch-profiler traces to metrics, rank by rank, and what speaks against trusting the set.

Traces may come from a run of cvs or from anywhere: `trace_set_of` makes a set of any folder or file. Each
rank's failure costs that rank only.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath

from cvs import metrics
from cvs.errors import TraceError
from cvs.models import (
    Accelerator,
    Basis,
    CpuSums,
    ExactNs,
    ParseResult,
    Quality,
    RankMetrics,
    Ratios,
    Step,
    Timeline,
    TraceFile,
    TraceSet,
    basis_of,
)
from cvs.parsers import trace_files
from cvs.parsers.trace_document import TraceDocument, read_document
from cvs.parsers.trace_files import Entry, listed
from cvs.rank_paths import rank_folder

ONE_RUN_NS = 10 * 60 * 10**9
"""Windows of one run start within it of each other."""


class TorchTraceParser:
    """Metrics of PyTorch-profiler traces."""

    identity = "torch_trace 1"
    """Name and version of what measured; the version grows when a number changes its meaning."""

    def parse(self, traces: TraceSet) -> ParseResult:
        """Measure every rank of the set on the basis of the accelerator that was declared.

        Nothing in the files can raise: what is wrong with a rank stands in its quality, with the set in
        `problems` (it is no evidence) or `warnings`. Missing ranks are those of the world that was started,
        else of the world that the traces agree on, also where the set is a single file.
        """
        basis = basis_of(traces.accelerator)
        files, left_out = trace_files.candidates(traces.files)
        read = [(file, _read(Path(traces.root, file.path), basis)) for file in files]
        places = trace_files.one_per_place(read)
        worlds = [
            *_separate_worlds(places.entries, traces.world_size),
            *_outside(places.entries, traces.world_size),
        ]
        chosen = trace_files.one_per_rank(
            places.entries, separate_worlds=bool(worlds), local_world_size=traces.local_world_size
        )
        entries = chosen.entries
        measured = tuple(_measure(entry, basis, traces.local_world_size) for entry in entries)
        world_size = traces.world_size or _claimed_world(entries)
        return ParseResult(
            parser=self.identity,
            basis=basis,
            world_size=world_size,
            missing_ranks=_missing(entries, world_size),
            ranks=measured,
            problems=(
                *_no_trace(traces, entries),
                *_unknown_ranks(entries),
                *worlds,
                *_several_runs(measured),
            ),
            warnings=(
                *places.warnings,
                *chosen.warnings,
                *_several_devices(entries),
                *_different_windows(measured),
            ),
            left_out=(*left_out, *places.left_out, *chosen.left_out),
        )


def _read(path: Path, basis: Basis) -> TraceDocument:
    try:
        with path.open("rb") as stream:
            return read_document(stream, basis)
    except OSError as error:
        return TraceDocument(quality=Quality(status="unreadable", cause=f"{error.strerror}: {path}"))


# --- one rank ---------------------------------------------------------------------------------------------


def _measure(entry: Entry, basis: Basis, local_world_size: int | None) -> RankMetrics:
    document = entry.document
    steps = _steps(document, basis)
    rows = metrics.timeline(document.buckets)
    total = metrics.cpu_total([step.cpu_ns for step in steps if step.cpu_ns])
    return RankMetrics(
        rank=entry.rank,
        node=entry.node_rank,
        local_rank=_local_rank(entry, local_world_size),
        world_size=document.world_size,
        files=tuple(file.path for file in entry.files),
        basis=basis,
        quality=document.quality,
        exact_ns=ExactNs(all=rows) if rows else None,
        cpu_ns=total,
        counts=metrics.counts(document.buckets) if rows else None,
        ratios=_ratios(rows, total),
        steps=steps,
        iteration_ns=metrics.iteration_ns(steps),
        start_ns=document.start_ns,
    )


def _ratios(rows: Timeline | None, total: CpuSums | None) -> Ratios | None:
    if rows:
        return metrics.gpu_ratios(rows)
    return metrics.cpu_ratios(total) if total else None


def _steps(document: TraceDocument, basis: Basis) -> tuple[Step, ...]:
    comm, compute = metrics.union(document.comm), metrics.union(document.compute)

    def sums(span: metrics.Interval) -> CpuSums | None:
        return metrics.cpu_sums(span, comm, compute) if basis == "cpu" else None

    return tuple(
        Step(
            number=number,
            start_ns=document.base_ns + span[0],
            duration_ns=metrics.length([span]),
            cpu_ns=sums(span),
        )
        for number, span in document.steps.items()
    )


def _local_rank(entry: Entry, local_world_size: int | None) -> int | None:
    if entry.rank is None or entry.node_rank is None or local_world_size is None:
        return None
    local = entry.rank - entry.node_rank * local_world_size
    return local if 0 <= local < local_world_size else None


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
        return [f"separate worlds: {claimed}, but {started} ranks were started together"] if claimed else []
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
        worlds = (("its own world", entry.document.world_size), ("the world that was started", started))
        outside = [f"{world} of {size}" for world, size in worlds if size and (entry.rank or 0) >= size]
        if outside:
            where = " and ".join(outside)
            problems.append(f"separate worlds: {entry.place}: rank {entry.rank} is outside {where}")
    return problems


# --- the set ----------------------------------------------------------------------------------------------


def _no_trace(traces: TraceSet, entries: Sequence[Entry]) -> list[str]:
    if entries:
        return []
    return [f"no trace among {len(traces.files)} files in {traces.root}: a trace is a .json or .json.gz file"]


def _unknown_ranks(entries: Sequence[Entry]) -> list[str]:
    if len(entries) < 2:
        return []
    return [
        f"{entry.place}: rank unknown: neither the trace nor its folder nor its name tells it"
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


def _different_windows(measured: Sequence[RankMetrics]) -> list[str]:
    counted = [rank for rank in measured if rank.quality.status in metrics.COUNTED]
    windows = {tuple(step.number for step in rank.steps) for rank in counted}
    if len(windows) < 2:
        return []
    common = metrics.common_steps(counted)
    used = f"only {listed('step', common)}" if common else "none, as they have none in common"
    return [f"ranks measured different steps: for iteration times over ranks cvs uses {used}"]


# --- sets from disk ---------------------------------------------------------------------------------------

_NODE_FOLDER = re.compile(r"node_([0-9]{1,9})")


def trace_set_of(
    path: Path | str,
    accelerator: Accelerator,
    *,
    world_size: int | None = None,
    local_world_size: int | None = None,
) -> TraceSet:
    """Trace set of any folder or single file on disk.

    A folder `node_<R>` in the path, as given or below it, tells the node rank. Files that cannot be traces by
    their name, or cannot be read, have an empty `sha256`.

    Raises: TraceError: no such path, or a folder that cannot be listed.
    """
    given = Path(path)
    if not given.exists():
        raise TraceError(f"{given}: no such file or folder")
    root = given if given.is_dir() else given.parent
    if rank_folder(f"{root.name}/file"):
        root = root.parent  # so that the paths in the set still name the rank
    files = _files_below(given) if given.is_dir() else [given]
    return TraceSet(
        root=str(root),
        files=tuple(_trace_file(root, file) for file in files),
        accelerator=accelerator,
        world_size=world_size,
        local_world_size=local_world_size,
    )


def _files_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise TraceError(f"{error.filename}: cannot be listed: {error.strerror}")

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders.sort()
        yield from (Path(parent, name) for name in sorted(names) if Path(parent, name).is_file())


def _trace_file(root: Path, file: Path) -> TraceFile:
    return TraceFile(
        path=file.relative_to(root).as_posix(),
        node_rank=_node_rank(file),
        size=file.stat().st_size,
        sha256=_sha256(file) if file.name.endswith(trace_files.SUFFIXES) else "",
    )


def _node_rank(file: PurePath) -> int | None:
    for folder in file.parents:
        match = _NODE_FOLDER.fullmatch(folder.name)
        if match:
            return int(match[1])
    return None


def _sha256(file: Path) -> str:
    """Digest of the content; empty where it cannot be read, which reading the trace will say."""
    digest = hashlib.sha256()
    try:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()
