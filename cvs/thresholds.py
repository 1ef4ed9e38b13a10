"""From measured values and limits to a verdict. Pure.

A verdict needs evidence: every expected rank found, its trace complete or repaired, of a run that came to its
end. A limit on a value that was not measured is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from cvs.config import ExpectedResults
from cvs.models import BenchmarkResult, RankMetrics, RunStatus, Violation

Verdict = Literal["good", "red"]
EVIDENCE = "evidence"


@dataclass(frozen=True)
class _Limit:
    """What one key of `expected_results` limits."""

    value: Callable[[BenchmarkResult], float | None]
    unit: str
    what: str
    is_maximum: bool

    def holds(self, value: float, limit: float) -> bool:
        return value <= limit if self.is_maximum else value >= limit


def _iteration_ms(result: BenchmarkResult) -> float | None:
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


def measured(result: BenchmarkResult, name: str) -> tuple[float | None, str]:
    """The value that the limit `name` is set on, and its unit."""
    limit = _LIMITS[name]
    return limit.value(result), limit.unit


def check(result: BenchmarkResult, limits: ExpectedResults) -> list[Violation]:
    """Everything that makes the verdict red: what is wrong with the evidence, then each missed limit."""
    missed = (check_limit(result, name, limit) for name, limit in limits.limits().items())
    return [*check_evidence(result), *(violation for violation in missed if violation)]


def verdict_of(violations: list[Violation]) -> Verdict:
    """`good` only where nothing speaks against it."""
    return "red" if violations else "good"


def check_limit(result: BenchmarkResult, name: str, limit: float) -> Violation | None:
    """Whether the limit `name` is missed; None where it holds."""
    rule = _LIMITS[name]
    value = rule.value(result)
    unit = f" {rule.unit}" if rule.unit else ""
    bound = f"{'at most' if rule.is_maximum else 'at least'} {limit:g}{unit}"
    if value is None:
        message = f"{name}: {rule.what} was not measured; expected {bound}"
    elif not rule.holds(value, limit):
        message = f"{name}: {rule.what} is {_told(value, limit, rule)}{unit}; expected {bound}"
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


def check_evidence(result: BenchmarkResult) -> list[Violation]:
    """Whatever speaks against taking the numbers for those of the whole run."""
    return [Violation(name=EVIDENCE, message=message) for message in _flaws(result)]


def _flaws(result: BenchmarkResult) -> Iterator[str]:
    yield from _run_flaws(result)
    yield from result.parse.problems
    if result.parse.missing_ranks:
        yield _missing(result)
    elif not result.parse.ranks:
        yield "no trace was found"
    for rank in result.parse.ranks:
        if not rank.quality.is_evidence:
            yield _unusable(rank)


def _run_flaws(result: BenchmarkResult) -> Iterator[str]:
    status = result.run_status
    if status in (RunStatus.PENDING, RunStatus.RUNNING):
        yield f"run {result.run_id} has not ended, or cvs was killed while it ran"
    elif status is not RunStatus.COMPLETED:
        why = f": {result.failure.reason}" if result.failure else ""
        yield f"run {result.run_id} did not end well ({status.value}){why}"


def _missing(result: BenchmarkResult) -> str:
    missing = result.parse.missing_ranks or ()
    world = result.parse.world_size or 0
    found = world - len(missing)
    names = ", ".join(map(str, missing))
    text = f"{found} of {world} ranks left a trace; missing: rank{'s' if len(missing) > 1 else ''} {names}"
    if not found and result.run_status is not RunStatus.COMPLETED:
        text += " (no complete profiler window exists: the job ended before one was over)"
    return text


def _unusable(rank: RankMetrics) -> str:
    name = "a rank that nobody knows" if rank.rank is None else f"rank {rank.rank}"
    place = "" if rank.node is None else f" (node rank {rank.node})"
    cause = f": {rank.quality.cause}" if rank.quality.cause else ""
    return f"{name}{place}: trace is {rank.quality.status.replace('_', ' ')}{cause}"
