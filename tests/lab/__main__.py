"""`python -m lab`: the lab, for developers."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Sequence

from lab.cluster import Lab, lab_folder
from lab.faults import FAULTS, Fault
from lab.images import NAMES
from lab.machine import LabError, install_missing
from lab.node import SERVICES


def main(words: Sequence[str]) -> int:
    """Do what the command says; 0 good, 1 it cannot be done."""
    arguments = _parser().parse_args(words)
    try:
        _do(Lab(lab_folder()), arguments)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


def _do(lab: Lab, arguments: argparse.Namespace) -> None:
    match arguments.command:
        case "install":
            install_missing(arguments.packages)
        case "up":
            with lab.held():
                lab.up(arguments.nodes)
                for image in arguments.image:
                    lab.load(image)
            _print_status(lab)
        case "down":
            with lab.held():
                lab.down(arguments.purge)
        case "status":
            _print_status(lab)
        case "cluster":
            print(json.dumps(lab.cluster(arguments.nodes or len(lab.nodes)), indent=2))
        case "fault":
            options = {name: vars(arguments)[name] for name in _options(FAULTS[arguments.kind])}
            FAULTS[arguments.kind](lab.node(arguments.node), **options)
        case "heal":
            lab.heal()


def _print_status(lab: Lab) -> None:
    for node in lab.nodes:
        services = SERVICES if node.pid() else ()
        states = [f"{name} {'on' if node.service(name) else 'off'}" for name in services] or ["off"]
        broken = ["faulty"] if node.broken.exists() else []
        print(node.name, node.address, *states, *broken, sep="  ")
    if lab.nodes:
        print(f"log in: ssh -F {lab.ssh_config} {lab.nodes[0].name}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab", description=f"Nodes on this machine, in {lab_folder()} (CVS_LAB); needs root."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    install = commands.add_parser(
        "install", help="install the Debian packages that are missing; starts no service"
    )
    install.add_argument("packages", nargs="*", metavar="PACKAGE", help="of these only")
    up = commands.add_parser("up", help="bring up nodes, or as many more as are wanted")
    up.add_argument("--nodes", type=int, default=2, metavar="N")
    up.add_argument("--image", action="append", choices=NAMES, default=[], help="may be repeated")
    down = commands.add_parser("down", help="remove all but built images")
    down.add_argument("--purge", action="store_true", help="images, too")
    commands.add_parser("status", help="what is on")
    cluster = commands.add_parser("cluster", help="print a cluster.json of the nodes")
    cluster.add_argument("--nodes", type=int, metavar="N", help="of the first ones only")
    kinds = commands.add_parser("fault", help="break something on a node").add_subparsers(
        dest="kind", required=True, metavar="KIND"
    )
    for name, fault in FAULTS.items():
        _add_fault(kinds.add_parser(name, help=(fault.__doc__ or "").splitlines()[0]), fault)
    commands.add_parser("heal", help="undo all faults")
    return parser


def _add_fault(parser: argparse.ArgumentParser, fault: Fault) -> None:
    parser.add_argument("node")
    for name, default in _options(fault).items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        else:
            known = f"default {default}" if default else None
            parser.add_argument(f"--{name}", type=type(default), default=default, help=known)


def _options(fault: Fault) -> dict[str, object]:
    """Names and defaults of what a fault takes besides the node."""
    parameters = inspect.signature(fault).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
