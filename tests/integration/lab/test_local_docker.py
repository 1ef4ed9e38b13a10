"""Containers on this very machine: `transport: local` with `runtime: docker`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from conftest import run_cvs
from cvs.run_folder import newest_run_folder
from lab.cluster import Lab
from lab.engine import Engine
from lab.images import build
from lab.jobs import PYTHON

pytestmark = pytest.mark.lab

TORCHRUN = """#!/bin/sh
for number in 1 2 3; do echo "[default0]:line $number of $(id -u)"; done
"""


@pytest.fixture
def engine(lab: Lab) -> Iterator[Engine]:
    """An engine that has the image `tiny`."""
    # Not below pytest's own folders: the path of a socket must be short.
    with TemporaryDirectory(prefix="cvs-docker-") as folder:
        engine = Engine(Path(folder))
        engine.start()
        try:
            engine.load(build("tiny", lab.images_folder))
            yield engine
        finally:
            engine.stop()


def test_a_job_in_a_container_of_this_machine(engine: Engine, tmp_path: Path) -> None:
    aorta = tmp_path / "aorta"
    for name, text in {
        "train.py": "",
        "config/distributed.yaml": "{}",
        "bin/python3": PYTHON,
        "bin/torchrun": TORCHRUN,
    }.items():
        (aorta / name).parent.mkdir(parents=True, exist_ok=True)
        (aorta / name).write_text(text)
        (aorta / name).chmod(0o755)
    cluster = {"username": "root", "transport": "local", "node_dict": {"here": {"vpc_ip": "127.0.0.1"}}}
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    (tmp_path / "aorta.yaml").write_text(
        f"aorta_path: {aorta}\ngpus_per_node: 1\nskip_rccl_build: true\naccelerator: none\n"
        "docker: {image: cvs-lab/tiny, pull: never}\nenvironment: {PATH: '/mnt/bin:/bin'}\n"
        "analysis: {enable_tracelens: false}\nmulti_node: {master_launch_mode: torchrun}\n"
    )
    files = (f"--cluster_file={tmp_path}/cluster.json", f"--config_file={tmp_path}/aorta.yaml")
    done = run_cvs("run", "test_aorta", *files, "-k", "run_benchmark", cwd=tmp_path, DOCKER_HOST=engine.url)
    assert done.returncode == 0, done.stdout
    folder = newest_run_folder(tmp_path / "cvs_runs", "test_aorta")
    assert folder.node_log(0).read_text() == "".join(
        f"[default0]:line {number} of 0\n" for number in (1, 2, 3)
    )
    assert engine.docker("ps", "--all", "--quiet") == ""
