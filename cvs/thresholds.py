"""From measured values and limits to a verdict. Pure.

A verdict needs evidence: every expected rank found, its trace complete or repaired; of a run, that it came to
its end. A limit is checked on what was measured, and says so where that is not the whole run. A limit on a
value that was not measured is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cvs.config import ExpectedResults
from cvs.metrics import coverage
from cvs.models import BenchmarkResult, Coverage, RankMetrics, RunStatus, TraceResult, Violation
from cvs.terminal import listed, printable

Verdict = Literal["good", "red"]
EVIDENCE = "evidence"


@dataclass(frozen=True)
class _Limit:
    """What one key of `expected_results` limits."""

    value: Callable[[TraceResult], float | None]
    unit: str
    what: str
    is_maximum: bool

    def holds(self, value: float, limit: float) -> bool:
        return value <= limit if self.is_maximum else value >= limit


def _iteration_ms(result: TraceResult) -> float | None:
    time_us = result.aggregates.avg_iteration_time_us
    return None if time_us is None else time_us / 1e3


_LIMITS = {
    "max_avg_iteration_ms": _Limit(_iteration_ms, "ms", "average iteration time", is_maximum=True),
    "min_compute_ratio": _Limit(
        lambda result: result.aggregates.avg_compute_ratio, "", "average compute ratio", is_maximum=False
    ),
    "min_overlap_ratio": _Limit(
        lambda result: result.aggregates.avg_overlap_ratio, "", "average overlap ratio", is_maximum=False
    ),
    "max_time_variance_ratio": _Limit(
        lambda result: result.aggregates.time_variance_ratio,
        "",
        "spread of the iteration time over ranks (std / mean)",
        is_maximum=True,
    ),
}


@dataclass(frozen=True)
class Measured:
    """The value that a limit is set on."""

    value: float | None
    unit: str
    part: Coverage | None = None
    """What it was measured on, where that is not the whole run."""

    @property
    def note(self) -> str:
        """What stands behind a limit that was checked on a part of the run; else nothing."""
        return f" (measured on {self.part})" if self.part else ""


def measured(result: TraceResult, name: str) -> Measured:
    """The value that the limit `name` is set on, and what it was measured on."""
    limit = _LIMITS[name]
    value, found = limit.value(result), coverage(result.parse)
    return Measured(value, limit.unit, None if value is None or found.is_whole else found)


def check(result: TraceResult, limits: ExpectedResults) -> list[Violation]:
    """Everything that makes the verdict red: what is wrong with the evidence, then each missed limit."""
    missed = (check_limit(result, name, limit) for name, limit in limits.limits().items())
    return [*check_evidence(result), *(violation for violation in missed if violation)]


def verdict_of(violations: list[Violation]) -> Verdict:
    """`good` only where nothing speaks against it."""
    return "red" if violations else "good"


def check_limit(result: TraceResult, name: str, limit: float) -> Violation | None:
    """Whether the limit `name` is missed; None where it holds."""
    rule, found = _LIMITS[name], measured(result, name)
    value = found.value
    unit = f" {rule.unit}" if rule.unit else ""
    bound = f"{'at most' if rule.is_maximum else 'at least'} {limit:g}{unit}"
    if value is None:
        message = f"{name}: {rule.what} was not measured; expected {bound}"
    elif not rule.holds(value, limit):
        message = f"{name}: {rule.what} is {_told(value, limit, rule)}{unit}; expected {bound}{found.note}"
    else:
        return None
    return Violation(name=name, message=message, value=value, limit=limit, unit=rule.unit)


def _told(value: float, limit: float, rule: _Limit) -> str:
    """A missed value in as few digits as show that it is missed."""
    texts = (brief(value, digits) for digits in (4, 6, 9, 17))
    return next(text for text in texts if not rule.holds(float(text), limit))


def brief(value: float, digits: int = 4) -> str:
    """A number in so many digits, or more where its whole part has more."""
    return f"{value:.{max(digits, len(str(int(value))))}g}"


def check_evidence(result: TraceResult) -> list[Violation]:
    """Whatever speaks against taking the numbers for those of the whole job."""
    # Names of files, which the job chose, are among the words.
    return [Violation(name=EVIDENCE, message=printable(message)) for message in _flaws(result)]


def _flaws(result: TraceResult) -> Iterator[str]:
    if isinstance(result, BenchmarkResult):
        yield from _run_flaws(result)
    yield from result.parse.problems
    if result.parse.missing_ranks:
        yield _missing(result)
    elif not (result.parse.ranks or result.parse.problems):
        yield "no trace was found"
    without_gpu = [rank for rank in result.parse.ranks if rank.quality.status == "no_gpu_events"]
    if without_gpu:
        yield _without_gpu(result, without_gpu)
    for rank in result.parse.ranks:
        if not rank.quality.is_evidence and rank.quality.status != "no_gpu_events":
            yield _unusable(rank)


def _run_flaws(result: BenchmarkResult) -> Iterator[str]:
    status = result.run_status
    if status in (RunStatus.PENDING, RunStatus.RUNNING):
        yield f"run {result.run_id} has not ended, or cvs was killed while it ran"
    elif status is not RunStatus.COMPLETED:
        why = f": {result.failure.reason}" if result.failure else ""
        yield f"run {result.run_id} did not end well ({status.value}){why}"


def _missing(result: TraceResult) -> str:
    missing = result.parse.missing_ranks or ()
    world = result.parse.world_size or 0
    found = world - len(missing)
    text = f"{found} of {world} ranks left a trace; missing: {listed('rank', missing)}"
    told = [rank for rank in result.parse.ranks if rank.source == "workbook" and rank.rank in missing]
    if told:
        files = ", ".join(dict.fromkeys(file for rank in told for file in rank.files))
        whose = listed("rank", (rank.rank for rank in told if rank.rank is not None))
        text += f" (of {whose} only {files})"
    if not found and _ended_early(result):
        text += " (no complete profiler window exists: the job ended before one was over)"
    return text


def _ended_early(result: TraceResult) -> bool:
    if not isinstance(result, BenchmarkResult):
        return False
    return result.job_started and result.run_status is not RunStatus.COMPLETED


def _without_gpu(result: TraceResult, ranks: Sequence[RankMetrics]) -> str:
    whose = ", ".join(map(_named, ranks))
    if result.accelerator:
        return (
            f"accelerator is {result.accelerator}, but there are no GPU events in the trace of {whose}: did"
            " the job run on the CPU? set accelerator: none for a CPU run"
        )
    backends = sorted({rank.backend for rank in ranks if rank.backend})
    if not backends or any(rank.gpu_timeline for rank in result.parse.ranks):
        return f"other ranks used a GPU, but there are no GPU events in the trace of {whose}"
    return (
        f"the backend is {', '.join(backends)}, but there are no GPU events in the trace of {whose}: did the"
        " profiler record the GPU? set accelerator: none for a CPU run"
    )


def _unusable(rank: RankMetrics) -> str:
    cause = f": {rank.quality.cause}" if rank.quality.cause else ""
    return f"{_named(rank)}: {rank.source} is {rank.quality.status}{cause}"


def _named(rank: RankMetrics) -> str:
    name = f"an unknown rank ({' and '.join(rank.files)})" if rank.rank is None else f"rank {rank.rank}"
    return name if rank.node is None else f"{name} (node rank {rank.node})"
