"""`cvs copy-config`: samples come into the user's folder, and nothing of the user's is lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conftest import PACKAGE, Command, assert_refused

INPUT = PACKAGE / "input"
NAMES = [
    "cluster_file/cluster.json",
    "cluster_file/local_cluster.json",
    "config_file/aorta/aorta_benchmark.yaml",
    "config_file/aorta/aorta_local.yaml",
]


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_list(command: Command) -> None:
    assert command("copy-config", "--list").stdout.splitlines() == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("short", [True, False], ids=["name", "path"])
def test_a_sample_and_its_schema(name: str, short: bool, command: Command, tmp_path: Path) -> None:
    source = INPUT / name
    done = command("copy-config", source.name if short else name)
    assert (done.returncode, done.stdout) == (0, f"{source.name}\n")
    schema = "cluster.schema.json" if "cluster" in name else "aorta.schema.json"
    assert files_below(tmp_path) == {source.name, schema}
    for copied in (source, source.with_name(schema)):
        assert (tmp_path / copied.name).read_bytes() == copied.read_bytes()


def test_into_a_new_folder(command: Command, tmp_path: Path) -> None:
    done = command("copy-config", "aorta_local.yaml", "--output", "my/files")
    assert done.stdout == "my/files/aorta_local.yaml\n"
    assert files_below(tmp_path / "my" / "files") == {"aorta_local.yaml", "aorta.schema.json"}


@pytest.mark.parametrize("name", ["rack7.json", "rack7.yaml", "rack7.yml"])
def test_under_another_name(name: str, command: Command, tmp_path: Path) -> None:
    assert command("copy-config", "cluster.json", "--output", f"mine/{name}").returncode == 0
    assert files_below(tmp_path / "mine") == {name, "cluster.schema.json"}


def test_all_in_their_folders(command: Command, tmp_path: Path) -> None:
    done = command("copy-config", "--all", "--output", "in")
    assert done.stdout.splitlines() == [f"in/{name}" for name in NAMES]
    copied = files_below(tmp_path / "in")
    assert {name for name in copied if not name.endswith(".schema.json")} == set(NAMES)
    assert copied == files_below(INPUT)


def test_what_is_there_is_kept(command: Command, tmp_path: Path) -> None:
    mine = tmp_path / "cluster.json"
    mine.write_text("mine")
    done = command("copy-config", "cluster.json")
    assert_refused(done, 2, "cluster.json: is there already; --force replaces it")
    assert mine.read_text() == "mine"
    assert files_below(tmp_path) == {"cluster.json"}
    assert command("copy-config", "cluster.json", "--force").returncode == 0
    assert "node_dict" in mine.read_text()


def test_all_copies_nothing_where_one_is_there(command: Command, tmp_path: Path) -> None:
    for name in NAMES[:2]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    done = command("copy-config", "--all")
    assert_refused(done, 2, *(f"{name}: is there already; --force replaces it\n" for name in NAMES[:2]))
    assert files_below(tmp_path) == set(NAMES[:2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cluster.jsn"], "no sample cluster.jsn; did you mean cluster.json?"),
        (["aorta_benchmark"], "no sample aorta_benchmark; did you mean aorta_benchmark.yaml?"),
        (["config_file/aorta/aorta_locl.yaml"], "did you mean config_file/aorta/aorta_local.yaml?"),
        (["cluster.schema.json"], "no sample cluster.schema.json"),
        (["zzz"], "no sample zzz; --list shows what there is"),
        ([], "name one sample, or say --all; --list shows what there is"),
        (["cluster.json", "--all"], "name one sample, or say --all"),
    ],
)
def test_refuses(words: list[str], message: str, command: Command, tmp_path: Path) -> None:
    assert_refused(command("copy-config", *words), 2, message)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("a file")
    done = command("copy-config", "cluster.json", "--output", "mine")
    assert_refused(done, 3, f"mine{os.sep}cluster.json: cannot be written: ")
