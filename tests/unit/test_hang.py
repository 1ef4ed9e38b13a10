"""Who did not arrive, told from where the ranks of real hanging jobs stood: `tests/data/stacks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from cvs.hang import Frame, RankStack, did_not_arrive, where_they_stand
from cvs.runtime.base import rank_stacks

SAVED = Path(__file__).parents[1] / "data" / "stacks"


def saved(name: str) -> list[RankStack]:
    return rank_stacks((SAVED / f"{name}.json").read_text())


def at(rank: int, *places: str) -> RankStack:
    """A rank whose calls, innermost first, are `file:function`."""
    frames = (place.rpartition(":") for place in places)
    return RankStack(rank, tuple(Frame(function, file, 7) for file, _, function in frames))


READS, LOADS = "train.py:read_result", "data.py:load"
REDUCES = "/opt/torch/distributed/distributed_c10d.py:all_reduce"


@pytest.mark.parametrize(
    ("name", "rank", "waits_in"),
    [
        ("ddp", 3, "Trainer.train_step"),
        ("manual", 1, "Trainer._average_gradients"),
        ("fsdp", 1, "Trainer.train_step"),
    ],
)
def test_the_rank_that_hung_is_named(name: str, rank: int, waits_in: str) -> None:
    stacks = saved(name)
    [absent] = did_not_arrive(stacks)
    assert absent.rank == rank
    assert where_they_stand([absent]) == f"rank {rank} in hang (train.py:{absent.frames[0].line})"
    others = [stack for stack in stacks if stack is not absent]
    assert all(stack.waits for stack in others)
    names = ", ".join(str(stack.rank) for stack in others)
    assert where_they_stand(others).startswith(f"ranks {names} in {waits_in} (train.py:")
    assert where_they_stand(others).endswith("), waiting for others")


@pytest.mark.parametrize(
    ("stacks", "absent"),
    [
        pytest.param([at(0, REDUCES, READS), at(1, LOADS), at(2, LOADS)], [1, 2], id="most_are_late"),
        pytest.param([at(0, READS), at(1, READS), at(2, LOADS)], [2], id="nobody_is_seen_to_wait"),
        pytest.param([at(0, READS), at(1, LOADS)], [], id="one_against_one"),
        pytest.param([at(0, READS), at(1, READS)], [], id="all_at_one_place"),
        pytest.param(
            [at(0, REDUCES, READS), at(1, REDUCES, READS), at(2, REDUCES, LOADS)], [2], id="elsewhere"
        ),
        pytest.param([at(0, REDUCES, READS), RankStack(1, error="none")], [], id="one_cannot_be_read"),
        pytest.param([], [], id="no_rank"),
    ],
)  # fmt: skip
def test_who_did_not_arrive(stacks: list[RankStack], absent: list[int]) -> None:
    assert [stack.rank for stack in did_not_arrive(stacks)] == absent


@pytest.mark.parametrize(
    ("stack", "waits"),
    [
        (at(0, REDUCES, READS), True),
        (at(0, "torch/autograd/graph.py:_engine_run_backward", "torch/autograd/__init__.py:backward"), True),
        (at(0, "/opt/torch/nn/parallel/distributed.py:_sync_buffers"), True),
        (at(0, "/opt/torch/distributed/_shard/api.py:<module>", "train.py:<module>"), False),
        (at(0, LOADS, "/opt/torch/distributed/elastic/errors.py:wrapper"), False),
        (at(0, "/opt/torch/utils/data/dataloader.py:_next_data", READS), False),
        (at(0, "/srv/my/distributed/all_reduce.py:all_reduce"), False),
        (RankStack(0), False),
    ],
)
def test_who_waits(stack: RankStack, waits: bool) -> None:
    assert stack.waits is waits


def test_ranks_at_one_place_are_told_together() -> None:
    stacks = [at(2, READS), at(0, READS), at(1, LOADS), RankStack(3, error="no py-spy"), RankStack(4)]
    assert where_they_stand(stacks) == (
        "ranks 0, 2 in read_result (train.py:7); rank 1 in load (data.py:7);"
        " rank 3 cannot be looked into (no py-spy); rank 4 in no Python code"
    )


def test_a_stack_for_reading() -> None:
    assert str(at(3, LOADS, READS)) == "rank 3\n    load (data.py:7)\n    read_result (train.py:7)\n"
    assert str(RankStack(3, error="no py-spy")) == "rank 3\n    no py-spy\n"


def loading(rank: int, *places: str) -> RankStack:
    """A rank in the midst of an import, with these calls inside it."""
    return at(rank, *places, "<frozen importlib._bootstrap>:_call_with_frames_removed", "train.py:<module>")


def test_ranks_that_are_loading_modules_wait_for_nobody_and_nobody_is_blamed() -> None:
    inner = "torch/distributed/fsdp/api.py:_create_fn"
    stacks = [loading(0, inner), loading(1, inner), loading(2, "dataclasses.py:_create_fn"), at(3, "a.py:f")]
    assert did_not_arrive(stacks) == []
    assert where_they_stand(stacks) == "ranks 0, 1, 2 still loading modules; rank 3 in f (a.py:7)"


def test_one_that_is_loading_while_the_others_wait_did_not_arrive() -> None:
    others = [at(rank, "torch/distributed/c10d.py:all_reduce", "train.py:train") for rank in (0, 1, 2)]
    assert did_not_arrive([*others, loading(3)]) == [loading(3)]
    elsewhere = [at(rank, "train.py:read") for rank in (0, 1, 2)]
    assert did_not_arrive([*elsewhere, loading(3)]) == [loading(3)]
