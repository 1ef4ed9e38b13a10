"""Which bucket a GPU event belongs to.

Source: TraceLens, whose timeline this must agree with. First class that fits wins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from cvs.config.patterns import for_kernels, linear
from cvs.errors import ConfigError

Bucket = Literal["computation", "communication", "memcpy"]

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""An event runs on the GPU if and only if its `cat` is one of these: ranges on GPU tracks only annotate."""


class KernelClass(NamedTuple):
    """One kind of GPU event: the categories it occurs under and the names it has there."""

    name: str
    bucket: Bucket
    categories: frozenset[str]
    fits: Callable[[str], object]


_any = re.compile("").search

COMMUNICATION = KernelClass(
    "communication",
    "communication",
    frozenset({"kernel", "gpu_memset"}),
    re.compile("rccl|nccl|cross_device_reduce", re.IGNORECASE).search,
)

CLASSES = (
    KernelClass("copy", "memcpy", frozenset({"gpu_memcpy"}), _any),
    # ROCm up to 7.1 copies with kernels; 7.2 reports gpu_memcpy.
    KernelClass(
        "copy by kernel",
        "memcpy",
        frozenset({"kernel"}),
        re.compile(
            r"^(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)"
            r"|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?$"
        ).search,
    ),
    KernelClass(
        "fill",
        "computation",
        frozenset({"kernel"}),
        re.compile(r"^__amd_rocclr_fillBuffer(Aligned)?(\.kd)?$").search,
    ),
    COMMUNICATION,
    KernelClass("compute", "computation", frozenset({"kernel", "gpu_memset"}), _any),
)


class KernelClasses:
    """The table, perhaps with further names of kernels that communicate; it remembers what it was asked."""

    def __init__(self, communication: Sequence[str] = ()) -> None:
        """Take regular expressions for names, which join the class of communication.

        Raises: ConfigError: one of them is none.
        """
        self._own = tuple(
            COMMUNICATION._replace(name=pattern, fits=_asked(pattern)) for pattern in communication
        )
        self.classes = tuple(_extended(self._own))
        self._bucket_of = lru_cache(maxsize=1 << 16)(self._first_fit)

    def bucket_of(self, category: str, name: str) -> Bucket:
        """Bucket of a GPU event; an event without a name has the name "".

        Raises: ValueError: `category` is none of `GPU_CATEGORIES`.
        """
        return self._bucket_of(category, name)

    def unused(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those further names that fit none of these."""
        distinct = set(names) if self._own else set()
        return tuple(kind.name for kind in self._own if not any(map(kind.fits, distinct)))

    def _first_fit(self, category: str, name: str) -> Bucket:
        for kind in self.classes:
            if category in kind.categories and kind.fits(name):
                return kind.bucket
        raise ValueError(f"{category!r} is no category of GPU events")


def _extended(communication: Sequence[KernelClass]) -> Iterator[KernelClass]:
    for kind in CLASSES:
        yield kind
        if kind is COMMUNICATION:
            yield from communication


def _asked(pattern: str) -> Callable[[str], bool]:
    try:
        return linear(for_kernels(pattern))
    except ValueError as error:
        raise ConfigError([f"traces.communication_kernels: {error}"]) from None


bucket_of = KernelClasses().bucket_of
