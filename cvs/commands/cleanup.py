"""`cvs cleanup`: away with what runs have left on the nodes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cvs.commands.exec import seconds
from cvs.commands.run import add_cluster_file, add_file

if TYPE_CHECKING:
    from cvs.runners.cleanup import Cleaned

_SECONDS = 300


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs cleanup`."""
    parser = commands.add_parser(
        "cleanup",
        help="remove what runs have left on the nodes",
        description="Remove from every node, side by side, what your runs have left there: containers that"
        " nobody needs any more; with --config_file, plain processes of a run whose cvs was killed here; with"
        " --run, all of that run. What is another's, or of a run that may be in"
        " progress, is named and stays. Exit code 0; 1 if something stays that should have gone; 3 if no node"
        " could be reached.",
        epilog="example:\n  cvs copy-config local_cluster.json\n"
        "  cvs copy-config aorta_local.yaml\n"
        "  cvs cleanup --cluster_file local_cluster.json --config_file aorta_local.yaml --dry-run\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_cluster_file(parser, required=True)
    add_file(parser, "config", "the job: what it runs in, the name of its container, and its folder", False)
    parser.add_argument(
        "--run", type=_run_id, metavar="ID", help="all of this run, whose cvs is gone; nothing else"
    )
    parser.add_argument("--dry-run", "--dry_run", action="store_true", help="only tell what would go")
    parser.add_argument(
        "--timeout", type=seconds, default=_SECONDS, metavar="SECONDS",
        help=f"for one node ({_SECONDS})",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="what was found on each node as JSON")
    parser.set_defaults(handler=_cleanup)


def _run_id(text: str) -> str:
    if text.strip() and text.isprintable() and "/" not in text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no id of a run, such as 20261130T080104.631Z-c04272")


def _cleanup(arguments: argparse.Namespace) -> int:
    from cvs.config import load_aorta, load_cluster
    from cvs.config.account import user_name
    from cvs.errors import EnvironmentFault
    from cvs.runners.cleanup import clean_nodes
    from cvs.runtime.cleanup import Scope

    cluster = load_cluster(arguments.cluster_file)
    bench = load_aorta(arguments.config_file, cluster) if arguments.config_file else None
    scope = Scope(
        user=user_name(),
        run_id=arguments.run,
        only_look=arguments.dry_run,
        asks_docker=bench is None or bench.runtime == "docker",
        container_name=bench.docker.container_name if bench else None,
        folder=bench.aorta_path if bench else None,
        seconds=arguments.timeout,
    )
    for warning in cluster.warnings():
        print(f"warning: {warning}", file=sys.stderr)
    nodes = clean_nodes(cluster, scope)
    if arguments.json:
        import json

        print(json.dumps([_as_json(node) for node in nodes], indent=2))
    else:
        for line in _lines(nodes, f"nothing of run {scope.run_id}" if scope.run_id else "nothing is left"):
            print(line)
    if not any(node.is_reached for node in nodes):
        raise EnvironmentFault(f"{arguments.cluster_file}: no node could be reached")
    return int(not all(node.is_good for node in nodes))


def _lines(nodes: Sequence[Cleaned], nothing: str) -> Iterator[str]:
    from cvs.hosts import together
    from cvs.terminal import printable

    told = (
        (node.node, text)
        for node in nodes
        for text in [*map(str, node.found), *filter(None, [node.error])] or [nothing]
    )
    for names, text in together(told):
        yield printable(f"{names}: {text}")


def _as_json(node: Cleaned) -> dict[str, Any]:
    found = [
        {**each._asdict(), "holder": each.holder.model_dump() if each.holder else None} for each in node.found
    ]
    return {**node._asdict(), "found": found}
