"""A run on disk: manifest, logs, traces, metrics, report. The only code that knows its layout.

```
<runs_dir>/<suite>/<UTC time>-<id>/
    manifest.json                       what was run, with what, how it went, which files it left
    logs/node_<node rank>.log           console output of each node
    logs/node_<node rank>/torchrun/…    per rank, as torchrun left it
    combined_traces/node_<node rank>/…  collected files, paths as below aorta_path
    metrics.json                        what the parser measured
    aorta_benchmark_report.json         the report
<runs_dir>/<suite>/latest               link to the newest
<runs_dir>/<suite>/nodes/<node>/        local nodes, each with its copy of the workload
```
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

import cvs
from cvs.errors import EvidenceError, RunError
from cvs.launch import LaunchPlan
from cvs.models import SCHEMA_VERSION, BenchmarkResult, Frozen, RunResult, RunStatus, TraceFile

_Model = TypeVar("_Model", bound=Frozen)


class Manifest(Frozen):
    """What a run was made with, and what it left."""

    schema_version: int = SCHEMA_VERSION
    cvs_version: str = cvs.__version__
    cluster_file: str | None
    config_file: str | None
    cluster: dict[str, Any]
    """As resolved, without secrets."""
    benchmark: dict[str, Any]
    """As resolved, without secrets."""
    plan: LaunchPlan
    run: RunResult


LEAST_FREE_BYTES = 128 * 1024 * 1024
"""What a run must find free where its folder lies: a node's log alone may take half of it."""
_RESERVE_BYTES = 4 * 1024 * 1024
"""Kept from the beginning, so that record, metrics and report can be written on a full disk, too."""


class RunFolder:
    """One run's folder."""

    def __init__(self, path: Path, *, latest: Path | None = None) -> None:
        """Take the folder; `latest` is the link that names it once the run is recorded."""
        self.path = path
        self._latest = latest

    @property
    def run_id(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def nodes_dir(self) -> Path:
        """Where local nodes live; the runs of one suite share them, as they would share machines."""
        return self.path.parent / "nodes"

    @property
    def traces(self) -> Path:
        """Collected files of all nodes, one folder per node."""
        return self.path / "combined_traces"

    def node_traces(self, node_rank: int) -> Path:
        """Collected files of one node."""
        return self.traces / f"node_{node_rank}"

    def node_log(self, node_rank: int) -> Path:
        """Console output of one node."""
        return self.path / "logs" / f"node_{node_rank}.log"

    def node_logs(self, node_rank: int) -> Path:
        """What torchrun left on one node: a log per rank, error files."""
        return self.path / "logs" / f"node_{node_rank}"

    def report(self, benchmark: str) -> Path:
        """The report of `benchmark`."""
        return self.path / f"{benchmark}_benchmark_report.json"

    def relative(self, path: Path) -> str:
        """`path` as it is written down: below the folder, so that the folder can be moved."""
        return path.relative_to(self.path).as_posix()

    def save_manifest(self, manifest: Manifest) -> None:
        """Write the manifest, whole or not at all; from the first on, the run is the newest."""
        write_whole(self.path / "manifest.json", manifest.model_dump_json(indent=2))
        if self._latest:
            _relink(self._latest, Path(self.run_id))
            self._latest = None

    @property
    def _reserve(self) -> Path:
        return self.path / ".reserve"

    @property
    def free_bytes(self) -> int:
        """Free room on the disk that the folder lies on."""
        return shutil.disk_usage(self.path).free

    def reserve(self) -> None:
        """Set room aside for what is written at the end.

        Raises: RunError: there is too little for a run.
        """
        free = self.free_bytes
        if free < LEAST_FREE_BYTES:
            raise RunError(
                f"{self.path.parent}: only {free >> 20} MiB are free there, and a run needs"
                f" {LEAST_FREE_BYTES >> 20}; make room, or take another --runs_dir"
            )
        with self._reserve.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)

    def release_reserve(self) -> None:
        """Give back the room for what is written now."""
        self._reserve.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the folder of a run that was never begun."""
        shutil.rmtree(self.path, ignore_errors=True)

    @property
    def is_recorded(self) -> bool:
        """Whether the run was begun."""
        return (self.path / "manifest.json").exists()

    def load_manifest(self) -> Manifest:
        """The manifest.

        Raises: EvidenceError: there is none, or it cannot be read.
        """
        return self._load("manifest.json", Manifest, "is no folder of a run")

    def save_result(self, result: BenchmarkResult) -> None:
        """Write the metrics, whole or not at all."""
        write_whole(self.path / "metrics.json", result.model_dump_json(indent=2))

    @property
    def has_result(self) -> bool:
        """Whether metrics were saved."""
        return (self.path / "metrics.json").exists()

    def result_is_newer(self, file: TraceFile) -> bool:
        """Whether a collected file is as it was when the metrics were saved, as far as can be told unread."""
        path = self.traces / file.path
        if not path.is_file():
            return False
        now, saved = path.stat(), (self.path / "metrics.json").stat()
        # File systems tell time in coarse ticks: one and the same may be later.
        return now.st_size == file.size and now.st_mtime_ns < saved.st_mtime_ns

    def load_result(self) -> BenchmarkResult:
        """The saved metrics.

        Raises: EvidenceError: there are none, or they cannot be read.
        """
        return self._load("metrics.json", BenchmarkResult, "has no metrics yet: run test_parse_results")

    def _load(self, name: str, model: type[_Model], absent: str) -> _Model:
        file = self.path / name
        try:
            return model.model_validate_json(file.read_bytes())
        except OSError:
            raise EvidenceError(f"{self.path} {absent} ({name} is missing)") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise EvidenceError(f"{file}: cannot be read: {where}: {first['msg']}") from None

    def altered(self, files: tuple[TraceFile, ...]) -> dict[str, str]:
        """Collected files that are not what the manifest says, and why: path to reason."""
        found = {}
        for file in files:
            path = self.traces / file.path
            if not path.is_file():
                found[file.path] = "was collected and is missing now"
            elif path.stat().st_size != file.size or digest(path) != file.sha256:
                found[file.path] = "was changed after it was collected"
        return found

    def unlisted(self, files: tuple[TraceFile, ...]) -> list[str]:
        """Files among the collected ones that the manifest does not have, so not of this run."""
        listed = {file.path for file in files}
        found = (path for path in self.traces.rglob("*") if path.is_file())
        return sorted({path.relative_to(self.traces).as_posix() for path in found} - listed)

    def publish_traces(self, aorta_path: Path) -> None:
        """Make `<aorta_path>/combined_traces` a link to this run's traces; a real folder there is renamed."""
        link = aorta_path / "combined_traces"
        if link.is_dir() and not link.is_symlink():
            link.rename(link.with_name(f"combined_traces.before-{self.run_id}"))
        _relink(link, self.traces.resolve())


def new_run_folder(runs_dir: Path, suite: str) -> RunFolder:
    """A folder for a run that begins now; `latest` points to it from the moment that it is recorded.

    Raises: RunError: it cannot be made.
    """
    now = datetime.now(timezone.utc)
    stamp = f"{now:%Y%m%dT%H%M%S}.{now.microsecond // 1000:03}Z"
    home = runs_dir.resolve() / suite
    latest = home / "latest"
    if latest.exists() and not latest.is_symlink():
        raise RunError(f"{latest} must be a link to the newest run and is not; move it away")
    folder = make_run_folder(home / f"{stamp}-{secrets.token_hex(3)}")
    return RunFolder(folder.path, latest=latest)


def make_run_folder(path: Path) -> RunFolder:
    """An empty folder for a run at `path`, whose name becomes the run's id.

    Raises: RunError: it cannot be made, or is there already.
    """
    folder = RunFolder(path.resolve())
    try:
        # Private: logs may hold what users put into the environment of their jobs.
        folder.path.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise RunError(
            f"cannot make the run's folder {path}: {error.strerror}; choose another place"
        ) from None
    try:
        for part in (folder.traces, folder.path / "logs"):
            part.mkdir()
        folder.reserve()
    except OSError as error:
        folder.discard()
        raise RunError(
            f"cannot use the run's folder {path}: {error.strerror}; choose another place"
        ) from None
    except RunError:
        folder.discard()
        raise
    return folder


def newest_run_folder(runs_dir: Path, suite: str) -> RunFolder:
    """The run that began last.

    Raises: EvidenceError: there is none.
    """
    manifests = (runs_dir / suite).glob("*/manifest.json")
    runs = [path.parent for path in manifests if not path.parent.is_symlink()]
    if not runs:
        raise EvidenceError(
            f"no run of {suite} below {runs_dir}: run test_run_benchmark first, or name one with --run_dir"
        )
    return RunFolder(max(runs).resolve())


def open_run_folder(path: Path) -> RunFolder:
    """A run's folder that the user named.

    Raises: EvidenceError: it is none.
    """
    folder = RunFolder(path.resolve())
    if not (folder.path / "manifest.json").is_file():
        raise EvidenceError(f"--run_dir {path}: is no folder of a run (manifest.json is missing)")
    return folder


def is_live(status: RunStatus) -> bool:
    """Whether the record says that the run has not ended: it runs now, or cvs was killed meanwhile."""
    return status in (RunStatus.PENDING, RunStatus.RUNNING)


def digest(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            whole.update(block)
    return whole.hexdigest()


def write_whole(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, never a part.

    Raises: RunError: it cannot be written.
    """
    try:
        _write_and_replace(path, text)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from None


def _write_and_replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _relink(link: Path, target: Path) -> None:
    temporary = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except OSError:
        temporary.unlink()
        raise
