"""What speaks against trusting the collectives of a set of traces: pure, one line for the user each.

Only order ties kernels of several ranks together, so a kernel that is missing, or a profile that begins at
another iteration, makes one collective of kernels that do not belong together. Nothing else tells of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cvs.collectives import Collective, Matching
from cvs.terminal import listed

_AS_IN_THE_TRACE = {
    "kernel": "kernel name",
    "collective": "Collective name",
    "group_size": "Group size",
    "dtype": "dtype",
    "in_nelems": "In msg nelems",
    "out_nelems": "Out msg nelems",
}


def findings(matching: Matching) -> tuple[str, ...]:
    """Every reason for doubt, those about the whole set first."""
    groups = _by_group(matching)
    return (
        *_alone(matching),
        *_order_alone(matching),
        *_pairs_as_all(matching),
        *_clocks(matching),
        *_windows(matching),
        *_one_name_for_several(groups),
        *(
            line
            for name, collectives in groups.items()
            for about in _ABOUT_A_GROUP
            for line in about(matching, name, collectives)
        ),
        *_receivers_unknown(matching),
    )


def doubtful_groups(matching: Matching) -> frozenset[str]:
    """Groups of which kernels may be matched that do not belong together."""
    groups = _by_group(matching)
    if any(line for about in _AGAINST_THE_SET for line in about(matching)):
        return frozenset(groups)
    return frozenset(
        name
        for name, collectives in groups.items()
        if any(line for about in _AGAINST_A_GROUP for line in about(matching, name, collectives))
    )


def _by_group(matching: Matching) -> dict[str, list[Collective]]:
    groups: dict[str, list[Collective]] = {}
    for one in matching.collectives:
        groups.setdefault(one.group, []).append(one)
    return groups


# --- the whole set ----------------------------------------------------------------------------------------


def _alone(matching: Matching) -> Iterator[str]:
    """In place of all that could be said of matching, where there is nothing to match."""
    if len(matching.ranks) != 1:
        return
    [rank] = matching.ranks
    if any(kernel.meta.known_size != 1 for kernel in rank.kernels):
        yield (
            f"only rank {rank.rank} has communication kernels here: what its collectives were across ranks "
            "cannot be told"
        )


def _order_alone(matching: Matching) -> Iterator[str]:
    """Kernels without metadata: all that older profilers recorded, and on ROCm those of the first step."""
    if len(matching.ranks) < 2:
        return
    if matching.is_simplified and matching.collectives:
        yield "no trace names process groups: the communication kernels are matched by their order alone"
        return
    silent = {
        rank.rank: unnamed
        for rank in matching.ranks
        if (unnamed := sum(kernel.meta.group is None for kernel in rank.kernels))
    }
    if silent:
        every = sum(len(rank.kernels) for rank in matching.ranks)
        yield (
            f"{sum(silent.values())} of {every} communication kernels name no process group "
            f"({listed('rank', silent)}): they are matched by their order alone"
        )


def _pairs_as_all(matching: Matching) -> Iterator[str]:
    together = sum(kernel.meta.kernel == "sendrecv" for rank in matching.ranks for kernel in rank.kernels)
    if matching.is_simplified and together and len(matching.ranks) > 1:
        yield f"{together} kernels between two ranks (SendRecv) are matched as if all ranks took part"


def _clocks(matching: Matching) -> Iterator[str]:
    based = [rank.rank for rank in matching.ranks if rank.base_ns is not None]
    if 0 < len(based) < len(matching.ranks):
        yield (
            f"only {listed('rank', based)} told baseTimeNanoseconds: arrivals, and so waits and skews, "
            "cannot be compared with the other ranks"
        )
    nodes = {rank.node for rank in matching.ranks} - {None}
    if len(nodes) > 1:
        yield f"the ranks are of {len(nodes)} nodes: waits and skews contain what their clocks differ by"


def _windows(matching: Matching) -> Iterator[str]:
    windows: dict[frozenset[int], list[int]] = {}
    for rank in matching.ranks:
        if rank.step_numbers:
            windows.setdefault(frozenset(rank.step_numbers), []).append(rank.rank)
    if len(windows) > 1:
        (some, those), (others, these), *_ = windows.items()
        yield (
            f"the profiles are not of the same steps ({listed('rank', those)}: {listed('step', some)}; "
            f"{listed('rank', these)}: {listed('step', others)}): collectives of different steps are matched"
        )


def _one_name_for_several(groups: Mapping[str, Sequence[Collective]]) -> Iterator[str]:
    sets: dict[str, list[str]] = {}
    for group, (first, *_) in groups.items():
        if first.meta.group is not None:
            sets.setdefault(first.meta.group, []).append(group)
    for name, of_name in sets.items():
        if len(of_name) > 1:
            yield (
                f"group name {name} stands for {len(of_name)} sets of ranks, such as "
                f"{' and '.join(of_name[:2])}: each is matched by itself"
            )


def _receivers_unknown(matching: Matching) -> Iterator[str]:
    silent = sum(
        part.meta.kind == "alltoallv" and part.meta.sends is None
        for one in matching.collectives
        for part in one.parts
    )
    if silent:
        yield f"{silent} all_to_allv kernels do not list what they send to whom: the heat map lacks them"


# --- one group --------------------------------------------------------------------------------------------


def _members(collectives: Iterable[Collective]) -> tuple[int, ...] | None:
    """Ranks of the group as any kernel lists them in full."""
    sets = (one.meta.ranks for one in collectives)
    return next((ranks for ranks in sets if isinstance(ranks, tuple)), None)


def _present(collectives: Iterable[Collective]) -> set[int]:
    return {part.rank for one in collectives for part in one.parts}


def _unlisted(_: Matching, group: str, collectives: Sequence[Collective]) -> Iterator[str]:
    meta = collectives[0].meta
    if meta.group is not None and _members(collectives) is None:
        how = "do not list its ranks" if meta.ranks is None else f"list its ranks only as {meta.ranks}"
        yield f"group {group}: the traces {how}: who belongs to it cannot be checked"


def _not_whole(matching: Matching, group: str, collectives: Sequence[Collective]) -> Iterator[str]:
    size, here = collectives[0].meta.known_size, _present(collectives)
    if len(matching.ranks) < 2:
        return
    if size is None and len(here) < matching.world_size:
        yield (
            f"group {group}: nobody knows its ranks, and of the {matching.world_size} ranks of the job only "
            f"{listed('rank', here)} have kernels in it here: who was waited for in it cannot be told"
        )
    elif size is not None and size > len(here):
        yield (
            f"group {group} has {size} ranks, and kernels of {listed('rank', here)} are here: its numbers "
            f"are of {'these' if len(here) > 1 else 'this one'} alone"
        )


def _strangers(_: Matching, group: str, collectives: Sequence[Collective]) -> Iterator[str]:
    size, here = collectives[0].meta.group_size, _present(collectives)
    members = _members(collectives)
    if members is not None and not here.issubset(members):
        what = f"is of {listed('rank', members)}, but kernels of {listed('rank', here.difference(members))}"
    elif size is not None and size < len(here):
        what = f"has {size} ranks, but kernels of {listed('rank', here)}"
    else:
        return
    yield f"group {group} {what} are in it: the traces may be of other ranks than they are taken for"


def _uneven(matching: Matching, group: str, collectives: Sequence[Collective]) -> Iterator[str]:
    counts = Counter(part.rank for one in collectives for part in one.parts)
    expected = (
        {rank.rank for rank in matching.ranks} if matching.is_simplified else _members(collectives) or ()
    )
    counts.update({rank.rank: 0 for rank in matching.ranks if rank.rank in expected})
    most = max(counts.values())
    short = {rank: count for rank, count in counts.items() if count < most}
    if short:
        fewest, least_short = min(short.values()), max(short.values())
        have = f"{fewest}" if fewest == least_short else f"{fewest} to {least_short}"
        yield (
            f"group {group}: only {have} collectives on {listed('rank', short)}, {most} on others: from the "
            "first that is missing on, kernels that do not belong together are matched"
        )


def _contradictions(_: Matching, group: str, collectives: Sequence[Collective]) -> Iterator[str]:
    marked = [one for one in collectives if one.differs]
    if not marked:
        return
    first, field = marked[0], marked[0].differs[0]
    told = {getattr(part.meta, field): part.rank for part in reversed(first.parts)}
    (value, at), (other, there), *_others = sorted(told.items(), key=lambda item: (item[0] is None, item[1]))
    yield (
        f"group {group}: the ranks contradict each other in {len(marked)} of {len(collectives)} collectives, "
        f"which are left out; first in {first.id}: {_AS_IN_THE_TRACE[field]} is {value} on rank {at}, "
        f"{'absent' if other is None else other} on rank {there}"
    )


def _too_far_apart(matching: Matching, group: str, collectives: Sequence[Collective]) -> Iterator[str]:
    step = min((rank.step_ns for rank in matching.ranks if rank.step_ns), default=math.inf)
    apart = [one for one in collectives if matching.synchronises(one) and (one.start_skew_ns or 0) > step]
    if apart:
        yield (
            f"group {group}: in {len(apart)} of {len(collectives)} collectives, first in {apart[0].id}, "
            f"ranks begin more than a step ({step / 1e6:.3f} ms) apart: their profiles, or their clocks, "
            "do not agree"
        )


_AboutAGroup = Callable[[Matching, str, Sequence[Collective]], Iterable[str]]

_AGAINST_THE_SET = (_pairs_as_all, _windows)
_AGAINST_A_GROUP: tuple[_AboutAGroup, ...] = (_strangers, _uneven, _contradictions, _too_far_apart)
_ABOUT_A_GROUP: tuple[_AboutAGroup, ...] = (_unlisted, _not_whole, *_AGAINST_A_GROUP)
