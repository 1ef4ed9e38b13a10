"""Which bucket a GPU event belongs to.

Source: TraceLens, whose timeline this must agree with. First class that fits wins.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple

Bucket = Literal["computation", "communication", "memcpy"]

GPU_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""An event runs on the GPU if and only if its `cat` is one of these: ranges on GPU tracks only annotate."""


class KernelClass(NamedTuple):
    """One kind of GPU event: the categories it occurs under and the names it has there."""

    name: str
    bucket: Bucket
    categories: frozenset[str]
    pattern: re.Pattern[str]


CLASSES = (
    KernelClass("copy", "memcpy", frozenset({"gpu_memcpy"}), re.compile("")),
    # ROCm up to 7.1 copies with kernels; 7.2 reports gpu_memcpy.
    KernelClass(
        "copy by kernel",
        "memcpy",
        frozenset({"kernel"}),
        re.compile(
            r"^(MEMORY_COPY_(HOST_TO_DEVICE|DEVICE_TO_HOST|DEVICE_TO_DEVICE)"
            r"|__amd_rocclr_copyBuffer(Rect)?(Aligned)?)(\.kd)?$"
        ),
    ),
    KernelClass(
        "fill",
        "computation",
        frozenset({"kernel"}),
        re.compile(r"^__amd_rocclr_fillBuffer(Aligned)?(\.kd)?$"),
    ),
    KernelClass(
        "communication",
        "communication",
        frozenset({"kernel", "gpu_memset"}),
        re.compile("rccl|nccl|cross_device_reduce", re.IGNORECASE),
    ),
    KernelClass("compute", "computation", frozenset({"kernel", "gpu_memset"}), re.compile("")),
)


@lru_cache(maxsize=1 << 16)
def bucket_of(category: str, name: str) -> Bucket:
    """Bucket of a GPU event; an event without a name has the name "".

    Raises: ValueError: `category` is none of `GPU_CATEGORIES`.
    """
    for kind in CLASSES:
        if category in kind.categories and kind.pattern.search(name):
            return kind.bucket
    raise ValueError(f"{category!r} is no category of GPU events")
