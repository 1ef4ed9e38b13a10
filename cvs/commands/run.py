"""`cvs run`: a thin wrapper over pytest; and `--dry-run`, the plan on paper."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

from cvs.commands.suites import PACKAGE, cases, suites, unknown_suite

USAGE = "cvs run SUITE [CASE …] --cluster_file FILE --config_file FILE [pytest options …]"
EXAMPLE = """\
example, on this machine alone (needs an interpreter with PyTorch, here or in TORCH_PYTHON):
  cvs copy-config local_cluster.json
  cvs copy-config aorta_local.yaml
  cvs run test_aorta --cluster_file local_cluster.json --config_file aorta_local.yaml
  cvs run test_aorta --cluster_file local_cluster.json --config_file aorta_local.yaml --dry-run
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs run`, for its help and for completion; `main` hands its words to `run` as they are."""
    parser = commands.add_parser(
        "run",
        help="run a suite, or some of its cases, with pytest",
        usage=USAGE,
        description="Run a suite with pytest, whose options all pass through; exit codes are pytest's own.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", metavar="SUITE", choices=list(suites()), help="see `cvs list`")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only these cases; see `cvs list SUITE`")
    add_file_options(parser)
    parser.add_argument("--runs_dir", "--runs-dir", metavar="DIR", help="where runs are kept (cvs_runs)")
    parser.add_argument(
        "--run_dir", "--run-dir", metavar="DIR", help="judge this earlier run, not the newest"
    )
    parser.add_argument(
        "--training_overrides", "--training-overrides", metavar="'KEY=VALUE …'", help="for the trainer"
    )
    parser.add_argument("--wait", metavar="SECONDS", help="how long to wait for nodes that another run holds")
    parser.add_argument(
        "--no_preflight", "--no-preflight", action="store_true", help="without the checks of `cvs doctor`"
    )
    parser.add_argument("--dry-run", "--dry_run", action="store_true", help="show the plan, run nothing")
    parser.add_argument("--json", action="store_true", help="with --dry-run: the plan as JSON")


FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""How shells complete a file name: shtab's own `FILE`, which would have to be imported at every start."""


def add_file_options(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Declare the two files."""
    add_cluster_file(parser, required=required)
    add_file(parser, "config", "the job and its limits", required)


def add_cluster_file(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Declare the file of the machines."""
    add_file(parser, "cluster", "the machines", required)


def add_file(parser: argparse.ArgumentParser, name: str, what: str, required: bool) -> None:
    """Declare one file, `--<name>_file`."""
    option = parser.add_argument(
        f"--{name}_file", f"--{name}-file", metavar="FILE", required=required, help=what
    )
    option.complete = FILES  # type: ignore[attr-defined]


def run(words: list[str]) -> int:
    """Run the suite that is the first of `words`, or stands behind options; pytest's exit code.

    Raises: EnvironmentFault: the current folder is gone.
    """
    here = _current_folder()
    at = next((index for index, word in enumerate(words) if word.partition("::")[0] in suites()), None)
    if at is None:
        return _usage_error(_no_suite_in(words))
    suite, _, case = words[at].partition("::")
    module = suites()[suite]
    known = list(cases(module))
    named, options = _split([*words[:at], *words[at + 1 :]], known)
    if "--dry-run" in options or "--dry_run" in options:
        return _dry_run(suite, module, options)
    import pytest  # takes longer than all that `cvs --help` needs

    from cvs.commands._words import Words

    targets = [f"{module}::{case}" for case in ([case] if case else []) + named] or [str(module)]
    try:
        return int(pytest.main([*_own_options(here), *targets, *options], plugins=[Words(module, known)]))
    except KeyboardInterrupt:  # while pytest sums up
        return int(pytest.ExitCode.INTERRUPTED)


def _no_suite_in(words: list[str]) -> str:
    if words and not words[0].startswith("-"):
        return unknown_suite(words[0].partition("::")[0])
    return f"name a suite: {', '.join(suites())}"


def _usage_error(message: str) -> int:
    """Tell what is wrong with the words after `cvs run`; pytest's exit code for it."""
    print(f"cvs: {message}\nusage: {USAGE}", file=sys.stderr)
    return 4


def _current_folder() -> Path:
    from cvs.errors import EnvironmentFault

    try:
        return Path.cwd()
    except OSError as error:
        raise EnvironmentFault(f"the current folder: {error.strerror}; change to one that is there") from None


def _own_options(here: Path) -> list[str]:
    """What makes pytest independent of the folder that cvs is started in."""
    # Loaded by its entry point, unless the user has switched that off.
    plugin = ["-p", "cvs"] if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") else []
    return [
        *plugin,
        f"-c={PACKAGE / 'suite.ini'}",
        f"--rootdir={PACKAGE.parent}",
        f"--override-ini=cache_dir={here / '.pytest_cache'}",
    ]


def _split(words: list[str], known: list[str]) -> tuple[list[str], list[str]]:
    """Names of cases, wherever they stand, and what else is pytest's."""
    named: list[str] = []
    options: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if word.partition("[")[0] in known and before not in ("-k", "-m"):
            named.append(word)
        else:
            # pytest has a --config-file of its own, which no user of cvs means.
            options.append(word.replace("--config-file", "--config_file", 1) if _is_config(word) else word)
    return named, options


def _is_config(word: str) -> bool:
    return word == "--config-file" or word.startswith("--config-file=")


class _DryRunParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SystemExit(_usage_error(message.removeprefix("argument ")))


def _dry_run(suite: str, module: Path, words: list[str]) -> int:
    from importlib import import_module

    from cvs.commands._words import missing_files, nearest_option
    from cvs.plugin import DEFAULT_RUNS_DIR, Benchmark, parse_overrides, seconds_to_wait
    from cvs.reports.plan_text import plan_text

    # No abbreviations: what is not spelled out here is pytest's, such as --co.
    parser = _DryRunParser(prog="cvs run", add_help=False, allow_abbrev=False)
    add_file_options(parser)
    parser.add_argument("--runs_dir", "--runs-dir", default=DEFAULT_RUNS_DIR)
    parser.add_argument("--training_overrides", "--training-overrides", default="")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--run_dir", "--run-dir")
    parser.add_argument("--wait", type=seconds_to_wait)
    parser.add_argument("--no_preflight", "--no-preflight", action="store_true")
    parser.add_argument("--dry-run", "--dry_run", action="store_true")
    arguments, others = parser.parse_known_args(words)
    for word in others:
        near = nearest_option(word, cutoff=0.85) if word.startswith("--") else None
        if near:
            return _usage_error(f"unknown option {word} (did you mean {near}?)")
    if absent := missing_files(arguments.cluster_file, arguments.config_file):
        return _usage_error(absent)
    name = ".".join(module.relative_to(PACKAGE.parent).with_suffix("").parts)
    benchmark: Benchmark = import_module(name).BENCHMARK
    cluster, bench = benchmark.load_files(Path(arguments.cluster_file), Path(arguments.config_file))
    runner = benchmark.runner(cluster, bench.with_overrides(parse_overrides(arguments.training_overrides)))
    plan = runner.plan_on_paper(Path(arguments.runs_dir).resolve() / suite / "nodes")
    notes = runner.validate_config()
    if arguments.json:
        print(plan.model_dump_json(indent=2), flush=True)
    else:
        print(plan_text(plan, {node: way.text for node, way in runner.ways.items()}), flush=True)
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    return 0
