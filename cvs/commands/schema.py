"""`cvs schema`: JSON Schema of the two files, for editors."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel

KINDS = ("aorta", "cluster")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs schema`."""
    parser = commands.add_parser(
        "schema",
        help="JSON Schema of a file, for editors",
        description="Print the JSON Schema of one of the two files. The samples of `cvs copy-config` name it"
        " in their first lines, so that editors offer keys and mark mistakes.",
        epilog="example:\n  cvs schema aorta > aorta.schema.json\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=KINDS, help="which file")
    parser.set_defaults(handler=_print)


def _print(arguments: argparse.Namespace) -> int:
    print(schema_text(arguments.kind))
    return 0


def schema_text(kind: str) -> str:
    """The schema of a file, as it is shipped beside the samples."""
    from cvs.config import AortaConfig, ClusterConfig

    models: dict[str, type[BaseModel]] = {"aorta": AortaConfig, "cluster": ClusterConfig}
    schema: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **models[kind].model_json_schema(),
        "title": {"aorta": "aorta_benchmark.yaml of cvs", "cluster": "cluster.json of cvs"}[kind],
    }
    # In JSON a number is no text.
    return json.dumps(_strict(schema) if kind == "cluster" else schema, indent=2)


def _strict(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            key: "string" if key == "type" and value == ["string", "number"] else _strict(value)
            for key, value in schema.items()
        }
    return [_strict(item) for item in schema] if isinstance(schema, list) else schema
