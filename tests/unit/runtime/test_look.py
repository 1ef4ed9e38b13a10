"""What a node says of itself: a real shell, real files, and this machine's own disk and interfaces."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from cvs.config import AortaConfig, ClusterConfig
from cvs.launch import NodePlan, Site, plan_aorta
from cvs.models import CommandResult
from cvs.preflight import NodeLook
from cvs.runtime._look import look_at
from cvs.transport.local import LocalTransport

FILES = {"train.py": b"print()", "my configs/a b.yaml": b"{}\n", "empty": b""}
NOISE = 256 << 20
"""Bytes by which the room on a disk may change while it is looked at."""


def plan_of(folder: Path, *files: str, source: Path | None = None) -> NodePlan:
    """A node with the workload in this folder; these files are looked at."""
    plan = plan_aorta(
        ClusterConfig.model_validate({"username": "u", "node_dict": {"a": {"vpc_ip": "10.0.0.1"}}}),
        AortaConfig.model_validate({"aorta_path": str(folder)}),
        Site(run_id="r1", master_port=29500),
    ).head
    known = {"required_files": files, "copied_from": source and str(source)}
    return plan.model_copy(update=known)


def look(
    folder: Path, *files: str, accelerator: str = "none", source: Path | None = None, **transport: Any
) -> NodeLook:
    node = transport.get("of", LocalTransport("a"))
    return look_at(node, plan_of(folder, *files, source=source), accelerator, timeout=30)


def digests(*names: str) -> dict[str, str]:
    return {name: hashlib.sha256(FILES[name]).hexdigest() for name in names}


@pytest.fixture
def aorta(tmp_path: Path) -> Path:
    folder = tmp_path / "the aorta"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    return folder


def nearly_free(folder: Path, free: int | None) -> bool:
    return free is not None and abs(free - shutil.disk_usage(folder).free) < NOISE


def test_a_folder_with_all_files(aorta: Path) -> None:
    seen = look(aorta, *FILES)
    assert seen.digests == digests(*FILES)
    assert nearly_free(aorta, seen.free_bytes)
    assert (seen.gpus, seen.revision) == (None, None)


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def test_the_interfaces_of_this_machine(aorta: Path) -> None:
    before = interfaces()
    seen = look(aorta).interfaces
    after = interfaces()  # some may come or go meanwhile
    assert "lo" in before
    assert before & after <= set(seen) <= before | after
    assert len(set(seen)) == len(seen)


def test_a_folder_that_is_not_there_is_on_the_disk_of_what_is_above_it(tmp_path: Path) -> None:
    seen = look(tmp_path / "not" / "yet" / "made", *FILES)
    assert (seen.digests, seen.revision) == ({}, None)
    assert nearly_free(tmp_path, seen.free_bytes)
    assert "lo" in seen.interfaces


def test_a_file_in_the_place_of_the_folder(aorta: Path) -> None:
    seen = look(aorta / "train.py", "train.py")
    assert seen.digests == {}
    assert nearly_free(aorta, seen.free_bytes)


def test_files_that_are_missing_or_none_are_left_out(aorta: Path) -> None:
    (aorta / "gone").symlink_to("nowhere")
    (aorta / "folder").mkdir()
    assert look(aorta, "none", "gone", "folder", "train.py").digests == digests("train.py")


class Nobody(LocalTransport):
    """As a user for whom a file's rights count, which they do not for root."""

    def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
        drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
        return super().run([*drop, *argv], **options)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody may enter, unlike pytest's own."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_file_that_is_closed_is_left_out(open_folder: Path) -> None:
    for name in ("train.py", "empty"):
        (open_folder / name).write_bytes(FILES[name])
    (open_folder / "train.py").chmod(0)
    assert look(open_folder, "train.py", "empty", of=Nobody("a")).digests == digests("empty")


def test_a_local_node_has_the_files_of_its_source_and_the_disk_of_the_run(
    aorta: Path, tmp_path: Path
) -> None:
    seen = look(tmp_path / "node-0", "train.py", source=aorta)
    assert seen.digests == digests("train.py")
    assert seen.free_bytes is None


# --- a checkout -------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    argv = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@needs_git
def test_the_commit_of_a_checkout(aorta: Path) -> None:
    git(aorta, "init", "--quiet")
    assert look(aorta, "train.py").revision is None, "no commit yet"
    git(aorta, "commit", "--quiet", "--allow-empty", "-m", "one")
    seen = look(aorta, "train.py")
    assert seen.revision == git(aorta, "rev-parse", "HEAD")
    assert seen.digests == digests("train.py")


@needs_git
def test_the_checkout_of_another_user(open_folder: Path) -> None:
    git(open_folder, "init", "--quiet")
    git(open_folder, "commit", "--quiet", "--allow-empty", "-m", "one")
    assert look(open_folder, of=Nobody("a")).revision == git(open_folder, "rev-parse", "HEAD")


@needs_git
def test_a_folder_within_a_checkout_of_something_else(aorta: Path) -> None:
    git(aorta, "init", "--quiet")
    git(aorta, "commit", "--quiet", "--allow-empty", "-m", "one")
    assert look(aorta / "my configs").revision is None


# --- programs ---------------------------------------------------------------------------------------------


def stand_in(home: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a script in the place of a program."""
    home.mkdir()
    (home / name).write_text(f"#!/bin/sh\n{script}\n")
    (home / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}{os.pathsep}{os.environ['PATH']}")


def test_rocms_gpus_are_the_render_nodes(aorta: Path) -> None:
    assert look(aorta, accelerator="rocm").gpus == len(list(Path("/dev").glob("dri/renderD*")))


GPUS = [
    ("echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'", 2),
    ("echo 'No devices found.'", 0),
    ("echo 'NVIDIA-SMI has failed because it could not communicate with the driver.'; exit 9", None),
]


@pytest.mark.parametrize(("script", "count"), GPUS)
def test_cudas_gpus_are_those_that_nvidia_smi_lists(
    script: str, count: int | None, aorta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path / "bin", "nvidia-smi", script, monkeypatch)
    assert look(aorta, accelerator="cuda").gpus == count


def only(home: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leaves these programs alone in PATH."""
    home.mkdir()
    for name in names:
        (home / name).symlink_to(shutil.which(name) or pytest.fail(f"{name} is not installed"))
    monkeypatch.setenv("PATH", str(home))


def test_a_node_with_openssl_alone_tells_the_same_digests(
    aorta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(tmp_path / "bin", monkeypatch, "sh", "openssl")
    assert look(aorta, *FILES).digests == digests(*FILES)


def test_what_a_node_has_no_program_for_is_not_known(
    aorta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(tmp_path / "bin", monkeypatch, "sh")
    seen = look(aorta, *FILES, accelerator="cuda")
    assert (seen.gpus, seen.free_bytes, seen.digests, seen.revision) == (None, None, {}, None)
    assert "lo" in seen.interfaces


@pytest.mark.parametrize(
    ("line", "free"),
    [
        ("/dev/sda1 1000 400 600 40% /", 600 * 1024),
        ("//server/my share 1000 400 600 40% /mnt/my share", 600 * 1024),
        ("/dev/a-name-of-a-disk-that-is-longer-than-its-column 1000 1000 0 100% /", 0),
        ("none 0 0 0 - /proc", None),
        ("", None),
    ],
)
def test_the_room_in_a_line_of_df(
    line: str, free: int | None, aorta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = "Filesystem 1024-blocks Used Available Capacity Mounted on"
    stand_in(tmp_path / "bin", "df", f"echo '{head}'\n[ -z '{line}' ] || echo '{line}'", monkeypatch)
    assert look(aorta).free_bytes == free
