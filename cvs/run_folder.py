"""A run on disk: manifest, logs, traces, metrics, report. The only code that knows its layout.

```
<runs_dir>/<suite>/<UTC time>-<id>/
    manifest.json                       what was run, with what, how it went, which files it left
    logs/node_<node rank>.log           console output of each node
    logs/node_<node rank>/torchrun/…    per rank, as torchrun left it
    combined_traces/node_<node rank>/…  collected files, paths as below aorta_path
    metrics.json                        what the parser measured
    tracelens/…                         workbooks of TraceLens, and what it said, where it was asked
    aorta_benchmark_report.json         the report
<runs_dir>/<suite>/latest               link to the newest
<runs_dir>/<suite>/nodes/<node>/        local nodes, each with its copy of the workload
```
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

import cvs
from cvs.config.scalars import MOST_PER_NODE, UNSPEAKABLE
from cvs.errors import CvsError, EvidenceError, RunError
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

    @model_validator(mode="after")
    def _can_be_judged(self) -> Manifest:
        for flaw in _flaws(self.plan, self.run):
            raise ValueError(flaw)
        return self


_LONGEST_SECONDS = 366 * 24 * 60 * 60
_LONGEST_NAME = 255
"""Bytes, on every file system of Linux."""


def _flaws(plan: LaunchPlan, run: RunResult) -> Iterator[str]:
    """What no run leaves, and what judging could not end on, or not well."""
    for key, time in (("started", run.started), ("ended", run.ended)):
        if time is not None and not _is_time(time):
            yield f"run.{key}: {time[:40]!r} is no time (ISO 8601, with its distance from UTC)"
    if run.duration_seconds is not None and not 0 <= run.duration_seconds <= _LONGEST_SECONDS:
        yield f"run.duration_seconds: no run takes {run.duration_seconds:g} s"
    if not run.num_nodes == plan.num_nodes == len(plan.nodes):
        yield f"run.num_nodes: is {run.num_nodes}, and there are plans for {len(plan.nodes)} nodes"
    if not 1 <= run.local_world_size <= MOST_PER_NODE:
        yield f"run.local_world_size: {run.local_world_size} is not from 1 to {MOST_PER_NODE}"
    for index, file in enumerate(run.files):
        if not _is_below(file.path):
            yield f"run.files.{index}.path: {file.path[:40]!r} is no path of a collected file"


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _is_below(path: str) -> bool:
    parts = PurePosixPath(path).parts
    named = bool(parts) and ".." not in parts and not path.startswith("/") and not UNSPEAKABLE.search(path)
    return named and all(len(part.encode()) <= _LONGEST_NAME for part in parts)


class _Versioned(BaseModel):
    """Of any of our files: the version of what it is written from."""

    schema_version: int


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

    @property
    def tracelens(self) -> Path:
        """What TraceLens, on this machine, made of the traces, and what it said."""
        return self.path / "tracelens"

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
        return _is_there(self.path / "manifest.json")

    def load_manifest(self) -> Manifest:
        """The manifest.

        Raises: EvidenceError: there is none, it cannot be read, is of another version, or no run's.
        """
        cure = "; judge the run with the version that made it, or run the benchmark again"
        return self._load("manifest.json", Manifest, "is no folder of a run", cure)

    def save_result(self, result: BenchmarkResult) -> None:
        """Write the metrics, whole or not at all."""
        write_whole(self.path / "metrics.json", result.model_dump_json(indent=2))

    @property
    def has_result(self) -> bool:
        """Whether metrics were saved."""
        return _is_there(self.path / "metrics.json")

    def result_is_newer(self, file: TraceFile) -> bool:
        """Whether a collected file is as it was when the metrics were saved, as far as can be told unread."""
        path = self.traces / file.path
        try:
            if not path.is_file():
                return False
            now, saved = path.stat(), (self.path / "metrics.json").stat()
        except OSError:
            return False
        # File systems tell time in coarse ticks: one and the same may be later.
        return now.st_size == file.size and now.st_mtime_ns < saved.st_mtime_ns

    def load_result(self) -> BenchmarkResult:
        """The saved metrics.

        Raises: EvidenceError: there are none, they cannot be read, or are of another version.
        """
        return self._load("metrics.json", BenchmarkResult, "has no metrics yet: run test_parse_results")

    def _load(self, name: str, model: type[_Model], absent: str, cure: str = "") -> _Model:
        file = self.path / name
        try:
            text = file.read_bytes()
            version = _Versioned.model_validate_json(text).schema_version
            if version != SCHEMA_VERSION:
                told = f"schema_version is {version}, and this version of cvs reads {SCHEMA_VERSION}"
                raise EvidenceError(f"{file}: {told}{cure}")
            return model.model_validate_json(text)
        except (FileNotFoundError, NotADirectoryError):
            raise EvidenceError(f"{self.path} {absent} ({name} is missing)") from None
        except OSError as error:
            raise EvidenceError(f"{file}: cannot be read: {error.strerror}") from None
        except ValidationError as error:
            raise EvidenceError(f"{file}: cannot be read: {_first_flaw(error)}") from None

    def altered(self, files: tuple[TraceFile, ...]) -> dict[str, str]:
        """Collected files that are not what the manifest says, and why: path to reason."""
        return {file.path: why for file in files if (why := self._alteration(file))}

    def _alteration(self, file: TraceFile) -> str | None:
        path = self.traces / file.path
        try:
            if not path.is_file():
                return "was collected and is missing now"
            same = path.stat().st_size == file.size and digest(path) == file.sha256
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return None if same else "was changed after it was collected"

    def unlisted(self, files: tuple[TraceFile, ...]) -> list[str]:
        """Files among the collected ones that the manifest does not have, so not of this run."""
        listed = {file.path for file in files}
        # Of a folder that cannot be looked into nothing is used, so nothing need be told.
        found = (Path(folder, name) for folder, _, names in os.walk(self.traces) for name in names)
        return sorted(
            {path.relative_to(self.traces).as_posix() for path in found if _is_there(path)} - listed
        )

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
    with _told(RunError, f"cannot make a run's folder below {runs_dir}", "choose another place"):
        home = _real(runs_dir) / suite
        latest = home / "latest"
        if latest.exists() and not latest.is_symlink():
            raise RunError(f"{latest} must be a link to the newest run and is not; move it away")
    folder = make_run_folder(home / f"{stamp}-{secrets.token_hex(3)}")
    return RunFolder(folder.path, latest=latest)


def make_run_folder(path: Path) -> RunFolder:
    """An empty folder for a run at `path`, whose name becomes the run's id.

    Raises: RunError: it cannot be made, or is there already.
    """
    with _told(RunError, f"cannot make the run's folder {path}", "choose another place"):
        folder = RunFolder(_real(path))
        # Private: logs may hold what users put into the environment of their jobs.
        folder.path.mkdir(parents=True, mode=0o700)
    try:
        with _told(RunError, f"cannot use the run's folder {path}", "choose another place"):
            for part in (folder.traces, folder.path / "logs"):
                part.mkdir()
            folder.reserve()
    except RunError:
        folder.discard()
        raise
    return folder


def newest_run_folder(runs_dir: Path, suite: str) -> RunFolder:
    """The run that began last.

    Raises: EvidenceError: there is none, or one that cannot be looked into, which may be the newest.
    """
    with _told(EvidenceError, f"cannot look for runs below {runs_dir}", "name one with --run_dir"):
        home = _real(runs_dir) / suite
        places = list(home.iterdir()) if home.is_dir() else []
        runs = [path for path in places if (path / "manifest.json").exists() and not path.is_symlink()]
        if not runs:
            raise EvidenceError(
                f"no run of {suite} below {runs_dir}:"
                " run test_run_benchmark first, or name one with --run_dir"
            )
        return RunFolder(max(runs))


def open_run_folder(path: Path) -> RunFolder:
    """A run's folder that the user named.

    Raises: EvidenceError: it is none, or cannot be looked into.
    """
    with _told(EvidenceError, f"--run_dir {path}: cannot be looked into", "name another"):
        folder = RunFolder(_real(path))
        if not (folder.path / "manifest.json").is_file():
            raise EvidenceError(f"--run_dir {path}: is no folder of a run (manifest.json is missing)")
        return folder


def _real(path: Path) -> Path:
    """The path itself, where links lead to it.

    Raises: OSError: no record could name it.
    """
    real = os.path.realpath(path)  # unlike Path.resolve, it leaves a link to itself to whoever opens it
    if UNSPEAKABLE.search(real):
        raise OSError(errno.EILSEQ, "its name is not UTF-8 text")
    return Path(real)


@contextmanager
def _told(kind: type[CvsError], what: str, cure: str) -> Iterator[None]:
    """Turn the system's refusal into a line for the user."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}; {cure}") from None


def _is_there(file: Path) -> bool:
    """Whether there is such a file, as far as may be known."""
    try:
        return file.is_file()
    except OSError:
        return False


def _first_flaw(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    why = str(first["ctx"]["error"]) if first["type"] == "value_error" else first["msg"]
    return f"{where}: {why}" if where else why


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
