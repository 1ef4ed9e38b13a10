"""`cvs completion`: a script that lets a shell complete commands, suites and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable

SHELLS = ("bash", "zsh", "tcsh")


def add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    parser: Callable[[], argparse.ArgumentParser],
) -> None:
    """Declare `cvs completion`; `parser` makes the whole command line's."""
    own = commands.add_parser(
        "completion",
        help="completion script for a shell",
        description="Print a script that completes the words after `cvs` in a shell.",
        epilog='example, in ~/.bashrc:\n  eval "$(cvs completion bash)"\n',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("shell", choices=SHELLS, help="which shell")
    own.set_defaults(handler=lambda arguments: _print(arguments.shell, parser()))


def _print(shell: str, parser: argparse.ArgumentParser) -> int:
    import shtab

    print(shtab.complete(parser, shell=shell))
    return 0
