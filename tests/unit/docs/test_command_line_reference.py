"""The page of the command line has every command with every option, and the how-to's commands work."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import LOCAL_AORTA, REPOSITORY, Command, Files, run_bash
from cvs.cli import command_line

DOCS = REPOSITORY / "docs"
REFERENCE = (DOCS / "reference" / "command-line.rst").read_text("utf-8")
OWN_FILES = (DOCS / "how-to" / "own-files.rst").read_text("utf-8")

STARTS_A_JOB = ".venv/bin/cvs run test_aorta --cluster_file mine/cluster.json --config_file mine/aorta.yaml"


def commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that does something itself: its words, and what it takes."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not inner:
        yield " ".join(("cvs", *words)), parser
    for action in inner:
        for name, child in action.choices.items():
            yield from commands(child, *words, name)


COMMANDS = dict(commands(command_line()))


def section(command: str) -> str:
    title = f"``{command}``\n{'-' * (len(command) + 4)}\n"
    assert REFERENCE.count(title) == 1
    return re.split(r"\n[^\n]+\n-{4,}\n", REFERENCE.partition(title)[2])[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_in_its_commands_section(command: str) -> None:
    text = section(command)
    for action in COMMANDS[command]._actions:
        if action.option_strings not in (["-h", "--help"], []):
            assert re.search(rf"(?<![\w-]){action.option_strings[0]}(?![\w-])", text), action.option_strings
        for choice in action.choices or ():
            assert choice in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_list_at_the_top(command: str) -> None:
    assert f"   {command} " in REFERENCE.partition("``cvs run``")[0]


def console_lines(page: str) -> list[str]:
    return re.findall(r"^   \$ (.*)$", page, re.MULTILINE)


def test_the_how_to_works_line_by_line(tmp_path: Path) -> None:
    lines = console_lines(OWN_FILES)
    assert STARTS_A_JOB in lines
    for line in lines:
        if line != STARTS_A_JOB:  # as the README's, which a test runs
            done = run_bash(line.replace(".venv/bin/", ""), tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"
    cluster, bench = {"cluster.json", "gpus.json"}, {"aorta.yaml", "aorta_benchmark.yaml"}
    schemas = {"cluster.schema.json", "aorta.schema.json"}
    assert {path.name for path in (tmp_path / "mine").iterdir()} == cluster | bench | schemas


def test_the_messages_of_the_how_to_are_those_of_cvs(command: Command, files: Files, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    text = LOCAL_AORTA.read_text()
    for old, new in (
        ("gpus_per_node: 2", "gpus_per_node: '8'"),
        ("skip_rccl_build: true\n", "skip_rccl_build: true\ndocker:\n  privileged: yes\n"),
        ("expected_results:\n", "expected_results:\n  min_overlap_ration: 0.3\n"),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "mine" / "aorta.yaml").write_text(text)
    shutil.copy(files.cluster_file, tmp_path / "mine" / "cluster.json")
    done = command("check-config", "--cluster_file=mine/cluster.json", "--config_file=mine/aorta.yaml")
    shown = re.findall(r"^   (mine/aorta\.yaml:\d+:.*)$", OWN_FILES, re.MULTILINE)
    assert len(shown) == 3
    assert done.stderr.splitlines() == shown
