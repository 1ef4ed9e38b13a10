"""The command line. Imports late: `cvs --help` answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import cvs
from cvs.commands import check_config, completion, copy_config, generate, run, schema, suites
from cvs.errors import CvsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _command(words)
    except CvsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # else Python tells of it once more
        return 1


def _command(words: list[str]) -> int:
    if words[:1] == ["run"] and len(words) == 1:
        return run.usage_error(f"name a suite: {', '.join(suites.suites())}")
    if words[:1] == ["run"] and not words[1].startswith("-"):
        return run.run(words[1], words[2:])  # what follows is pytest's
    parser = _parser()
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 2
    code: int = arguments.handler(arguments)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cvs",
        description="Cluster validation suite: do N nodes really train together at full speed?",
        epilog=run.EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cvs {cvs.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (run, suites, check_config, copy_config, generate, schema):
        module.add(commands)
    completion.add(commands, _parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
