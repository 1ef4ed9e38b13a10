"""The command line, as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cvs
from conftest import Files, SaveRun, report_of


def run(*words: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cvs.cli", *words],
        cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_version() -> None:
    done = run("--version")
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
    assert not loaded & {"docker", "paramiko", "numpy", "torch", "pydantic", "pytest", "rich"}


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"]])
def test_help_shows_an_example(words: list[str]) -> None:
    done = run(*words)
    assert done.returncode == 0
    assert "cvs run test_aorta --cluster_file" in done.stdout


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
    done = run(*words)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_named_cases_run_and_nothing_else(files: Files, save_run: SaveRun, tmp_path: Path) -> None:
    folder = save_run()
    done = run(
        "run", "test_aorta", "test_parse_results", *files.options, "test_generate_report", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    assert report_of(folder.path)["verdict"] == "good"


@pytest.mark.parametrize("target", ["test_aorta::test_validate_runner_config", "test_aorta"])
def test_hyphens_and_node_ids(target: str, files: Files, tmp_path: Path) -> None:
    options = [option.replace("_file=", "-file=") for option in files.options]
    done = run("run", target, *options, "-k", "test_validate_runner_config", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_a_bad_file_is_a_failed_case(files: Files, tmp_path: Path) -> None:
    files.edit("gpus_per_node: 2", "gpus_per_node: two")
    done = run("run", "test_aorta", "test_validate_runner_config", *files.options, cwd=tmp_path)
    assert done.returncode == 1
    assert "gpus_per_node: `two` is no whole number" in done.stdout


def test_settings_of_the_folder_it_is_started_in_do_not_matter(
    files: Files, save_run: SaveRun, tmp_path: Path
) -> None:
    save_run()
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not mine')\n")
    done = run("run", "test_aorta", "-k", "validate", *files.options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_it_works_where_plugins_are_not_loaded_by_themselves(files: Files, tmp_path: Path) -> None:
    case = ["test_aorta", "test_validate_runner_config"]
    done = run("run", *case, *files.options, cwd=tmp_path, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    assert done.returncode == 0, done.stdout
