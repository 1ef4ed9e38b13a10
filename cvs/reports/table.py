"""The final report for people: a table per rank, the limits, the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table

from cvs.config import ExpectedResults
from cvs.metrics import coverage
from cvs.models import BenchmarkResult, RankMetrics
from cvs.terminal import printable
from cvs.thresholds import EVIDENCE, Measured, brief, check, measured, verdict_of

UNKNOWN = "–"


def text_report(
    result: BenchmarkResult, limits: ExpectedResults, *, width: int = 110, color: bool = False
) -> str:
    """The report as text of at most `width` columns."""
    buffer = StringIO()
    console = Console(file=buffer, width=width, force_terminal=color, color_system="auto" if color else None)
    console.print(_report(result, limits))
    return buffer.getvalue()


def _report(result: BenchmarkResult, limits: ExpectedResults) -> RenderableType:
    return Group(
        _ranks(result),
        _averages(result),
        f"coverage: {coverage(result.parse)}",
        *(f"[yellow]left out:[/] {_plain(node)}: {_plain(why)}" for node, why in result.excluded.items()),
        *(f"[yellow]warning:[/] {_plain(text)}" for text in (*result.warnings, *result.parse.warnings)),
        *_left_out(result),
        *_verdict(result, limits),
    )


def _plain(text: str) -> str:
    """Words of others, in which neither rich nor a terminal finds anything to obey."""
    return escape(printable(text))


def _ranks(result: BenchmarkResult) -> Table:
    columns = "rank node steps iteration_ms total_ms compute comm exposed_comm overlap trace".split()
    table = Table(title=_plain(f"{result.benchmark} · run {result.run_id} · basis {result.parse.basis}"))
    for name in columns:
        table.add_column(name.replace("_", " "), justify="left" if name == "trace" else "right")
    for rank in result.per_rank_metrics:
        table.add_row(*_cells(rank))
    for missing in result.parse.missing_ranks or ():
        table.add_row(str(missing), *[UNKNOWN] * (len(columns) - 2), "[red]missing[/]")
    return table


def _cells(rank: RankMetrics) -> Iterator[str]:
    ratios = rank.ratios
    yield UNKNOWN if rank.rank is None else str(rank.rank)
    yield UNKNOWN if rank.node is None else str(rank.node)
    yield str(len(rank.steps)) if rank.steps else UNKNOWN
    yield _number(None if rank.iteration_ns is None else rank.iteration_ns / 1e6)
    yield _number(None if rank.total_time_us is None else rank.total_time_us / 1e3)
    for value in (ratios.compute, ratios.comm, ratios.exposed_comm, ratios.overlap) if ratios else [None] * 4:
        yield _percent(value)
    status = rank.quality.status.replace("_", " ")
    yield status if rank.quality.is_evidence else f"[red]{status}[/]"


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.3f}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def _averages(result: BenchmarkResult) -> str:
    values = result.aggregates
    iteration = None if values.avg_iteration_time_us is None else values.avg_iteration_time_us / 1e3
    return (
        f"mean over ranks: iteration {_number(iteration)} ms (spread {_percent(values.time_variance_ratio)}),"
        f" compute {_percent(values.avg_compute_ratio)}, comm {_percent(values.avg_comm_ratio)},"
        f" overlap {_percent(values.avg_overlap_ratio)}"
    )


def _left_out(result: BenchmarkResult) -> Iterator[str]:
    for left in result.parse.left_out:
        yield f"left out: {_plain(left.file)}: {_plain(left.why)}"


def _verdict(result: BenchmarkResult, limits: ExpectedResults) -> Iterator[str]:
    violations = check(result, limits)
    missed = {violation.name for violation in violations}
    for name, limit in limits.limits().items():
        found = measured(result, name)
        mark = "[red]missed[/]" if name in missed else "[green]holds[/]"
        yield f"{name} {limit:g} {found.unit}".rstrip() + f": {_value(found)} {mark}{found.note}"
    for violation in violations:
        if violation.name == EVIDENCE:
            yield f"[red]{EVIDENCE}:[/] {_plain(violation.message)}"
    word = verdict_of(violations)
    without = f", without {_plain(', '.join(result.excluded))}" if result.excluded else ""
    yield f"verdict: [bold {'green' if word == 'good' else 'red'}]{word}[/]{without}"


def _value(found: Measured) -> str:
    return "not measured," if found.value is None else f"{brief(found.value)} {found.unit}".rstrip()
