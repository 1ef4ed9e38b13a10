"""A disk that is full, or becomes so, or cannot be written, where the runs lie."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import WITH_TORCH, Done, Files, report_of, run_cvs
from cvs.run_folder import newest_run_folder
from processes import processes_of

Mount = Callable[[str], Path]

TALKS_FOR_EVER = "import os\nwhile True: os.write(1, b'x' * 79 + b'\\n')\n"


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a small disk of its own, in memory."""
    place = tmp_path / "disk"
    if os.geteuid() != 0:
        pytest.skip("a disk can be mounted by root only")

    def mounted(options: str) -> Path:
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True, timeout=30)
        return place

    yield mounted
    if place.is_mount():
        subprocess.run(["umount", place], check=True, timeout=30)


def run_on(disk: Path, files: Files) -> Done:
    return run_cvs("run", "test_aorta", *files.options, f"--runs_dir={disk}", cwd=disk.parent, **WITH_TORCH)


def test_too_little_room_is_told_before_anything_is_started(mount: Mount, files: Files) -> None:
    disk = mount("size=64m")
    done = run_on(disk, files)
    assert done.returncode == 1
    assert f"{disk}/test_aorta: only 64 MiB are free there, and a run needs 128; make room" in done.stdout
    assert list((disk / "test_aorta").iterdir()) == []


def test_a_disk_that_cannot_be_written_is_named(mount: Mount, files: Files) -> None:
    disk = mount("ro")
    done = run_on(disk, files)
    assert done.returncode == 1
    assert f"cannot make the run's folder {disk}/test_aorta/" in done.stdout
    assert "Read-only file system; choose another place" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.torch
def test_a_disk_that_fills_up_ends_the_run_which_is_recorded_and_reported(
    mount: Mount, files: Files, script_as_trainer: Callable[[str], None]
) -> None:
    script_as_trainer(TALKS_FOR_EVER)
    disk = mount("size=160m")
    done = run_on(disk, files)
    folder = newest_run_folder(disk, "test_aorta")
    assert processes_of(folder.run_id) == []
    assert done.returncode == 1
    assert "Traceback (most recent call last)" not in done.stdout.partition("= FAILURES =")[2]
    failure = folder.load_manifest().run.failure
    assert failure is not None
    assert "No space left on device" in failure.reason
    assert "No space left on device" in done.stdout
    report = report_of(folder.path)
    assert (report["verdict"], report["status"]) == ("red", "failed")
