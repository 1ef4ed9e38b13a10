"""What TraceLens makes of a run's traces: its workbooks, or its numbers beside ours."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cvs.host_tracelens.installed import Unusable, version_of
from cvs.host_tracelens.processes import Job, Outcome, worked_off
from cvs.launch import TraceLensPlan
from cvs.machine import cores_here, memory_here
from cvs.models import (
    Counts,
    ParseResult,
    RankMetrics,
    RowDifference,
    RowsCompared,
    Timeline,
    TraceLensResult,
)
from cvs.run_folder import RunFolder

_WORKBOOK = "workbook.xlsx"

IMPORTED_BYTES = 100 * 2**20
BYTES_PER_JSON = {"rows": 7, "report": 14, "collective": 7}
"""Memory that TraceLens needs, as measured: for itself, and in proportion to a trace's size as JSON."""
LEAST_COMPRESSION = 10
"""A trace is at least so many times as large as its gzip file, as a rule."""


def consult(plan: TraceLensPlan, folder: RunFolder, parsed: ParseResult) -> TraceLensResult:
    """Have TraceLens work on the traces that cvs has measured; whatever it does, this ends in a result.

    A rank that it fails on costs that rank only.
    """
    started = time.monotonic()
    found = _Found()
    try:
        folder.tracelens.mkdir(exist_ok=True)
        with TemporaryDirectory(dir=folder.tracelens, prefix=".work-", ignore_cleanup_errors=True) as work:
            _Consultation(plan, folder, parsed, Path(work)).hold(found)
    except Unusable as error:
        found.failures.append(str(error))
    except OSError as error:
        found.failures.append(f"{error.filename or folder.tracelens}: {error.strerror}")
    return found.result(plan, time.monotonic() - started)


@dataclass
class _Found:
    """What has come of a consultation so far."""

    version: str | None = None
    workbooks: list[str] = field(default_factory=list)
    compared: list[RowsCompared] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """What did not come about, and why."""

    def result(self, plan: TraceLensPlan, seconds: float) -> TraceLensResult:
        """All of it; where numbers were to be compared, and were not, is a warning, too."""
        checks = plan.mode == "check"
        return TraceLensResult(
            mode=plan.mode,
            version=self.version,
            seconds=round(seconds, 1),
            workbooks=tuple(self.workbooks),
            compared=tuple(self.compared),
            warnings=(*_differences(self.compared), *(self.failures if checks else ())),
            notes=() if checks else tuple(self.failures),
        )


@dataclass(frozen=True)
class _Trace:
    """A rank that was measured, and where its one trace lies."""

    rank: int
    file: Path
    rows: Timeline
    counts: Counts

    def job(self, task: str, name: str, **further: str) -> Job:
        """TraceLens's work on this trace alone."""
        return Job(f"{name}_rank{self.rank}", task, {"trace": str(self.file), **further}, self.memory(task))

    def memory(self, task: str) -> int:
        """Bytes that it takes to do so."""
        return IMPORTED_BYTES + BYTES_PER_JSON[task] * json_bytes(self.file)


class _Consultation:
    """One call of TraceLens on all ranks of a run."""

    def __init__(self, plan: TraceLensPlan, folder: RunFolder, parsed: ParseResult, work: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._parsed = parsed
        self._work = work
        """For what is needed meanwhile."""

    def hold(self, found: _Found) -> None:
        """Ask for everything that the mode is about, and put it into `found`.

        Raises: Unusable: there is no TraceLens to ask. OSError: of the run's folder.
        """
        traces, others = _traces(self._folder, self._parsed)
        if not traces:
            found.failures.append("no rank has a trace with a GPU timeline")
            return
        found.failures += others
        python = self._plan.python or sys.executable
        writes = self._plan.mode == "report"
        found.version = version_of(python, self._work, for_workbooks=writes)
        if writes:
            self._write(python, traces, found)
        else:
            self._compare(python, traces, found)

    def _write(self, python: str, traces: Sequence[_Trace], found: _Found) -> None:
        """Its workbook of each rank, and the one over all ranks."""
        jobs = {f"rank {trace.rank}": trace.job("report", "perf", workbook=_WORKBOOK) for trace in traces}
        if [trace.rank for trace in traces] != list(range(self._parsed.world_size or 0)):
            found.failures.append("all ranks: no workbook: it takes the trace of every rank")
        elif not any(trace.counts.communication for trace in traces):
            found.failures.append("all ranks: no workbook: no rank has a collective")
        else:
            jobs["all ranks"] = self._collective_job(traces)
        outcomes = self._outcomes(list(jobs.values()), python)
        for whose, job in jobs.items():
            outcome, made = outcomes[job.name], self._work / job.name / _WORKBOOK
            workbook = self._folder.tracelens / f"{job.name}.xlsx"
            if outcome.answer is not None and made.is_file():
                made.replace(workbook)
                found.workbooks.append(self._folder.relative(workbook))
            else:
                workbook.unlink(missing_ok=True)  # of an earlier time
                found.failures.append(self._failure(f"{whose}: no workbook", job, outcome))

    def _collective_job(self, traces: Sequence[_Trace]) -> Job:
        arguments = {
            "traces": [str(trace.file) for trace in traces],
            "workbook": _WORKBOOK,
            "ranks_per_node": self._folder.load_manifest().run.local_world_size,
        }
        # It reads one trace after the other, and keeps the collectives.
        memory = max(trace.memory("collective") for trace in traces)
        return Job("collective_all_ranks", "collective", arguments, memory)

    def _compare(self, python: str, traces: Sequence[_Trace], found: _Found) -> None:
        """Its rows of each rank beside ours."""
        jobs = {trace.rank: trace.job("rows", "rows") for trace in traces}
        outcomes = self._outcomes(list(jobs.values()), python)
        for trace in traces:
            outcome = outcomes[jobs[trace.rank].name]
            if outcome.answer is not None:
                found.compared.append(_compared(trace, outcome.answer))
            else:
                what = f"rank {trace.rank}: not compared"
                found.failures.append(self._failure(what, jobs[trace.rank], outcome))

    def _outcomes(self, jobs: Sequence[Job], python: str) -> dict[str, Outcome]:
        return worked_off(
            jobs,
            python,
            work=self._work,
            logs=self._folder.tracelens,
            seconds=self._plan.seconds,
            memory=memory_here(),
            cores=cores_here(),
        )

    def _failure(self, what: str, job: Job, outcome: Outcome) -> str:
        log = self._folder.tracelens / f"{job.name}.log"
        where = f"; log: {self._folder.relative(log)}" if log.is_file() else ""
        return f"{what}: {outcome.why or 'none was written'}{where}"


# --- which traces -----------------------------------------------------------------------------------------


def _traces(folder: RunFolder, parsed: ParseResult) -> tuple[list[_Trace], list[str]]:
    """The ranks that TraceLens can be asked about, in order, and of the others why not."""
    traces, others = [], []
    number_of = Counter(rank.rank for rank in parsed.ranks)
    for rank in parsed.ranks:
        if rank.source != "trace" or not rank.exact_ns or not rank.counts or len(rank.files) != 1:
            others.append(f"{_name(rank)}: left out: {_state(rank)}")
        elif rank.rank is None or number_of[rank.rank] > 1:
            others.append(f"{rank.files[0]}: left out: its rank is unknown, or another's, too")
        else:
            file = folder.traces / rank.files[0]
            traces.append(_Trace(rank.rank, file, rank.exact_ns.all, rank.counts))
    return traces, others


def _name(rank: RankMetrics) -> str:
    return rank.files[0] if rank.rank is None else f"rank {rank.rank}"


def _state(rank: RankMetrics) -> str:
    if rank.source == "workbook":
        return "it left a workbook and no trace"
    return f"its trace is {rank.quality.status.replace('_', ' ')}"


def json_bytes(file: Path) -> int:
    """Size of a trace as JSON; of a gzip file as its end tells it, which is modulo 4 GiB."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if stream.read(2) != b"\x1f\x8b":
            return size
        stream.seek(-4, 2)
        return max(int.from_bytes(stream.read(4), "little"), LEAST_COMPRESSION * size)


# --- its rows beside ours ---------------------------------------------------------------------------------


def rounding_ns(events: int, largest_us: float) -> float:
    """How far TraceLens's rows may be from the exact ones: it adds up stamps in doubles of microseconds."""
    return (events + 2) * math.ulp(largest_us) * 1e3


def _compared(trace: _Trace, answer: dict[str, Any]) -> RowsCompared:
    bound = rounding_ns(trace.counts.all_gpu, answer["largest_us"])
    differences, apart = [], 0.0
    for row, ours in trace.rows.model_dump().items():
        theirs = answer["rows_us"].get(row)
        by = math.inf if theirs is None else abs(theirs * 1e3 - ours)
        if by <= bound:
            apart = max(apart, by)
        else:
            theirs_ns = None if theirs is None else theirs * 1e3
            differences.append(RowDifference(row=row, cvs_ns=ours, tracelens_ns=theirs_ns))
    return RowsCompared(
        rank=trace.rank, bound_ns=bound, agree_within_ns=apart, differences=tuple(differences)
    )


def _differences(compared: Sequence[RowsCompared]) -> Iterator[str]:
    for rank in compared:
        for one in rank.differences:
            theirs = "missing" if one.tracelens_ns is None else f"{one.tracelens_ns:.1f} ns"
            yield (
                f"rank {rank.rank}: {one.row} is {one.cvs_ns} ns by cvs and {theirs} by TraceLens,"
                f" whose rounding explains {rank.bound_ns:.1f} ns"
            )
