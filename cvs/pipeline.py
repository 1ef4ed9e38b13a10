"""Run, parse, check, report: the whole product, callable from Python.

```python
cluster = load_cluster("cluster.json")
bench = load_aorta("aorta_benchmark.yaml", cluster)
print(plan_aorta(cluster, bench))  # no node contacted yet
result = execute(AortaRunner(cluster, bench), TorchTraceParser(), out=Path("results/r1"))
assert not check(result, bench.expected_results)
```

Traces from anywhere need no run: `measure_traces`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cvs.config import AortaConfig, ClusterConfig, ExpectedResults
from cvs.errors import EvidenceError
from cvs.host_tracelens.consult import consult
from cvs.launch import TraceLensPlan
from cvs.metrics import aggregates
from cvs.models import (
    Accelerator,
    BenchmarkResult,
    LeftOut,
    ParseOptions,
    ParseResult,
    RankMetrics,
    RunResult,
    TraceResult,
    TraceSet,
)
from cvs.parsers.trace_files import gave_way
from cvs.parsers.trace_sets import trace_set_of
from cvs.reports.json_report import json_report
from cvs.run_folder import Manifest, RunFolder, make_run_folder, write_whole
from cvs.thresholds import check
from cvs.transport.base import recordable

if TYPE_CHECKING:  # it brings all that reaches nodes, which who only measures does without
    from cvs.runners._base_runner import BaseRunner

ONE_RUN_SECONDS = 10 * 60
"""By how much the clocks of the nodes and of this machine may differ."""

LOOKING = ("expected_results", "analysis.host_tracelens")
"""How keys begin that tell how a run is looked at, and not how it is made."""

__all__ = [
    "Parser",
    "check",
    "consult_tracelens",
    "differences",
    "execute",
    "measure",
    "measure_traces",
    "parse_options",
    "result_of",
    "write_report",
]


class Parser(Protocol):
    """Turns collected traces into numbers; any module of `cvs.parsers` that does is one."""

    @property
    def identity(self) -> str:
        """What measures, and how; it is kept with the numbers."""

    def parse(self, traces: TraceSet) -> ParseResult:
        """Measure every rank."""


def parse_options(bench: AortaConfig) -> ParseOptions:
    """What the benchmark file asks of a parser."""
    traces = bench.traces
    return ParseOptions(rank_pattern=traces.rank_pattern, communication_kernels=traces.communication_kernels)


def execute(runner: BaseRunner, parser: Parser, out: Path) -> BenchmarkResult:
    """Run the benchmark in the new folder `out` and measure what it left.

    Raises: CvsError: the run could not be begun, or left nothing that could be looked at.
    """
    folder = make_run_folder(out)
    runner.execute(folder)
    return consult_tracelens(folder, measure(folder, parser), folder.load_manifest().plan.tracelens)


def measure(folder: RunFolder, parser: Parser) -> BenchmarkResult:
    """Parse what the run collected, and save the metrics in its folder.

    Only files that the manifest has are looked at, and only as they were collected.

    Raises: EvidenceError: the run collected no traces, because it was told so.
    """
    manifest = folder.load_manifest()
    if not manifest.plan.collect_traces:
        raise EvidenceError("nothing can be parsed: multi_node.collect_traces is false in the benchmark file")
    run = manifest.run
    altered = folder.altered(run.files)
    traces = run.trace_set(str(folder.traces))
    intact = tuple(file for file in traces.files if file.path not in altered)
    parsed = parser.parse(traces.model_copy(update={"files": intact}))
    parsed = parsed.model_copy(
        update={
            "problems": (
                *(f"{path} {why}" for path, why in altered.items()),
                *_not_of_this_time(run, parsed),
                *parsed.problems,
            ),
            "left_out": (*parsed.left_out, *_not_of_this_run(folder.unlisted(run.files))),
        }
    )
    result = BenchmarkResult(
        benchmark=run.benchmark,
        run_id=run.run_id,
        run_status=run.status,
        duration_seconds=run.duration_seconds,
        num_nodes=run.num_nodes,
        gpus_per_node=run.gpus_per_node,
        accelerator=run.accelerator,
        parse=parsed,
        aggregates=aggregates(parsed.ranks),
        job_started=any(node.exit_code is not None or node.stopped_by_cvs for node in run.nodes),
        failure=run.failure,
        excluded=run.excluded,
        warnings=run.warnings,
    )
    folder.save_result(result)
    return result


def consult_tracelens(
    folder: RunFolder, result: BenchmarkResult, plan: TraceLensPlan | None
) -> BenchmarkResult:
    """Have TraceLens look at what cvs has measured, where `plan` says so, and keep what it made of it.

    What it made of the same numbers before, asked for the same, stands.
    """
    if plan is None or (result.tracelens and result.tracelens.mode == plan.mode):
        return result
    found = {"tracelens": consult(plan, folder, result.parse)}
    # What is saved may lack a warning that is for this time alone.
    folder.save_result(folder.load_result().model_copy(update=found))
    return result.model_copy(update=found)


def _not_of_this_time(run: RunResult, parsed: ParseResult) -> Iterator[str]:
    """Ranks whose window was recorded long before or after the run, by the clock that the trace tells.

    A job can make an old trace look new (copy, rename, touch it). Clocks of nodes may differ a little, and
    that of this machine may be set while the job runs: its windows lie between the start and the end, as told
    before or after that.
    """
    seconds = run.duration_seconds or 0
    start = datetime.fromisoformat(run.started).timestamp()
    end = datetime.fromisoformat(run.ended).timestamp() if run.ended else start + seconds
    began, ended = min(start, end - seconds), max(end, start + seconds)
    for rank in parsed.ranks:
        if rank.start_ns is None:
            continue
        window = rank.start_ns / 1e9
        if not began - ONE_RUN_SECONDS <= window <= ended + ONE_RUN_SECONDS:
            yield f"rank {rank.rank}: its trace was recorded {_when(window)}, not during this run"


def _when(seconds: float) -> str:
    try:
        return f"at {datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"


def measure_traces(
    paths: Path | str | Sequence[Path | str],
    parser: Parser,
    *,
    accelerator: Accelerator | None = None,
    world_size: int | None = None,
) -> TraceResult:
    """Parse the traces of one job, from wherever they are: folders and files.

    Of a folder, or of several paths, every rank of the world must be there; one file is judged alone.

    Args: accelerator: what the job ran on; None: the traces tell. world_size: else the traces tell it.
    Raises: TraceError: no such path, or a folder that cannot be listed. What else the parser raises.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, (Path, str)) else paths)]
    traces = trace_set_of(given, accelerator or "rocm", world_size=world_size)
    parsed = parser.parse(traces)
    if accelerator is None and _is_of_a_cpu_job(parsed.ranks):
        parsed = parser.parse(traces.model_copy(update={"accelerator": "none"}))
    if len(given) > 1:
        problems = (*parsed.problems, *_without_a_trace(given, traces, parsed))
        parsed = parsed.model_copy(update={"problems": problems})
    elif given[0].is_file() and parsed.missing_ranks:
        parsed = parsed.model_copy(update={"missing_ranks": ()})
    return TraceResult(accelerator=accelerator, parse=parsed, aggregates=aggregates(parsed.ranks))


def _is_of_a_cpu_job(ranks: Sequence[RankMetrics]) -> bool:
    """Whether nothing in the traces, read for GPU events, tells of a GPU, and any could be read.

    A backend for GPUs tells of one, though the profiler may not have recorded it.
    """
    backends = " ".join(rank.backend or "" for rank in ranks).lower()
    if "nccl" in backends or "rccl" in backends or any(map(_tells_of_a_gpu, ranks)):
        return False
    return any(rank.quality.status not in ("unreadable", "duplicate") for rank in ranks)


def _tells_of_a_gpu(rank: RankMetrics) -> bool:
    """Also where all of its GPU events were dropped, or are those of several ranks."""
    dropped = any(what.startswith("GPU event") for what in rank.quality.dropped)
    return (
        rank.gpu_timeline is not None
        or rank.source == "workbook"
        or dropped
        or (rank.quality.cause or "").startswith("merged")
    )


def _without_a_trace(given: Sequence[Path], traces: TraceSet, parsed: ParseResult) -> Iterator[str]:
    """Paths with nothing that was used, or gave way to another trace."""
    root = Path(traces.root)
    useless = {left.file for left in parsed.left_out if not gave_way(left)}
    files = {*(file.path for file in traces.files), *(left.file for left in parsed.left_out)} - useless
    holding = {place for file in files for place in (root / file, *(root / file).parents)}
    for path in given:
        place = Path(recordable(str(path.absolute())))
        if place not in holding:
            whys = {left.why for left in parsed.left_out if (root / left.file).is_relative_to(place)}
            yield f"{path}: no trace that counts: {'; '.join(sorted(whys)) or 'it is empty'}"


def _not_of_this_run(paths: list[str]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(file=path, why="not in the manifest, so not of this run") for path in paths)


def result_of(folder: RunFolder, parser: Parser) -> BenchmarkResult:
    """The run's saved metrics.

    Measured now where none are saved, or only such as cannot be read or are of another version or another
    parser, and where a collected file changed since.
    """
    if not folder.has_result:
        return measure(folder, parser)
    run = folder.load_manifest().run
    try:
        result = folder.load_result()
    except EvidenceError as error:
        anew = measure(folder, parser)
        # Not saved: the next time these are the saved metrics, and all is well with them.
        return anew.model_copy(update={"warnings": (*anew.warnings, f"measured anew: {error}")})
    is_of_this = (result.run_id, result.parse.parser) == (run.run_id, parser.identity)
    if is_of_this and all(map(folder.result_is_newer, run.files)):
        return result
    return measure(folder, parser)


def write_report(folder: RunFolder, result: BenchmarkResult, limits: ExpectedResults) -> Path:
    """Write the run's report; its path."""
    path = folder.report(result.benchmark)
    write_whole(path, json_report(result, limits, folder.load_manifest()))
    return path


def differences(manifest: Manifest, cluster: ClusterConfig, bench: AortaConfig) -> list[str]:
    """Keys in which the two files differ from those the run was made with, those of `LOOKING` apart."""
    changed = _differing("", manifest.benchmark, bench.resolved())
    return [
        *_differing("", manifest.cluster, cluster.resolved()),
        *(line for line in changed if not line.startswith(LOOKING)),
    ]


def _differing(where: str, then: Any, now: Any) -> list[str]:
    if isinstance(then, dict) and isinstance(now, dict):
        keys = [*then, *(key for key in now if key not in then)]
        return [
            line
            for key in keys
            for line in _differing(f"{where}.{key}" if where else key, then.get(key), now.get(key))
        ]
    return [] if then == now else [f"{where}: {_set_to(then)} then, {_set_to(now)} now"]


def _set_to(value: Any) -> str:
    return "not set" if value is None else repr(value)
