"""This run's files on a node, and their way home: contract section 5."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvs.errors import TransportError
from cvs.models import CommandResult, TraceFile
from cvs.runners._collect import Listing, bring_home, listing, output_folders
from cvs.transport.base import Fetched
from cvs.transport.local import LocalTransport

LOCAL = LocalTransport("a")
TRACE = "artifacts/torch_profiler/rank0/host_1.2.pt.trace.json"

_TICKS = count(1)


def write(root: Path, name: str, content: bytes = b"{}") -> Path:
    """Write a file, at a time of its own."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=(0, next(_TICKS) * 1_000_000))
    return path


def look(root: Path) -> Listing:
    return listing(LOCAL, str(root), timeout=10)


def found(root: Path) -> set[str]:
    return set(look(root).files)


# --- what counts ------------------------------------------------------------------------------------------

OF_INTEREST = [
    TRACE,
    "artifacts/torch_profiler/rank0/trace.json",
    "artifacts/torch_profiler/rank0/trace_step7.json",
    "artifacts/torch_profiler/rank0/host_1.2.pt.trace.json.gz",
    "artifacts/torch_profiler/elsewhere.txt",
    "artifacts/torch_profiler/rank3.bak/trace.json",
    "artifacts/rank_00_metrics.jsonl",
    "artifacts/rank_123_metrics.jsonl",
    "artifacts/rank0.log",
    "artifacts/tracelens_analysis/individual_reports/perf_rank0.xlsx",
    "artifacts/tracelens_analysis/collective_reports/collective_all_ranks.xlsx",
    "artifacts/tracelens_analysis/gpu_timeline_summary_mean.xlsx",
    "torch_profiler/rank0/trace.json",
    "rank0.log",
    "deep/er/still/torch_profiler/rank1/trace with space\tand\nmore.json",
    "deep/er/still/rank1.log",
]
OF_NONE = [
    "train.py",
    "artifacts/checkpoint.pt",
    "artifacts/events.log",
    "artifacts/ranking.txt",
    "elsewhere/rank0.log",
    "elsewhere/rank_00_metrics.jsonl",
    "elsewhere/tracelens_analysis/perf_rank0.xlsx",
    "artifacts/deeper/rank0.log",
    ".git/torch_profiler/rank0/trace.json",
    ".cvs/run/torch_profiler/rank0/trace.json",
    "combined_traces/node_0/artifacts/torch_profiler/rank0/trace.json",
    "combined_traces.before-x/node_0/artifacts/torch_profiler/rank0/trace.json",
]


def test_what_counts(tmp_path: Path) -> None:
    for index, name in enumerate([*OF_INTEREST, *OF_NONE]):
        write(tmp_path, name, bytes([index]))
    assert found(tmp_path) == set(OF_INTEREST)


def test_a_folder_on_another_disk_is_followed(tmp_path: Path) -> None:
    write(tmp_path, "scratch/torch_profiler/rank0/trace.json")
    write(tmp_path, "scratch/rank0.log")
    (tmp_path / "aorta").mkdir()
    (tmp_path / "aorta" / "artifacts").symlink_to(tmp_path / "scratch")
    assert found(tmp_path / "aorta") == {"artifacts/torch_profiler/rank0/trace.json", "artifacts/rank0.log"}


def test_a_link_in_a_circle_is_not(tmp_path: Path) -> None:
    write(tmp_path, TRACE)
    (tmp_path / "artifacts" / "torch_profiler" / "again").symlink_to(tmp_path)
    assert found(tmp_path) == {TRACE}


def test_combined_traces_is_left_alone_as_a_link_too(tmp_path: Path) -> None:
    write(tmp_path, "runs/torch_profiler/rank0/trace.json")
    (tmp_path / "aorta").mkdir()
    (tmp_path / "aorta" / "combined_traces").symlink_to(tmp_path / "runs")
    assert found(tmp_path / "aorta") == set()


def test_a_file_that_has_two_names_counts_once_by_the_one_of_the_trace(tmp_path: Path) -> None:
    """Aorta's scripts lay such links beside the real traces."""
    real = write(tmp_path, TRACE)
    (real.parent / "trace.json").symlink_to(real.name)
    (real.parent / "a_hard_link.json").hardlink_to(real)
    assert found(tmp_path) == {TRACE}


def test_a_broken_link_is_no_file(tmp_path: Path) -> None:
    write(tmp_path, TRACE)
    (tmp_path / "artifacts" / "torch_profiler" / "rank0" / "gone.json").symlink_to("nowhere")
    assert found(tmp_path) == {TRACE}


def test_nothing_there(tmp_path: Path) -> None:
    assert look(tmp_path) == Listing({})


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match=rf"^a: cannot list {tmp_path}/none: .*No such file"):
        look(tmp_path / "none")


class Unprivileged(LocalTransport):
    """Runs as one whom the modes of files bind."""

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        return super().run([*bound, *argv], **options)


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Makes folders that nobody may look into."""
    made: list[Path] = []

    def lock(name: str) -> None:
        made.append(tmp_path / name)
        made[-1].mkdir(parents=True)
        made[-1].chmod(0)

    yield lock
    for path in made:
        path.chmod(0o700)


def test_a_folder_that_cannot_be_looked_into_is_told(tmp_path: Path, locked: Callable[[str], None]) -> None:
    locked("torch_profiler/rank1")
    write(tmp_path, "torch_profiler/rank0/trace.json")
    seen = listing(Unprivileged("a"), str(tmp_path), timeout=10)
    assert set(seen.files) == {"torch_profiler/rank0/trace.json"}
    denied = f"a: cannot look into '{tmp_path}/torch_profiler/rank1': Permission denied"
    assert seen.problems == (denied,)
    assert seen.problems_since(Listing({})) == [denied]
    assert seen.problems_since(seen) == []


def test_one_beside_which_nothing_lies_costs_nothing(tmp_path: Path, locked: Callable[[str], None]) -> None:
    locked("data")
    assert listing(Unprivileged("a"), str(tmp_path), timeout=10).files == {}


def test_the_folder_itself(tmp_path: Path, locked: Callable[[str], None]) -> None:
    locked("aorta")
    with pytest.raises(TransportError, match=rf"^a: cannot list {tmp_path}/aorta: Permission denied$"):
        listing(Unprivileged("a"), str(tmp_path / "aorta"), timeout=10)


def test_of_many_problems_the_first_ones_are_told() -> None:
    many = Listing({}, tuple(f"a: cannot look into {number}" for number in range(9)))
    told = many.problems_since(Listing({}))
    assert told == [*many.problems[:4], "a: cannot look into 4, nor into 4 others"]


class Noisy(LocalTransport):
    """Says something of its own."""

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        done = super().run(argv, **options)
        return done.model_copy(update={"stderr": f"warn\n{done.stderr}"})


def test_noise_is_no_problem(tmp_path: Path) -> None:
    assert listing(Noisy("a"), str(tmp_path), timeout=10) == Listing({})


def test_without_find(tmp_path: Path) -> None:
    class WithoutFind(LocalTransport):
        def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
            return super().run(["sh", "-c", f"no-such-{argv[0]}"], **options)

    with pytest.raises(TransportError, match=rf"^a: cannot list {tmp_path}: .*no-such-find: .*not found$"):
        listing(WithoutFind("a"), str(tmp_path), timeout=10)


# --- what is new ------------------------------------------------------------------------------------------


def test_what_is_not_touched_is_not_new(tmp_path: Path) -> None:
    write(tmp_path, TRACE)
    before = look(tmp_path)
    write(tmp_path, "artifacts/rank0.log")
    assert look(tmp_path).new_since(before) == ["artifacts/rank0.log"]
    assert look(tmp_path).new_since(look(tmp_path)) == []


def test_a_file_that_is_as_long_as_before_is_new_by_its_time(tmp_path: Path) -> None:
    write(tmp_path, TRACE, b"old")
    before = look(tmp_path)
    write(tmp_path, TRACE, b"new")
    assert look(tmp_path).new_since(before) == [TRACE]


def test_and_by_its_place_on_disk_if_its_time_is_the_same(tmp_path: Path) -> None:
    """Restored from a copy that kept its time."""
    old = write(tmp_path, TRACE, b"old")
    before = look(tmp_path)
    new = write(tmp_path, "elsewhere", b"new")
    os.utime(new, ns=(old.stat().st_atime_ns, old.stat().st_mtime_ns))
    new.replace(old)
    assert look(tmp_path).new_since(before) == [TRACE]


def test_a_log_that_was_appended_to_is_new(tmp_path: Path) -> None:
    write(tmp_path, TRACE)
    log = write(tmp_path, "artifacts/rank0.log")
    before = look(tmp_path)
    with log.open("ab") as file:
        file.write(b"more")
    os.utime(log, ns=(0, log.stat().st_mtime_ns - 1))
    assert look(tmp_path).new_since(before) == ["artifacts/rank0.log"]


def test_another_name_makes_no_new_file(tmp_path: Path) -> None:
    """A job that rotates or links its earlier output has written nothing."""
    old = write(tmp_path, TRACE)
    before = look(tmp_path)
    moved = old.with_name("moved.pt.trace.json")
    old.rename(moved)
    moved.with_name("linked.pt.trace.json").hardlink_to(moved)
    assert look(tmp_path).new_since(before) == []


def test_what_has_gone_is_not_new(tmp_path: Path) -> None:
    write(tmp_path, TRACE).unlink()
    before = look(tmp_path)
    assert look(tmp_path).new_since(before) == []


NAMES = st.sampled_from(
    [f"artifacts/torch_profiler/rank{rank}/{name}.json" for rank in (0, 1) for name in "ab"]
)
OTHERS = st.sampled_from(["train.py", "artifacts/model.pt", "combined_traces/node_0/torch_profiler/x.json"])
TREES = st.dictionaries(NAMES | OTHERS, st.binary(max_size=2), max_size=5)


@settings(max_examples=40, deadline=None)
@given(TREES, TREES, st.sets(NAMES))
def test_new_is_exactly_what_the_run_wrote(
    before: dict[str, bytes], written: dict[str, bytes], deleted: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name, content in before.items():
            write(root, name, content)
        earlier = look(root)
        for name in deleted:
            (root / name).unlink(missing_ok=True)
        for name, content in written.items():
            write(root, name, content)
        new = look(root).new_since(earlier)
    assert new == sorted(name for name in written if name.startswith("artifacts/torch_profiler/"))


# --- what there is to analyse -----------------------------------------------------------------------------


def test_output_folders_are_those_of_new_traces(tmp_path: Path) -> None:
    write(tmp_path, "old/torch_profiler/rank0/x.json")
    before = look(tmp_path)
    write(tmp_path, "torch_profiler/rank0/x.json")
    write(tmp_path, "a/b/torch_profiler/rank0/x.json")
    write(tmp_path, "a/b/torch_profiler/rank1/torch_profiler/x.json")
    write(tmp_path, "a/b/tracelens_analysis/deep/x.xlsx")
    write(tmp_path, "torch_profiler/x.xlsx")
    write(tmp_path, "tracelens_analysis/x.csv")
    assert output_folders(look(tmp_path), before) == {"": False, "a/b": True}


# --- the way home -----------------------------------------------------------------------------------------


def test_files_come_home_with_the_digest_that_the_node_took(tmp_path: Path) -> None:
    names = [TRACE, "artifacts/rank0.log", "artifacts/torch_profiler/with space\nand line.json"]
    for index, name in enumerate(names):
        write(tmp_path / "aorta", name, b"x" * index)
    into = tmp_path / "combined_traces" / "node_3"
    files, problems = bring_home(LOCAL, str(tmp_path / "aorta"), names, into, 3, timeout=10)
    assert problems == []
    assert files == [
        TraceFile(
            path=f"node_3/{name}", node_rank=3, size=index, sha256=hashlib.sha256(b"x" * index).hexdigest()
        )
        for index, name in enumerate(names)
    ]
    assert [(into / name).read_bytes() for name in names] == [b"", b"x", b"xx"]


def test_a_name_that_no_record_can_hold_is_spelt_out(tmp_path: Path) -> None:
    names = [os.fsdecode(b"torch_profiler/rank\xff/bad\xfe.json"), "torch_profiler/rank\\xff/bad\\xfe.json"]
    for name in names:
        write(tmp_path / "aorta", name, name.encode(errors="replace"))
    paths = sorted(look(tmp_path / "aorta").files)
    assert paths == sorted(names)
    home = tmp_path / "home"
    files, problems = bring_home(LOCAL, str(tmp_path / "aorta"), paths, home, 0, timeout=10)
    assert problems == []
    assert [(file.path, file.size) for file in files] == [
        (r"home/torch_profiler/rank\xff/bad\xfe.json", 36),
        (r"home/torch_profiler/rank\xff/_bad\xfe.json", 30),
    ]
    for file in files:
        content = (tmp_path / file.path).read_bytes()
        assert file.sha256 == hashlib.sha256(content).hexdigest()
        assert file.model_dump_json()


def test_nothing_to_bring(tmp_path: Path) -> None:
    assert bring_home(LOCAL, str(tmp_path), [], tmp_path / "home", 0, timeout=10) == ([], [])
    assert not (tmp_path / "home").exists()


def test_more_files_than_one_command_takes(tmp_path: Path) -> None:
    names = [f"torch_profiler/rank0/{index:04}-{'x' * 200}.json" for index in range(700)]
    for name in names:
        write(tmp_path / "aorta", name, name.encode())
    files, problems = bring_home(LOCAL, str(tmp_path / "aorta"), names, tmp_path / "home", 0, timeout=60)
    assert (len(files), problems) == (700, [])


class Lossy(LocalTransport):
    """Loses the end of one file on the way."""

    def fetch(self, folder: str, paths: Sequence[str], into: Path, *, timeout: float) -> Fetched:
        fetched = super().fetch(folder, paths, into, timeout=timeout)
        (into / paths[0]).write_bytes(b"cut")
        fetched.digests[paths[0]] = hashlib.sha256(b"cut").hexdigest()
        return fetched


def test_a_file_that_does_not_arrive_as_it_left_is_told_and_not_kept(tmp_path: Path) -> None:
    names = ["torch_profiler/a.json", "torch_profiler/b.json"]
    for name in names:
        write(tmp_path / "aorta", name, b"{whole}")
    files, problems = bring_home(Lossy("a"), str(tmp_path / "aorta"), names, tmp_path / "home", 0, timeout=10)
    assert problems == ["a: 1 files did not arrive as they left, among them torch_profiler/a.json"]
    assert [file.path for file in files] == ["home/torch_profiler/b.json"]
    assert not (tmp_path / "home" / "torch_profiler" / "a.json").exists()


class Mute(LocalTransport):
    """Is never told any digest."""

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        raise TransportError(f"a: {argv[0]} did not end within {options['timeout']} s and was stopped")


def test_without_any_digest_nothing_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "aorta", "a.json", b"{}")
    folder, home = str(tmp_path / "aorta"), tmp_path / "home"
    files, [problem] = bring_home(Mute("a"), folder, ["a.json"], home, 0, timeout=10)
    assert files == []
    assert problem.startswith("a: 1 files cannot be verified (a: xargs did not end within 10 s")
    assert not (home / "a.json").exists()


class Undigested(LocalTransport):
    """Cannot tell the digest of one file."""

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        done = super().run(argv, **options)
        left = [line for line in done.stdout.split("\0") if not line.endswith("a.json")]
        return done.model_copy(update={"stdout": "\0".join(left), "stderr": "sh: a.json: no"})


def test_a_file_that_cannot_be_verified_is_told_and_not_kept(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        write(tmp_path / "aorta", name, b"{}")
    files, [problem] = bring_home(
        Undigested("a"), str(tmp_path / "aorta"), ["a.json", "b.json"], tmp_path / "home", 0, timeout=10
    )
    assert [file.path for file in files] == ["home/b.json"]
    assert problem == "a: 1 files cannot be verified (sh: a.json: no), among them a.json"
    assert not (tmp_path / "home" / "a.json").exists()


def test_digests_are_had_without_openssl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "xargs", "sha256sum"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    write(tmp_path / "aorta", "a.json", b"{}")
    [file], problems = bring_home(
        LOCAL, str(tmp_path / "aorta"), ["a.json"], tmp_path / "home", 0, timeout=10
    )
    assert (file.sha256, problems) == (hashlib.sha256(b"{}").hexdigest(), [])


def test_a_file_that_has_gone_meanwhile_costs_no_other(tmp_path: Path) -> None:
    write(tmp_path / "aorta", "here.json", b"{}")
    names = ["gone.json", "here.json"]
    files, [problem] = bring_home(LOCAL, str(tmp_path / "aorta"), names, tmp_path / "home", 0, timeout=10)
    assert [file.path for file in files] == ["home/here.json"]
    assert problem == "a: cannot fetch gone.json: No such file or directory"


def test_a_file_for_which_there_is_no_place_costs_no_other(tmp_path: Path) -> None:
    names = ["a.json", "b/c.json"]
    for name in names:
        write(tmp_path / "aorta", name, b"{}")
    write(tmp_path / "home", "b", b"in the way")
    files, [problem] = bring_home(LOCAL, str(tmp_path / "aorta"), names, tmp_path / "home", 0, timeout=10)
    assert [file.path for file in files] == ["home/a.json"]
    assert problem == "a: cannot fetch b/c.json: File exists"


class Forgetful(LocalTransport):
    """Loses the connection in the midst of the first transfer, once."""

    lost = False

    def fetch(self, folder: str, paths: Sequence[str], into: Path, *, timeout: float) -> Fetched:
        if self.lost:
            return super().fetch(folder, paths, into, timeout=timeout)
        self.lost = True
        some = super().fetch(folder, paths[:1], into, timeout=timeout)
        return Fetched(some.digests, "a: cannot fetch more: the connection was lost")


def test_what_did_not_come_is_asked_for_once_more(tmp_path: Path) -> None:
    names = ["torch_profiler/a.json", "torch_profiler/b.json", "torch_profiler/c.json"]
    for name in names:
        write(tmp_path / "aorta", name, name.encode())
    files, problems = bring_home(
        Forgetful("a"), str(tmp_path / "aorta"), names, tmp_path / "home", 0, timeout=10
    )
    assert problems == []
    assert [file.path for file in files] == [f"home/{name}" for name in names]
