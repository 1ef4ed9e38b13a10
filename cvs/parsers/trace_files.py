"""Which of the collected files are the traces, and of which rank each is.

Pure: it sees paths, and documents that were read already. An `Entry` is one rank's trace, or what stands in
its place where several files claim to be it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cvs.models import LeftOut, Quality, TraceFile
from cvs.parsers.other_json import is_other_json
from cvs.parsers.trace_document import TraceDocument
from cvs.rank_paths import BY_FOLDER, RankNames, rank_in_name
from cvs.terminal import listed

SUFFIXES = (".json", ".json.gz")
"""How a trace on disk is named."""

_NOT_JSON = "not a .json or .json.gz file"
_UNFINISHED = "an unfinished copy of rsync"
_UNFINISHED_FOLDERS = frozenset({".~tmp~", ".rsync-partial"})
_LEFTOVERS = (
    (re.compile(r"\.[^/]+\.json(\.gz)?\.[A-Za-z0-9]{6}"), _UNFINISHED),
    (re.compile(r"\.nfs[0-9A-Fa-f]+"), "what NFS keeps of a removed file that somebody has open"),
    (re.compile(r"[^/]*~|\.[^/]+\.sw[a-p]|#[^/]*#|\.#[^/]*"), "left by an editor"),
    (re.compile(r"\._[^/]*"), "what macOS keeps beside a file"),
    (re.compile(r"[^/]*\.(zst|xz|bz2|lz4|zip)"), "packed in a way that is not readable here: use gzip"),
)
"""Names of files that are no traces, whatever is in them, and what they are."""
_SAME, _LATER = "the same ", " has a later window"
_KINETO_NAMES = (".pt.trace.json", ".pt.trace.json.gz")


@dataclass(frozen=True, slots=True)
class Entry:
    """One rank's trace: the files it is in, and what they tell."""

    rank: int | None
    files: tuple[TraceFile, ...]
    document: TraceDocument

    @property
    def node_rank(self) -> int | None:
        """Node that the trace is from; None where that is unknown or it was found on several."""
        nodes = {file.node_rank for file in self.files}
        return nodes.pop() if len(nodes) == 1 else None

    @property
    def place(self) -> str:
        """How messages call the entry."""
        return " and ".join(file.path for file in self.files)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What came of the files: entries in order of rank, and what to tell the user about the others."""

    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


def gave_way(left: LeftOut) -> bool:
    """Whether a file that was left out is a trace, and another one of its rank is used."""
    return left.why.startswith(_SAME) or left.why.endswith(_LATER)


# --- by path ----------------------------------------------------------------------------------------------


def candidates(
    files: Iterable[TraceFile], names: RankNames = BY_FOLDER
) -> tuple[list[TraceFile], list[LeftOut]]:
    """Files that may be traces, by their paths alone, and the others.

    Where there are rank folders only files in them count: copies and reports lie elsewhere. Where a pattern
    finds the ranks only files count that it finds.
    """
    chosen, left_out = [], []
    in_order = sorted(files, key=lambda file: file.path)
    only_placed = names.always or any(names.place(file.path) for file in in_order)
    for file in in_order:
        why = _no_trace_by_name(file.path)
        if why is None and only_placed and names.place(file.path) is None:
            why = names.missing
        if why is None:
            chosen.append(file)
        else:
            left_out.append(LeftOut(file=file.path, why=why))
    return chosen, left_out


def _no_trace_by_name(path: str) -> str | None:
    *folders, name = path.split("/")
    if not _UNFINISHED_FOLDERS.isdisjoint(folders):
        return _UNFINISHED
    for pattern, what in _LEFTOVERS:
        if pattern.fullmatch(name):
            return what
    return None if name.endswith(SUFFIXES) else _NOT_JSON


# --- by content -------------------------------------------------------------------------------------------


def one_per_place(read: Sequence[tuple[TraceFile, TraceDocument]], names: RankNames = BY_FOLDER) -> Chosen:
    """Choose one file where several in one folder are of one rank.

    A rank is what the trace itself says, else its folder or the pattern, else its name. Of the same steps a
    `.pt.trace.json` wins, of different steps the latest readable window.
    """
    traces, left_out = _without_other_json(
        [Entry(rank_of(file, document, names), (file,), document) for file, document in read]
    )
    places: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in traces:
        places[_place(entry, names)].append(entry)
    entries, warnings = [], []
    for rivals in places.values():
        best, *others = sorted(rivals, key=_preference, reverse=True)
        entries.append(best)
        warnings += _disagreement(best, names)
        for other in others:
            why = _why_not(other, best)
            left_out.append(LeftOut(file=other.place, why=why))
            if _is_broken(other):
                warnings.append(f"{other.place}: {why}; {best.place} is used instead")
    return Chosen(tuple(sorted(entries, key=_order)), tuple(warnings), tuple(left_out))


def rank_of(file: TraceFile, document: TraceDocument, names: RankNames = BY_FOLDER) -> int | None:
    """Rank of a trace; None where nobody tells it."""
    if document.rank is not None:
        return document.rank
    place = names.place(file.path)
    return place[1] if place else rank_in_name(file.path)


def _without_other_json(entries: Sequence[Entry]) -> tuple[list[Entry], list[LeftOut]]:
    """Drop JSON that is no trace, such as a report, unless it is alone or all that there is of its rank."""
    found = {entry.rank for entry in entries if not is_other_json(entry.document)} | {None}
    traces, left_out = [], []
    for entry in entries:
        if len(entries) > 1 and entry.rank in found and is_other_json(entry.document):
            left_out.append(LeftOut(file=entry.place, why=entry.document.quality.cause or ""))
        else:
            traces.append(entry)
    return traces, left_out


def _place(entry: Entry, names: RankNames) -> Hashable:
    """What two files must share to be rivals: node, folder and a known rank."""
    [file] = entry.files
    if entry.rank is None:
        return file.path
    place = names.place(file.path)
    return file.node_rank, place[0] if place else str(PurePosixPath(file.path).parent), entry.rank


def _preference(entry: Entry) -> tuple[bool, int, int, bool, int, str]:
    """Greatest for the file to use among rivals."""
    document, [file] = entry.document, entry.files
    last_step = max(document.steps, default=-1)
    start = document.start_ns or 0
    return (
        document.quality.status != "unreadable",
        last_step,
        0 if document.steps else start,  # without steps only the start tells which window is later
        file.path.endswith(_KINETO_NAMES),
        start,
        file.path,
    )


def _is_broken(entry: Entry) -> bool:
    """Whether a trace may have been lost here, not only JSON of another kind passed over."""
    return entry.document.quality.status == "unreadable" and not is_other_json(entry.document)


def _why_not(other: Entry, best: Entry) -> str:
    if is_other_json(other.document):
        return other.document.quality.cause or ""
    if other.document.quality.status == "unreadable":
        return f"unreadable: {other.document.quality.cause}"
    if other.document.steps == best.document.steps and other.document.start_ns == best.document.start_ns:
        return f"{_SAME}window as {best.place}"
    return f"{best.place}{_LATER}"


def _disagreement(entry: Entry, names: RankNames) -> list[str]:
    place = names.place(entry.files[0].path)
    if place is None or place[1] == entry.rank:
        return []
    told = f"{names.teller} says rank {place[1]}, the trace itself rank {entry.rank}"
    return [f"{entry.place}: {told}, which counts"]


def _order(entry: Entry) -> tuple[bool, int, str]:
    return entry.rank is None, entry.rank or 0, entry.files[0].path


# --- over nodes -------------------------------------------------------------------------------------------


def one_per_rank(
    entries: Sequence[Entry], *, separate_worlds: bool, local_world_size: int | None = None
) -> Chosen:
    """Join entries of one rank: equal files on several nodes are one on a shared disk, others contradict.

    In separate worlds one number stands for several ranks: entries that differ are all kept.
    """
    by_rank: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.rank is not None:
            by_rank[entry.rank].append(entry)
    joined = [entry for entry in entries if entry.rank is None]
    left_out, shared = [], []
    for rank, rivals in by_rank.items():
        if len(rivals) > 1 and _is_shared(rivals):
            best = min(rivals, key=lambda entry: _is_elsewhere(entry, local_world_size))
            joined.append(best)
            shared.append(rank)
            why = f"{_SAME}file as {best.place}: a shared disk"
            left_out += [LeftOut(file=entry.place, why=why) for entry in rivals if entry is not best]
        elif len(rivals) > 1 and not separate_worlds:
            joined.append(_contradiction(rank, rivals))
        else:
            joined += rivals
    warnings = [
        f"shared disk: {listed('rank', shared)} found on several nodes with equal files, counted once"
    ]
    return Chosen(tuple(sorted(joined, key=_order)), tuple(warnings if shared else ()), tuple(left_out))


def _is_shared(rivals: Sequence[Entry]) -> bool:
    nodes = {entry.node_rank for entry in rivals}
    contents = {file.sha256 for entry in rivals for file in entry.files}
    return len(nodes) == len(rivals) and len(contents) == 1 and contents != {""}


def _is_elsewhere(entry: Entry, local_world_size: int | None) -> bool:
    """Whether the rank is known to have run on another node than the one this copy is from."""
    if entry.rank is None or local_world_size is None:
        return False
    return entry.node_rank != entry.rank // local_world_size


def _contradiction(rank: int, rivals: Sequence[Entry]) -> Entry:
    files = tuple(file for entry in rivals for file in entry.files)
    cause = f"rank {rank} has {len(files)} traces: {', '.join(file.path for file in files)}"
    world_size = rivals[0].document.world_size
    quality = Quality(status="duplicate", cause=cause)
    return Entry(rank, files, TraceDocument(quality=quality, rank=rank, world_size=world_size))
