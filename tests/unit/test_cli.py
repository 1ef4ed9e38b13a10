"""The command line, as a process of its own."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cvs
from conftest import TRACES, Files, SaveRun, report_of, run_bash, run_cvs
from cvs.cli import command_line


def test_version() -> None:
    done = run_cvs("--version")
    assert (done.returncode, done.stdout) == (0, f"cvs {cvs.__version__}\n")


def test_help_imports_nothing_heavy() -> None:
    script = """
import sys
from cvs.cli import main
try:
    main(["--help"])
except SystemExit:
    print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert "argparse" in loaded
    heavy = "docker jsonschema numpy paramiko pydantic pytest rich shtab torch yaml"
    assert not loaded & set(heavy.split())


# --- examples ---------------------------------------------------------------------------------------------

NOT_RUN = {
    "cvs run test_aorta --cluster_file local_cluster.json --config_file aorta_local.yaml": (
        "starts a job; the tests of the README run the same command"
    ),
    "cvs doctor --cluster_file local_cluster.json --config_file aorta_local.yaml": (
        "needs PyTorch; the tests of the page on checking nodes run it"
    ),
}
"""Lines of examples that are left out here, and why."""


def commands(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, ...]]:
    """Words of every command, beginning with none of them."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from commands(inner, *words, name)


def example(words: tuple[str, ...]) -> list[str]:
    """Lines of the example in a command's help, joined where they are broken."""
    done = run_cvs(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.partition("\nexample")[2].splitlines()[1:]
    return [line.strip() for line in lines if line.strip()]


COMMANDS = list(commands(command_line()))


def test_every_command_is_known_here() -> None:
    assert {words[0] for words in COMMANDS if words} == {
        *("run", "parse", "doctor", "cleanup", "exec", "list"),
        *("check-config", "copy-config", "generate", "schema", "completion"),
    }  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_example_of_its_help_works_line_by_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """In a folder that holds traces, too."""
    shutil.copytree(TRACES / "cpu_gloo_2x2", tmp_path / "traces")
    lines = example(words)
    assert any(line.startswith("cvs ") or "$(cvs " in line for line in lines)
    for line in lines:
        if line not in NOT_RUN:
            done = run_bash(line, tmp_path)
            assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_what_is_not_run_is_in_an_example() -> None:
    assert NOT_RUN.keys() <= {*example(()), *example(("doctor",))}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, ""),
        (["run"], 4, "name a suite: test_aorta"),
        (["run", "test_aorte"], 4, "no suite test_aorte; did you mean test_aorta?"),
        (["walk"], 2, "invalid choice: 'walk'"),
    ],
)
def test_usage_errors(words: list[str], code: int, message: str) -> None:
    done = run_cvs(*words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_named_cases_run_and_nothing_else(files: Files, save_run: SaveRun, tmp_path: Path) -> None:
    folder = save_run()
    done = run_cvs(
        "run", "test_aorta", "test_parse_results", *files.options, "test_generate_report", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert report_of(folder.path)["verdict"] == "good"


@pytest.mark.parametrize("target", ["test_aorta::test_validate_runner_config", "test_aorta"])
def test_hyphens_and_node_ids(target: str, files: Files, tmp_path: Path) -> None:
    options = [option.replace("_file=", "-file=") for option in files.options]
    done = run_cvs("run", target, *options, "-k", "test_validate_runner_config", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_bad_file_is_a_failed_case(files: Files, tmp_path: Path) -> None:
    files.edit("gpus_per_node: 2", "gpus_per_node: two")
    done = run_cvs("run", "test_aorta", "test_validate_runner_config", *files.options, cwd=tmp_path)
    assert done.returncode == 1
    assert "gpus_per_node: `two` is no whole number" in done.stdout


def test_settings_of_the_folder_it_is_started_in_do_not_matter(
    files: Files, save_run: SaveRun, tmp_path: Path
) -> None:
    save_run()
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not mine')\n")
    done = run_cvs("run", "test_aorta", "-k", "validate", *files.options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_it_works_where_plugins_are_not_loaded_by_themselves(files: Files, tmp_path: Path) -> None:
    case = ["test_aorta", "test_validate_runner_config"]
    done = run_cvs("run", *case, *files.options, cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout
