"""What could not be read of one file, gathered on the way, and the quality that leaves."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cvs.models import LostText, Quality, QualityStatus

GPU_EVENT = rb'"(?:kernel|gpu_memcpy|gpu_memset)"|ProfilerStep'
"""Text that is lost is harmless unless it names one of these."""
_DAMAGED_CATEGORY = rb'"cat"\s*:(?!\s*(?:"[\w ]*"|null))'
"""Text that was an event whose category is not what it was."""
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_OVERWRITTEN = 8
"""So many bytes that are no text stand where there was text once, who knows which."""


_TOLD = 20
"""So many places of lost text are kept with their position; the count goes on."""


@dataclass(slots=True)
class Losses:
    """What could not be read of one file."""

    counting: bytes = GPU_EVENT
    """Pattern of what events that count have in their text."""
    cut: str | None = None
    """Why the text ends early, if it does."""
    vital: bool = False
    """Whether something that counts may be lost."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of events that do not count, by cause."""
    _repairs: dict[str, list[int]] = field(default_factory=dict)
    """By what was done: how often, and at which byte first."""
    _lost: list[LostText] = field(default_factory=list)
    _lost_bytes: int = 0

    def counts(self, text: bytes) -> bool:
        """Whether an event whose text this is may be one that counts."""
        return re.search(self.counting, text) is not None

    def _may_count(self, text: bytes) -> bool:
        """Whether text that was lost may have been an event that counts."""
        if re.search(rb"%b|%b" % (self.counting, _DAMAGED_CATEGORY), text):
            return True
        no_text = text.decode(errors="replace").count("\ufffd") + len(_CONTROL.findall(text))
        return no_text >= _OVERWRITTEN

    def drop(self, cause: str, *, vital: bool) -> None:
        """Note an event that does not count because of `cause`."""
        self.dropped[cause] += 1
        self.vital |= vital

    def repair(self, what: str, *, at: int | None = None, times: int = 1) -> None:
        """Note what was mended without a guess."""
        if at is None:
            self._repairs.setdefault(what, [])
        else:
            count, first = self._repairs.get(what) or (0, at)
            self._repairs[what] = [count + times, first]

    def lose(self, start: int, text: bytes, cause: str, *, vital: bool = False) -> None:
        """Note a piece of text, `start` bytes into the file, that is no event because of `cause`."""
        self.drop(cause, vital=vital or self._may_count(text))
        self._lost_bytes += len(text)
        if len(self._lost) < _TOLD:
            self._lost.append(LostText(start=start, end=start + len(text), cause=cause))

    @property
    def has_lost_text(self) -> bool:
        """Whether some of the text was no event."""
        return bool(self._lost)

    def quality(self, status: QualityStatus = "complete", cause: str | None = None) -> Quality:
        """Quality of the file, where `status` and its cause are what the events that were read deserve."""
        if self.cut:
            status = "truncated"
        elif self.vital:
            status = "incomplete"
        elif status == "complete" and (self._repairs or self.dropped):
            status = "repaired"
        dropped = dict(sorted(self.dropped.items()))
        causes = [self.cut, *(f"{n} x {what}" for what, n in dropped.items()), cause, *self._repaired()]
        return Quality(
            status=status,
            cause="; ".join(filter(None, causes)) or None,
            dropped=dropped,
            lost=tuple(self._lost),
            lost_bytes=self._lost_bytes,
        )

    def _repaired(self) -> Iterator[str]:
        for what, found in self._repairs.items():
            yield f"{found[0]} x {what} (first at byte {found[1]})" if found else what
