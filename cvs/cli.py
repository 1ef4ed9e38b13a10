"""The command line. Imports late: `cvs --help` answers at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import cvs
from cvs.commands import (
    check_config,
    cleanup,
    completion,
    copy_config,
    doctor,
    exec,
    generate,
    parse,
    run,
    schema,
    suites,
)
from cvs.errors import CvsError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    _replace_closed_streams()
    try:
        return _command(words)
    except CvsError as error:
        from cvs.terminal import printable_lines

        print(printable_lines(str(error)), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # else Python tells of it once more
        return 1


def _replace_closed_streams() -> None:
    """Let nobody read what is written to a stream that the caller closed (`>&-`); pytest needs each."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  (open to the end)


def _command(words: list[str]) -> int:
    if words[:1] == ["run"] and words[1:2] not in (["-h"], ["--help"]):
        return run.run(words[1:])
    parser = command_line()
    arguments = parser.parse_args(words)
    if arguments.command is None:
        parser.print_help()
        return 2
    code: int = arguments.handler(arguments)
    return code


def command_line() -> argparse.ArgumentParser:
    """All commands with their options, for help and for completion."""
    parser = argparse.ArgumentParser(
        prog="cvs",
        description="Cluster validation suite: do N nodes really train together at full speed?",
        epilog=run.EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cvs {cvs.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (run, parse, doctor, exec, cleanup, suites, check_config, copy_config, generate, schema):
        module.add(commands)
    completion.add(commands, command_line)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
