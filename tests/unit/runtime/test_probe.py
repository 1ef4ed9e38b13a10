"""The script that looks from where the job will run: a process of its own, on this machine."""

from __future__ import annotations

import ast
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from conftest import PACKAGE
from cvs.preflight import JobLook

SCRIPT = (PACKAGE / "runtime" / "_probe.py").read_text()
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
"""For whom a file's rights count, which they do not for root."""

MAPPED_OWNERS = """\
import os
class Mapped:
    def __init__(self, real): self.real = real
    def __getattr__(self, name): return 65534 if name == "st_uid" else getattr(self.real, name)
real_stat = os.stat
os.stat = lambda *words, **options: Mapped(real_stat(*words, **options))
"""
"""A fake: a file system that maps all owners to one, as a server of NFS may."""
SQUASHED_ROOT = """\
import builtins, os
def refused(*words): raise PermissionError(13, "Permission denied")
builtins.open, os.getuid = refused, lambda: 0
"""
"""A fake: a file system that does not let root write."""


def probe(
    folder: Path,
    *devices: Path | str,
    host: str = "127.0.0.1",
    prelude: str = "",
    user: Sequence[str] = (),
) -> JobLook:
    """What the script prints, which is what `Runtime.probe` takes."""
    done = subprocess.run(
        [*user, sys.executable, "-c", prelude + SCRIPT, host, folder, *devices],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answer: dict[str, Any] = json.loads(done.stdout)
    assert "problems" in answer
    return JobLook.model_validate(answer)


def test_the_script_is_for_old_interpreters_too() -> None:
    ast.parse(SCRIPT, feature_version=(3, 6))


def test_all_is_well(tmp_path: Path) -> None:
    look = probe(tmp_path / "not" / "there yet", "/dev/null")
    assert look.problems == {}
    assert look.addresses == ("127.0.0.1",)
    assert "lo" in look.interfaces
    assert list((tmp_path / "not" / "there yet").iterdir()) == [], "what was tried is taken away"


# --- names ------------------------------------------------------------------------------------------------


def resolved(name: str) -> set[str]:
    return {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_an_address_is_told_once(host: str, tmp_path: Path) -> None:
    addresses = probe(tmp_path, host=host).addresses
    assert set(addresses) == resolved(host)
    assert len(set(addresses)) == len(addresses)


def test_a_name_that_nobody_knows(tmp_path: Path) -> None:
    look = probe(tmp_path, host="no-such-host.invalid")
    assert look.addresses == ()
    told = look.problems["rendezvous"]
    before, _, why = told.partition("the rendezvous address no-such-host.invalid cannot be resolved: ")
    assert before == ""
    assert "name resolution" in why or "not known" in why


def test_the_own_name_of_this_machine(tmp_path: Path) -> None:
    try:
        own = resolved(socket.gethostname())
    except OSError:
        own = set()
    assert set(probe(tmp_path).own_addresses) == own


NO_NAME_OF_ITS_OWN = "import socket\nsocket.gethostname = lambda: 'no-such-host.invalid'\n"


def test_an_own_name_that_nobody_knows_is_no_problem(tmp_path: Path) -> None:
    look = probe(tmp_path, prelude=NO_NAME_OF_ITS_OWN)
    assert (look.own_addresses, look.problems) == ((), {})


# --- writing ----------------------------------------------------------------------------------------------


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    told = probe(tmp_path / "out" / "logs").problems
    assert told == {"write": f"{tmp_path}/out/logs cannot be written by the job: Not a directory"}


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """One that everybody may enter, unlike pytest's own."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_a_folder_that_is_closed_to_the_job(open_folder: Path) -> None:
    closed = open_folder / "out"
    closed.mkdir(mode=0o555)
    told = probe(closed, user=NOBODY).problems
    assert told == {"write": f"{closed} cannot be written by the job: Permission denied"}


def test_a_folder_that_is_closed_even_to_root(tmp_path: Path) -> None:
    told = probe(tmp_path, prelude=SQUASHED_ROOT).problems["write"]
    why = "cannot be written by the job: Permission denied; does its NFS server squash root?"
    assert told == f"{tmp_path} {why}"


def test_files_that_belong_to_another_than_the_job(tmp_path: Path) -> None:
    look = probe(tmp_path, prelude=MAPPED_OWNERS)
    assert look.problems == {
        "owner": f"what the job writes to {tmp_path} belongs to user 65534, not to {os.getuid()}:"
        " its file system maps users, as an NFS server that squashes root"
    }
    assert list(tmp_path.iterdir()) == []


# --- devices ----------------------------------------------------------------------------------------------


def test_devices_that_are_missing_are_all_named(tmp_path: Path) -> None:
    told = probe(tmp_path, "/dev/null", tmp_path / "kfd", tmp_path / "dri").problems
    missing = [f"{tmp_path}/{name} cannot be opened: No such file or directory" for name in ("kfd", "dri")]
    assert told == {"devices": "; ".join(missing)}


def test_of_a_folder_the_render_nodes_are_opened(tmp_path: Path) -> None:
    dri = tmp_path / "dri"
    dri.mkdir()
    for name, target in {"renderD128": "/dev/null", "renderD129": "/nowhere", "card0": "/nowhere"}.items():
        (dri / name).symlink_to(target)
    told = probe(tmp_path, dri).problems
    assert told == {"devices": f"{dri}/renderD129 cannot be opened: No such file or directory"}


def test_a_device_that_is_closed_to_the_job(open_folder: Path) -> None:
    (open_folder / "kfd").touch(mode=0o600)
    (open_folder / "out").mkdir()
    (open_folder / "out").chmod(0o777)
    (open_folder / "kfd").chmod(0)
    told = probe(open_folder / "out", open_folder / "kfd", user=NOBODY).problems
    assert told == {"devices": f"{open_folder}/kfd cannot be opened: Permission denied"}
