"""`cvs doctor`: are the nodes fit for the job? The checks before a run, alone."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from cvs.commands.run import add_file_options

if TYPE_CHECKING:
    from cvs.preflight import Finding


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="check the nodes for a job, without running it",
        description="Check every node for the job of the benchmark file, all at once, as a run does before it"
        " starts; nothing is pulled, cloned, built or left. Exit code 0 if all nodes are fit; 1 if one is"
        " not; 3 if none can be reached.",
        epilog="example:\n  cvs copy-config --all\n"
        "  cvs doctor --cluster_file local_cluster.json --config_file aorta_local.yaml\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_file_options(parser, required=True)
    parser.add_argument("--json", action="store_true", help="every finding as JSON")
    parser.set_defaults(handler=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from cvs.config import load_files
    from cvs.preflight import bad
    from cvs.run_folder import new_run_folder
    from cvs.runners.aorta import AortaRunner

    cluster, bench = load_files(Path(arguments.cluster_file), Path(arguments.config_file))
    runner = AortaRunner(cluster, bench, console=_complain)
    for warning in runner.validate_config():
        _complain(f"warning: {warning}")
    with TemporaryDirectory(prefix="cvs-doctor-") as folder:
        findings = runner.doctor(new_run_folder(Path(folder), "doctor"))
    nodes = [node.node for node in runner.plan.nodes]
    unfit = {finding.node for finding in bad(findings)}
    if arguments.json:
        import json

        fit = {node: node not in unfit for node in nodes}
        print(json.dumps({"fit": fit, "findings": [each.model_dump() for each in findings]}, indent=2))
    else:
        print(_told(nodes, unfit, findings))
    unreached = {finding.node for finding in bad(findings) if finding.check == "reach"}
    return 3 if unreached == set(nodes) else int(bool(unfit))


def _told(nodes: list[str], unfit: set[str], findings: list[Finding]) -> str:
    """The table, what is behind its marks, and the sum."""
    from cvs.hosts import together
    from cvs.preflight import table
    from cvs.terminal import printable

    told = together((each.node, (each.status, each.text)) for each in findings if each.text)
    said = [f"{status}: {printable(f'{names}: {text}')}" for names, (status, text) in told]
    fit = len(nodes) - len(unfit)
    return "\n".join([table(nodes, findings), *said, f"{fit} of {len(nodes)} nodes fit"])


def _complain(line: str) -> None:
    print(line, file=sys.stderr)
