"""Buckets of GPU events."""

from __future__ import annotations

import time

import pytest

from cvs.errors import ConfigError
from cvs.kernels import CLASSES, GPU_CATEGORIES, KernelClasses, bucket_of


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


# --- further names ----------------------------------------------------------------------------------------

FURTHER = KernelClasses(["one_shot", "(?i)^MSCCL", r"ring\d+$"])


@pytest.mark.parametrize(
    ("category", "name", "bucket"),
    [
        ("kernel", "void one_shot_all_reduce<float>(float*)", "communication"),
        ("gpu_memset", "one_shot flags", "communication"),
        ("kernel", "mscclppAllReduce", "communication"),
        ("kernel", "a mscclpp", "computation"),
        ("kernel", "ring12", "communication"),
        ("kernel", "ring12 ", "computation"),
        ("kernel", "One_Shot", "computation"),
        ("kernel", "ncclDevKernel_x", "communication"),
        ("kernel", "", "computation"),
        ("gpu_memcpy", "one_shot", "memcpy"),
    ],
)
def test_further_names_join_the_class_of_communication(category: str, name: str, bucket: str) -> None:
    assert FURTHER.bucket_of(category, name) == bucket


def test_what_is_copied_or_filled_stays_that_whatever_is_named() -> None:
    with_much = KernelClasses(["_"])
    assert with_much.bucket_of("kernel", "__amd_rocclr_copyBuffer") == "memcpy"
    assert with_much.bucket_of("kernel", "__amd_rocclr_fillBufferAligned") == "computation"
    assert with_much.bucket_of("kernel", "gemm_x") == "communication"


def test_without_further_names_it_is_the_table() -> None:
    assert KernelClasses().classes == CLASSES
    with pytest.raises(ValueError, match="no category of GPU events"):
        FURTHER.bucket_of("cuda_sync", "one_shot")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|aa)+$", "(.*)*x", "a*" * 40 + "b"])
def test_no_pattern_can_take_long(pattern: str) -> None:
    begin = time.monotonic()
    assert KernelClasses([pattern]).bucket_of("kernel", "a" * 20_000 + "!") == "computation"
    assert time.monotonic() - begin < 5


def test_a_name_that_is_no_unicode_is_computation() -> None:
    assert FURTHER.bucket_of("kernel", "\ud800one_shot") == "computation"


def test_what_is_no_regular_expression_is_told_with_its_key() -> None:
    with pytest.raises(ConfigError) as caught:
        KernelClasses(["fine", "("])
    assert str(caught.value) == "traces.communication_kernels: '(' is no regular expression: unclosed group"


@pytest.mark.parametrize("pattern", ["", ".*", "a?"])
def test_what_fits_every_kernel_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="fits every kernel; write a part of the names that are meant"):
        KernelClasses([pattern])
