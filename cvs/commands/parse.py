"""`cvs parse`: what traces from anywhere tell, and whether they can be trusted."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cvs.commands.run import FILES, add_file

if TYPE_CHECKING:
    from cvs.config import ExpectedResults
    from cvs.models import TraceResult

_LEAST_WIDTH = 104
"""Columns that the table needs; a narrower terminal wraps its lines."""
_MOST_RANKS = 1_000_000
_RANKS = re.compile(r"[0-9]{1,7}")
_MICROSECONDS = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,3}))?")
"""With as many decimals as nanoseconds have."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs parse`."""
    parser = commands.add_parser(
        "parse",
        help="measure traces from anywhere",
        description="Measure the PyTorch-profiler traces of one job, whether or not cvs ran it, and judge"
        " them. Of a folder, or of several paths, every rank must be there; one file is judged alone. Exit"
        " code 0 if the verdict is good; 1 if it is red; 2 if there is no such path, or the benchmark file"
        " cannot be used; 3 if the result cannot be written.",
        epilog="examples:\n  cvs parse traces/\n  cvs parse traces/ --steps --csv > steps.csv\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    paths = parser.add_argument("paths", nargs="+", metavar="PATH", help="a folder, or a trace")
    paths.complete = FILES  # type: ignore[attr-defined]
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="all that is known, as JSON")
    shown.add_argument("--csv", action="store_true", help="a row per rank, as CSV")
    parser.add_argument("--steps", action="store_true", help="a row per rank and step, too; as CSV: instead")
    parser.add_argument(
        "--accelerator", choices=("rocm", "cuda", "none"), help="what the job ran on; else the traces tell"
    )
    parser.add_argument(
        "--world_size",
        "--world-size",
        type=ranks,
        metavar="N",
        help="how many ranks there were; else the traces tell",
    )
    add_file(parser, "config", "the benchmark file: accelerator, limits, traces", required=False)
    parser.add_argument(
        "--linked", action="store_true", help="also the timeline of GPU events that a launch is known of"
    )
    parser.add_argument(
        "--micro_idle_us",
        "--micro-idle-us",
        dest="micro_idle_ns",
        type=nanoseconds,
        metavar="T",
        help="tell idle gaps shorter than so many microseconds from longer ones",
    )
    parser.set_defaults(handler=_parse)


def ranks(text: str) -> int:
    """What `--world_size` says."""
    if _RANKS.fullmatch(text) and 1 <= int(text) <= _MOST_RANKS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number of ranks from 1 to {_MOST_RANKS}")


def nanoseconds(text: str) -> int:
    """What `--micro_idle_us` says, exactly."""
    found = _MICROSECONDS.fullmatch(text)
    if found and (number := int(found[1] + (found[2] or "").ljust(3, "0"))):
        return number
    raise argparse.ArgumentTypeError(f"{text!r} is no number of microseconds, such as 5 or 0.25")


def _parse(arguments: argparse.Namespace) -> int:
    from cvs.config import ExpectedResults, load_aorta
    from cvs.models import ParseOptions
    from cvs.parsers.tracelens import TraceLensParser
    from cvs.pipeline import measure_traces, parse_options
    from cvs.thresholds import check

    _refuse_absent(arguments.paths)
    accelerator, options, limits = arguments.accelerator, ParseOptions(), ExpectedResults()
    if arguments.config_file:
        bench = load_aorta(arguments.config_file)
        if "accelerator" in bench.model_fields_set:  # a default says nothing of these traces
            accelerator = accelerator or bench.accelerator
        options, limits = parse_options(bench), bench.expected_results
    asked = {"linked": arguments.linked, "micro_idle_ns": arguments.micro_idle_ns}
    result = measure_traces(
        arguments.paths,
        TraceLensParser(options.model_copy(update=asked), lambda line: _complain([line])),
        accelerator=accelerator,
        world_size=arguments.world_size,
    )
    violations = check(result, limits)
    _say(_told(arguments, result, limits))
    if arguments.csv:  # which has no place for them
        _complain(f"warning: {warning}" for warning in result.parse.warnings)
        _complain(violation.message for violation in violations)
    return int(bool(violations))


def _refuse_absent(paths: list[str]) -> None:
    """Refuse what is neither a folder nor a file.

    Raises: ConfigError: one line for each.
    """
    from cvs.errors import ConfigError

    absent = {path: why for path in paths if (why := _why_absent(path))}
    if absent:
        raise ConfigError([f"{path}: {why}" for path, why in absent.items()])


def _why_absent(path: str) -> str | None:
    if not path:
        return "an empty path"
    try:
        mode = Path(path).stat().st_mode
    except OSError as error:
        return error.strerror
    return None if stat.S_ISDIR(mode) or stat.S_ISREG(mode) else "neither a folder nor a file"


def _told(arguments: argparse.Namespace, result: TraceResult, limits: ExpectedResults) -> str:
    if arguments.json:
        from cvs.reports.json_report import traces_json

        return traces_json(result, limits) + "\n"
    if arguments.csv:
        from cvs.reports.csv_report import traces_csv

        return traces_csv(result.parse, steps=arguments.steps)
    from cvs.reports.table import traces_text

    first, *others = arguments.paths
    return traces_text(
        result,
        limits,
        name=f"{first} and {len(others)} more" if others else first,
        steps=arguments.steps,
        linked=arguments.linked,
        idle=arguments.micro_idle_ns is not None,
        width=max(_LEAST_WIDTH, shutil.get_terminal_size((110, 0)).columns),
        color=sys.stdout.isatty() and "NO_COLOR" not in os.environ,
    )


def _say(text: str) -> None:
    """Print it whole, now, whatever the user's encoding has no letters for."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        from cvs.errors import EnvironmentFault

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python tells of it once more
        raise EnvironmentFault(f"the result cannot be written: {error.strerror}") from None


def _complain(lines: Iterable[str]) -> None:
    from cvs.terminal import printable

    for line in lines:
        print(printable(line), file=sys.stderr)
