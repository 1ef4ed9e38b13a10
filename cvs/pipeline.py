"""Run, parse, check, report: the whole product, callable from Python.

```python
cluster = load_cluster("cluster.json")
bench = load_aorta("aorta_benchmark.yaml", cluster)
print(plan_aorta(cluster, bench))  # no node contacted yet
result = execute(AortaRunner(cluster, bench), TorchTraceParser(), out=Path("results/r1"))
assert not check(result, bench.expected_results)
```
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from cvs.config import AortaConfig, ClusterConfig, ExpectedResults
from cvs.errors import EvidenceError
from cvs.metrics import aggregates
from cvs.models import BenchmarkResult, LeftOut, ParseResult, RunResult, TraceSet
from cvs.reports.json_report import json_report
from cvs.run_folder import Manifest, RunFolder, make_run_folder, write_whole
from cvs.runners._base_runner import BaseRunner
from cvs.thresholds import check

ONE_RUN_SECONDS = 10 * 60
"""By how much the clocks of the nodes and of this machine may differ."""

__all__ = ["Parser", "check", "differences", "execute", "measure", "result_of", "write_report"]


class Parser(Protocol):
    """Turns collected traces into numbers; any module of `cvs.parsers` that does is one."""

    def parse(self, traces: TraceSet) -> ParseResult:
        """Measure every rank."""


def execute(runner: BaseRunner, parser: Parser, out: Path) -> BenchmarkResult:
    """Run the benchmark in the new folder `out` and measure what it left.

    Raises: CvsError: the run could not be begun, or left nothing that could be looked at.
    """
    folder = make_run_folder(out)
    runner.execute(folder)
    return measure(folder, parser)


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


def _not_of_this_run(paths: list[str]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(file=path, why="not in the manifest, so not of this run") for path in paths)


def result_of(folder: RunFolder, parser: Parser) -> BenchmarkResult:
    """The run's saved metrics.

    Measured now where none are saved, or only such as cannot be read or are of another version, and where a
    collected file changed since.
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
    if result.run_id == run.run_id and all(map(folder.result_is_newer, run.files)):
        return result
    return measure(folder, parser)


def write_report(folder: RunFolder, result: BenchmarkResult, limits: ExpectedResults) -> Path:
    """Write the run's report; its path."""
    path = folder.report(result.benchmark)
    write_whole(path, json_report(result, limits, folder.load_manifest()))
    return path


def differences(manifest: Manifest, cluster: ClusterConfig, bench: AortaConfig) -> list[str]:
    """Keys in which the two files differ from those the run was made with, `expected_results` apart."""
    now = bench.resolved()
    then = dict(manifest.benchmark)
    for data in (now, then):
        data.pop("expected_results", None)
    return [*_differing("", manifest.cluster, cluster.resolved()), *_differing("", then, now)]


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
