"""Which files are the traces, and whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cvs.models import LeftOut, Quality, QualityStatus, TraceFile
from cvs.parsers.trace_document import TraceDocument
from cvs.parsers.trace_files import (
    Chosen,
    Entry,
    candidates,
    gave_way,
    one_per_place,
    one_per_rank,
    rank_of,
)
from cvs.parsers.trace_text import NO_TRACE_EVENTS
from cvs.rank_paths import BY_FOLDER, RankNames

YEAR_2025 = 1_750_000_000 * 10**9


def file(path: str, sha256: str | None = None) -> TraceFile:
    node, _, rest = path.partition("/")
    node_rank = int(node.removeprefix("node_")) if node.startswith("node_") and rest else None
    return TraceFile(path=path, node_rank=node_rank, size=1, sha256=path if sha256 is None else sha256)


def document(
    rank: int | None = None,
    steps: tuple[int, ...] = (),
    start: int = 0,
    status: QualityStatus = "complete",
    cause: str | None = None,
    world_size: int | None = None,
) -> TraceDocument:
    return TraceDocument(
        quality=Quality(status=status, cause=cause),
        rank=rank,
        world_size=world_size,
        base_ns=YEAR_2025,
        steps={number: (start + number, start + number + 1) for number in steps},
        first_ns=None if status == "unreadable" else start,
    )


def used(found: Chosen) -> list[tuple[int | None, str]]:
    return [(entry.rank, entry.place) for entry in found.entries]


def why(found: Chosen) -> dict[str, str]:
    return {left.file: left.why for left in found.left_out}


# --- by path ----------------------------------------------------------------------------------------------


def test_without_rank_folders_every_json_is_a_candidate() -> None:
    chosen, left_out = candidates(
        [file("b/rank0.json.gz"), file("a.json"), file("a.json.bak"), file("a.jsonl"), file("a.JSON")]
    )
    assert [found.path for found in chosen] == ["a.json", "b/rank0.json.gz"]
    assert [left.file for left in left_out] == ["a.JSON", "a.json.bak", "a.jsonl"]
    assert {left.why for left in left_out} == {"not a .json or .json.gz file"}


def test_with_rank_folders_only_files_in_them_count() -> None:
    chosen, left_out = candidates(
        [file("p/rank0/a.json"), file("p/rank3.bak/a.json"), file("p/rank1.json"), file("p/rank0/notes.txt")]
    )
    assert [found.path for found in chosen] == ["p/rank0/a.json"]
    assert left_out == [
        LeftOut(file="p/rank0/notes.txt", why="not a .json or .json.gz file"),
        LeftOut(file="p/rank1.json", why="not in a rank folder, where others are"),
        LeftOut(file="p/rank3.bak/a.json", why="not in a rank folder, where others are"),
    ]


RSYNC = "an unfinished copy of rsync"
NFS = "what NFS keeps of a removed file that somebody has open"
EDITOR = "left by an editor"
MACOS = "what macOS keeps beside a file"
PACKED = "packed in a way that is not readable here: use gzip"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("rank0/.~tmp~/t.json", RSYNC),
        (".rsync-partial/rank0/t.json", RSYNC),
        ("rank0/.t.pt.trace.json.q3Xb9Z", RSYNC),
        ("rank0/.t.json.gz.AbCdEf", RSYNC),
        ("rank0/.nfs000000000001e24500000001", NFS),
        ("rank0/t.json~", EDITOR),
        ("rank0/.t.json.swp", EDITOR),
        ("rank0/.t.json.swo", EDITOR),
        ("rank0/#t.json#", EDITOR),
        ("rank0/.#t.json", EDITOR),
        ("rank0/._t.json", MACOS),
        ("rank0/t.json.zst", PACKED),
        ("rank0/t.json.xz", PACKED),
        ("rank0/traces.zip", PACKED),
        ("rank0/new\nline~", EDITOR),
        ("rank0/nccl_trace_rank_0", "not a .json or .json.gz file"),
        ("rank0/.bashrc.backup", "not a .json or .json.gz file"),
        ("rank0/t.json\n", "not a .json or .json.gz file"),
        ("rank0/memory.pickle", "not a .json or .json.gz file"),
    ],
)
def test_leftovers_are_told_by_their_names(path: str, why: str) -> None:
    chosen, left_out = candidates([file("rank0/t.json"), file(path)])
    assert [found.path for found in chosen] == ["rank0/t.json"]
    assert left_out == [LeftOut(file=path, why=why)]


@pytest.mark.parametrize(
    "path", ["a~/t.json", "#a#/t.json", ".nfs/t.json", ".hidden/.t.json", "with space/\x1b[31m\nt.json"]
)
def test_an_odd_name_is_no_reason(path: str) -> None:
    assert candidates([file(path)]) == ([file(path)], [])


# --- whose ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "claimed", "expected"),
    [
        ("rank3/rank4.json", 5, 5),
        ("rank3/rank4.json", 0, 0),
        ("rank3/rank4.json", None, 3),
        ("x/rank4.json", None, 4),
        ("x/trace.json", None, None),
    ],
)
def test_the_trace_itself_knows_best(path: str, claimed: int | None, expected: int | None) -> None:
    assert rank_of(file(path), document(claimed)) == expected


def test_a_folder_that_says_otherwise_is_a_warning() -> None:
    found = one_per_place([(file("rank0/a.json"), document(4)), (file("rank1/a.json"), document(1))])
    assert used(found) == [(1, "rank1/a.json"), (4, "rank0/a.json")]
    assert found.warnings == ("rank0/a.json: the folder says rank 0, the trace itself rank 4, which counts",)


def test_a_file_name_that_says_otherwise_is_a_warning() -> None:
    found = one_per_place([(file("x_rank1.json"), document(0)), (file("rank2.json"), document(2))])
    assert used(found) == [(0, "x_rank1.json"), (2, "rank2.json")]
    assert found.warnings == (
        "x_rank1.json: the file's name says rank 1, the trace itself rank 0, which counts",
    )
    where_folders_tell = [(file("rank4/local_rank0.json"), document(4))]
    assert one_per_place(where_folders_tell).warnings == ()


def test_a_folder_may_hold_several_ranks() -> None:
    found = one_per_place([(file("rank0/a.json"), document(0)), (file("rank0/b.json"), document(1))])
    assert used(found) == [(0, "rank0/a.json"), (1, "rank0/b.json")]


def test_unknown_ranks_stay_apart_and_last() -> None:
    read = [(file(f"{name}.json"), document()) for name in "ab"] + [(file("rank7.json"), document())]
    assert used(one_per_place(read)) == [(7, "rank7.json"), (None, "a.json"), (None, "b.json")]


def worker(path: str) -> tuple[str, int] | None:
    folder, _, _ = path.rpartition("/")
    return (folder, int(folder[-1])) if folder else None


PATTERN = RankNames("the pattern", worker, "no rank", always=True)


def test_where_a_pattern_finds_ranks_only_what_it_finds_counts() -> None:
    files = [file("w0/a.json"), file("w1/a.json"), file("w1/notes.txt"), file("rank2.json")]
    chosen, left_out = candidates(files, PATTERN)
    assert [found.path for found in chosen] == ["w0/a.json", "w1/a.json"]
    assert left_out == [
        LeftOut(file="rank2.json", why="no rank"),
        LeftOut(file="w1/notes.txt", why="not a .json or .json.gz file"),
    ]
    assert candidates([file("rank2.json")], PATTERN) == ([], [LeftOut(file="rank2.json", why="no rank")])


def test_a_pattern_takes_the_place_of_folders_and_the_trace_still_knows_best() -> None:
    read = [
        (file("w0/rank7/a.json"), document(steps=(1,))),
        (file("w1/trace_step4.json"), document(steps=(4,))),
        (file("w1/trace_step9.json"), document(steps=(9,))),
        (file("w2/a.json"), document(5)),
    ]
    by_worker = replace(PATTERN, place=lambda path: (path[:2], int(path[1])))
    found = one_per_place(read, by_worker)
    assert used(found) == [(0, "w0/rank7/a.json"), (1, "w1/trace_step9.json"), (5, "w2/a.json")]
    assert found.warnings == ("w2/a.json: the pattern says rank 2, the trace itself rank 5, which counts",)


def test_json_that_is_no_trace_and_no_rank_misses_is_left_out() -> None:
    other = document(status="unreadable", cause=NO_TRACE_EVENTS)
    found = one_per_place([(file("report.json"), other), (file("rank0.json"), document())])
    assert used(found) == [(0, "rank0.json")]
    assert why(found) == {"report.json": NO_TRACE_EVENTS}
    assert used(one_per_place([(file("report.json"), other)])) == [(None, "report.json")]
    assert used(one_per_place([(file("rank1.json"), other), (file("rank0.json"), document())])) == [
        (0, "rank0.json"),
        (1, "rank1.json"),
    ]


@pytest.mark.parametrize(
    "cause",
    [
        f"{NO_TRACE_EVENTS} (a flight recorder dump)",
        "the top level is a list, not an object with traceEvents",
        "not a profiler trace: Expected `object`, got `int`",
    ],
)
def test_json_of_another_kind_never_stands_in_the_way_of_a_trace(cause: str) -> None:
    other = document(status="unreadable", cause=cause)
    read = [
        (file("traces/rank0.json"), document(steps=(1,))),
        (file("metrics/rank0.json"), other),
        (file("traces/rank0_memory.json"), other),
        (file("summary.json"), other),
    ]
    found = one_per_place(read)
    assert used(found) == [(0, "traces/rank0.json")]
    assert why(found) == dict.fromkeys(
        ("metrics/rank0.json", "traces/rank0_memory.json", "summary.json"), cause
    )
    assert found.warnings == ()


def test_json_of_another_kind_is_all_that_there_is_of_a_rank() -> None:
    other = document(status="unreadable", cause=NO_TRACE_EVENTS)
    found = one_per_place([(file("rank1/a.json"), other), (file("rank1/b.json"), other)])
    assert used(found) == [(1, "rank1/b.json")]
    assert why(found) == {"rank1/a.json": NO_TRACE_EVENTS}
    assert found.warnings == ()


def test_a_trace_that_is_broken_is_a_warning_and_not_passed_over() -> None:
    empty = document(status="unreadable", cause="empty file")
    found = one_per_place([(file("a.json"), empty), (file("rank0.json"), document())])
    assert used(found) == [(0, "rank0.json"), (None, "a.json")]


def test_what_gave_way_to_another_trace_is_one_itself() -> None:
    broken = document(status="unreadable", cause="empty file")
    other = document(status="unreadable", cause=NO_TRACE_EVENTS)
    read = [
        (file("rank0/a.pt.trace.json"), document(0, steps=(4,))),
        (file("rank0/same.json"), document(0, steps=(4,))),
        (file("rank0/early.json"), document(0, steps=(3,))),
        (file("rank0/broken.json"), broken),
        (file("rank0/other.json"), other),
    ]
    left_out = one_per_place(read).left_out
    assert {left.file for left in left_out if gave_way(left)} == {"rank0/same.json", "rank0/early.json"}
    [shared] = joined(("node_0/rank0/t.json", "a", 0), ("node_1/rank0/t.json", "a", 0)).left_out
    assert gave_way(shared)
    by_path = candidates([file("rank0/a.json"), file("b.json"), file("rank0/c.txt"), file("rank0/d~")])[1]
    assert not any(map(gave_way, by_path))


# --- several files in one rank folder ---------------------------------------------------------------------


def test_of_the_same_steps_the_kineto_name_wins() -> None:
    same = document(0, steps=(3, 4))
    names = ["trace.json", "x.pt.trace.json.gz", "zz.json"]
    found = one_per_place([(file(f"rank0/{name}"), same) for name in names])
    assert used(found) == [(0, "rank0/x.pt.trace.json.gz")]
    assert why(found) == {
        "rank0/trace.json": "the same window as rank0/x.pt.trace.json.gz",
        "rank0/zz.json": "the same window as rank0/x.pt.trace.json.gz",
    }
    assert found.warnings == ()


def test_of_different_steps_the_highest_wins() -> None:
    found = one_per_place(
        [
            (file("rank0/a.pt.trace.json"), document(0, steps=(3, 4), start=900)),
            (file("rank0/trace_step9.json"), document(0, steps=(8, 9), start=100)),
            (file("rank0/other.json"), document(0)),
        ]
    )
    assert used(found) == [(0, "rank0/trace_step9.json")]
    assert why(found)["rank0/a.pt.trace.json"] == "rank0/trace_step9.json has a later window"


def test_of_the_same_last_step_the_kineto_name_wins() -> None:
    short, long = document(0, steps=(4,), start=900), document(0, steps=(3, 4), start=100)
    found = one_per_place([(file("rank0/a.pt.trace.json"), long), (file("rank0/trace.json"), short)])
    assert used(found) == [(0, "rank0/a.pt.trace.json")]


def test_a_later_window_is_one_that_is_later() -> None:
    early, late = document(0, steps=(3, 4), start=100), document(0, steps=(3, 4), start=900)
    found = one_per_place([(file("rank0/a.json"), early), (file("rank0/b.json"), late)])
    assert used(found) == [(0, "rank0/b.json")]
    assert why(found) == {"rank0/a.json": "the same steps as rank0/b.json"}
    found = one_per_place(
        [
            (file("rank0/a.pt.trace.json"), document(0, steps=(3, 4), start=100)),
            (file("rank0/last.json"), document(0, steps=(4,), start=900)),
            (file("rank0/stepless.json"), document(0, start=900)),
        ]
    )
    assert used(found) == [(0, "rank0/a.pt.trace.json")]
    assert why(found) == {
        "rank0/last.json": "the same last step as rank0/a.pt.trace.json",
        "rank0/stepless.json": "the same rank as rank0/a.pt.trace.json, which tells more",
    }
    assert all(map(gave_way, found.left_out))


def test_without_steps_the_latest_start_wins() -> None:
    early, late = document(0, start=100), document(0, start=900)
    found = one_per_place([(file("rank0/a.pt.trace.json"), early), (file("rank0/trace.json"), late)])
    assert used(found) == [(0, "rank0/trace.json")]
    same = one_per_place([(file("rank0/a.pt.trace.json"), late), (file("rank0/trace.json"), late)])
    assert used(same) == [(0, "rank0/a.pt.trace.json")]


def test_the_latest_window_must_be_readable() -> None:
    broken = document(status="unreadable", cause="empty file")
    found = one_per_place(
        [(file("rank0/a.pt.trace.json"), broken), (file("rank0/trace.json"), document(0, steps=(1,)))]
    )
    assert used(found) == [(0, "rank0/trace.json")]
    assert why(found) == {"rank0/a.pt.trace.json": "unreadable: empty file"}
    assert found.warnings == (
        "rank0/a.pt.trace.json: unreadable: empty file; rank0/trace.json is used instead",
    )


def test_where_no_file_is_readable_the_rank_is_not() -> None:
    broken = document(status="unreadable", cause="empty file")
    found = one_per_place([(file("rank0/a.pt.trace.json"), broken), (file("rank0/trace.json"), broken)])
    assert used(found) == [(0, "rank0/a.pt.trace.json")]
    assert found.entries[0].document.quality.status == "unreadable"


# --- several files of one rank in a folder of many ---------------------------------------------------------


def chosen(*read: tuple[str, TraceDocument], names: RankNames = BY_FOLDER) -> Chosen:
    """What comes of files, all rules applied."""
    places = one_per_place([(file(path), document) for path, document in read], names)
    whole = one_per_rank(places.entries, separate_worlds=False)
    return replace(whole, warnings=places.warnings, left_out=places.left_out)


def statuses(found: Chosen) -> list[tuple[int | None, str]]:
    return [(entry.rank, entry.document.quality.status) for entry in found.entries]


STEPS = document(0, steps=(10, 11, 12))
UNEQUAL = replace(STEPS, devices=2)
LATER = document(0, steps=(20, 21, 22))


def test_in_a_flat_folder_unequal_files_of_the_same_steps_contradict() -> None:
    found = chosen(("a.json", STEPS), ("b.json", UNEQUAL), ("rank1.json", document(1)))
    assert statuses(found) == [(0, "duplicate"), (1, "complete")]
    assert found.entries[0].document.quality.cause == "rank 0 has 2 traces: a.json, b.json"
    assert found.left_out == ()


def test_so_do_files_whose_starts_differ() -> None:
    found = chosen(("a.pt.trace.json", STEPS), ("b.pt.trace.json", document(0, (10, 11, 12), start=7)))
    assert statuses(found) == [(0, "duplicate")]


def test_and_files_without_steps_that_start_together() -> None:
    bare = document(0)
    assert statuses(chosen(("a.json", bare), ("b.json", replace(bare, devices=2)))) == [(0, "duplicate")]


@pytest.mark.parametrize(
    ("other", "best", "expected"),
    [
        pytest.param(
            ("a.json", STEPS), ("b.json", STEPS), "the same window as b.json", id="they say the same"
        ),
        pytest.param(
            ("rank0.json", UNEQUAL),
            ("h.pt.trace.json", STEPS),
            "the same window as h.pt.trace.json",
            id="two names of one export",
        ),
        pytest.param(("a.json", UNEQUAL), ("b.json", LATER), "b.json has a later window", id="later"),
    ],
)
def test_what_may_lie_beside_a_trace_in_a_flat_folder(
    other: tuple[str, TraceDocument], best: tuple[str, TraceDocument], expected: str
) -> None:
    found = chosen(other, best)
    assert (statuses(found), used(found)) == ([(0, "complete")], [(0, best[0])])
    assert why(found) == {other[0]: expected}


def test_a_rank_folder_has_a_winner_whatever_its_files_say() -> None:
    assert statuses(chosen(("rank0/a.json", STEPS), ("rank0/b.json", UNEQUAL))) == [(0, "complete")]


@pytest.mark.parametrize("wrong", ["rank1.json", "rank1.pt.trace.json"])
@pytest.mark.parametrize("content", [STEPS, UNEQUAL])
def test_a_name_that_says_otherwise_displaces_no_trace_of_the_same_steps(
    wrong: str, content: TraceDocument
) -> None:
    found = chosen(("rank0.json", STEPS), (wrong, content))
    assert statuses(found) == [(0, "duplicate")]
    assert found.warnings == (f"{wrong}: the file's name says rank 1, the trace itself rank 0, which counts",)


def test_a_name_that_says_otherwise_is_told_of_a_file_that_gave_way_too() -> None:
    found = chosen(("rank0.json", LATER), ("rank1.json", STEPS))
    assert used(found) == [(0, "rank0.json")]
    assert len(found.warnings) == 1


def test_where_a_pattern_finds_many_ranks_in_one_folder_it_is_no_rank_folder() -> None:
    def by_gpu(path: str) -> tuple[str, int]:
        return "", int(path[3])

    names = replace(PATTERN, place=by_gpu)
    flat = ("gpu0_a.json", STEPS), ("gpu0_b.json", UNEQUAL)
    assert statuses(chosen(*flat, ("gpu1.json", document(1)), names=names))[0] == (0, "duplicate")
    assert statuses(chosen(*flat, names=names)) == [(0, "complete")]


# --- one rank in several places ---------------------------------------------------------------------------


def joined(*places: tuple[str, str, int | None], **more: Any) -> Chosen:
    entries = [Entry(rank, (file(path, sha256),), document(rank)) for path, sha256, rank in places]
    return one_per_rank(entries, **{"separate_worlds": False, **more})


def test_equal_files_on_two_nodes_are_a_shared_disk() -> None:
    places = [
        (f"node_{node}/rank{rank}/t.json", f"sha {rank}", rank) for node in (0, 1) for rank in (0, 1, 3)
    ]
    found = joined(*places, local_world_size=2)
    assert used(found) == [(0, "node_0/rank0/t.json"), (1, "node_0/rank1/t.json"), (3, "node_1/rank3/t.json")]
    assert [entry.node_rank for entry in found.entries] == [0, 0, 1]
    assert found.warnings == (
        "shared disk: ranks 0-1, 3 found on several nodes with equal files, counted once",
    )
    assert why(found)["node_1/rank0/t.json"] == "the same file as node_0/rank0/t.json: a shared disk"
    assert len(found.left_out) == 3


@pytest.mark.parametrize(
    "places",
    [
        pytest.param([("node_0/rank3/t.json", "a"), ("node_1/rank3/t.json", "b")], id="unequal on two nodes"),
        pytest.param([("node_0/x/rank3/t.json", "a"), ("node_0/y/rank3/t.json", "b")], id="two folders"),
        pytest.param(
            [("node_0/x/rank3/t.json", "a"), ("node_0/y/rank3/t.json", "a")], id="two equal folders"
        ),
        pytest.param([("x/rank3/t.json", "a"), ("y/rank3/t.json", "a")], id="two folders of no known node"),
        pytest.param([("node_0/rank3/t.json", ""), ("node_1/rank3/t.json", "")], id="content unknown"),
    ],
)
def test_contradicting_files_are_one_entry_without_numbers(places: list[tuple[str, str]]) -> None:
    found = joined(*((path, sha256, 3) for path, sha256 in places), ("node_0/rank0/t.json", "c", 0))
    assert [entry.rank for entry in found.entries] == [0, 3]
    duplicate = found.entries[1]
    assert duplicate.document.quality.status == "duplicate"
    assert [kept.path for kept in duplicate.files] == [path for path, _ in places]
    assert duplicate.document.quality.cause == f"rank 3 has 2 traces: {places[0][0]}, {places[1][0]}"
    assert not duplicate.document.buckets
    assert duplicate.node_rank == (0 if places[1][0].startswith("node_0") else None)


def test_two_equal_files_and_another_contradict() -> None:
    found = joined(*((f"node_{node}/rank0/t.json", sha256, 0) for node, sha256 in enumerate("aab")))
    assert [entry.document.quality.status for entry in found.entries] == ["duplicate"]


def test_in_separate_worlds_one_number_may_stand_for_several_ranks() -> None:
    found = joined(("node_0/rank0/t.json", "a", 0), ("node_1/rank0/t.json", "b", 0), separate_worlds=True)
    assert used(found) == [(0, "node_0/rank0/t.json"), (0, "node_1/rank0/t.json")]
    assert {entry.document.quality.status for entry in found.entries} == {"complete"}


def test_unknown_ranks_are_not_one() -> None:
    found = joined(("a.json", "a", None), ("b.json", "a", None), ("rank0.json", "c", 0))
    assert used(found) == [(0, "rank0.json"), (None, "a.json"), (None, "b.json")]
