"""`cvs check-config`: are the two files right, and what does each key mean in the end?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cvs.commands.run import add_file_options

if TYPE_CHECKING:
    from cvs.config.loader import Loaded


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs check-config`."""
    parser = commands.add_parser(
        "check-config",
        help="check the two files and show every value with its source",
        description="Check both files as a run would, without contact to any node, and show every key with"
        " its value and where that comes from. Exit code 0, or 2 with every mistake told.",
        epilog="example:\n  cvs copy-config local_cluster.json\n  cvs copy-config aorta_local.yaml\n"
        "  cvs check-config --cluster_file local_cluster.json --config_file aorta_local.yaml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_file_options(parser, required=True)
    parser.add_argument("--json", action="store_true", help="values and sources as JSON")
    parser.set_defaults(handler=_check)


def _check(arguments: argparse.Namespace) -> int:
    from cvs.config.loader import read_files
    from cvs.runners.aorta import AortaRunner

    cluster, bench = read_files(arguments.cluster_file, arguments.config_file)
    rows = [*_rows(cluster), *_rows(bench)]
    if arguments.json:
        import json

        print(
            json.dumps(
                [{"key": key, "value": value, "source": source} for key, value, source in rows], indent=2
            )
        )
    else:
        for key, value, source in rows:
            print(f"{key} = {_shown(value)}  [{source}]")
    for warning in [*cluster.config.warnings(), *AortaRunner(cluster.config, bench.config).doubts()]:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _rows(loaded: Loaded[Any]) -> Iterator[tuple[str, Any, str]]:
    """Key, value and source of everything in a file."""
    for key, value in _leaves(loaded.config.resolved(), ()):
        given = loaded.document.is_given(key)
        line, _ = loaded.document.place(key)
        source = f"{loaded.document.file}:{line}" if given else "default"
        yield ".".join(key), value, source


def _leaves(value: Any, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and (value or not key):
        for name, inner in value.items():
            yield from _leaves(inner, (*key, name))
    else:
        yield key, value


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
