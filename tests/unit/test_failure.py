"""Who failed first, told from what real failing jobs left: `tests/data/failures`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from conftest import SAVED_FAILURES, saved_trails, torchrun_summary
from cvs.failure import TAIL_LINES, NodeTrail, RankTrail, first_failure, port_taken
from cvs.models import Failure


def without_error_files(trails: list[NodeTrail]) -> list[NodeTrail]:
    """As a trainer leaves them that does not record its errors; Aorta's own is one."""
    return [
        replace(trail, ranks=tuple(replace(rank, error=None) for rank in trail.ranks)) for trail in trails
    ]


def failure_of(trails: list[NodeTrail]) -> Failure:
    found = first_failure(trails)
    assert found is not None
    return found


CASES = {
    "A": (1, (3,), "failed: RuntimeError: injected failure: rank 3 raises in step 5"),
    "B": (1, (3,), "was ended by signal 9"),
    "C1": (1, (), "did not join; node-0 waited: torch.distributed.DistStoreError: Timed out after 9 seconds"),
    "C2": (0, (), "did not join; node-1 waited: torch.distributed.DistNetworkError: The client socket"),
    "D": (0, (), "EADDRINUSE"),
    "E": (1, (3,), "did not arrive at a collective that the others waited in"),
    "F": (0, (), "was stopped: torch.distributed.elastic.multiprocessing.api.SignalException: Process 11154"),
    "G": (0, (), "lost its launcher to signal 9"),
    "H": (1, (3,), "was ended by signal 6"),
    "crashed": (1, (3,), "ended without a word, and so did the launcher about it"),
    "forced": (0, (0,), "failed: RuntimeError: injected failure: rank 0 raises"),
}  # fmt: skip
"""Case to the node rank and the ranks that failed first, and what the sentence says."""


@pytest.mark.parametrize("case", CASES)
def test_who_failed_first(case: str) -> None:
    node_rank, ranks, sentence = CASES[case]
    found = failure_of(saved_trails(case))
    assert (found.node_rank, found.node, found.ranks) == (node_rank, f"node-{node_rank}", ranks)
    assert sentence in found.reason
    assert f"node-{node_rank} (node rank {node_rank})" in found.reason
    assert "\n" not in found.reason


# A half-written error file is what that launcher crashed of.
@pytest.mark.parametrize("case", [case for case in CASES if case != "crashed"])
def test_error_files_are_not_needed(case: str) -> None:
    node_rank, ranks, _ = CASES[case]
    found = failure_of(without_error_files(saved_trails(case)))
    assert (found.node_rank, found.ranks) == (node_rank, ranks)


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_the_nodes_does_not_matter(case: str) -> None:
    assert failure_of(saved_trails(case)[::-1]) == failure_of(saved_trails(case))


@pytest.mark.parametrize("case", [case for case, (_, ranks, _) in CASES.items() if ranks])
def test_whoever_noticed_first_the_same_is_named(case: str) -> None:
    """Nodes that fail together end in any order: whoever blames a victim must not win by a moment."""
    trails = [replace(trail, seconds=100 - (trail.seconds or 0)) for trail in saved_trails(case)]
    assert failure_of(trails).ranks == CASES[case][1]


def test_several_nodes_that_never_joined_are_all_named() -> None:
    head, absent = saved_trails("C1")
    third = replace(absent, node="node-2", node_rank=2)
    assert (
        "node-1 (node rank 1) did not join, nor did node-2; node-0 waited"
        in failure_of([head, absent, third]).reason
    )


# --- a taken port -----------------------------------------------------------------------------------------

PORT = 29500


def head_that_said(text: str, *ranks: str) -> NodeTrail:
    """Node rank 0 whose launcher ended with this error, and whose ranks did with theirs."""
    trails = (RankTrail(rank=rank, local_rank=rank, stderr=said) for rank, said in enumerate(ranks))
    return NodeTrail(0, "node-0", exit_code=1, seconds=1.0, output=text, ranks=tuple(trails))


LISTEN = "The server socket has failed to listen on any local network address."
BIND = "The server socket has failed to bind to"


@pytest.mark.parametrize(
    "text",
    [
        f"torch.distributed.DistNetworkError: {LISTEN} port: 29500, code: -98, name: EADDRINUSE",
        f"RuntimeError: {LISTEN} {BIND} [::]:29500 (errno: 98 - Address already in use).",
        f"RuntimeError: {LISTEN} {BIND} 0.0.0.0:29500 (errno: 98 - Adresse wird bereits verwendet).",
        "RuntimeError: Address already in use",
        "OSError: [Errno 98] Address already in use",
    ],
)
def test_a_taken_port_is_recognised_in_any_spelling(text: str) -> None:
    assert port_taken(head_that_said(f"Traceback (most recent call last):\n{text}\n"), PORT)


def test_one_that_a_rank_was_to_open() -> None:
    text = f"torch.distributed.DistNetworkError: {LISTEN} port: 29500, code: -98, name: EADDRINUSE"
    assert port_taken(head_that_said("ChildFailedError:", f"{text}\n"), PORT)


def test_the_saved_one() -> None:
    head = saved_trails("D")[0]
    assert port_taken(head, 40183)
    assert not port_taken(head, 4018)
    assert not port_taken(replace(head, exit_code=0), 40183)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (f"torch.distributed.DistNetworkError: {LISTEN} port: 43210, code: -98, name: EADDRINUSE", ()),
        (f"torch.distributed.DistNetworkError: {LISTEN} port: 129500, code: -98, name: EADDRINUSE", ()),
        ("DistNetworkError: failed to connect to 10.0.0.1:29500: Cannot assign requested address", ()),
        ("[default0]:RuntimeError: bind: Address already in use", ()),
        ("ChildFailedError:", ("RuntimeError: [enforce fail] bind: Address already in use: 10.0.0.1:51234",)),
        ("ChildFailedError:", ("RuntimeError: Address already in use",)),
        (
            f"[W socket.cpp:426] {BIND} [::]:29500 (errno: 98 - Address already in use).\nValueError: x",
            (),
        ),
    ],
)
def test_what_only_looks_like_one(text: str, ranks: tuple[str, ...]) -> None:
    assert not port_taken(head_that_said(text, *ranks), PORT)


# --- what to read -----------------------------------------------------------------------------------------


def test_the_log_of_the_rank_is_shown_where_it_says_anything() -> None:
    found = failure_of(saved_trails("A"))
    assert found.log == "logs/rank3.log"
    assert len(found.tail) == TAIL_LINES
    assert found.tail[-1].strip().startswith("RuntimeError: injected failure: rank 3")


def test_else_that_of_its_node() -> None:
    found = failure_of(saved_trails("B"))
    assert found.log == "logs/node_1.log"
    assert any("exitcode  : -9 (pid: 10268)  (SIGKILL)" in line for line in found.tail)


def test_the_tail_is_without_what_torchrun_puts_before_each_line() -> None:
    trail = NodeTrail(
        0, "a", 1, 1.0, output="[default0]:one\n\n[default1]: two  \nthree\n", log="logs/node_0.log"
    )
    assert failure_of([trail]).tail == ("one", " two", "three")


def test_a_message_of_many_lines_becomes_one() -> None:
    rank = RankTrail(0, 0, error="ValueError: first\n    second\n" + "x" * 500)
    reason = failure_of([NodeTrail(0, "a", 1, 1.0, ranks=(rank,))]).reason
    assert "failed: ValueError: first second xxx" in reason
    assert len(reason) < 300


# --- the rules, one by one --------------------------------------------------------------------------------


def test_nobody_failed() -> None:
    assert first_failure([NodeTrail(0, "a", 0, 9.0), NodeTrail(1, "b", 0, 9.1)]) is None
    assert first_failure([]) is None


@pytest.mark.parametrize(("term", "kill"), [("15", "9"), ("Signals.SIGTERM", "Signals.SIGKILL")])
def test_a_rank_that_torchrun_itself_had_to_kill_is_not_blamed(term: str, kill: str) -> None:
    """Python 3.11 and newer write the signals as numbers, Python 3.10 as names."""
    [trail] = saved_trails("forced")
    assert "via 15, forcefully exiting via 9" in trail.output
    output = trail.output.replace(
        "via 15, forcefully exiting via 9", f"via {term}, forcefully exiting via {kill}"
    )
    assert failure_of([replace(trail, output=output)]).ranks == (0,)


def test_another_rank_that_was_killed_is() -> None:
    output = "Unable to shutdown process 71 via 15, forcefully exiting via 9\n" + torchrun_summary(
        (1, -9, 71), (0, -9, 70)
    )
    found = failure_of([NodeTrail(0, "a", 1, 5.0, output=output, ranks=(RankTrail(0, 0), RankTrail(1, 1)))])
    assert found.ranks == (0,)


@pytest.mark.parametrize(("exit_code", "number"), [(-9, 9), (-11, 11), (-6, 6), (-7, 7), (-2, 2)])
def test_a_signal_is_told(exit_code: int, number: int) -> None:
    found = failure_of([NodeTrail(0, "a", 1, 5.0, output=torchrun_summary((1, exit_code, 71)))])
    assert found.ranks == (1,)
    assert f"was ended by signal {number}" in found.reason


def test_a_signal_weighs_more_than_an_error_on_a_node_that_ended_earlier() -> None:
    victim = NodeTrail(0, "a", 1, 4.0, ranks=(RankTrail(0, 0, error="RuntimeError: something else"),))
    assert failure_of([victim, NodeTrail(1, "b", 1, 5.0, output=torchrun_summary((3, -9, 71)))]).ranks == (3,)


PEER_LOSSES = [
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:22443",
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection reset by peer",
    "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation",
    "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
    "RuntimeError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
    "torch.distributed.DistNetworkError: Connection was reset by the remote peer",
    "BrokenPipeError: [Errno 32] Broken pipe",
]


@pytest.mark.parametrize("message", PEER_LOSSES, ids=[message[:60] for message in PEER_LOSSES])
def test_who_lost_a_peer_is_a_victim(message: str) -> None:
    victim = NodeTrail(0, "a", 1, 4.0, ranks=(RankTrail(0, 0, error=message),))
    culprit = NodeTrail(1, "b", 1, 5.0, ranks=(RankTrail(2, 0, error="ValueError: wrong shape"),))
    found = failure_of([victim, culprit])
    assert (found.node, found.ranks) == ("b", (2,))
    assert "ValueError: wrong shape" in found.reason


def test_an_error_without_a_file_is_found_in_the_ranks_own_output() -> None:
    """As PyTorch prints it, with the rank before each line."""
    stderr = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "train.py", line 3, in <module>\n'
        "[rank1]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB\n"
    )
    trail = NodeTrail(0, "a", 1, 5.0, ranks=(RankTrail(0, 0), RankTrail(1, 1, stderr=stderr)))
    found = failure_of([trail])
    assert found.ranks == (1,)
    assert "torch.OutOfMemoryError: HIP out of memory" in found.reason


WATCHDOG = """\
[rank0]:[E1130 03:42:42.1 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600012 milliseconds \
before timing out.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception
Fatal Python error: Aborted
"""


def test_a_rank_that_its_watchdog_aborts_waited_for_another() -> None:
    """NCCL ends those that wait, with SIGABRT; the rank they wait for ends by torchrun's SIGTERM."""
    waited = NodeTrail(
        0, "a", 1, 4.0,
        output=torchrun_summary((1, -6, 71), (0, -6, 70)),
        ranks=(RankTrail(0, 0, stderr=WATCHDOG), RankTrail(1, 1, stderr=WATCHDOG)),
    )  # fmt: skip
    hung = NodeTrail(
        1, "b", 1, 4.1,
        output=torchrun_summary((3, -15, 73), (2, -6, 72)),
        ranks=(RankTrail(2, 0, stderr=WATCHDOG), RankTrail(3, 1)),
    )  # fmt: skip
    found = failure_of([waited, hung])
    assert (found.node, found.ranks) == ("b", (3,))
    assert "did not arrive" in found.reason


def test_several_ranks_that_did_not_arrive_are_named_together() -> None:
    timed_out = "RuntimeError: Timed out waiting 10000ms for recv operation to complete"
    waited = NodeTrail(
        0, "a", 1, 4.0, output=torchrun_summary((0, 1, 70)), ranks=(RankTrail(0, 0, error=timed_out),)
    )
    hung = NodeTrail(
        1,
        "b",
        1,
        4.1,
        output=torchrun_summary((2, -15, 72), (3, -15, 73)),
        ranks=(RankTrail(2, 0), RankTrail(3, 1)),
    )
    found = failure_of([waited, hung])
    assert found.ranks == (2, 3)
    assert found.reason.startswith("ranks 2, 3 on b (node rank 1) did not arrive")


def test_the_node_that_ended_first() -> None:
    nodes = [NodeTrail(0, "a", 1, 9.0), NodeTrail(1, "b", 2, 4.0), NodeTrail(2, "c", 0, 1.0)]
    found = failure_of(nodes)
    assert (found.node, found.ranks) == ("b", ())
    assert found.reason == "b (node rank 1) ended first, with exit code 2"


def test_not_one_that_cvs_ended_if_another_failed_by_itself() -> None:
    stopped = NodeTrail(0, "a", -15, 4.0, stopped_by_cvs=True)
    assert failure_of([stopped, NodeTrail(1, "b", 1, 9.0)]).node == "b"


def test_where_all_ranks_fail_alike_no_node_is_named() -> None:
    told = "UsageError: inject.knd: no such key"
    nodes = [
        NodeTrail(
            node,
            f"n{node}",
            1,
            3.0 + node,
            ranks=tuple(RankTrail(2 * node + i, i, error=told, log="x", stderr=told) for i in (0, 1)),
        )
        for node in (0, 1)
    ]
    found = failure_of(nodes)
    assert found.reason == f"all 4 ranks failed alike: {told}"
    assert (found.node, found.ranks, found.log, found.tail) == (None, (0, 1, 2, 3), "x", (told,))
    last = replace(nodes[1].ranks[1], error=None, stderr="")
    found = failure_of([nodes[0], replace(nodes[1], ranks=(nodes[1].ranks[0], last))])
    assert found.reason == f"rank 0 on n0 (node rank 0) failed: {told}"


def test_at_a_time_out_nobody_is_blamed() -> None:
    nodes = [NodeTrail(rank, name, -15, 60.0 + rank, stopped_by_cvs=True) for rank, name in enumerate("ab")]
    assert first_failure(nodes) is None


def test_a_rank_that_ended_with_a_code_is_named_with_its_last_words() -> None:
    """As argparse ends a trainer that does not know an option."""
    stderr = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo\n"
    trail = NodeTrail(
        0, "a", 1, 3.0, output=torchrun_summary((1, -15, 71), (0, 2, 70)),
        ranks=(RankTrail(0, 0, stderr=stderr), RankTrail(1, 1)),
    )  # fmt: skip
    found = failure_of([trail])
    assert found.ranks == (0,)
    assert found.reason.endswith("ended with exit code 2: train.py: error: unrecognized arguments: --foo")


def test_a_node_whose_end_was_never_seen() -> None:
    assert "was started and did not end" in failure_of([NodeTrail(0, "a", None, None)]).reason


def test_the_saved_logs_name_no_folder_of_a_user() -> None:
    texts = [path.read_text() for path in SAVED_FAILURES.rglob("*") if path.is_file()]
    assert len(texts) > 50
    assert not [found for text in texts if (found := re.search(r"/(home|root|tmp)/\S+", text))]


@pytest.mark.parametrize(
    "line",
    ["[a]:" * 50_000, "[" + "1" * 200_000, "a." * 100_000, "Error." * 50_000, "[a]: " + "[" * 200_000],
    ids=["labels", "digits", "dots", "errors", "brackets"],
)
def test_no_line_takes_longer_than_it_takes_to_read(line: str) -> None:
    """An expression that goes back and forth would take hours."""
    text = f"RuntimeError: the real one\n{line}\n"
    trail = NodeTrail(0, "a", 1, 3.0, output=text, ranks=(RankTrail(0, 0, stderr=text),))
    assert failure_of([trail]).ranks == (0,)
    assert not port_taken(trail, 29500)


def test_numbers_that_no_rank_can_have() -> None:
    summary = torchrun_summary((0, 1, 70)).replace("rank      : 0", f"rank      : {'9' * 5000}")
    assert summary.count("9") == 5000
    assert "ended first" in failure_of([NodeTrail(0, "a", 1, 3.0, output=summary)]).reason
