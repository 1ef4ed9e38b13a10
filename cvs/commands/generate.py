"""`cvs generate cluster_json`: a cluster file from a list of hosts."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs generate`."""
    parser = commands.add_parser(
        "generate",
        help="make a cluster file from a list of hosts",
        description="Make a file from less.",
        epilog='example:\n  cvs generate cluster_json --hosts "gpu[01-16]" --username "{user-id}"'
        " --key_file ~/.ssh/id_ed25519 --output_json_file cluster.json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    cluster = kinds.add_parser(
        "cluster_json",
        help="cluster.json",
        description="Make a cluster file. Each node's vpc_ip is the host itself; edit it where the other"
        " nodes reach a host by another address.",
        epilog='example:\n  cvs generate cluster_json --hosts "a[01-16],10.0.0.5-9" --username me'
        " --key_file ~/.ssh/id_ed25519 --output_json_file cluster.json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hosts = cluster.add_mutually_exclusive_group(required=True)
    hosts.add_argument("--hosts", metavar="LIST", help='such as "a[01-16],10.0.0.5-9"')
    hosts.add_argument(
        "--input_hosts_file",
        "--input-hosts-file",
        metavar="FILE",
        help="the same, in lines; # begins a comment",
    )
    cluster.add_argument("--username", required=True, metavar="NAME", help="login on every node")
    cluster.add_argument("--key_file", "--key-file", metavar="FILE", help="private key")
    cluster.add_argument(
        "--head_node", "--head-node", metavar="HOST", help="node rank 0 (default: the first)"
    )
    cluster.add_argument(
        "--output_json_file",
        "--output-json-file",
        required=True,
        metavar="OUT",
        help="the file to write; - prints",
    )
    cluster.set_defaults(handler=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    text = json.dumps(_cluster(arguments), indent=2) + "\n"
    if arguments.output_json_file == "-":
        print(text, end="")
        return 0
    _write(Path(arguments.output_json_file), text)
    return 0


def _cluster(arguments: argparse.Namespace) -> dict[str, Any]:
    from cvs.config import ClusterConfig
    from cvs.config.validation import validated
    from cvs.errors import ConfigError
    from cvs.hosts import hosts_in, hosts_in_lines

    source = arguments.input_hosts_file
    hosts = hosts_in_lines(_read(Path(source))) if source else hosts_in(arguments.hosts)
    if not hosts:
        raise ConfigError([f"{source or '--hosts'}: names no host"])
    key = {"priv_key_file": arguments.key_file} if arguments.key_file else {}
    cluster: dict[str, Any] = {
        "username": arguments.username,
        **key,
        "head_node_dict": {"mgmt_ip": arguments.head_node or hosts[0]},
        "node_dict": {host: {"vpc_ip": host} for host in hosts},
    }
    _, problems = validated(ClusterConfig, cluster)
    if problems:
        raise ConfigError([str(problem) for problem in problems])
    return cluster


def _read(file: Path) -> str:
    from cvs.errors import ConfigError

    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text (byte {error.start})"]) from None


def _write(file: Path, text: str) -> None:
    """Write the file; one that is there is kept beside it, it may have been edited by hand."""
    from cvs.errors import EnvironmentFault

    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and file.read_text(encoding="utf-8", errors="replace") != text:
            kept = file.with_name(f"{file.name}~")
            file.replace(kept)
            print(f"cvs: the file that was there is now {kept}", file=sys.stderr)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFault(f"{file}: cannot be written: {error.strerror}") from None
