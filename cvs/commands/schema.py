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
    return json.dumps(_standard(schema, strict=kind == "cluster"), indent=2)


_BOUNDS = {"ge": "minimum", "le": "maximum"}
"""As pydantic writes bounds behind a validator of ours, and as editors read them."""


def _standard(schema: Any, *, strict: bool) -> Any:
    """The schema in standard words; `strict`: in JSON a number is no text."""
    if isinstance(schema, list):
        return [_standard(item, strict=strict) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if strict and schema.get("type") == ["string", "number"]:
        schema = {**schema, "type": "string"}
    return {_BOUNDS.get(key, key): _standard(value, strict=strict) for key, value in schema.items()}
