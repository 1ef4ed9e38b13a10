"""Buckets of GPU events."""

from __future__ import annotations

import pytest

from cvs.kernels import GPU_CATEGORIES, bucket_of


@pytest.mark.parametrize(
    ("category", "name", "bucket"),
    [
        ("kernel", "ncclDevKernel_x", "communication"),
        ("kernel", "RCCL_y", "communication"),
        ("kernel", "rcclGenericKernel", "communication"),
        ("kernel", "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("kernel", "void vllm::cross_device_reduce_1stage<__half, 8>(vllm::RankData*)", "communication"),
        ("gpu_memset", "nccl fill", "communication"),
        ("gpu_memcpy", "ncclmemcpy", "memcpy"),
        ("kernel", "AllReduce_custom", "computation"),
        ("kernel", "one_shot_all_reduce", "computation"),
        ("kernel", "__amd_rocclr_copyBuffer", "memcpy"),
        ("kernel", "__amd_rocclr_copyBuffer.kd", "memcpy"),
        ("kernel", "__amd_rocclr_copyBufferRect", "memcpy"),
        ("kernel", "__amd_rocclr_copyBufferRectAligned.kd", "memcpy"),
        ("kernel", "MEMORY_COPY_HOST_TO_DEVICE", "memcpy"),
        ("kernel", "MEMORY_COPY_DEVICE_TO_HOST", "memcpy"),
        ("kernel", "MEMORY_COPY_DEVICE_TO_DEVICE", "memcpy"),
        ("kernel", "memory_copy_host_to_device", "computation"),
        ("kernel", "__amd_rocclr_copyBufferExt", "computation"),
        ("kernel", "MEMORY_COPY_X", "computation"),
        ("kernel", "Memcpy DtoH", "computation"),
        ("kernel", "__amd_rocclr_fillBufferAligned", "computation"),
        ("gpu_memset", "__amd_rocclr_copyBuffer", "computation"),
        ("gpu_memset", "Memset (Device)", "computation"),
        ("gpu_memcpy", "Memcpy HtoD", "memcpy"),
        ("kernel", "", "computation"),
    ],
)
def test_bucket(category: str, name: str, bucket: str) -> None:
    assert bucket_of(category, name) == bucket


@pytest.mark.parametrize("category", ["Kernel", "gpu_user_annotation", "cuda_sync", "overhead", ""])
def test_ranges_on_gpu_tracks_are_no_gpu_events(category: str) -> None:
    assert category not in GPU_CATEGORIES
    with pytest.raises(ValueError, match="no category of GPU events"):
        bucket_of(category, "ncclKernel")
