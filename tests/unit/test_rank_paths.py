"""The rank that a path tells."""

from __future__ import annotations

import pytest

from cvs.rank_paths import rank_folder, rank_in_name


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("torch_profiler/rank3/trace.json", ("torch_profiler/rank3", 3)),
        ("node_1/a/torch_profiler/rank_03/trace.json", ("node_1/a/torch_profiler/rank_03", 3)),
        ("rank-12/trace.json", ("rank-12", 12)),
        ("rank3/trace/pt.trace.json", ("rank3", 3)),
        ("rank3/rank5/trace.json", ("rank3/rank5", 5)),
        ("rank3.bak/trace.json", None),
        ("old_rank3/trace.json", None),
        ("Rank3/trace.json", None),
        ("rank/trace.json", None),
        ("rank3", None),
        ("rank3.json", None),
    ],
)
def test_rank_folder(path: str, expected: tuple[str, int] | None) -> None:
    assert rank_folder(path) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rank0_trace.json.gz", 0),
        ("sampled_rank-1.json.gz", 1),
        ("trace_RANK_07.json", 7),
        ("cpu_only_rank34.json", 34),
        ("7rank2.json", 2),
        ("rank1/trace.json", None),
        ("trace.json", None),
        ("rank0_rank1.json", None),
        ("rank0_rank0.json", None),
        ("crank3.json", None),
        ("frank_3.json", None),
        ("rank.json", None),
        ("rank 3.json", None),
    ],
)
def test_rank_in_a_file_name(name: str, expected: int | None) -> None:
    assert rank_in_name(name) == expected
