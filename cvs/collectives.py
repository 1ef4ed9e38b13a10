"""Collectives across ranks: what a communication kernel tells, and which kernels of several ranks are one.

The n-th communication kernel of a process group on one rank belongs with the n-th of that group on every
other: nothing in a trace ties them closer. All times are integer ns.

Source: TraceLens `NcclAnalyser`, whose collectives these must be.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from cvs.errors import TraceError

Kind = Literal["allreduce", "reducescatter", "allgather", "alltoall", "alltoallv"]

KINDS: dict[str, Kind] = {
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce",
    "reducescatter": "reducescatter",
    "_reduce_scatter_base": "reducescatter",
    "reduce_scatter_tensor_coalesced": "reducescatter",
    "allgather": "allgather",
    "all_gather": "allgather",
    "_allgather_base": "allgather",
    "all_gather_into_tensor_coalesced": "allgather",
    "allgather_into_tensor_coalesced": "allgather",
    "all_to_all": "alltoall",
    "all_to_allv": "alltoallv",
}
"""Kind of a collective by the name PyTorch gives it; a broadcast, a send and the like have none."""

IMPLICIT_SYNC: frozenset[Kind] = frozenset({"allreduce", "reducescatter", "allgather", "alltoall"})
"""In these no rank can end before every rank has begun, and all of them send the same amount."""

ELEMENT_BYTES = {
    "Double": 8, "Long": 8,
    "Float": 4, "Int": 4,
    "BFloat16": 2, "Half": 2, "Short": 2,
    "Bool": 1, "Byte": 1, "Char": 1,
    "Float8_e4m3fn": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2": 1, "Float8_e5m2fnuz": 1,
}  # fmt: skip

UNKNOWN_GROUP = "Unknown_Group"
"""Group of the kernels that name none."""
EVERYTHING = "all"
"""The one group of simplified mode."""

Listed = str | tuple[Any, ...] | None
"""A list as the trace has it: as text or as a list; long ones are abbreviated by PyTorch."""


# --- one kernel -------------------------------------------------------------------------------------------


class CommMeta(NamedTuple):
    """What a communication kernel tells of its collective; None where the trace is silent."""

    kernel: str | None
    """Collective by the name of the kernel, which RCCL's generic kernels do not tell."""
    collective: str | None
    group: str | None
    group_ranks: Listed
    group_size: int | None
    dtype: str | None
    in_nelems: int | None
    out_nelems: int | None
    in_split: Listed
    out_split: Listed

    @property
    def call(self) -> tuple[object, ...]:
        """What it tells of the call itself, whatever the group and the kernel are named."""
        return self.collective, *self[3:]

    @property
    def kind(self) -> Kind | None:
        """Kind of the collective; None for one that is not measured across ranks."""
        return KINDS.get(self.collective or "")

    @property
    def ranks(self) -> tuple[int, ...] | str | None:
        """Ranks of the group, however the trace writes them; the text where it does not list them in full."""
        listed = whole_numbers(self.group_ranks)
        if listed is not None:
            return listed
        return None if self.group_ranks is None else str(self.group_ranks)

    @property
    def known_size(self) -> int | None:
        """How many ranks the group has, as told or as listed."""
        return self.group_size or (len(self.ranks) if isinstance(self.ranks, tuple) else None) or None

    @property
    def element_bytes(self) -> int | None:
        """Bytes of one element."""
        return ELEMENT_BYTES.get(self.dtype or "")

    @property
    def in_bytes(self) -> int | None:
        """Bytes that the rank puts in."""
        return _times(self.in_nelems, self.element_bytes)

    @property
    def out_bytes(self) -> int | None:
        """Bytes that the rank gets out; unknown where those put in are, as in TraceLens."""
        return None if self.in_nelems is None else _times(self.out_nelems, self.element_bytes)

    @property
    def full_bytes(self) -> int | None:
        """Bytes of the whole message: of the larger side of a collective that scatters or gathers."""
        if self.kind is None or self.out_bytes is None:
            return None
        return self.out_bytes if self.kind == "allgather" else self.in_bytes

    @property
    def bus_factor(self) -> float | None:
        """Share of the message that must pass each rank's link, whatever the algorithm."""
        if self.kind not in IMPLICIT_SYNC or not self.group_size:
            return None
        passes = 2 if self.kind == "allreduce" else 1
        return passes * (self.group_size - 1) / self.group_size

    @property
    def sends(self) -> tuple[int, ...] | None:
        """Elements sent to each place of the group; None where the trace does not list all of them."""
        splits = whole_numbers(self.in_split)
        return splits if splits is not None and self.group_size in (None, len(splits)) else None


class CommKernel(NamedTuple):
    """One communication kernel of one rank."""

    start_ns: int
    """On the clock of its trace's `ts`."""
    duration_ns: int
    stream: int | str | None
    meta: CommMeta
    """One object may serve all kernels that tell the same."""


class RankKernels(NamedTuple):
    """What one rank's trace tells of its communication."""

    rank: int
    kernels: Sequence[CommKernel]
    """In the order of the file."""
    base_ns: int | None
    """`baseTimeNanoseconds`, to be added to every start; None where the trace lacks it."""
    node: int | None = None
    step_numbers: Collection[int] = ()
    step_ns: float | None = None
    """Mean step period."""


def comm_meta(name: str, args: Mapping[str, Any]) -> CommMeta | None:
    """What a communication kernel tells of its collective; None if it cannot be tied to its launch.

    Args: name, args: of an event of category `kernel` in the bucket communication.
    """
    if args.get("correlation") is None and args.get("External id") is None:
        return None
    inferred = "allreduce" if "cross_device_reduce" in name.lower() else None
    collective = _text(args.get("Collective name"))
    return CommMeta(
        kernel=_kernel_collective(name),
        collective=inferred if collective is None else collective,
        group=_text(args.get("Process Group Name")),
        group_ranks=_listed(args.get("Process Group Ranks")),
        group_size=_count(args.get("Group size")),
        dtype=_text(args.get("dtype")),
        in_nelems=_count(args.get("In msg nelems")),
        out_nelems=_count(args.get("Out msg nelems")),
        in_split=_listed(args.get("In split size")),
        out_split=_listed(args.get("Out split size")),
    )


@lru_cache(maxsize=1 << 12)
def whole_numbers(listed: Listed) -> tuple[int, ...] | None:
    """A list of whole numbers, however the trace writes it; None where it is not there in full."""
    if isinstance(listed, str):
        return tuple(map(int, _NUMBER.findall(listed))) if _NUMBERS.fullmatch(listed) else None
    return listed if listed is not None and all(type(item) is int for item in listed) else None


_NUMBER = re.compile(r"[0-9]+")
_NUMBERS = re.compile(r"\[([0-9]{1,18}(, ?[0-9]{1,18})*)?\]")
_IN_KERNEL_NAMES = re.compile(
    "(AllReduce|cross_device_reduce)|(ReduceScatter)|(AllGather)|(AllToAll)|(SendRecv)|(Broadcast)|(Reduce)",
    re.IGNORECASE,
)
_KERNEL_COLLECTIVES = (
    "allreduce", "reducescatter", "allgather", "alltoall", "sendrecv", "broadcast", "reduce",
)  # fmt: skip


@lru_cache(maxsize=1 << 12)
def _kernel_collective(name: str) -> str | None:
    found = _IN_KERNEL_NAMES.search(name)
    return _KERNEL_COLLECTIVES[(found.lastindex or 0) - 1] if found else None


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _count(value: Any) -> int | None:
    """A number of things; None where the trace has none that could be one."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not 0 <= number < 2**63:
        return None
    return number if isinstance(value, str) or number == value else None


def _listed(value: Any) -> Listed:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else _text(value)


def _hashable(item: Any) -> Any:
    return item if isinstance(item, int) else _listed(item)


def _times(nelems: int | None, size: int | None) -> int | None:
    return None if nelems is None or size is None else nelems * size


# --- one collective ---------------------------------------------------------------------------------------


class Part(NamedTuple):
    """What one rank did in a collective."""

    rank: int
    start_ns: int
    """On the wall clock, where the trace tells its base."""
    duration_ns: int
    stream: int | str | None
    meta: CommMeta

    @property
    def end_ns(self) -> int:
        """When its kernel ended."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True)
class Collective:
    """Kernels of several ranks that stand at the same place of the same group."""

    id: str
    group: str
    """Its name; with its ranks where several sets of ranks have that name."""
    index: int
    """Its place among the collectives of the group."""
    parts: tuple[Part, ...]
    """In the order of the ranks."""
    is_comparable: bool
    """Whether the starts are on one clock."""
    differs: tuple[str, ...]
    """In what the ranks contradict each other, so that this can be no collective of them; see `CommMeta`."""

    @property
    def meta(self) -> CommMeta:
        """What the first rank tells, and each other too unless it `differs`."""
        return self.parts[0].meta

    @property
    def start_skew_ns(self) -> int | None:
        """From the first start to the last; None where they are not on one clock."""
        starts = [part.start_ns for part in self.parts]
        return max(starts) - min(starts) if self.is_comparable else None


@dataclass(frozen=True, slots=True)
class Matching:
    """The collectives of a set of traces, in the order in which they are first met."""

    ranks: tuple[RankKernels, ...]
    """In the order of their numbers."""
    world_size: int
    """How many ranks the job has, or has at least where nobody tells."""
    is_simplified: bool
    """No trace names a group and no rank has two communication streams: matched by order alone."""
    collectives: tuple[Collective, ...]

    def is_whole(self, collective: Collective) -> bool:
        """Whether all ranks of its group are here; where nobody tells how many these are, all of the job."""
        here = len(collective.parts)
        return here > 1 and here == (collective.meta.known_size or self.world_size)

    def synchronises(self, collective: Collective) -> bool:
        """Whether it is a collective of `IMPLICIT_SYNC`; in simplified mode one of unknown kind may be."""
        kind = collective.meta.kind
        return not collective.differs and (kind in IMPLICIT_SYNC or (self.is_simplified and kind is None))


def match(ranks: Sequence[RankKernels], world_size: int | None = None) -> Matching:
    """Put the communication kernels of all ranks together; one pass, besides sorting each rank's by time.

    A group is its name, and its ranks where one name stands for several sets of them: subgroups that were
    split off one parent can all have the same.

    Args: world_size: how many ranks the job has; None: at least as many as the kernels tell of.
    Raises: TraceError: a rank is given twice.
    """
    in_order = tuple(sorted(ranks, key=lambda rank: rank.rank))
    twice = [number for number, times in Counter(rank.rank for rank in ranks).items() if times > 1]
    if twice:
        raise TraceError(f"rank {twice[0]} has two traces: its collectives cannot be told apart")
    simplified = _is_simplified(in_order)
    group_of = _groups(in_order, simplified)
    found: dict[tuple[str, int], list[Part]] = {}
    for rank, kernels, base_ns, *_ in in_order:
        groups = [group_of[kernel.meta] for kernel in kernels]
        for group, index, kernel in zip(groups, _places(kernels, groups), kernels, strict=True):
            start_ns, duration_ns, stream, meta = kernel
            part = Part(rank, (base_ns or 0) + start_ns, duration_ns, stream, meta)
            found.setdefault((group, index), []).append(part)
    with_base = {rank.rank for rank in in_order if rank.base_ns is not None}
    return Matching(
        ranks=in_order,
        world_size=max(world_size or 0, _least_world(in_order)),
        is_simplified=simplified,
        collectives=tuple(
            Collective(
                id=str(index) if simplified else f"{group}_{index}",
                group=group,
                index=index,
                parts=tuple(parts),
                is_comparable=len({part.rank in with_base for part in parts}) == 1,
                differs=_differing(parts, simplified),
            )
            for (group, index), parts in found.items()
        ),
    )


def _least_world(ranks: Sequence[RankKernels]) -> int:
    """As many ranks as there are here, or in any group."""
    metas = {kernel.meta for rank in ranks for kernel in rank.kernels}
    numbers = {number for meta in metas if isinstance(meta.ranks, tuple) for number in meta.ranks}
    return max(len(ranks), max(numbers, default=-1) + 1, *(meta.group_size or 0 for meta in metas), 0)


def _is_simplified(ranks: Sequence[RankKernels]) -> bool:
    streams = [{kernel.stream for kernel in rank.kernels} - {None} for rank in ranks]
    named = any(kernel.meta.group not in (None, UNKNOWN_GROUP) for rank in ranks for kernel in rank.kernels)
    return not named and all(len(of_rank) <= 1 for of_rank in streams)


def _groups(ranks: Sequence[RankKernels], simplified: bool) -> dict[CommMeta, str]:
    metas = {kernel.meta for rank in ranks for kernel in rank.kernels}
    if simplified:
        return dict.fromkeys(metas, EVERYTHING)
    names = {meta: UNKNOWN_GROUP if meta.group is None else meta.group for meta in metas}
    sets: dict[str, set[object]] = {}
    for meta, name in names.items():
        sets.setdefault(name, set()).add(meta.ranks)
    ambiguous = {name for name, of_name in sets.items() if len(of_name - {None}) > 1}
    return {
        meta: f"{name} {_shown(meta.ranks)}" if name in ambiguous and meta.ranks is not None else name
        for meta, name in names.items()
    }


def _shown(ranks: tuple[int, ...] | str) -> str:
    """As PyTorch writes them."""
    return f"[{', '.join(map(str, ranks))}]" if isinstance(ranks, tuple) else ranks


def _places(kernels: Sequence[CommKernel], groups: Sequence[str]) -> list[int]:
    """Place of each kernel in its group by time; of two that start together, that of the file."""
    places = [0] * len(kernels)
    passed: Counter[str] = Counter()
    for at in sorted(range(len(kernels)), key=lambda at: kernels[at].start_ns):
        places[at] = passed[groups[at]]
        passed[groups[at]] += 1
    return places


def _differing(parts: Sequence[Part], simplified: bool) -> tuple[str, ...]:
    metas = {part.meta for part in parts}
    if len(metas) == 1:
        return ()
    if simplified:
        # What a rank does not tell contradicts nothing: here most ranks tell little.
        told = {name: {getattr(meta, name) for meta in metas} - {None} for name in ("kernel", "collective")}
    else:
        told = {name: {getattr(meta, name) for meta in metas} for name in _compared(metas)}
    return tuple(name for name, values in told.items() if len(values) > 1)


def _compared(metas: Collection[CommMeta]) -> tuple[str, ...]:
    """What every rank must tell alike; nothing where sender and receiver are not the same call."""
    kinds = {meta.kind for meta in metas}
    if kinds & IMPLICIT_SYNC:
        return ("collective", "group_size", "dtype", "in_nelems", "out_nelems")
    return ("collective", "group_size", "dtype") if "alltoallv" in kinds else ()
