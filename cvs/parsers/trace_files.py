"""Which of the collected files are the traces, and of which rank each is.

Pure: it sees paths, and documents that were read already. An `Entry` is one rank's trace, or what stands in
its place where several files claim to be it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cvs.models import LeftOut, Quality, TraceFile
from cvs.parsers.trace_document import TraceDocument
from cvs.parsers.trace_text import NO_TRACE_EVENTS
from cvs.rank_paths import rank_folder, rank_in_name

SUFFIXES = (".json", ".json.gz")
"""How a trace on disk is named."""

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


# --- by path ----------------------------------------------------------------------------------------------


def candidates(files: Iterable[TraceFile]) -> tuple[list[TraceFile], list[LeftOut]]:
    """Files that may be traces, by their paths alone, and the others.

    Where there are rank folders only files in them count: copies and reports lie elsewhere.
    """
    chosen, left_out = [], []
    in_order = sorted(files, key=lambda file: file.path)
    has_rank_folders = any(rank_folder(file.path) for file in in_order)
    for file in in_order:
        if not file.path.endswith(SUFFIXES):
            left_out.append(LeftOut(file=file.path, why="not a .json or .json.gz file"))
        elif has_rank_folders and not rank_folder(file.path):
            left_out.append(LeftOut(file=file.path, why="not in a rank folder, where others are"))
        else:
            chosen.append(file)
    return chosen, left_out


# --- by content -------------------------------------------------------------------------------------------


def one_per_place(read: Sequence[tuple[TraceFile, TraceDocument]]) -> Chosen:
    """Choose one file where several in one folder are of one rank.

    A rank is what the trace itself says, else its folder, else its name. Of the same steps a `.pt.trace.json`
    wins, of different steps the latest readable window.
    """
    traces, left_out = _without_other_json(read)
    places: dict[Hashable, list[Entry]] = defaultdict(list)
    for file, document in traces:
        entry = Entry(rank_of(file, document), (file,), document)
        places[_place(entry)].append(entry)
    entries, warnings = [], []
    for rivals in places.values():
        best, *others = sorted(rivals, key=_preference, reverse=True)
        entries.append(best)
        warnings += _disagreement(best)
        for other in others:
            why = _why_not(other, best)
            left_out.append(LeftOut(file=other.place, why=why))
            if _is_broken(other):
                warnings.append(f"{other.place}: {why}; {best.place} is used instead")
    return Chosen(tuple(sorted(entries, key=_order)), tuple(warnings), tuple(left_out))


def rank_of(file: TraceFile, document: TraceDocument) -> int | None:
    """Rank of a trace; None where nobody tells it."""
    if document.rank is not None:
        return document.rank
    folder = rank_folder(file.path)
    return folder[1] if folder else rank_in_name(file.path)


def _without_other_json(
    read: Sequence[tuple[TraceFile, TraceDocument]],
) -> tuple[list[tuple[TraceFile, TraceDocument]], list[LeftOut]]:
    """Drop JSON of no known rank that is no trace, such as a report, where there are several files."""
    traces, left_out = [], []
    for file, document in read:
        is_other = document.quality.cause == NO_TRACE_EVENTS and rank_of(file, document) is None
        if is_other and len(read) > 1:
            left_out.append(LeftOut(file=file.path, why=NO_TRACE_EVENTS))
        else:
            traces.append((file, document))
    return traces, left_out


def _place(entry: Entry) -> Hashable:
    """What two files must share to be rivals: node, folder and a known rank."""
    [file] = entry.files
    if entry.rank is None:
        return file.path
    folder = rank_folder(file.path)
    return file.node_rank, folder[0] if folder else str(PurePosixPath(file.path).parent), entry.rank


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
    quality = entry.document.quality
    return quality.status == "unreadable" and quality.cause != NO_TRACE_EVENTS


def _why_not(other: Entry, best: Entry) -> str:
    if other.document.quality.status == "unreadable":
        return f"unreadable: {other.document.quality.cause}"
    if other.document.steps == best.document.steps and other.document.start_ns == best.document.start_ns:
        return f"the same window as {best.place}"
    return f"{best.place} has a later window"


def _disagreement(entry: Entry) -> list[str]:
    folder = rank_folder(entry.files[0].path)
    if folder is None or folder[1] == entry.rank:
        return []
    return [
        f"{entry.place}: the folder says rank {folder[1]}, the trace itself rank {entry.rank}, which counts"
    ]


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
            why = f"the same file as {best.place}: a shared disk"
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


def listed(what: str, numbers: Iterable[int]) -> str:
    """Numbers in words, neighbours as a span: `rank 3`, `ranks 0-3, 7`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][-1] + 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    text = ", ".join(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in spans)
    return f"{what}{'' if sum(map(len, spans)) == 1 else 's'} {text}"
