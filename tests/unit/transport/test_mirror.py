"""A folder and its copy."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cvs.transport._mirror import mirror

Content: TypeAlias = bytes | str
"""Of a file its bytes, of a link where it points to."""
Tree: TypeAlias = Mapping[str, Content]
"""Path to content."""

_TICKS = count(1)


def write(root: Path, tree: Tree) -> None:
    """Make these files and links; each write gets a time of its own, as on a clock that is fine enough."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)
            os.utime(path, ns=(0, next(_TICKS) * 1_000_000))


def read(root: Path) -> dict[str, Content]:
    """The files and links below a folder, what cvs itself keeps there apart."""
    return {path.relative_to(root).as_posix(): content for path, content in _contents(root)}


def _contents(root: Path) -> Iterator[tuple[Path, Content]]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".cvs"]
        for name in (*files, *folders):
            path = Path(folder, name)
            if path.is_symlink():
                yield path, os.fspath(path.readlink())
            elif path.is_file():
                yield path, path.read_bytes()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "node" / "aorta"


def test_a_copy_equals_its_source(source: Path, target: Path) -> None:
    tree: Tree = {
        "a": b"1",
        "empty": b"",
        "d/e/f g\n": b"2",
        "link": "a",
        "broken": "../nowhere",
        "to folder": "d",
    }
    write(source, tree)
    mirror(source, target)
    assert read(target) == tree


def test_what_has_gone_or_changed_follows_and_what_a_job_wrote_stays(source: Path, target: Path) -> None:
    write(source, {"kept": b"1", "changed": b"old", "gone": b"3", "d/gone": b"4"})
    mirror(source, target)
    own = {"log": b"mine", "d/own": b"mine", "artifacts/torch_profiler/rank0/t.json": b"{}"}
    write(target, own)
    shutil.rmtree(source)
    write(source, {"kept": b"1", "changed": b"new", "added": b"5"})
    mirror(source, target)
    assert read(target) == {"kept": b"1", "changed": b"new", "added": b"5", **own}


def test_what_a_job_did_to_the_copies_is_undone(source: Path, target: Path) -> None:
    write(source, {"a": b"one", "b": b"two", "c": b"three", "link": "a"})
    mirror(source, target)
    write(target, {"a": b"ONE", "c": "elsewhere", "link": b"no link any more"})
    (target / "b").unlink()
    mirror(source, target)
    assert read(target) == {"a": b"one", "b": b"two", "c": b"three", "link": "a"}


def test_what_has_not_changed_is_not_written_again(source: Path, target: Path) -> None:
    write(source, {"same": b"1", "other": b"2"})
    mirror(source, target)
    write(source, {"other": b"3"})
    with (target / "same").open() as held:  # so that no new file gets the number of this one
        mirror(source, target)
        assert (target / "same").stat().st_ino == os.fstat(held.fileno()).st_ino
    assert (target / "other").read_bytes() == b"3"


def test_a_script_stays_executable(source: Path, target: Path) -> None:
    write(source, {"run.sh": b"#!/bin/sh\n"})
    (source / "run.sh").chmod(0o755)
    mirror(source, target)
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", [".git", ".cvs", ".venv", "__pycache__", "combined_traces"])
@pytest.mark.parametrize("where", ["", "deep/er/"])
def test_what_is_not_copied(source: Path, target: Path, where: str, name: str) -> None:
    write(source, {f"{where}{name}/x": b"1", f"{where}y": b"2"})
    mirror(source, target)
    assert read(target) == {f"{where}y": b"2"}


def test_a_copy_inside_its_source_does_not_copy_itself(source: Path) -> None:
    """As with a run folder below the checkout."""
    target = source / "cvs_runs" / "nodes" / "node-0" / "aorta"
    write(source, {"a": b"1"})
    for _ in range(3):
        mirror(source, target)
    assert read(target) == {"a": b"1"}


def test_a_source_that_is_not_there(tmp_path: Path, target: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        mirror(tmp_path / "none", target)
    assert caught.value.filename == str(tmp_path / "none")


def test_what_is_no_file_is_not_copied(source: Path, target: Path) -> None:
    write(source, {"a": b"1"})
    os.mkfifo(source / "pipe")
    mirror(source, target)
    assert read(target) == {"a": b"1"}


def test_a_source_that_was_empty_once(source: Path, target: Path) -> None:
    mirror(source, target)
    write(source, {"a": b"1"})
    mirror(source, target)
    assert read(target) == {"a": b"1"}


@pytest.mark.parametrize("after", [b"a file now", "elsewhere"], ids=["file", "link"])
def test_a_folder_that_became_a_file(source: Path, target: Path, after: Content) -> None:
    write(source, {"d/a": b"1", "d/e/b": b"2"})
    mirror(source, target)
    shutil.rmtree(source / "d")
    write(source, {"d": after})
    mirror(source, target)
    assert read(target) == {"d": after}


@pytest.mark.parametrize("before", [b"a file still", "elsewhere"], ids=["file", "link"])
def test_a_file_that_became_a_folder(source: Path, target: Path, before: Content) -> None:
    write(source, {"d": before})
    mirror(source, target)
    (source / "d").unlink()
    write(source, {"d/a": b"1"})
    mirror(source, target)
    assert read(target) == {"d/a": b"1"}


def test_a_name_that_is_no_utf_8(source: Path, target: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    write(source, {name: b"1", "a": b"2"})
    mirror(source, target)
    (source / name).unlink()
    mirror(source, target)
    assert read(target) == {"a": b"2"}


# --- any history ------------------------------------------------------------------------------------------

CONTENTS = st.binary(max_size=2) | st.sampled_from(["a", "d", "../x"])
FOLDERS = st.dictionaries(st.sampled_from(["a", "b", "d"]), CONTENTS, min_size=1, max_size=3)


def flat(nested: Mapping[str, Content | Mapping[str, Content]]) -> dict[str, Content]:
    tree: dict[str, Content] = {}
    for name, content in nested.items():
        if isinstance(content, Mapping):
            tree |= {f"{name}/{inner}": leaf for inner, leaf in content.items()}
        else:
            tree[name] = content
    return tree


SOURCES = st.dictionaries(st.sampled_from(["a", "b", "d"]), CONTENTS | FOLDERS, max_size=3).map(flat)
OWN = st.dictionaries(st.sampled_from(["log", "out/1", "out/2"]), st.binary(max_size=2), max_size=2)
SPOILT = st.dictionaries(st.integers(0, 8), st.none() | st.binary(max_size=3), max_size=2)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(SOURCES, OWN, SPOILT), min_size=2, max_size=4))
def test_whatever_happened_the_copy_is_the_source_and_the_jobs_own_files(
    history: list[tuple[dict[str, Content], dict[str, bytes], dict[int, bytes | None]]],
) -> None:
    """Between two copies the source becomes any other, the job writes files of its own, and spoils copies."""
    own: dict[str, Content] = {}
    with tempfile.TemporaryDirectory() as root:
        source, target = Path(root, "source"), Path(root, "target")
        for tree, written, spoilt in history:
            shutil.rmtree(source, ignore_errors=True)
            source.mkdir()
            write(source, tree)
            mirror(source, target)
            assert read(target) == {**tree, **own}
            own |= written
            write(target, written)
            spoil(target, tree, spoilt)


def spoil(target: Path, tree: Tree, spoilt: Mapping[int, bytes | None]) -> None:
    """Delete some copies, and write others anew."""
    for index, content in spoilt.items():
        if index < len(tree):
            name = sorted(tree)[index]
            (target / name).unlink()
            write(target, {} if content is None else {name: content})
