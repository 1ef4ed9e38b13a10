"""The JSON Schemas: what is shipped is what the models say, and does what editors need of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from conftest import PACKAGE, Command, assert_refused
from cvs.commands.copy_config import samples
from cvs.commands.schema import schema_text

SHIPPED = {
    "aorta": PACKAGE / "input" / "config_file" / "aorta" / "aorta.schema.json",
    "cluster": PACKAGE / "input" / "cluster_file" / "cluster.schema.json",
}


def read(path: Path) -> Any:
    text = path.read_text("utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


def kind_of(path: Path) -> str:
    return "cluster" if path.suffix == ".json" else "aorta"


@pytest.mark.parametrize("kind", SHIPPED)
def test_the_shipped_schema_is_what_the_command_prints(kind: str, command: Command) -> None:
    done = command("schema", kind)
    assert (done.returncode, done.stdout) == (0, SHIPPED[kind].read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(json.loads(schema_text(kind)))


@pytest.mark.parametrize("path", samples().values(), ids=samples())
def test_every_sample_is_valid_and_names_its_schema(path: Path) -> None:
    kind = kind_of(path)
    jsonschema.validate(read(path), json.loads(schema_text(kind)))
    name = f"{kind}.schema.json"
    editors_line = (
        f'"$schema": "{name}"' if kind == "cluster" else f"# yaml-language-server: $schema={name}\n"
    )
    assert editors_line in path.read_text("utf-8")
    assert (path.parent / name).is_file()


def test_the_command_knows_two_files(command: Command) -> None:
    assert_refused(command("schema", "rack"), 2, "choose from")
    assert_refused(command("schema"), 2, "required: kind")


BAD_AORTA = [
    "{}",
    "aorta_path: /a\ngpus: 8",
    "aorta_path: /a\ngpus_per_node: 0",
    "aorta_path: /a\ngpus_per_node: two",
    "aorta_path: /a\ntimeout_seconds: 59",
    "aorta_path: /a\naccelerator: amd",
    "aorta_path: /a\nruntime: podman",
    "aorta_path: /a\nskip_rccl_build: 'true'",
    "aorta_path: /a\ndocker: {imge: x}",
    "aorta_path: /a\ndocker: x",
    "aorta_path: /a\nenvironment: {NCCL_MAX_NCHANNELS: 257}",
    "aorta_path: /a\nenvironment: {X: [1]}",
    "aorta_path: /a\nmulti_node: {master_port: 80}",
    "aorta_path: /a\nmulti_node: {extra_torchrun_args: --x}",
    "aorta_path: /a\nexpected_results: {min_overlap_ratio: 85}",
    "aorta_path: /a\nexpected_results: {min_overlap_ration: 0.5}",
    "aorta_path: [/a]",
]
BAD_CLUSTER = [
    "{}",
    '{"username": "a"}',
    '{"username": "a", "node_dict": {}}',
    '{"username": 1, "node_dict": {"a": {"vpc_ip": "x"}}}',
    '{"username": "a", "node_dict": {"a": {}}}',
    '{"username": "a", "node_dict": {"a": {"vpc_ip": 3}}}',
    '{"username": "a", "transport": "telnet", "node_dict": {"a": {"vpc_ip": "x"}}}',
    '{"username": "a", "ssh_port": "22", "node_dict": {"a": {"vpc_ip": "x"}}}',
    '{"username": "a", "ssh_port": 70000, "node_dict": {"a": {"vpc_ip": "x"}}}',
]


@pytest.mark.parametrize(
    ("kind", "text"), [*(("aorta", text) for text in BAD_AORTA), *(("cluster", text) for text in BAD_CLUSTER)]
)
def test_a_bad_file_is_refused(kind: str, text: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), json.loads(schema_text(kind)))


def test_keys_of_other_suites_are_none_of_the_schemas_business() -> None:
    cluster = {"username": "a", "racks": 3, "_why": 1, "node_dict": {"a": {"vpc_ip": "x", "rack_id": 4}}}
    jsonschema.validate(cluster, json.loads(schema_text("cluster")))
