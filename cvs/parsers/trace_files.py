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
SAME = "the same "
"""How a reason begins where another file that is used tells what the one left out does."""
_LATER = " has a later window"
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
    """Whether a file that was left out tells of a rank, and another one of that rank is used."""
    return left.why.startswith(SAME) or left.why.endswith(_LATER)


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
    `.pt.trace.json` wins, of different steps the latest readable window. In a folder that is not one rank's
    own, files of the same steps that contradict each other are all kept.
    """
    traces, left_out = _without_other_json(
        [Entry(rank_of(file, document, names), (file,), document) for file, document in read]
    )
    places: dict[Hashable, list[Entry]] = defaultdict(list)
    for entry in traces:
        places[_place(entry, names)].append(entry)
    own = _folders_of_one_rank(traces, names)
    entries, warnings = [], []
    for rivals in places.values():
        best, *others = sorted(rivals, key=_preference, reverse=True)
        place = names.place(best.files[0].path)
        is_own = place is not None and place[0] in own
        contradicting = [] if is_own else [other for other in others if _contradicts(other, best, names)]
        entries += [best, *contradicting]
        warnings += [text for entry in ([best] if is_own else rivals) for text in _disagreement(entry, names)]
        for other in others:
            if other in contradicting:
                continue
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


def _folders_of_one_rank(entries: Sequence[Entry], names: RankNames) -> frozenset[str]:
    """Folders that are one rank's own; a pattern may find several ranks in one."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for entry in entries:
        place = names.place(entry.files[0].path)
        if place:
            ranks[place[0]].add(place[1])
    return frozenset(folder for folder, found in ranks.items() if len(found) == 1)


def _preference(entry: Entry) -> tuple[bool, int, int, bool, int, str]:
    """Greatest for the file to use among rivals."""
    document, [file] = entry.document, entry.files
    start = document.start_ns or 0
    return (
        document.quality.status != "unreadable",
        _last_step(entry),
        0 if document.steps else start,  # without steps only the start tells which window is later
        _is_kinetos(entry),
        start,
        file.path,
    )


def _last_step(entry: Entry) -> int:
    return max(entry.document.steps, default=-1)


def _is_kinetos(entry: Entry) -> bool:
    return entry.files[0].path.endswith(_KINETO_NAMES)


def _contradicts(other: Entry, best: Entry, names: RankNames) -> bool:
    """Whether two files claim the same steps of a rank, and nothing tells which of them is right.

    Both names of one export tell of one trace, and so do files that say the same, packed or not.
    """
    if other.document.quality.status == "unreadable" or not _has_same_steps(other, best):
        return False
    if _disagreement(other, names) or _disagreement(best, names):
        return True
    is_other_export = _is_kinetos(best) and not _is_kinetos(other)
    return not is_other_export and other.document != best.document


def _has_same_steps(one: Entry, other: Entry) -> bool:
    """Whether two traces are of one window; without steps only the start tells."""
    if one.document.steps or other.document.steps:
        return one.document.steps.keys() == other.document.steps.keys()
    return one.document.start_ns == other.document.start_ns


def _is_broken(entry: Entry) -> bool:
    """Whether a trace may have been lost here, not only JSON of another kind passed over."""
    return entry.document.quality.status == "unreadable" and not is_other_json(entry.document)


def _why_not(other: Entry, best: Entry) -> str:
    if is_other_json(other.document):
        return other.document.quality.cause or ""
    if other.document.quality.status == "unreadable":
        return f"unreadable: {other.document.quality.cause}"
    if _has_same_steps(other, best):
        what = "window" if other.document.start_ns == best.document.start_ns else "steps"
        return f"{SAME}{what} as {best.place}"
    if _is_later(best, other):
        return f"{best.place}{_LATER}"
    if _last_step(best) == _last_step(other) >= 0:
        return f"{SAME}last step as {best.place}"
    return f"{SAME}rank as {best.place}, which tells more"


def _is_later(one: Entry, other: Entry) -> bool:
    """Whether a window is known to be later than another."""
    if _last_step(one) > _last_step(other) >= 0:
        return True
    start, before = one.document.start_ns, other.document.start_ns
    return start is not None and before is not None and start > before


def _disagreement(entry: Entry, names: RankNames) -> list[str]:
    """Whether what would tell the rank, if the trace itself did not, says otherwise."""
    path = entry.files[0].path
    place = names.place(path)
    teller, told = (names.teller, place[1]) if place else ("the file's name", rank_in_name(path))
    if told is None or told == entry.rank:
        return []
    return [f"{entry.place}: {teller} says rank {told}, the trace itself rank {entry.rank}, which counts"]


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
            why = f"{SAME}file as {best.place}: a shared disk"
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
