"""`cvs exec`: one shell command on every node, side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from cvs.commands.run import add_cluster_file

if TYPE_CHECKING:
    from cvs.config import ClusterConfig
    from cvs.runners.command import Answer

_SECONDS = 60
_MOST_SECONDS = 7 * 24 * 3600


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs exec`."""
    parser = commands.add_parser(
        "exec",
        help="run one shell command on every node",
        description="Run one shell command on every node, side by side. Nodes with the same answer are shown"
        " together. Exit code 0; 1 if it did not end well on some node; 3 if no node could be reached.",
        epilog="example:\n  cvs copy-config local_cluster.json\n"
        '  cvs exec --cmd "uname -sr" --cluster_file local_cluster.json\n',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cmd", required=True, metavar="COMMAND", help="what `sh -c` runs on each node")
    add_cluster_file(parser, required=True)
    parser.add_argument("--nodes", metavar="LIST", help='only these, such as "node-[0-3],node-7"')
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=_SECONDS,
        metavar="SECONDS",
        help=f"end it on a node after so long ({_SECONDS})",
    )
    parser.add_argument("--json", action="store_true", help="the answer of each node as JSON")
    parser.set_defaults(handler=_exec)


def seconds(text: str) -> int:
    """What `--timeout` says."""
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= _MOST_SECONDS:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no whole number of seconds from 1 to {_MOST_SECONDS}")


def _exec(arguments: argparse.Namespace) -> int:
    from cvs.config import load_cluster
    from cvs.errors import ConfigError, EnvironmentFault
    from cvs.runners.command import run_on_nodes

    if not arguments.cmd.strip():
        raise ConfigError(['--cmd: is empty; give a shell command, such as --cmd "uname -r"'])
    cluster = load_cluster(arguments.cluster_file)
    names = list(cluster.node_dict) if arguments.nodes is None else _chosen(arguments.nodes, cluster)
    for warning in cluster.warnings():
        _complain(f"warning: {warning}")
    answers = run_on_nodes(names, arguments.cmd, cluster, seconds=arguments.timeout, console=_complain)
    if arguments.json:
        import json

        print(json.dumps([answer._asdict() for answer in answers], indent=2))
    else:
        for line in _lines(answers):
            print(line)
    if all(answer.seconds is None for answer in answers):
        raise EnvironmentFault(f"{arguments.cluster_file}: no node could be reached")
    return int(any(answer.exit_code != 0 for answer in answers))


def _complain(line: str) -> None:
    print(line, file=sys.stderr)


def _chosen(text: str, cluster: ClusterConfig) -> list[str]:
    from cvs.config.problem import nearest
    from cvs.errors import ConfigError
    from cvs.hosts import hosts_in

    chosen, known = hosts_in(text), cluster.node_dict
    if not chosen:
        raise ConfigError(["--nodes: names no node"])
    unknown = {name: nearest(name, known, cutoff=0.0) for name in chosen if name not in known}
    if unknown:
        raise ConfigError(
            [
                f"--nodes: {name} is no node of the cluster file (did you mean {near}?)"
                for name, near in unknown.items()
            ]
        )
    return chosen


def _lines(answers: Sequence[Answer]) -> Iterator[str]:
    """Each answer once, below the nodes that gave it."""
    from cvs.hosts import together
    from cvs.terminal import printable

    for names, answer in together((each.node, each._replace(node="", seconds=None)) for each in answers):
        yield printable(f"{names}: {answer.error or f'exit {answer.exit_code}'}")
        for line in answer.stdout.splitlines():
            yield f"  {printable(line)}"
        for line in answer.stderr.splitlines():
            yield f"  stderr: {printable(line)}"
