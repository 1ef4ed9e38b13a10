"""Aorta: distributed training on every node, with profiler traces. Five cases, in this order.

Only `test_run_benchmark` starts anything; the later ones judge this call's run, else `--run_dir`, else the
newest one that was made with the same files.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cvs.config import load_files
from cvs.metrics import coverage
from cvs.models import BenchmarkResult, ParseStatus, RunStatus
from cvs.parsers.tracelens import TraceLensParser
from cvs.plugin import Benchmark, Suite, warn
from cvs.runners.aorta import AortaRunner

BENCHMARK = Benchmark(suite="test_aorta", load_files=load_files, runner=AortaRunner, parser=TraceLensParser)

Record = Callable[[str, object], None]


def test_validate_runner_config(suite: Suite) -> None:
    """The two files are valid, each by itself and together."""
    warn(suite.runner().validate_config())


def test_run_benchmark(suite: Suite) -> None:
    """Every node's launcher ended with exit code 0, and everything came home."""
    try:
        run = suite.run()
    except KeyboardInterrupt:
        # All is told. Of a KeyboardInterrupt pytest would show the line that raised it.
        pytest.exit("interrupted", returncode=pytest.ExitCode.INTERRUPTED)
    if run.status is not RunStatus.COMPLETED:
        assert run.failure is not None
        log = f"\nlog: {suite.folder.path / run.failure.log}" if run.failure.log else ""
        tail = "".join(f"\n  {line}" for line in run.failure.tail)
        pytest.fail(f"run {run.run_id} {run.status.value}: {run.failure.reason}{log}{tail}", pytrace=False)


def test_parse_results(suite: Suite, record: Record) -> None:
    """Every rank that was started left a trace that can be measured."""
    result = suite.measure()
    _record_metrics(result, record)
    if result.parse.status is not ParseStatus.SUCCESS:
        flaws = [violation.message for violation in suite.violations("evidence")]
        pytest.fail(f"parsed: {result.parse.status.value}\n" + "\n".join(flaws), pytrace=False)


def test_validate_thresholds(suite: Suite, limit: str, record: Record) -> None:
    """One case for the evidence, and one for each limit of `expected_results`."""
    violations = suite.violations(limit)
    record("run_id", suite.result.run_id)
    if violations:
        pytest.fail("\n".join(violation.message for violation in violations), pytrace=False)


def test_generate_report(suite: Suite, record: Record) -> None:
    """The report is written, whatever the verdict; without one measured rank it reports nothing."""
    path = suite.report()
    record("report", str(path))
    if not suite.result.per_rank_metrics:
        pytest.fail(f"no rank was measured; {path} says what is missing", pytrace=False)


def _record_metrics(result: BenchmarkResult, record: Record) -> None:
    """Keep the numbers as properties of the case (`--junitxml`)."""
    record("run_id", result.run_id)
    record("basis", result.parse.basis)
    record("coverage", str(coverage(result.parse)))
    for name, value in result.aggregates.model_dump().items():
        record(name, value)
    for rank in result.per_rank_metrics:
        if rank.iteration_ns is not None:
            record(f"rank_{rank.rank}.iteration_time_us", rank.iteration_ns / 1e3)
