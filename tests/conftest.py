"""What tests of several modules share: data of real runs, and saved runs made from it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import cvs
from cvs.cli import main
from cvs.config import AortaConfig, ClusterConfig, load_aorta, load_cluster
from cvs.failure import NodeTrail, RankTrail
from cvs.launch import Site, plan_aorta
from cvs.models import Failure, Holder, NodeResult, RunResult, RunStatus, TraceFile
from cvs.run_folder import Manifest, RunFolder, digest, new_run_folder
from cvs.runners._node import _error_message

PACKAGE = Path(cvs.__file__).parent
REPOSITORY = PACKAGE.parent
TRACES = Path(__file__).parent / "data" / "traces"
SAVED_FAILURES = Path(__file__).parent / "data" / "failures"
LOCAL_CLUSTER = PACKAGE / "input" / "cluster_file" / "local_cluster.json"
LOCAL_AORTA = PACKAGE / "input" / "config_file" / "aorta" / "aorta_local.yaml"
PLANS = Path(__file__).parent / "data" / "plans"
AS_A_USERS = {"PYTEST_ADDOPTS": "-p no:hypothesispytest"}
"""Environment of a call. Of the plugins here, a user lacks this one, which takes a second to sum up."""
WITH_TORCH = {"TORCH_PYTHON": os.environ.get("TORCH_PYTHON") or sys.executable, **AS_A_USERS}
"""Environment of a call that runs a job."""

Done = subprocess.CompletedProcess[str]


def run_cvs(*words: str, cwd: Path | None = None, **environment: str) -> Done:
    """The command line, as a process of its own."""
    return _call([sys.executable, "-m", "cvs.cli", *words], cwd, environment)


def run_bash(script: str, cwd: Path) -> Done:
    """A script of bash that ends at the first command to fail; the `cvs` of these tests is first in PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return _call(["bash", "-ec", script], cwd, {"PATH": path})


def _call(argv: list[str], cwd: Path | None, environment: dict[str, str]) -> Done:
    return subprocess.run(
        argv, cwd=cwd, env={**os.environ, **AS_A_USERS, **environment},
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


Command = Callable[..., Done]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line within this process, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    for name, value in AS_A_USERS.items():
        monkeypatch.setenv(name, value)

    def run(*words: str) -> Done:
        try:
            code = main(words)
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
        return Done(words, code, *capsys.readouterr())

    return run


def assert_refused(done: Done, code: int, *messages: str) -> None:
    """The command ended with `code`, said this much on stderr, and nothing else on stdout."""
    assert done.returncode == code, done.stdout + done.stderr
    for message in messages:
        assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


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

    def have_a_script_start_the_job(self) -> None:
        """In place of torchrun; on the first node alone, as that mode has it."""
        self.edit("master_launch_mode: torchrun", "master_launch_mode: script")
        text = self.cluster_file.read_text()
        self.cluster_file.write_text(re.sub(r',\s*"node-1": \{.*?\}', "", text))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Copies of the local samples, to be edited."""
    return Files(
        Path(shutil.copy(LOCAL_CLUSTER, tmp_path / "cluster.json")),
        Path(shutil.copy(LOCAL_AORTA, tmp_path / "aorta.yaml")),
    )


@pytest.fixture
def script_as_trainer(tmp_path: Path, files: Files) -> Callable[[str], None]:
    """Puts a script without PyTorch in the trainer's place: real torchrun, no training."""

    def put(script: str) -> None:
        aorta = tmp_path / "aorta"
        (aorta / "config").mkdir(parents=True)
        (aorta / "config" / "distributed.yaml").write_text("{}")
        (aorta / "train.py").write_text(script)
        files.edit('"{cvs}/workloads/aorta"', str(aorta))

    return put


_PYTHON = """\
#!/bin/sh
case "$#$1" in
    2-c) echo '{{"torch": "9.9.9"}}' ;;
    *-c) exec {python} "$@" ;;
    *) {job} ;;
esac
"""


def stand_in_python(folder: Path, job: str) -> str:
    """An interpreter that says that it has PyTorch, and loads none; this line of sh is its job.

    The scripts of checks, which have arguments, are run by a real Python.
    """
    path = folder / "python"
    path.write_text(_PYTHON.format(python=sys.executable, job=job))
    path.chmod(0o755)
    return str(path)


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
        ended: str | None = None,
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
                run=_run(folder, status, failure, started, ended),
            )
        )
        return folder

    return save


def _run(
    folder: RunFolder, status: RunStatus, failure: Failure | None, started: str, ended: str | None
) -> RunResult:
    return RunResult(
        benchmark="aorta",
        run_id=folder.run_id,
        status=status,
        started=started,
        ended=ended,
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


_RANKS_PER_NODE = 2
"""Of the saved failures."""


def saved_trails(case: str) -> list[NodeTrail]:
    """What the nodes of a saved case left."""
    ends = json.loads((SAVED_FAILURES / case / "ends.json").read_text())
    return [
        NodeTrail(
            node_rank=int(node_rank),
            node=f"node-{node_rank}",
            exit_code=end["exit_code"],
            seconds=end["seconds"],
            stopped_by_cvs=end["stopped_by_cvs"],
            output=(SAVED_FAILURES / case / f"node_{node_rank}.log").read_text(),
            log=f"logs/node_{node_rank}.log",
            ranks=tuple(_saved_ranks(SAVED_FAILURES / case, int(node_rank))),
        )
        for node_rank, end in ends.items()
    ]


def _saved_ranks(case: Path, node_rank: int) -> list[RankTrail]:
    folders = sorted(case.glob(f"node_{node_rank}/torchrun/*/attempt_0/*"))
    return [_saved_rank(folder, node_rank * _RANKS_PER_NODE + int(folder.name)) for folder in folders]


def _saved_rank(folder: Path, rank: int) -> RankTrail:
    error = folder / "error.json"
    return RankTrail(
        rank=rank,
        local_rank=int(folder.name),
        error=_error_message(error),
        stderr=(folder / "stderr.log").read_text(),
        log=f"logs/rank{rank}.log",
    )


def torchrun_summary(*ranks: tuple[int, int, int]) -> str:
    """torchrun's summary: rank, exit code and process id of each rank that failed, the root cause last."""
    entry = """\
[{index}]:
  time      : 2026-11-30_03:42:42
  host      : host
  rank      : {rank} (local_rank: {local_rank})
  exitcode  : {exit_code} (pid: {pid})
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
"""
    return "".join(
        entry.format(index=index, rank=rank, local_rank=rank % _RANKS_PER_NODE, exit_code=exit_code, pid=pid)
        for index, (rank, exit_code, pid) in enumerate(ranks)
    )


def holder(run_id: str, host: str = "here") -> Holder:
    """A run that holds nodes."""
    return Holder(run_id=run_id, user="alice", host=host, since="2026-11-30T04:49:07+00:00")


def report_of(folder: Path) -> dict[str, object]:
    """The JSON report of a run."""
    report: dict[str, object] = json.loads((folder / "aorta_benchmark_report.json").read_text())
    return report


def assert_as_planned(on_paper: str, folder: RunFolder) -> None:
    """What `--dry-run --json` printed is what the run recorded, but for what only a run knows."""
    recorded = folder.load_manifest().plan
    port = recorded.rendezvous.port
    known = on_paper.replace("<run id>", folder.run_id).replace("<free port on the head>", str(port))
    planned = json.loads(known)
    planned["rendezvous"]["port"] = port
    assert planned == json.loads(recorded.model_dump_json())
