"""`cvs check-config`: every value with its source, every mistake at once."""

from __future__ import annotations

import json

import pytest

from conftest import Command, Files, assert_refused, run_cvs
from cvs.config.model import HIDDEN


def test_every_value_has_its_source(command: Command, files: Files) -> None:
    files.edit("multi_node:\n", "multi_node:\n  extra_train_args: [--fast]\n")
    done = command("check-config", *files.options)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    for line in (
        f"gpus_per_node = 2  [{files.config_file}:10]",
        f"node_dict.node-1.vpc_ip = 127.0.0.1  [{files.cluster_file}:9]",
        f"multi_node.extra_train_args = ['--fast']  [{files.config_file}:22]",
        "ssh_port = null  [default]",
        "docker.privileged = true  [default]",
        "env_vars = {}  [default]",
    ):
        assert line in lines


def test_what_placeholders_stand_for(command: Command, files: Files) -> None:
    files.edit('"{cvs}/workloads/aorta"', '"{home}/{user-id}"')
    cluster = '{"username": "alice", "node_dict": {"a": {"vpc_ip": "x"}, "b": {"vpc_ip": "y"}}}'
    files.cluster_file.write_text(cluster)
    lines = command("check-config", *files.options).stdout.splitlines()
    assert f"aorta_path = /home/alice/alice  [{files.config_file}:5]" in lines


def test_json(command: Command, files: Files) -> None:
    done = command("check-config", *files.options, "--json")
    rows = {row["key"]: row for row in json.loads(done.stdout)}
    assert rows["timeout_seconds"] == {
        "key": "timeout_seconds",
        "value": 300,
        "source": f"{files.config_file}:11",
    }
    assert rows["multi_node.extra_torchrun_args"] == {
        "key": "multi_node.extra_torchrun_args",
        "value": [],
        "source": "default",
    }


def test_no_secret_is_shown(command: Command, files: Files) -> None:
    text = files.cluster_file.read_text()
    files.cluster_file.write_text(text.replace('"transport"', '"password": "hidden-1", "transport"'))
    files.edit("environment:\n", "environment:\n  HF_TOKEN: hidden-2\n")
    for words in ([], ["--json"]):
        done = command("check-config", *files.options, *words)
        assert done.returncode == 0
        assert "HF_TOKEN" in done.stdout
        assert done.stdout.count(HIDDEN) == 2
        assert "hidden" not in done.stdout + done.stderr


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_keys_without_effect_are_named(words: list[str], command: Command, files: Files) -> None:
    text = files.cluster_file.read_text()
    files.cluster_file.write_text(text.replace('"transport"', '"max_paralel": 3, "racks": 7, "transport"'))
    done = command("check-config", *files.options, *words)
    assert done.returncode == 0
    warning = "keys that have no effect here: max_paralel (did you mean max_parallel?), racks"
    assert done.stderr == f"warning: {warning}\n"


def test_the_mistakes_of_both_files_at_once(command: Command, files: Files) -> None:
    files.edit("accelerator: none", "accelerator: amd")
    files.edit("gpus_per_node: 2", "gpus_per_node: two")
    files.cluster_file.write_text('{"username": "a", "ssh_port": 0, "node_dict": {"n:22": {"vpc_ip": "x"}}}')
    done = command("check-config", *files.options)
    assert_refused(done, 2)
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] == [
        f"{files.cluster_file}:1:19:",
        f"{files.cluster_file}:1:48:",
        f"{files.config_file}:9:1:",
        f"{files.config_file}:10:1:",
    ]


def test_files_that_cannot_be_read(command: Command) -> None:
    done = command("check-config", "--cluster_file", "none.json", "--config_file", ".")
    assert_refused(
        done,
        2,
        "none.json: cannot be read: No such file or directory\n",
        ".: cannot be read: Is a directory",
    )


@pytest.mark.parametrize("given", [0, 1])
def test_both_files_are_wanted(given: int, command: Command, files: Files) -> None:
    missing = ("--config_file", "--cluster_file")[given]
    assert_refused(command("check-config", files.options[given]), 2, missing, "required")


def test_a_mistake_is_told_without_a_traceback(files: Files) -> None:
    """In a process of its own, where nothing catches what the command does not."""
    files.cluster_file.write_text('{"username": "a",}')
    done = run_cvs("check-config", *files.options)
    assert_refused(done, 2, f"{files.cluster_file}:1:18: syntax: a comma before a closing bracket")
