"""Every command of the README, as it stands there, in a folder that looks like a checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY
from cvs.config import load_aorta, load_cluster
from cvs.launch import plan_aorta

pytestmark = pytest.mark.torch

RED = "make demo OVERRIDES='inject.kind=kill inject.rank=3 inject.step=5'"
NOT_HERE = {"make test": "it is what runs this test"}
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
ON_A_CLUSTER = re.findall(r"^## On a cluster\n.*?(?=^## )", README, re.MULTILINE | re.DOTALL)
"""The section whose commands want several nodes; lab/test_main_job.py runs them."""


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    """The console lines, in order; what a user changes first stands in no console block."""
    [cluster] = ON_A_CLUSTER
    found = blocks("console", README.replace(cluster, ""))
    return [line[2:] for block in found for line in block.splitlines() if line.startswith("$ ")]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the repository; what is written there stays there."""
    for entry in REPOSITORY.iterdir():
        if entry.name not in ("cvs_runs", ".git"):
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def test_the_commands_work_one_after_the_other(checkout: Path) -> None:
    ran = [command for command in commands() if command not in NOT_HERE]
    assert "make demo" in ran
    assert RED in ran
    assert not any("gpu01" in command for command in ran)
    for command in ran:
        done = subprocess.run(
            ["bash", "-c", command], cwd=checkout, text=True, capture_output=True, timeout=200, check=False
        )
        assert bool(done.returncode) == (command == RED), f"{command}\n{done.stdout}{done.stderr}"
        if command == RED:
            assert "rank 3 on node-1 (node rank 1) was ended by signal 9" in done.stdout
    written = {entry.name for entry in checkout.iterdir() if not entry.is_symlink()}
    assert written <= {"cvs_runs", ".pytest_cache"}


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_lines_of_python_work_as_often_as_one_likes(checkout: Path, times: int) -> None:
    [script] = blocks("python")
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=checkout, env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            text=True, capture_output=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"\d+\.\d+ \[\]", done.stdout.splitlines()[-1])


def test_the_files_for_a_cluster_are_valid(tmp_path: Path) -> None:
    [cluster_text], [aorta_text] = blocks("json"), blocks("yaml")
    (tmp_path / "cluster.json").write_text(cluster_text)
    (tmp_path / "aorta.yaml").write_text(aorta_text)
    cluster = load_cluster(tmp_path / "cluster.json")
    plan = plan_aorta(cluster, load_aorta(tmp_path / "aorta.yaml", cluster))
    assert (plan.runtime, plan.world_size) == ("docker", 16)
