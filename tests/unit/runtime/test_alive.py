"""Whether the cvs of a run lives here."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from cvs.run_folder import RunFolder
from cvs.runtime._alive import living_cvs, sign_of_life

RUN_ID = f"20261130T120000.000Z-{secrets.token_hex(3)}"


def test_a_sign_of_life_lasts_until_it_is_closed() -> None:
    assert living_cvs(RUN_ID) is None
    with sign_of_life(RUN_ID) or pytest.fail("no sign"):
        assert living_cvs(RUN_ID) == os.getpid()
        assert living_cvs(RUN_ID[:-1]) is None
        assert living_cvs(f"{RUN_ID}0") is None
    assert living_cvs(RUN_ID) is None


def test_it_goes_with_its_process() -> None:
    script = f"from cvs.runtime._alive import *; sign = sign_of_life({RUN_ID!r}); print(); input()"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert living_cvs(RUN_ID) == process.pid
    process.kill()
    process.communicate()
    assert living_cvs(RUN_ID) is None


def test_an_open_log_is_a_sign_and_one_that_is_only_read_is_none(tmp_path: Path) -> None:
    log = RunFolder(tmp_path / RUN_ID).node_log(0)
    log.parent.mkdir(parents=True)
    with log.open("ab"):
        assert living_cvs(RUN_ID) == os.getpid()
    with log.open("rb"):
        assert living_cvs(RUN_ID) is None


def test_what_the_job_writes_is_none(tmp_path: Path) -> None:
    log = tmp_path / ".cvs" / RUN_ID / "torchrun" / "stdout.log"
    log.parent.mkdir(parents=True)
    with log.open("wb"):
        assert living_cvs(RUN_ID) is None
