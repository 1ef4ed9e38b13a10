"""The command line. Imports late: `cvs --help` answers at once."""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import cvs

_PACKAGE = Path(__file__).resolve().parent
_RUN_USAGE = "cvs run SUITE [CASE …] --cluster_file FILE --config_file FILE [pytest options …]"
_EXAMPLE = """\
example, on this machine alone (needs an interpreter with PyTorch, here or in TORCH_PYTHON):
  cvs run test_aorta --cluster_file input/cluster_file/local_cluster.json \\
      --config_file input/config_file/aorta/aorta_local.yaml
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    # What follows `run` is pytest's, its --help included only where no suite is named.
    if words[:1] == ["run"] and len(words) > 1 and not words[1].startswith("-"):
        return _run(words[1], words[2:])
    arguments = _parser().parse_args(words)
    command: str | None = arguments.command
    if command is None:
        _parser().print_help()
    else:
        _usage_error(f"name a suite: {', '.join(sorted(_suites()))}")
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cvs",
        description="Cluster validation suite: do N nodes really train together at full speed?",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cvs {cvs.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser(
        "run",
        help="run a suite, or some of its cases, with pytest",
        usage=_RUN_USAGE,
        description="Run a suite with pytest, whose options all pass through; exit codes are pytest's own.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def _usage_error(message: str) -> None:
    print(f"cvs: {message}\nusage: {_RUN_USAGE}", file=sys.stderr)


def _suites() -> dict[str, Path]:
    """The suites, by name: the test modules below `cvs/tests`."""
    return {path.stem: path for path in (_PACKAGE / "tests").rglob("test_*.py")}


def _run(name: str, words: list[str]) -> int:
    import pytest  # takes longer than all that `cvs --help` needs

    suites = _suites()
    suite, _, case = name.partition("::")
    if suite not in suites:
        near = difflib.get_close_matches(suite, suites, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(sorted(suites))}"
        _usage_error(f"no suite {suite}; {hint}")
        return int(pytest.ExitCode.USAGE_ERROR)
    cases, options = _split(words, _cases(suites[suite]))
    if case:
        cases.insert(0, case)
    targets = [f"{suites[suite]}::{case}" for case in cases] or [str(suites[suite])]
    return int(pytest.main([*_own_options(), *targets, *options]))


def _own_options() -> list[str]:
    """What makes pytest independent of the folder that cvs is started in."""
    # Loaded by its entry point, unless the user has switched that off.
    plugin = ["-p", "cvs"] if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD") else []
    return [
        *plugin,
        f"-c={_PACKAGE / 'suite.ini'}",
        f"--rootdir={_PACKAGE.parent}",
        f"--override-ini=cache_dir={Path.cwd() / '.pytest_cache'}",
    ]


def _cases(module: Path) -> set[str]:
    body = ast.parse(module.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def _split(words: list[str], known: set[str]) -> tuple[list[str], list[str]]:
    """Names of cases, wherever they stand, and what else is pytest's."""
    cases: list[str] = []
    options: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if word.partition("[")[0] in known and before not in ("-k", "-m"):
            cases.append(word)
        else:
            # pytest has a --config-file of its own, which no user of cvs means.
            options.append(word.replace("--config-file", "--config_file", 1) if _is_config(word) else word)
    return cases, options


def _is_config(word: str) -> bool:
    return word == "--config-file" or word.startswith("--config-file=")


if __name__ == "__main__":
    raise SystemExit(main())
