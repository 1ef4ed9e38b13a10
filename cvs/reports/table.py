"""What was measured, for people: a table per rank, the limits, the verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from cvs.config import ExpectedResults
from cvs.metrics import coverage, cpu_ratios, gpu_ratios
from cvs.models import (
    BenchmarkResult,
    CollectiveReport,
    CollectiveSummary,
    ParseResult,
    RankMetrics,
    Ratios,
    Step,
    Timeline,
    TraceLensResult,
    TraceResult,
)
from cvs.terminal import listed, printable, spans
from cvs.thresholds import EVIDENCE, Measured, brief, check, measured, verdict_of

UNKNOWN = "–"


def text_report(
    result: BenchmarkResult, limits: ExpectedResults, *, width: int = 110, color: bool = False
) -> str:
    """The report of a run, as text of at most `width` columns."""
    without = f", without {_plain(', '.join(result.excluded))}" if result.excluded else ""
    *verdict, last = _verdict(result, limits)
    parts: tuple[RenderableType, ...] = (
        _ranks(f"{result.benchmark} · run {result.run_id}", result),
        *_collectives(result.parse),
        *_averages(result),
        *_losses(result.parse.ranks),
        *(f"[yellow]left out:[/] {_plain(node)}: {_plain(why)}" for node, why in result.excluded.items()),
        *_warnings((*result.warnings, *result.parse.warnings)),
        *_tracelens(result.tracelens),
        *_left_out(result),
        *verdict,
        f"{last}{without}",
    )
    return _text(parts, width, color)


def traces_text(
    result: TraceResult,
    limits: ExpectedResults,
    *,
    name: str,
    steps: bool = False,
    linked: bool = False,
    idle: bool = False,
    width: int = 110,
    color: bool = False,
) -> str:
    """Measured traces as text of at most `width` columns.

    Args: name: what to call them. steps, linked, idle: also a table of each rank's steps; of the GPU timeline
        of linked events alone; of short and long idle gaps.
    """
    ranks = result.parse.ranks
    parts: tuple[RenderableType, ...] = (
        _ranks(name, result),
        *([_linked(ranks)] if linked else []),
        *([_idle(ranks)] if idle else []),
        *([_steps(ranks)] if steps else []),
        *_collectives(result.parse),
        *_averages(result),
        *_losses(result.parse.ranks),
        *_warnings(result.parse.warnings),
        *_left_out(result),
        *_verdict(result, limits),
    )
    return _text(parts, width, color)


def _text(parts: Iterable[RenderableType], width: int, color: bool) -> str:
    buffer = StringIO()
    console = Console(file=buffer, width=width, force_terminal=color, color_system="auto" if color else None)
    for part in parts:
        # Lines stay whole, so that who searches a log finds them.
        console.print(part, soft_wrap=isinstance(part, str))
    return buffer.getvalue()


def _plain(text: str) -> str:
    """Words of others, in which neither rich nor a terminal finds anything to obey."""
    return escape(printable(text))


# --- tables -----------------------------------------------------------------------------------------------


def _table(title: str, columns: Sequence[str]) -> Table:
    """An empty table; columns of numbers, but for the last where it is the state of the trace."""
    table = Table(title=_plain(title))
    for name in columns:
        table.add_column(name.replace("_", " "), justify="left" if name == "trace" else "right")
    return table


_SHARES = ("compute", "comm", "exposed_comm", "overlap")


def _ranks(name: str, result: TraceResult) -> Table:
    columns = ("rank", "node", "steps", "iteration_ms", "total_ms", *_SHARES, "trace")
    table = _table(f"{name} · basis {result.parse.basis}", columns)
    for rank in result.parse.ranks:
        table.add_row(*_whose(rank), *_cells(rank))
    for missing in spans(result.parse.absent_ranks):
        table.add_row(missing, *[UNKNOWN] * (len(columns) - 2), "[red]missing[/]")
    return table


def _whose(rank: RankMetrics) -> Iterator[str]:
    yield UNKNOWN if rank.rank is None else str(rank.rank)
    yield UNKNOWN if rank.node is None else str(rank.node)


def _cells(rank: RankMetrics) -> Iterator[str]:
    yield str(len(rank.steps)) if rank.steps else UNKNOWN
    yield _ms(rank.iteration_ns)
    yield _number(None if rank.total_time_us is None else rank.total_time_us / 1e3)
    yield from _shares(rank.ratios)
    status = rank.quality.status.replace("_", " ")
    if rank.source == "workbook":
        status = f"workbook, {status}"
    yield status if rank.quality.is_evidence else f"[red]{status}[/]"


def _shares(ratios: Ratios | None) -> Iterator[str]:
    for name in _SHARES:
        yield _percent(getattr(ratios, name, None))


def _linked(ranks: Sequence[RankMetrics]) -> Table:
    """The rows of each rank's timeline over linked events, in ms."""
    rows = [row.removesuffix("_time") for row in Timeline.model_fields]
    table = _table("linked GPU events alone, ms", ("rank", "node", *rows))
    for rank in ranks:
        timeline = rank.exact_ns and rank.exact_ns.linked
        times = timeline.model_dump().values() if timeline else [None] * len(rows)
        table.add_row(*_whose(rank), *map(_ms, times))
    return table


def _idle(ranks: Sequence[RankMetrics]) -> Table:
    table = _table("idle time of the GPU, ms", ("rank", "node", "idle", "micro_idle", "macro_idle"))
    for rank in ranks:
        idle = rank.exact_ns.all.idle_time if rank.exact_ns else None
        table.add_row(*_whose(rank), *map(_ms, (idle, rank.micro_idle_ns, rank.macro_idle_ns)))
    return table


def _steps(ranks: Sequence[RankMetrics]) -> Table:
    """A row per rank and step; the start is after that of the rank's first step."""
    has_gpu = any(step.gpu_ns for rank in ranks for step in rank.steps)
    gpu_column = ["gpu_ms"] if has_gpu else []
    table = _table("steps", ("rank", "node", "step", "start_ms", "duration_ms", *gpu_column, *_SHARES))
    for rank in ranks:
        for step in rank.steps:
            times = [step.start_ns - rank.steps[0].start_ns, step.duration_ns]
            gpu_time = [step.gpu_ns.total_time if step.gpu_ns else None] if has_gpu else []
            cells = (*map(_ms, (*times, *gpu_time)), *_shares(_step_ratios(step)))
            table.add_row(*_whose(rank), str(step.number), *cells)
    return table


def _step_ratios(step: Step) -> Ratios | None:
    if step.gpu_ns:
        return gpu_ratios(step.gpu_ns)
    return cpu_ratios(step.cpu_ns) if step.cpu_ns else None


_MOST_COLLECTIVES = 8


def _collectives(parse: ParseResult) -> Iterator[RenderableType]:
    """The kinds of collectives with most time, what speaks against them, and who kept the others waiting."""
    found = parse.collectives
    if found is None:
        if any(problem.startswith("separate worlds") for problem in parse.problems):
            yield "[yellow]collectives:[/] not looked at, for the traces are of separate worlds"
        return
    if found.collectives:
        yield _collective_table(found.collectives[:_MOST_COLLECTIVES])
    for text in found.findings:
        yield f"[yellow]collectives:[/] {_plain(text)}"
    if found.collectives:
        not_measured = any(rank.exact_ns is None for rank in parse.ranks)
        yield from _last_to_arrive(found, is_part=bool(parse.missing_ranks) or not_measured)


def _last_to_arrive(found: CollectiveReport, *, is_part: bool) -> Iterator[str]:
    """Who kept the others waiting, if anybody did, and in which of the collectives that is known."""
    what = "kept the others waiting longest"
    if all(rank.arrived_last is None for rank in found.stragglers):
        yield f"{what}: cannot be told"
    late = [rank for rank in found.stragglers if rank.arrived_last and rank.others_waited_ns]
    if late:
        last = max(late, key=lambda rank: rank.others_waited_ns or 0)
        what += " in the groups whose ranks are all here" if is_part else ""
        every = sum(row.count for row in found.collectives)
        what += ", collectives in doubt apart" if last.collectives < every else ""
        times = f"last at {last.arrived_last} of its {last.took_part} collectives"
        waited = _ms(last.others_waited_ns)
        yield f"{what}: rank {last.rank}, {times}; they waited {waited} ms in all"


def _collective_table(rows: Sequence[CollectiveSummary]) -> Table:
    columns = ("collective", "group", "ranks", "count", "latency_ms", "skew_ms", "algbw_GB/s", "busbw_GB/s")
    table = _table("collectives, mean", columns)
    for row in rows:
        table.add_row(
            _plain(row.collective or UNKNOWN),
            _plain(row.group),
            UNKNOWN if row.group_size is None else str(row.group_size),
            str(row.count),
            _ms(row.latency_ns.mean),
            _ms(row.start_skew_ns.mean if row.start_skew_ns else None),
            UNKNOWN if row.algo_gb_per_s is None else brief(row.algo_gb_per_s),
            UNKNOWN if row.bus_gb_per_s is None else brief(row.bus_gb_per_s),
        )
    return table


# --- lines ------------------------------------------------------------------------------------------------


def _ms(nanoseconds: float | None) -> str:
    return _number(None if nanoseconds is None else nanoseconds / 1e6)


def _number(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.3f}"


def _percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.1%}"


def _averages(result: TraceResult) -> Iterator[str]:
    values = result.aggregates
    iteration = None if values.avg_iteration_time_us is None else values.avg_iteration_time_us / 1e3
    yield (
        f"mean over ranks: iteration {_number(iteration)} ms (spread {_percent(values.time_variance_ratio)}),"
        f" compute {_percent(values.avg_compute_ratio)}, comm {_percent(values.avg_comm_ratio)},"
        f" overlap {_percent(values.avg_overlap_ratio)}"
    )
    yield f"coverage: {coverage(result.parse)}"


def _losses(ranks: Sequence[RankMetrics]) -> Iterator[str]:
    """What was lost of traces that could be read, alike ones in a line, and where it begins."""
    alike = defaultdict(list)
    for rank in ranks:
        quality = rank.quality
        if quality.status == "repaired" or quality.lost:
            alike[quality.status, quality.cause].append(rank)
    for (status, cause), those in alike.items():
        line = f"[yellow]{status}:[/] {_plain(_called(those))}: {_plain(cause or 'no cause is known')}"
        place = next((rank for rank in those if rank.quality.lost), None)
        if place:
            lost = place.quality.lost[0]
            where = f"bytes {lost.start} to {lost.end} of the text of {place.files[0]}"
            line += f"; the first are {_plain(where)}"
        yield line


def _called(ranks: Sequence[RankMetrics]) -> str:
    """Their numbers; where one is unknown, their files."""
    numbers = [rank.rank for rank in ranks if rank.rank is not None]
    if len(numbers) == len(ranks):
        return listed("rank", numbers)
    return ", ".join(file for rank in ranks for file in rank.files)


def _warnings(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield f"[yellow]warning:[/] {_plain(text)}"


def _tracelens(found: TraceLensResult | None) -> Iterator[str]:
    if found is None:
        return
    version = f" {_plain(found.version)}" if found.version else ""
    came = _workbooks(found) if found.mode == "report" else _agreement(found)
    yield f"TraceLens{version}, {found.mode}: {came} ({brief(found.seconds)} s)"
    yield from _warnings(f"TraceLens: {text}" for text in found.warnings)
    for text in found.notes:
        yield f"TraceLens: {_plain(text)}"


def _workbooks(found: TraceLensResult) -> str:
    number = len(found.workbooks)
    return f"{number} workbook{'' if number == 1 else 's'}"


def _agreement(found: TraceLensResult) -> str:
    if not found.compared:
        return "nothing compared"
    within = max((rank.agree_within_ns for rank in found.agreeing), default=0.0)
    return f"{len(found.agreeing)} of {len(found.compared)} ranks agree, within {brief(within)} ns"


_MOST_NAMED = 3


def _left_out(result: TraceResult) -> Iterator[str]:
    """Files that were not used, by reason; of many the first, for a folder may hold anything."""
    files = defaultdict(list)
    for left in result.parse.left_out:
        files[left.why].append(left.file)
    for why, names in files.items():
        shown = names if len(names) <= _MOST_NAMED + 1 else names[:_MOST_NAMED]
        others = f" and {len(names) - len(shown)} others" if names[len(shown) :] else ""
        yield f"left out: {_plain(', '.join(shown))}{others}: {_plain(why)}"


def _verdict(result: TraceResult, limits: ExpectedResults) -> Iterator[str]:
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
    yield f"verdict: [bold {'green' if word == 'good' else 'red'}]{word}[/]"


def _value(found: Measured) -> str:
    return "not measured," if found.value is None else f"{brief(found.value)} {found.unit}".rstrip()
