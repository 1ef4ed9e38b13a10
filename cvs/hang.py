"""Where the ranks of a job that stands still are, and who did not arrive: pure functions over their stacks.

A rank that waits for others stands in PyTorch's collectives, or in backward, where gradients are averaged;
one that did not arrive stands elsewhere. Where nobody is seen to wait (on a GPU a rank waits in whatever line
reads a result), most ranks wait at one place, and the few that stand elsewhere did not arrive. A rank that is
loading modules waits for nobody, wherever the code of those modules lies.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

_OF_TORCH = re.compile(r"(^|/)torch/")
_OF_COLLECTIVES = re.compile(r"(^|/)torch/(distributed|nn/parallel)/")
_OF_IMPORT = "importlib._bootstrap"
_BACKWARD = "_engine_run_backward"


@dataclass(frozen=True)
class Frame:
    """One call on a stack."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"

    @property
    def brief(self) -> str:
        """Without the folders."""
        return f"{self.function} ({PurePosixPath(self.file).name}:{self.line})"


@dataclass(frozen=True)
class RankStack:
    """Where one rank stands."""

    rank: int
    frames: tuple[Frame, ...] = ()
    """Of its main thread, innermost first."""
    error: str | None = None
    """Why they could not be read."""

    def __str__(self) -> str:
        lines = [self.error] if self.error else self.frames
        return "".join(f"{line}\n" for line in (f"rank {self.rank}", *(f"    {line}" for line in lines)))

    @property
    def place(self) -> Frame | None:
        """The innermost call in the job's own code; where all is PyTorch's, the innermost."""
        own = (frame for frame in self.frames if not _OF_TORCH.search(frame.file))
        return next(own, next(iter(self.frames), None))

    @property
    def loads(self) -> bool:
        """Whether it is loading modules."""
        return any(_OF_IMPORT in frame.file for frame in self.frames)

    @property
    def waits(self) -> bool:
        """Whether it stands in a collective, or in backward."""
        if self.loads:
            return False
        for frame in self.frames:
            if not _OF_TORCH.search(frame.file) or frame.function == "<module>":
                return False
            if _OF_COLLECTIVES.search(frame.file) or frame.function == _BACKWARD:
                return True
        return False


def did_not_arrive(stacks: Sequence[RankStack]) -> list[RankStack]:
    """The ranks that the others wait for; none where that cannot be told."""
    read = [stack for stack in stacks if stack.frames]
    waiting = [stack for stack in read if stack.waits]
    if waiting and len(waiting) < len(read):
        return [stack for stack in read if not stack.waits]
    places = [None if stack.loads else stack.place for stack in read]
    [(common, count)] = Counter(places).most_common(1) or [(None, 0)]
    if common is None or 2 * count <= len(read):
        return []
    return [stack for stack, place in zip(read, places, strict=True) if place != common]


def where_they_stand(stacks: Sequence[RankStack]) -> str:
    """One line for the user: each place with the ranks that stand there."""
    ranks: dict[str, list[int]] = {}
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        ranks.setdefault(_described(stack), []).append(stack.rank)
    return "; ".join(f"{_named(those)} {what}" for what, those in ranks.items())


def _described(stack: RankStack) -> str:
    if stack.error:
        return f"cannot be looked into ({stack.error})"
    if stack.loads:
        return "still loading modules"
    place = stack.place.brief if stack.place else "no Python code"
    return f"in {place}{', waiting for others' if stack.waits else ''}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
