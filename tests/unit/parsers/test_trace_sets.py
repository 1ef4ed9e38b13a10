"""Trace sets from disk: every file once, and nothing that lies there stops, misleads or holds up the walk."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cvs.errors import TraceError
from cvs.models import TraceSet
from cvs.parsers import trace_sets
from cvs.parsers.trace_sets import open_trace, trace_set_of


def put(path: Path, text: str | bytes = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def link(path: Path, target: str | Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def set_of(*paths: Path | str) -> TraceSet:
    return trace_set_of(paths, "rocm")


def found(traces: TraceSet) -> list[str]:
    return [file.path for file in traces.files]


def why(traces: TraceSet) -> dict[str, str]:
    return {left.file: left.why for left in traces.left_out}


# --- what is found ----------------------------------------------------------------------------------------


def test_a_set_knows_path_node_and_size(tmp_path: Path) -> None:
    put(tmp_path / "node_3" / "torch_profiler" / "rank7" / "t.json", "{...}")
    put(tmp_path / "node_3" / "rank7.log", "hello!")
    traces = trace_set_of(tmp_path, "none", world_size=8, local_world_size=4)
    assert [(file.path, file.node_rank, file.size) for file in traces.files] == [
        ("node_3/rank7.log", 3, 6),
        ("node_3/torch_profiler/rank7/t.json", 3, 5),
    ]
    assert (traces.root, traces.accelerator) == (str(tmp_path), "none")
    assert (traces.world_size, traces.local_world_size) == (8, 4)
    assert (traces.left_out, traces.warnings) == ((), ())


def test_the_content_is_told_where_two_files_could_be_equal(tmp_path: Path) -> None:
    text = {"a.json": "one", "b.json.gz": "two", "c.json": "three", "d.log": "one"}
    for name, content in text.items():
        put(tmp_path / name, content)
    digests = {file.path: file.sha256 for file in set_of(tmp_path).files}
    told = {name: hashlib.sha256(text[name].encode()).hexdigest() for name in ("a.json", "b.json.gz")}
    assert digests == {**told, "c.json": "", "d.log": ""}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (".", "node_3/rank7/t.json"),
        ("node_3", "rank7/t.json"),
        ("node_3/rank7", "rank7/t.json"),
        ("node_3/rank7/t.json", "rank7/t.json"),
    ],
)
def test_node_and_rank_are_known_from_wherever_one_starts(tmp_path: Path, given: str, path: str) -> None:
    put(tmp_path / "node_3" / "rank7" / "t.json")
    [file] = set_of(tmp_path / given).files
    assert (file.path, file.node_rank) == (path, 3)


def test_a_relative_path_is_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "node_0" / "a.json")
    monkeypatch.chdir(tmp_path)
    for given in (".", "node_0", "node_0/a.json", "../" + tmp_path.name):
        traces = trace_set_of(given, "rocm")
        assert Path(traces.root, traces.files[0].path).samefile("node_0/a.json")
        assert traces.files[0].node_rank == 0


def test_several_paths_are_one_set_below_the_folder_of_all(tmp_path: Path) -> None:
    for path in ("job/x/rank0/t.json", "job/y/rank1/t.json", "job/z/t.json"):
        put(tmp_path / path)
    traces = set_of(tmp_path / "job" / "x", tmp_path / "job" / "y" / "rank1" / "t.json")
    assert (traces.root, found(traces)) == (str(tmp_path / "job"), ["x/rank0/t.json", "y/rank1/t.json"])
    one_rank = set_of(*(tmp_path / "job" / "x" / "rank0" / name for name in ("t.json", "")))
    assert (one_rank.root, found(one_rank)) == (str(tmp_path / "job" / "x"), ["rank0/t.json"])


def test_paths_that_lie_in_each_other_or_are_given_twice_count_once(tmp_path: Path) -> None:
    put(tmp_path / "run" / "rank0" / "t.json")
    (tmp_path / "run" / "rank1").mkdir()
    run = tmp_path / "run"
    traces = set_of(run, run / "rank0" / "t.json", run / "rank1", run / "rank0", run)
    assert found(traces) == ["rank0/t.json"]
    assert why(traces) in ({}, {"rank1": "an empty folder"})


def test_hundreds_of_ranks(tmp_path: Path) -> None:
    for rank in range(512):
        put(tmp_path / f"node_{rank // 8}" / "torch_profiler" / f"rank{rank}" / "t.json", f"{rank:03}")
    traces = set_of(tmp_path)
    assert len(traces.files) == len({file.sha256 for file in traces.files}) == 512
    assert {file.node_rank for file in traces.files} == set(range(64))


# --- links ------------------------------------------------------------------------------------------------


def test_links_are_followed(tmp_path: Path) -> None:
    real = put(tmp_path / "disk" / "rank0" / "t.json")
    put(tmp_path / "disk" / "other.json")
    link(tmp_path / "job" / "rank0", tmp_path / "disk" / "rank0")
    link(tmp_path / "job" / "rank1" / "t.json", "../../disk/other.json")
    assert found(set_of(tmp_path / "job")) == ["rank0/t.json", "rank1/t.json"]
    given = link(tmp_path / "given", tmp_path / "job")
    assert found(set_of(given)) == ["rank0/t.json", "rank1/t.json"]
    assert found(set_of(link(tmp_path / "one.json", real))) == ["one.json"]


def test_what_is_reached_twice_goes_by_its_real_path(tmp_path: Path) -> None:
    put(tmp_path / "run_5" / "rank0" / "host.json")
    link(tmp_path / "run_5" / "rank0" / "again.json", "host.json")
    link(tmp_path / "latest", "run_5")
    traces = set_of(tmp_path)
    assert found(traces) == ["run_5/rank0/host.json"]
    assert why(traces) == {
        "latest": "the same folder as run_5",
        "run_5/rank0/again.json": "the same file as run_5/rank0/host.json",
    }


def test_hard_links_are_one_file_and_a_name_that_a_trace_may_have_counts(tmp_path: Path) -> None:
    first = put(tmp_path / "a.bak")
    (tmp_path / "t.json").hardlink_to(first)
    traces = set_of(tmp_path)
    assert found(traces) == ["t.json"]
    assert why(traces) == {"a.bak": "the same file as t.json"}


def test_links_that_give_a_rank_to_what_has_none_are_looked_at_too(tmp_path: Path) -> None:
    put(tmp_path / "raw" / "a" / "t.json")
    link(tmp_path / "rank0", "raw/a")
    link(tmp_path / "rank1" / "t.json", "../raw/a/t.json")
    assert found(set_of(tmp_path)) == ["rank0/t.json", "rank1/t.json", "raw/a/t.json"]


def test_a_link_that_tells_no_node_is_no_other_place(tmp_path: Path) -> None:
    put(tmp_path / "node_0" / "rank0" / "t.json")
    link(tmp_path / "latest", "node_0")
    link(tmp_path / "all" / "rank0" / "x.json", "../../node_0/rank0/t.json")
    put(tmp_path / "raw" / "y.json")
    link(tmp_path / "node_7", "raw")
    traces = set_of(tmp_path)
    assert [(file.path, file.node_rank) for file in traces.files] == [
        ("node_0/rank0/t.json", 0),
        ("node_7/y.json", 7),
    ]
    assert why(traces) == {
        "latest": "the same folder as node_0",
        "all/rank0/x.json": "the same file as node_0/rank0/t.json",
        "raw/y.json": "the same file as node_7/y.json",
    }


def test_one_file_on_several_nodes_stays_for_others_to_judge(tmp_path: Path) -> None:
    first = put(tmp_path / "node_0" / "rank0" / "t.json", "same")
    (tmp_path / "node_1" / "rank0").mkdir(parents=True)
    (tmp_path / "node_1" / "rank0" / "t.json").hardlink_to(first)
    [one, other] = set_of(tmp_path).files
    assert (one.node_rank, other.node_rank) == (0, 1)
    assert one.sha256 == other.sha256 != ""


@pytest.mark.parametrize(
    ("at", "target", "told"),
    [
        ("rank0/up", "..", "a link in a circle: it leads to a folder that it lies in"),
        ("rank0/here", ".", "a link in a circle: it leads to a folder that it lies in"),
        ("rank0/self", "self", "a link in a circle"),
        ("rank0/x.json", "gone.json", "a link that leads nowhere"),
        ("rank0/x.json", "t.json/x", "a link that leads nowhere"),
    ],
)
def test_links_that_lead_to_no_file(tmp_path: Path, at: str, target: str, told: str) -> None:
    put(tmp_path / "rank0" / "t.json")
    put(tmp_path / "other" / "t.json")
    link(tmp_path / at, target)
    traces = set_of(tmp_path)
    assert found(traces) == ["other/t.json", "rank0/t.json"]
    assert why(traces) == {at: told}


def test_links_among_folders_cost_no_more_than_their_number(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(20)]
    for name in names:
        put(tmp_path / name / "t.json")
        for other in names:
            if other != name:
                link(tmp_path / name / other, f"../{other}")
    traces = set_of(tmp_path)
    assert found(traces) == sorted(f"{name}/t.json" for name in names)
    assert len(traces.left_out) == 20 * 19


def test_a_link_to_half_the_machine_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        put(tmp_path / str(number))
    monkeypatch.setattr(trace_sets, "MOST_ENTRIES", 19)
    with pytest.raises(TraceError, match="more than 19 files; name the traces' own folder"):
        set_of(tmp_path)


# --- what is no file --------------------------------------------------------------------------------------


def test_pipes_sockets_and_devices_are_told_and_never_opened(tmp_path: Path) -> None:
    put(tmp_path / "rank0" / "t.json")
    os.mkfifo(tmp_path / "rank0" / "pipe.json")
    link(tmp_path / "rank0" / "to_pipe.json", "pipe.json")
    link(tmp_path / "null.json", "/dev/null")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket.json"))
        traces = set_of(tmp_path)
    assert found(traces) == ["rank0/t.json"]
    assert why(traces) == {
        "rank0/pipe.json": "a named pipe",
        "rank0/to_pipe.json": "a named pipe",
        "null.json": "a device",
        "socket.json": "a socket",
    }
    with pytest.raises(TraceError, match=r"pipe.json: a named pipe, neither a file nor a folder"):
        set_of(tmp_path / "rank0" / "pipe.json")
    with pytest.raises(TraceError, match=r"/dev/null: a device, neither"):
        set_of("/dev/null")


def test_a_pipe_in_the_place_of_a_file_holds_up_nobody(tmp_path: Path) -> None:
    file = put(tmp_path / "t.json")
    [found] = set_of(tmp_path).files
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match="Not a regular file") as caught:
        open_trace(str(tmp_path), found.path)
    assert caught.value.errno == errno.EINVAL


def test_empty_folders_are_told(tmp_path: Path) -> None:
    put(tmp_path / "node_0" / "rank0" / "t.json")
    (tmp_path / "node_1").mkdir()
    (tmp_path / "node_2" / "rank2").mkdir(parents=True)
    assert why(set_of(tmp_path)) == {"node_1": "an empty folder", "node_2/rank2": "an empty folder"}
    assert set_of(tmp_path / "node_1").left_out == ()


# --- what cannot be looked at -----------------------------------------------------------------------------


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that every user can reach; the test is one of them, as root may look into everything."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        me = os.geteuid()
        yield Path(name)
        os.seteuid(me)


def become_a_user() -> None:
    if os.geteuid() == 0:
        os.seteuid(65534)


def test_a_folder_that_cannot_be_looked_into_costs_itself_only(open_to_all: Path) -> None:
    for path in ("rank0/t.json", "rank1/t.json", "rank2/inner/t.json"):
        put(open_to_all / path)
    (open_to_all / "rank1").chmod(0)
    (open_to_all / "rank2").chmod(0o444)
    become_a_user()
    traces = set_of(open_to_all)
    assert (found(traces), why(traces)) == (["rank0/t.json"], {})
    assert traces.warnings == (
        "rank1: cannot be looked at: Permission denied",
        "rank2/inner: cannot be looked at: Permission denied",
    )
    with pytest.raises(TraceError, match="rank1: cannot be looked at: Permission denied"):
        set_of(open_to_all / "rank1")
    with pytest.raises(TraceError, match=r"rank1/t\.json: cannot be looked at: Permission denied"):
        set_of(open_to_all / "rank1" / "t.json")


def test_a_file_that_cannot_be_read_is_left_to_the_reader(open_to_all: Path) -> None:
    for name in ("a.json", "b.json"):
        put(open_to_all / name).chmod(0)
    become_a_user()
    traces = set_of(open_to_all)
    assert [(file.path, file.sha256) for file in traces.files] == [("a.json", ""), ("b.json", "")]
    with pytest.raises(PermissionError):
        open_trace(traces.root, "a.json")


def test_what_vanishes_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "rank0" / "t.json")
    file = put(tmp_path / "x.json")
    (tmp_path / "y").mkdir()
    listed = Path.iterdir

    def and_then_it_goes(folder: Path) -> list[Path]:
        inside = list(listed(folder))
        if file in inside:
            file.unlink()
            (tmp_path / "y").rmdir()
        return inside

    monkeypatch.setattr(Path, "iterdir", and_then_it_goes)
    traces = set_of(tmp_path)
    gone = "gone before cvs could look at it"
    assert (found(traces), why(traces)) == (["rank0/t.json"], {"x.json": gone, "y": gone})


@pytest.mark.parametrize("given", ["nowhere", "t.json/nowhere", "dangling"])
def test_no_such_path(tmp_path: Path, given: str) -> None:
    put(tmp_path / "t.json")
    link(tmp_path / "dangling", "gone")
    with pytest.raises(TraceError, match=f"{given}: no such file or folder"):
        set_of(tmp_path / "t.json", tmp_path / given)


# --- names ------------------------------------------------------------------------------------------------

ODD = [
    *("with space", "line\nbreak", "tab\t", "\x1b[31mred", "ünïcödé", "\u202eright", "-rf", "*?[a]"),
    *("back\\slash", "'\""),
]


@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_names(tmp_path: Path, name: str) -> None:
    put(tmp_path / name / "rank0" / f"{name}.json", "odd")
    [file] = set_of(tmp_path).files
    assert file.path == f"{name}/rank0/{name}.json"
    with open_trace(str(tmp_path), file.path) as stream:
        assert stream.read() == b"odd"


def test_names_that_are_no_utf_8_are_spelt_out_and_found_again(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    put(Path(os.fsdecode(folder + b"/rank0/\xff\x80.json")), "raw")
    put(tmp_path / r"caf\xe9.json", "written")
    traces = set_of(tmp_path)
    assert found(traces) == [r"caf\xe9.json", r"caf\xe9/rank0/\xff\x80.json"]
    assert TraceSet.model_validate_json(traces.model_dump_json()) == traces
    texts = []
    for file in traces.files:
        with open_trace(traces.root, file.path) as stream:
            texts.append(stream.read())
    assert texts == [b"written", b"raw"]
    inside = set_of(os.fsdecode(folder))
    assert inside.root == str(tmp_path / r"caf\xe9")
    with open_trace(inside.root, inside.files[0].path) as stream:
        assert stream.read() == b"raw"
