"""`script` mode on one local node: the experiment script instead of torchrun, the same way home."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import LOCAL_AORTA, PACKAGE, WITH_TORCH, Done, assert_as_planned, report_of, run_cvs
from cvs.run_folder import newest_run_folder

pytestmark = pytest.mark.torch

ONE_NODE = {"username": "{user-id}", "transport": "local", "node_dict": {"solo": {"vpc_ip": "127.0.0.1"}}}


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    (tmp_path / "cluster.json").write_text(json.dumps(ONE_NODE))
    text = LOCAL_AORTA.read_text().replace("master_launch_mode: torchrun", "master_launch_mode: auto")
    (tmp_path / "aorta.yaml").write_text(text)
    overrides = "--training_overrides=training.max_steps=6"
    return ["--cluster_file=cluster.json", "--config_file=aorta.yaml", overrides]


def run(home: Path, *words: str) -> Done:
    return run_cvs("run", "test_aorta", *words, cwd=home, **WITH_TORCH)


@pytest.mark.full
def test_a_real_run_is_green_and_as_planned(tmp_path: Path, options: list[str]) -> None:
    on_paper = run(tmp_path, *options, "--dry-run", "--json").stdout
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stdout
    assert "solo rank 1 | rank 1: wrote" in done.stdout
    folder = newest_run_folder(tmp_path / "cvs_runs", "test_aorta")
    metrics = sorted(folder.traces.rglob("rank_*_metrics.jsonl"))
    assert [len(path.read_text().splitlines()) for path in metrics] == [6, 6]
    assert folder.load_manifest().plan.mode == "script"
    assert_as_planned(on_paper, folder)


@pytest.mark.full
def test_overrides_that_the_script_does_not_read_are_warned_about(tmp_path: Path, options: list[str]) -> None:
    workload = tmp_path / "my_aorta"
    shutil.copytree(PACKAGE / "workloads" / "aorta", workload)
    script = workload / "scripts" / "rccl_exp.sh"
    script.write_text(
        script.read_text().replace("${AORTA_OVERRIDE_ARGS:-}", "").replace("AORTA_OVERRIDE_ARGS", "")
    )
    text = (tmp_path / "aorta.yaml").read_text()
    (tmp_path / "aorta.yaml").write_text(text.replace('"{cvs}/workloads/aorta"', str(workload)))
    done = run(tmp_path, *options)
    assert done.returncode == 0, done.stdout
    warning = "training_overrides have no effect: scripts/rccl_exp.sh does not read AORTA_OVERRIDE_ARGS"
    assert warning in done.stdout
    folder = newest_run_folder(tmp_path / "cvs_runs", "test_aorta")
    told = report_of(folder.path)["warnings"]
    assert isinstance(told, list)
    assert [text.startswith(warning) for text in told] == [True]
    assert "master_launch_mode: torchrun" in told[0]
    # The config's own number of steps.
    assert {len(path.read_text().splitlines()) for path in folder.traces.rglob("*.jsonl")} == {8}
