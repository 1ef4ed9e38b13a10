"""`cvs cleanup`: what is said, line by line and as JSON, and the exit code."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import Command, assert_refused, holder
from cvs.config.account import user_name
from cvs.runtime._alive import sign_of_life
from cvs.runtime._owned import HOLDER
from engine import Shelf, engine

LOCAL: dict[str, Any] = {
    "username": "u",
    "transport": "local",
    "node_dict": {name: {"vpc_ip": "::1"} for name in ("n-0", "n-1")},
}
OURS = holder("20261130T120000.000Z-c04272").model_copy(update={"user": user_name()})
BOBS = holder("other").model_copy(update={"user": f"not-{user_name()}"})
FILES = ["--cluster_file", "cluster.json"]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """What stands in the engine of this machine, which two local nodes are."""
    (tmp_path / "cluster.json").write_text(json.dumps(LOCAL))
    shelf = Shelf()
    for name, (state, whose) in {"old": ("exited", OURS), "bobs": ("running", BOBS)}.items():
        shelf.put(name, state, created=time.time() - 60, labels={HOLDER: whose.model_dump_json()})  # noqa: TID251
    with engine(shelf) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        yield shelf


def test_one_line_for_each_thing_and_one_machine_for_all_local_nodes(shelf: Shelf, command: Command) -> None:
    done = command("cleanup", *FILES)
    assert done.stdout.splitlines() == [
        f"n-[0-1]: removed container old of {OURS}: it had ended",
        f"n-[0-1]: left container bobs of {BOBS}: another user's",
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert list(shelf.entries) == ["bobs"]
    assert command("cleanup", *FILES).returncode == 0


@pytest.mark.parametrize("option", ["--dry-run", "--dry_run"])
def test_dry_run(option: str, shelf: Shelf, command: Command) -> None:
    done = command("cleanup", *FILES, option)
    assert done.stdout.startswith(f"n-[0-1]: would remove container old of {OURS}: it had ended\n")
    assert done.returncode == 0
    assert list(shelf.entries) == ["old", "bobs"]


def test_json(shelf: Shelf, command: Command) -> None:
    shelf.refusals["old"] = 500
    done = command("cleanup", *FILES, "--json")
    old = {
        "fate": "left", "what": "container old", "run_id": OURS.run_id, "holder": OURS.model_dump(),
        "why": "Docker cannot remove its container: refused", "is_good": False,
    }  # fmt: skip
    bobs = {
        "fate": "left", "what": "container bobs", "run_id": "other", "holder": BOBS.model_dump(),
        "why": "another user's", "is_good": True,
    }  # fmt: skip
    assert json.loads(done.stdout) == [
        {"node": "n-[0-1]", "found": [old, bobs], "error": None, "is_reached": True}
    ]
    assert done.returncode == 1


def test_nothing_is_left(shelf: Shelf, command: Command) -> None:
    shelf.entries.clear()
    done = command("cleanup", *FILES)
    assert (done.returncode, done.stdout) == (0, "n-[0-1]: nothing is left\n")
    done = command("cleanup", *FILES, "--run", "r-1")
    assert (done.returncode, done.stdout) == (0, "n-[0-1]: nothing of run r-1\n")


def test_of_a_run_whose_cvs_is_alive_nothing_goes(shelf: Shelf, command: Command) -> None:
    with sign_of_life(OURS.run_id) or pytest.fail("no sign"):
        done = command("cleanup", *FILES, "--run", OURS.run_id)
    assert f"left container old of {OURS}: its cvs is alive, process " in done.stdout
    assert done.returncode == 1
    assert list(shelf.entries) == ["old", "bobs"]


def test_the_benchmark_file_tells_whether_there_is_docker_to_be_asked(
    shelf: Shelf, command: Command, tmp_path: Path
) -> None:
    shelf.put("mine-7", "exited")
    words = [*FILES, "--config_file", "aorta.yaml", "--dry-run"]
    (tmp_path / "aorta.yaml").write_text("aorta_path: /aorta\ndocker: {container_name: mine}\n")
    assert "left container mine-7 (exited, image example/torch:2, made " in command("cleanup", *words).stdout
    (tmp_path / "aorta.yaml").write_text("aorta_path: /aorta\nruntime: process\n")
    assert command("cleanup", *words).stdout == "n-[0-1]: nothing is left\n"


def test_the_lock_of_the_benchmark_files_folder_tells_of_plain_processes(
    shelf: Shelf, command: Command, tmp_path: Path
) -> None:
    shelf.entries.clear()
    (tmp_path / ".cvs").mkdir()
    (tmp_path / ".cvs/lock").write_text(BOBS.model_dump_json())
    for more in ("", "runtime: process\n"):
        (tmp_path / "aorta.yaml").write_text(f"aorta_path: {tmp_path}\n{more}")
        done = command("cleanup", *FILES, "--config_file", "aorta.yaml")
        assert (done.returncode, done.stdout) == (
            0, f"n-[0-1]: left lock of {tmp_path} of {BOBS}: another user's\n"
        )  # fmt: skip


@pytest.mark.usefixtures("shelf")
def test_what_is_found_is_told_before_what_goes_wrong_then(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "aorta.yaml").write_text(f"aorta_path: {tmp_path}\n")

    def breaks(_transport: object, _folder: str) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr("cvs.runtime.cleanup.holder_of_folder", breaks)
    done = command("cleanup", *FILES, "--config_file", "aorta.yaml", "--dry-run")
    assert done.stdout.splitlines() == [
        f"n-[0-1]: would remove container old of {OURS}: it had ended",
        f"n-[0-1]: left container bobs of {BOBS}: another user's",
        "n-[0-1]: a defect in cvs: ZeroDivisionError: odd",
    ]
    assert (done.returncode, done.stderr) == (1, "")


def test_what_would_disturb_a_terminal_is_not_shown(shelf: Shelf, command: Command) -> None:
    labels = {HOLDER: OURS.model_copy(update={"user": "\x1b[31m"}).model_dump_json()}
    shelf.put("evil", labels=labels)
    assert "\x1b" not in command("cleanup", *FILES).stdout


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])
def test_no_node_is_reached(words: list[str], command: Command, tmp_path: Path) -> None:
    (tmp_path / "ssh_config").touch()
    cluster = {
        "username": "u", "ssh_port": 1, "ssh_config": f"{tmp_path}/ssh_config", "password": "p",
        "node_dict": {node: {"vpc_ip": node} for node in ("127.0.0.1", "127.0.0.2")},
    }  # fmt: skip
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    done = command("cleanup", *FILES, *words)
    assert (done.returncode, done.stderr) == (3, "cluster.json: no node could be reached\n")
    assert done.stdout.count("refuses connections") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run", ""], "--run: '' is no id of a run, such as 2026"),
        (["--run", "a/b"], "--run: 'a/b' is no id of a run"),
        (["--timeout", "0"], "--timeout: '0' is no whole number of seconds"),
        (["--cluster_file", "none.json"], "none.json: cannot be read: No such file or directory\n"),
        (["--config_file", "none.yaml"], "none.yaml: cannot be read: No such file or directory\n"),
    ],
)
def test_misuse(words: list[str], message: str, shelf: Shelf, command: Command) -> None:
    assert_refused(command("cleanup", *FILES, *words), 2, message)
    assert list(shelf.entries) == ["old", "bobs"]


def test_a_cluster_file_is_wanted(command: Command) -> None:
    assert_refused(command("cleanup"), 2, "required: --cluster_file")
