"""What suites there are, by their files; nothing is imported to find out."""

from __future__ import annotations

import argparse
import ast
import difflib
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def suites() -> dict[str, Path]:
    """The suites by name: the test modules below `cvs/tests`."""
    return {path.stem: path for path in sorted((PACKAGE / "tests").rglob("test_*.py"))}


def cases(module: Path) -> dict[str, str]:
    """A suite's cases in order, each with what it stands for."""
    body = ast.parse(module.read_text(encoding="utf-8")).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {node.name: _first_line(node) for node in functions}


def _first_line(node: ast.FunctionDef | ast.Module) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]


def unknown_suite(name: str) -> str:
    """What to tell about a name that is no suite."""
    near = difflib.get_close_matches(name, suites(), n=1)
    return f"no suite {name}; " + (
        f"did you mean {near[0]}?" if near else f"there are: {', '.join(suites())}"
    )


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs list`."""
    parser = commands.add_parser(
        "list",
        help="suites, or the cases of one",
        description="The suites that `cvs run` knows, or the cases of one, in the order they run.",
        epilog="example:\n  cvs list test_aorta\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("suite", nargs="?", metavar="SUITE", help="show the cases of this suite")
    parser.set_defaults(handler=_list)


def _list(arguments: argparse.Namespace) -> int:
    if arguments.suite is None:
        rows = {name: _first_line(ast.parse(path.read_text("utf-8"))) for name, path in suites().items()}
    elif arguments.suite in suites():
        rows = cases(suites()[arguments.suite])
    else:
        from cvs.errors import ConfigError

        raise ConfigError([unknown_suite(arguments.suite)])
    width = max(map(len, rows))
    for name, what in rows.items():
        print(f"{name:{width}}  {what}")
    return 0
