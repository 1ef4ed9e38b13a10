"""`python -m benchmarks`: what is measured, and how often."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence

from benchmarks import api, collect, parse
from benchmarks.table import Table
from lab.machine import LabError

SUBJECTS: dict[str, Callable[[int], Iterator[Table]]] = {
    "api": api.tables,
    "collect": collect.tables,
    "parse": parse.tables,
}


def main(words: Sequence[str]) -> int:
    """Measure and print; 0 good, 1 this machine cannot do it."""
    arguments = _parser().parse_args(words)
    print(f"{_machine()}. A ratio is the median of the rounds' ratios; above 1 is better than the baseline.")
    try:
        for subject in arguments.subjects or SUBJECTS:
            for table in SUBJECTS[subject](arguments.rounds):
                print(f"\n{table}", flush=True)
    except LabError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 1
    print(f"\n{_machine()}.")
    return 0


def _machine() -> str:
    """What figures depend on most; others at work make them worthless."""
    load = "/".join(f"{each:.1f}" for each in os.getloadavg())
    return f"{os.cpu_count()} CPUs, load {load}, Python {platform.python_version()}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Speed, beside a baseline of the same run; needs root but for parse.",
    )
    parser.add_argument(
        "subjects", nargs="*", choices=[*SUBJECTS, []], metavar="SUBJECT", help=", ".join(SUBJECTS)
    )
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
