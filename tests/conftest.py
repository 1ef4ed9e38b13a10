"""What tests of several modules share: data of real runs, and saved runs made from it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import cvs
from cvs.config import AortaConfig, ClusterConfig, load_aorta, load_cluster
from cvs.launch import Site, plan_aorta
from cvs.models import Failure, NodeResult, RunResult, RunStatus, TraceFile
from cvs.run_folder import Manifest, RunFolder, digest, new_run_folder

PACKAGE = Path(cvs.__file__).parent
REPOSITORY = PACKAGE.parent
TRACES = Path(__file__).parent / "data" / "traces"
LOCAL_CLUSTER = PACKAGE / "input" / "cluster_file" / "local_cluster.json"
LOCAL_AORTA = PACKAGE / "input" / "config_file" / "aorta" / "aorta_local.yaml"


@dataclass(frozen=True)
class Files:
    """The two files of a user."""

    cluster_file: Path
    config_file: Path

    @property
    def options(self) -> list[str]:
        return [f"--cluster_file={self.cluster_file}", f"--config_file={self.config_file}"]

    def load(self) -> tuple[ClusterConfig, AortaConfig]:
        cluster = load_cluster(self.cluster_file)
        return cluster, load_aorta(self.config_file, cluster)

    def edit(self, old: str, new: str) -> None:
        """Change the benchmark file as a user would."""
        text = self.config_file.read_text()
        assert old in text
        self.config_file.write_text(text.replace(old, new))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Copies of the local samples, to be edited."""
    return Files(
        Path(shutil.copy(LOCAL_CLUSTER, tmp_path / "cluster.json")),
        Path(shutil.copy(LOCAL_AORTA, tmp_path / "aorta.yaml")),
    )


SaveRun = Callable[..., RunFolder]


@pytest.fixture
def save_run(tmp_path: Path, files: Files) -> SaveRun:
    """Makes the folder of a run that left the traces of a real CPU job of 2 nodes with 2 ranks each."""

    def save(
        status: RunStatus = RunStatus.COMPLETED,
        failure: Failure | None = None,
        without: tuple[str, ...] = (),
        source: str = "cpu_gloo_2x2",
        started: str = "2026-11-30T01:52:30+00:00",
    ) -> RunFolder:
        folder = new_run_folder(tmp_path / "cvs_runs", "test_aorta")
        shutil.copytree(
            TRACES / source,
            folder.traces,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("*.md", "*.golden.json", *without),
        )
        cluster, bench = files.load()
        folder.save_manifest(
            Manifest(
                cluster_file=str(files.cluster_file),
                config_file=str(files.config_file),
                cluster=cluster.resolved(),
                benchmark=bench.resolved(),
                plan=plan_aorta(cluster, bench, Site(run_id=folder.run_id, master_port=29500)),
                run=_run(folder, status, failure, started),
            )
        )
        return folder

    return save


def _run(folder: RunFolder, status: RunStatus, failure: Failure | None, started: str) -> RunResult:
    return RunResult(
        benchmark="aorta",
        run_id=folder.run_id,
        status=status,
        started=started,
        duration_seconds=9.5,
        accelerator="none",
        num_nodes=2,
        local_world_size=2,
        gpus_per_node=2,
        nodes=tuple(NodeResult(node_rank=rank, node=f"node-{rank}", exit_code=0) for rank in (0, 1)),
        files=tuple(
            TraceFile(
                path=path.relative_to(folder.traces).as_posix(),
                node_rank=int(path.relative_to(folder.traces).parts[0].removeprefix("node_")),
                size=path.stat().st_size,
                sha256=digest(path),
            )
            for path in sorted(folder.traces.rglob("*"))
            if path.is_file()
        ),
        failure=failure,
    )


def report_of(folder: Path) -> dict[str, object]:
    """The JSON report of a run."""
    report: dict[str, object] = json.loads((folder / "aorta_benchmark_report.json").read_text())
    return report
