"""This run's files on a node, and their way home.

A file is of this run where a list taken just before the start did not have it as it is now (size, mtime,
inode). Each is verified by the digest that the node itself takes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cvs.errors import TransportError
from cvs.models import CommandResult, TraceFile
from cvs.runners._fanout import Beside
from cvs.transport.base import Transport, recordable

_PROFILER, _ANALYSIS = "torch_profiler", "tracelens_analysis"
_BESIDE = re.compile(r"rank_\d+_metrics\.jsonl|rank_?\d+\.log")
"""What counts beside a `torch_profiler` folder; and everything below `tracelens_analysis` there."""
_FIND = (
    "( -name .git -o -name .cvs -o -name combined_traces -o -name combined_traces.before-* ) -prune"
    " -o -type d -name torch_profiler -printf d\\t0\\t0\\t0\\t%P\\0"
    " -o -type f ( -path */torch_profiler/* -o -path */tracelens_analysis/* -o -name rank*_metrics.jsonl"
    " -o -name rank*.log ) -printf f\\t%s\\t%T@\\t%D:%i\\t%P\\0"
).split(" ")


_DIGEST = (
    'for file; do sum=$(openssl dgst -sha256 -r < "$file" 2> /dev/null || sha256sum < "$file")'
    ' && printf "%s  %s\\0" "${sum%% *}" "$file"; done'
)
"""Of each file; the sha256sum of a coreutils that was built without OpenSSL takes several times as long."""
_DIGESTS_AT_ONCE = 8


_PASSED_OVER = ("File system loop detected", "No such file or directory")
"""Links in a circle, and what was taken away while find looked: nothing is missed there."""
_PROBLEMS = 5


@dataclass(frozen=True)
class Listing:
    """Files of interest below a node's `aorta_path`: path to (size, mtime, device and inode)."""

    files: dict[str, tuple[str, str, str]]
    problems: tuple[str, ...] = ()
    """What could not be looked at, in words with the node before them."""

    def new_since(self, earlier: Listing) -> list[str]:
        """Paths of files that `earlier` does not have as they are now, under whatever name."""
        known = set(earlier.files.values())
        return sorted(path for path, stat in self.files.items() if stat not in known)

    def problems_since(self, earlier: Listing) -> list[str]:
        """Problems that `earlier` did not have; of many the first ones, and how many more there are."""
        new = [problem for problem in self.problems if problem not in earlier.problems]
        if len(new) > _PROBLEMS:
            new[_PROBLEMS - 1] += f", nor into {len(new) - _PROBLEMS} others"
        return new[:_PROBLEMS]


def listing(transport: Transport, folder: str, *, timeout: float) -> Listing:
    """What lies below `folder` on the node that a run may have left.

    Raises: TransportError: it cannot be listed.
    """
    # Links are followed, since users lay their output folder on a scratch disk; loops are find's to notice.
    found = transport.run(
        ["find", "-L", folder, *_FIND],
        timeout=timeout,
        environment={"LC_ALL": "C"},
        errors="surrogateescape",
    )
    complaints = _complaints(found, folder, transport.node)
    entries = [entry.split("\t", 4) for entry in found.stdout.split("\0") if entry]
    homes = {str(PurePosixPath(path).parent) for kind, *_, path in entries if kind == "d"}
    files = {
        path: (size, mtime, inode)
        for kind, size, mtime, inode, path in entries
        if kind == "f" and _is_of_interest(path, homes)
    }
    problems = tuple(f"{transport.node}: cannot look into {recordable(line)}" for line in complaints)
    return Listing(_each_once(files), problems)


def output_folders(now: Listing, before: Listing) -> dict[str, bool]:
    """Folders that a job has written traces into, and whether an analysis has left workbooks there."""
    traces = (path.split("/") for path in now.new_since(before) if _PROFILER in path.split("/"))
    folders = sorted({"/".join(parts[: parts.index(_PROFILER)]) for parts in traces})
    workbooks = [path for path in now.files if path.endswith(".xlsx")]
    return {
        folder: any(path.startswith(f"{PurePosixPath(folder, _ANALYSIS)}/") for path in workbooks)
        for folder in folders
    }


def _complaints(found: CommandResult, folder: str, node: str) -> list[str]:
    """What find could not look at, and why; its exit code tells whether it complained at all.

    Raises: TransportError: that was the folder itself, or find did not come to look.
    """
    said = found.stderr.splitlines() if found.exit_code else []
    complaints = [line.removeprefix("find: ") for line in said if line.startswith("find: ")]
    itself = f"'{folder}': "
    fatal = [line.removeprefix(itself) for line in complaints if line.startswith(itself)]
    if found.exit_code not in (0, 1) or (found.exit_code and not complaints):
        fatal = said or ["find did not end well"]
    if fatal:
        raise TransportError(f"{node}: cannot list {folder}: {fatal[0]}")
    return [line for line in complaints if not any(text in line for text in _PASSED_OVER)]


def _is_of_interest(path: str, homes: set[str]) -> bool:
    file = PurePosixPath(path)
    if _PROFILER in file.parts[:-1]:
        return True
    if str(file.parent) in homes and _BESIDE.fullmatch(file.name):
        return True
    return any(parent.name == _ANALYSIS and str(parent.parent) in homes for parent in file.parents)


def _each_once(files: dict[str, tuple[str, str, str]]) -> dict[str, tuple[str, str, str]]:
    """One path per file; Aorta's scripts lay links such as rank0/trace.json beside the real traces."""
    kept: dict[str, str] = {}
    for path in sorted(files, key=lambda path: (".pt.trace.json" not in path, path)):
        kept.setdefault(files[path][2], path)
    return {path: files[path] for path in sorted(kept.values())}


def bring_home(
    transport: Transport, folder: str, paths: list[str], into: Path, node_rank: int, *, timeout: float
) -> tuple[list[TraceFile], list[str]]:
    """Fetch files from below `folder` on the node to below `into`; one that does not come costs no other.

    What did not come is asked for once more: the connection may have been lost.

    Returns: the files that arrived as they left the node, and what went wrong with the others, in words.
    Raises: TransportError: the node cannot be asked.
    """
    deadline = time.monotonic() + timeout
    files: dict[str, TraceFile] = {}
    problems: list[str] = []
    for is_last in (False, True):
        late = [path for path in paths if path not in files]
        if not late:
            break
        try:
            left = max(round(deadline - time.monotonic()), 1)
            came, problems = _brought(transport, folder, late, into, node_rank, timeout=left)
            files |= came
        except TransportError:
            if is_last:
                raise
    return [files[path] for path in paths if path in files], problems


def _brought(
    transport: Transport, folder: str, paths: list[str], into: Path, node_rank: int, *, timeout: float
) -> tuple[dict[str, TraceFile], list[str]]:
    taking = Beside(lambda: _digests(transport, folder, paths, timeout=timeout))
    here, problem = transport.fetch(folder, paths, into, timeout=timeout)
    try:
        there, complaint = taking.result()
    except TransportError as error:
        there, complaint = {}, f"cannot be verified ({error})"
    problems = [problem] if problem else []
    arrived = [path for path in paths if path in here]
    broken = [path for path in arrived if here[path] != there.get(path)]
    for path in broken:
        (into / path).unlink()
    if broken:
        told = complaint if broken[0] not in there else "did not arrive as they left"
        among = recordable(broken[0])
        problems.append(f"{transport.node}: {len(broken)} files {told}, among them {among}")
    came = {path: _collected(into, path, here[path], node_rank) for path in arrived if path not in broken}
    return came, problems


def _collected(into: Path, path: str, sha256: str, node_rank: int) -> TraceFile:
    kept = _with_recordable_name(into, path)
    size = (into / kept).stat().st_size
    return TraceFile(path=f"{into.name}/{kept}", node_rank=node_rank, size=size, sha256=sha256)


def _with_recordable_name(into: Path, path: str) -> PurePosixPath:
    """Rename what has a name that is no UTF-8, which no record can hold, to one that nothing else has."""
    kept = PurePosixPath(recordable(path))
    if str(kept) != path:
        while (into / kept).exists():
            kept = kept.with_name(f"_{kept.name}")
        (into / kept).parent.mkdir(parents=True, exist_ok=True)
        (into / path).rename(into / kept)
    return kept


def _digests(
    transport: Transport, folder: str, paths: Sequence[str], *, timeout: float
) -> tuple[dict[str, str], str]:
    """Digest of each file that the node can read, and what became of the others."""
    batch = len(paths) // _DIGESTS_AT_ONCE**2 + 1
    result = transport.run(
        ["xargs", "-0", "-n", str(batch), "-P", str(_DIGESTS_AT_ONCE), "sh", "-c", _DIGEST, "sh"],
        cwd=folder,
        stdin="\0".join(paths).encode("utf-8", "surrogateescape"),
        timeout=timeout,
        errors="surrogateescape",
    )
    lines = [line for line in result.stdout.split("\0") if line]
    digests = {path: sha256 for sha256, path in (line.split("  ", 1) for line in lines)}
    said = result.stderr.strip().splitlines() or ["no digest"]
    return digests, f"cannot be verified ({said[0]})"
