"""From traces, and the TraceLens workbooks that lie beside them, to metrics.

The numbers are those of `TorchTraceParser`, whether or not TraceLens is installed: it is never called. A rank
with a trace is measured from the trace; its workbook is only compared, and a difference is a warning. A rank
without one has the values of its workbook, which says less: no steps, no counts, no exact nanoseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import PurePosixPath
from statistics import fmean, geometric_mean

from cvs import metrics
from cvs.models import (
    LeftOut,
    ParseOptions,
    ParseResult,
    Quality,
    RankMetrics,
    Timeline,
    TraceFile,
    TraceSet,
    WorkbookMode,
)
from cvs.parsers.side_by_side import Progress
from cvs.parsers.torch_trace import TorchTraceParser
from cvs.parsers.trace_files import SAME
from cvs.parsers.trace_sets import open_trace
from cvs.parsers.workbooks import (
    NOTHING_MS,
    TIMELINE_ROWS,
    CollectiveReport,
    Content,
    RankReport,
    Rows,
    TimelineSummary,
    Unreadable,
    is_rocprof,
    read_workbook,
)
from cvs.rank_paths import rank_folder, rank_in_name
from cvs.terminal import listed


class TraceLensParser:
    """Metrics of PyTorch-profiler traces, and of workbooks for ranks that have nothing else."""

    def __init__(self, options: ParseOptions | None = None, progress: Progress | None = None) -> None:
        """Take what is asked for beyond the traces, and who is told how far the reading is."""
        self._traces = TorchTraceParser(options, progress)

    @property
    def identity(self) -> str:
        """Name and version of what measures."""
        return f"{self._traces.identity}, workbooks 2"

    def parse(self, traces: TraceSet) -> ParseResult:
        """Measure every rank of the set, and compare its workbooks with what was measured.

        Nothing in the files can raise. Where traces are to be expected, a rank that has only a workbook is
        no evidence: its trace is missing. Workbooks without any trace, from anywhere, stand for themselves.
        """
        workbooks = [file for file in traces.files if file.is_workbook]
        others = tuple(file for file in traces.files if not file.is_workbook)
        parsed = self._traces.parse(traces.model_copy(update={"files": others}))
        parsed = parsed.model_copy(update={"parser": self.identity})
        if parsed.basis == "cpu":
            why = "it tells of a GPU, and the metrics are those of the CPU"
            return _with(parsed, left_out={file.path: why for file in workbooks})
        beside = _Beside(parsed.ranks, {file.path for file in others})
        beside.take({file: _content(traces.root, file) for file in workbooks})
        only = beside.only_workbooks(traces.local_world_size)
        are_alone = not parsed.ranks and not any(file.is_trace for file in others)
        joined = _standing_alone(parsed, only) if only and are_alone else _filled_up(parsed, only)
        return _with(joined, beside.warnings, beside.left_out)


def _content(root: str, file: TraceFile) -> Content:
    if _name(file).startswith("~$"):
        return Unreadable("left by a spreadsheet program that has the workbook open")
    return read_workbook(partial(open_trace, root, file.path))


def _name(file: TraceFile) -> str:
    return PurePosixPath(file.path).name


def _with(
    parsed: ParseResult, warnings: Iterable[str] = (), left_out: Mapping[str, str] | None = None
) -> ParseResult:
    left = (LeftOut(file=file, why=why) for file, why in (left_out or {}).items())
    return parsed.model_copy(
        update={
            "warnings": (*parsed.warnings, *warnings),
            "left_out": (*parsed.left_out, *left),
        }
    )


# --- what a workbook says of a rank -----------------------------------------------------------------------

_MADE_OF = "_perf_report.xlsx"
"""What TraceLens puts after the name of a trace, without its `.json` or `.json.gz`."""
_AORTA = "perf_*rank*.xlsx"
"""Reports by Aorta's scripts, which ask for every GPU event."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """What one workbook says of one rank, or why it says nothing that counts."""

    file: TraceFile
    rank: int | None
    rows: Rows | None
    mode: WorkbookMode = "unknown"
    why: str = ""


def _claims(contents: Mapping[TraceFile, Content]) -> list[_Claim]:
    """Of every report on a rank, and of a summary for ranks that have no report."""
    claims = []
    for file, content in contents.items():
        if isinstance(content, RankReport):
            claims.append(_Claim(file, _rank_of(file), content.rows, _mode(file, content.rows)))
        elif isinstance(content, Unreadable) and _is_named_as_report(file):
            claims.append(_Claim(file, _rank_of(file), None, why=content.why))
    reported = {claim.rank for claim in claims if claim.rows}
    for file, content in contents.items():
        if isinstance(content, TimelineSummary):
            claims += [
                _Claim(file, rank, rows, "rocprof" if is_rocprof(rows) else "all")
                for rank, rows in content.ranks.items()
                if rank not in reported
            ]
    return claims


def _rank_of(file: TraceFile) -> int | None:
    rank = rank_in_name(file.path)
    folder = rank_folder(file.path)
    return folder[1] if rank is None and folder else rank


def _is_named_as_report(file: TraceFile) -> bool:
    return not _name(file).startswith("~$") and (
        fnmatchcase(_name(file), _AORTA) or _name(file).endswith(_MADE_OF)
    )


def _mode(file: TraceFile, rows: Rows) -> WorkbookMode:
    if is_rocprof(rows):
        return "rocprof"
    return "all" if fnmatchcase(_name(file), _AORTA) else "unknown"


# --- workbooks beside traces ------------------------------------------------------------------------------

_NOTHING_TO_COMPARE = "there are no traces of its ranks to compare it with"
_AGREES = f"{SAME}times as the trace, which counts"


class _Beside:
    """Workbooks beside the ranks that were measured from traces: what differs, and what is not used."""

    def __init__(self, ranks: Sequence[RankMetrics], traces: Collection[str]) -> None:
        self.warnings: list[str] = []
        self._traces = {_stem(path): path for path in traces}
        self._by_trace = {_stem(file): rank for rank in ranks for file in rank.files}
        self._by_rank: dict[int | None, list[RankMetrics]] = defaultdict(list)
        for rank in ranks:
            self._by_rank[rank.rank].append(rank)
        self._without_trace: list[_Claim] = []
        self._used: set[str] = set()
        self._unused: dict[str, str] = {}
        self._agreeing: dict[str, bool] = {}
        self._differing: set[int | None] = set()

    @property
    def left_out(self) -> dict[str, str]:
        """Workbooks that nothing was taken from, and why; those that differ from a trace are warnings."""
        unused = {file: why for file, why in self._unused.items() if file not in self._agreeing}
        agreeing = {file: _AGREES for file, agrees in self._agreeing.items() if agrees}
        return {file: why for file, why in (unused | agreeing).items() if file not in self._used}

    def take(self, contents: Mapping[TraceFile, Content]) -> None:
        """Compare what has a trace, and keep what has none."""
        for claim in _claims(contents):
            self._take_claim(claim)
        for file, content in contents.items():
            if isinstance(content, TimelineSummary):
                self._compare_means(file, content)
            elif isinstance(content, CollectiveReport):
                self._compare_collectives(file, content)
            elif isinstance(content, Unreadable):
                self._leave(file, content.why)

    def _take_claim(self, claim: _Claim) -> None:
        made_of = self._traces.get(claim.file.path.removesuffix(_MADE_OF))
        rivals = self._by_rank[claim.rank] if claim.rank is not None else []
        if made_of:
            rivals = [self._by_trace[_stem(made_of)]] if _stem(made_of) in self._by_trace else []
        if made_of and not rivals:
            self._leave(claim.file, f"made of {made_of}, not used")
        elif not rivals and claim.rank is None and self._by_trace:
            self._leave(claim.file, "nothing tells its rank")
        elif not rivals:
            self._without_trace.append(claim)
        elif len(rivals) > 1:
            self._leave(claim.file, f"{_called(claim.rank)} has several traces")
        elif claim.rows is None:
            self._leave(claim.file, claim.why)
        else:
            self._compare(claim, claim.rows, rivals[0])

    def _compare(self, claim: _Claim, rows: Rows, trace: RankMetrics) -> None:
        own = trace.gpu_timeline
        if own is None:
            self._leave(claim.file, f"the trace of {_called(trace.rank)} is {trace.quality.status}")
        elif claim.mode == "rocprof":
            self._leave(claim.file, "of what rocprof recorded, which is not what the trace recorded")
        else:
            differing = _differing(rows, own)
            self._compared(claim.file, agrees=not differing)
            if differing:
                self._differing.add(trace.rank)
                what = f"{_called(trace.rank)}: {claim.file.path} differs from the trace"
                reason = _likely_reason(claim.mode, rows, trace)
                self.warnings.append(f"{what}, which counts: {_told(differing, rows, own)}; {reason}")

    def _compare_means(self, file: TraceFile, summary: TimelineSummary) -> None:
        """Compare a summary's means with those of the traces, where its ranks are all there and agree."""
        found = [rank.gpu_timeline for number in summary.ranks for rank in self._by_rank[number]]
        timelines = [rows for rows in found if rows]
        if is_rocprof(summary.means) or not len(timelines) == len(found) == len(summary.ranks):
            self._leave(file, _NOTHING_TO_COMPARE)
            return
        mean = _geometric_mean if "geomean" in _name(file) else fmean
        own = {row: mean([rows[row] for rows in timelines]) for row in TIMELINE_ROWS}
        differing = _differing(summary.means, own)
        self._compared(file, agrees=not differing)
        if differing and not self._differing & summary.ranks.keys():
            what = f"{file.path} differs from the traces of {listed('rank', summary.ranks)} in its means"
            self.warnings.append(f"{what}: {_told(differing, summary.means, own)}")

    def _compare_collectives(self, file: TraceFile, report: CollectiveReport) -> None:
        for number, comm_ms in report.comm_ms.items():
            rivals = self._by_rank[number]
            own = rivals[0].gpu_timeline if len(rivals) == 1 else None
            if own is None:
                continue
            rows = {"total_comm_time": comm_ms}
            differing = _differing(rows, own)
            self._compared(file, agrees=not differing)
            if differing and number not in self._differing:
                what = f"rank {number}: {file.path} differs from the trace in its collectives"
                self.warnings.append(f"{what}: {_told(differing, rows, own)}")
        self._leave(file, _NOTHING_TO_COMPARE)

    def _compared(self, file: TraceFile, *, agrees: bool) -> None:
        self._agreeing[file.path] = agrees and self._agreeing.get(file.path, True)

    def _leave(self, file: TraceFile, why: str) -> None:
        self._unused.setdefault(file.path, why)

    # --- ranks that have nothing else ---

    def only_workbooks(self, local_world_size: int | None) -> tuple[RankMetrics, ...]:
        """Ranks without a trace, with the values of their workbooks."""
        by_rank: dict[int | str, list[_Claim]] = defaultdict(list)
        for claim in self._without_trace:
            by_rank[claim.file.path if claim.rank is None else claim.rank].append(claim)
        return tuple(self._of_claims(claims, local_world_size) for claims in by_rank.values())

    def _of_claims(self, claims: Sequence[_Claim], local_world_size: int | None) -> RankMetrics:
        best, *others = sorted(map(_checked, claims), key=_preference)
        rivals = [claim for claim in others if claim.mode == best.mode and _contradict(claim, best)]
        for claim in others:
            if claim not in rivals:
                self._leave(claim.file, claim.why or f"{best.file.path} is used instead")
        taken = [best, *rivals]
        self._used.update(claim.file.path for claim in taken)
        return _entry(taken, local_world_size, _contradiction(taken) if rivals else _quality(best))


def _stem(path: str) -> str:
    return path.removesuffix(".gz").removesuffix(".json")


def _called(rank: int | None) -> str:
    return "the rank" if rank is None else f"rank {rank}"


def _geometric_mean(values: Sequence[float]) -> float:
    return geometric_mean([max(value, NOTHING_MS) for value in values])


# --- one rank, without a trace ----------------------------------------------------------------------------

_PREFERRED: tuple[WorkbookMode, ...] = ("all", "unknown", "rocprof")


def _preference(claim: _Claim) -> tuple[bool, int, str]:
    """Least for the workbook to use among several of one rank."""
    return bool(claim.why), _PREFERRED.index(claim.mode), claim.file.path


_PARTS = (
    *((row, "total_time") for row in TIMELINE_ROWS if row != "total_time"),
    ("exposed_comm_time", "total_comm_time"),
    ("exposed_memcpy_time", "total_memcpy_time"),
)
"""Rows, and what each is a part of."""


def _checked(claim: _Claim) -> _Claim:
    """The claim, and why it says nothing where its rows cannot be those of one window."""
    impossible = ", ".join(_impossible(claim.rows)) if claim.rows else ""
    return replace(claim, why=f"contradicts itself: {impossible}") if impossible else claim


def _impossible(rows: Rows) -> Iterator[str]:
    """What of a rank's rows cannot be, by more than roundings; those of rocprof only share out the total."""
    bound = _bound(rows)
    if abs(rows["busy_time"] + rows["idle_time"] - rows["total_time"]) > bound:
        parts = f"busy_time {rows['busy_time']:.6g} ms and idle_time {rows['idle_time']:.6g} ms"
        yield f"{parts} do not make total_time {rows['total_time']:.6g} ms"
    for part, whole in () if is_rocprof(rows) else _PARTS:
        if rows[part] > rows[whole] + bound:
            yield f"{part} {rows[part]:.6g} ms is above {whole} {rows[whole]:.6g} ms"


def _contradict(one: _Claim, other: _Claim) -> bool:
    return one.rows is not None and other.rows is not None and bool(_differing(one.rows, other.rows))


def _contradiction(claims: Sequence[_Claim]) -> Quality:
    files = ", ".join(claim.file.path for claim in claims)
    cause = f"{_called(claims[0].rank)} has {len(claims)} workbooks that differ, as of several jobs: {files}"
    return Quality(status="duplicate", cause=cause)


def _quality(claim: _Claim) -> Quality:
    file = claim.file.path
    if claim.why:
        return Quality(status="unreadable", cause=f"no trace, and {file}: {claim.why}")
    if claim.mode == "rocprof":
        cause = f"no trace, and {file} is of rocprof: it does not tell computation from communication"
        return Quality(status="incomplete", cause=cause)
    if claim.mode == "unknown":
        cause = f"no trace, and nothing tells whether {file} is of every GPU event or only of linked ones"
        return Quality(status="incomplete", cause=cause)
    return Quality(status="complete")


def _entry(claims: Sequence[_Claim], local_world_size: int | None, quality: Quality) -> RankMetrics:
    claim = claims[0]
    rows = claim.rows if quality.status in metrics.COUNTED else None
    node, local_rank = claim.file.node_rank, None
    if claim.rank is not None and local_world_size:
        # The workbooks of all ranks may lie on one node.
        node, local_rank = divmod(claim.rank, local_world_size)
    return RankMetrics(
        rank=claim.rank,
        node=node,
        local_rank=local_rank,
        files=tuple(claim.file.path for claim in claims),
        basis="gpu",
        quality=quality,
        ratios=metrics.gpu_ratios(_to_the_nanosecond(rows)) if rows and not is_rocprof(rows) else None,
        source="workbook",
        mode=claim.mode,
        workbook_ms=dict(rows) if rows else None,
    )


def _to_the_nanosecond(rows: Rows) -> Timeline:
    """For ratios only, where the roundings do not show; the times themselves stay those of the workbook."""
    return Timeline(**{row: round(rows[row] * 1e6) for row in TIMELINE_ROWS})


# --- the set ----------------------------------------------------------------------------------------------


def _filled_up(parsed: ParseResult, only: Sequence[RankMetrics]) -> ParseResult:
    """Traces, and the workbooks of ranks that have none: these are told, but are no evidence."""
    if not only:
        return parsed
    missing = parsed.missing_ranks or ()
    # What is said of ranks that are missing says it of their workbooks, too.
    unsaid = [rank for rank in only if rank.rank not in missing]
    return parsed.model_copy(
        update={
            "ranks": tuple(sorted((*parsed.ranks, *only), key=_order)),
            "problems": (*parsed.problems, *([_only_workbooks(unsaid)] if unsaid else [])),
        }
    )


def _only_workbooks(only: Sequence[RankMetrics]) -> str:
    ranks = [rank.rank for rank in only if rank.rank is not None]
    files = ", ".join(file for rank in only for file in rank.files)
    whose = f"of {listed('rank', ranks)}" if ranks else "of a rank that nobody knows"
    return f"no trace {whose}, only {files}"


def _standing_alone(parsed: ParseResult, only: Sequence[RankMetrics]) -> ParseResult:
    """Workbooks from anywhere, without a trace."""
    world, found = parsed.world_size, {rank.rank for rank in only}
    return parsed.model_copy(
        update={
            "ranks": tuple(sorted(only, key=_order)),
            "missing_ranks": None if world is None else tuple(n for n in range(world) if n not in found),
            "problems": tuple(_problems_alone(only, world)),
            "warnings": (
                *parsed.warnings,
                "there is no trace: the values are those of the workbooks, which tell of no steps",
            ),
        }
    )


def _problems_alone(only: Sequence[RankMetrics], world: int | None) -> Iterator[str]:
    for rank in only:
        file = rank.files[0]
        if rank.rank is None and len(only) > 1:
            yield f"{file}: rank unknown: neither the workbook's name nor its folder tells it"
        if world is not None and (rank.rank or 0) >= world:
            yield f"{file}: rank {rank.rank} is outside the world of {world}"


def _order(rank: RankMetrics) -> tuple[bool, int]:
    return rank.rank is None, rank.rank or 0


# --- what differs -----------------------------------------------------------------------------------------

_BOUND = 1e-3
"""Of the total, or of a ms where that is more.

TraceLens adds up doubles. On real traces it is off by up to 1.3e-4 of a total, and on a single event by
0.25 us where stamps count from 1970. What another window or meaning makes differ is far larger as a rule.
"""


def _bound(rows: Rows) -> float:
    return _BOUND * max(rows["total_time"], 1)


def _differing(rows: Rows, own: Rows) -> list[str]:
    """Rows of both that differ by more than roundings do."""
    bound = _bound(own)
    return [row for row in TIMELINE_ROWS if row in rows and row in own and abs(rows[row] - own[row]) > bound]


def _told(differing: Iterable[str], rows: Rows, own: Rows) -> str:
    return ", ".join(f"{row} {rows[row]:.6g} ms where {own[row]:.6g} ms was measured" for row in differing)


_ANOTHER = "it may have been made of another trace, or of another window"
_LINKED = "it has only events that are linked to a runtime call, TraceLens's default"
_MAY_BE_LINKED = "it may have only events that are linked to a runtime call, TraceLens's default"
_COPIES = "TraceLens before 2026-05-05 took copies that ROCm makes by kernels for computation"
_NAMES = "TraceLens before 2026-05-05 knew fewer names of kernels that communicate"


def _likely_reason(mode: WorkbookMode, rows: Rows, trace: RankMetrics) -> str:
    """Why a workbook differs from the trace, as far as the rows tell."""
    own = trace.gpu_timeline or {}
    differing = _differing(rows, own)
    if not trace.quality.is_evidence:
        return f"the trace is {trace.quality.status}"
    linked = trace.exact_ns.linked if trace.exact_ns else None
    if linked and not _differing(rows, {row: ns / 1e6 for row, ns in linked.model_dump().items()}):
        return _LINKED
    less = {row for row in differing if rows[row] < own[row]}
    more = set(differing) - less
    if not {"busy_time", "total_time"} & set(differing):
        reasons = (("total_memcpy_time", _COPIES), ("total_comm_time", _NAMES))
        return ", and ".join(reason for row, reason in reasons if row in less) or _ANOTHER
    if mode == "unknown" and "busy_time" in less and "total_time" not in more:
        return _MAY_BE_LINKED
    return _ANOTHER
