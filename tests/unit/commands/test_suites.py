"""`cvs list`: the suites, and the cases of one in the order they run."""

from __future__ import annotations

import subprocess
import sys

from conftest import PACKAGE, Command, assert_refused

CASES = [
    "test_validate_runner_config",
    "test_run_benchmark",
    "test_parse_results",
    "test_validate_thresholds",
    "test_generate_report",
]


def test_the_suites_are_the_files(command: Command) -> None:
    rows = [line.split(maxsplit=1) for line in command("list").stdout.splitlines()]
    assert [name for name, _ in rows] == sorted(path.stem for path in (PACKAGE / "tests").rglob("test_*.py"))
    assert dict(rows)["test_aorta"].startswith("Aorta: distributed training on every node")


def test_the_cases_in_order(command: Command) -> None:
    lines = command("list", "test_aorta").stdout.splitlines()
    assert [line.split()[0] for line in lines] == CASES
    assert "The two files are valid" in lines[0]


def test_the_order_is_pytests() -> None:
    """What is listed without an import is what pytest collects."""
    collected = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", PACKAGE / "tests" / "benchmark"],
        cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    names = [line.rpartition("::")[2].partition("[")[0] for line in collected.splitlines() if "::" in line]
    assert names == CASES


def test_an_unknown_suite(command: Command) -> None:
    assert_refused(command("list", "test_aorte"), 2, "no suite test_aorte; did you mean test_aorta?")
    assert_refused(command("list", "zzz"), 2, "no suite zzz; there are: test_aorta")
