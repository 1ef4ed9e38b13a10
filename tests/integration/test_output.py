"""What a job prints: kept whole up to a cap, shown safely, in flat memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import WITH_TORCH, Files
from cvs.run_folder import newest_run_folder
from cvs.runners._node import RANK_LOG_BYTES
from cvs.runners._node_log import CAP_BYTES

pytestmark = pytest.mark.torch

TALKATIVE = """\
import os
if os.environ["RANK"] == "0":
    os.write(1, b"the first line\\n")
    os.write(1, b"\\x1b[2J\\x07\\x00\\xff\\xfe\\x9b31m an escape\\n")
    os.write(1, b"z" * 1000000)  # a line without an end
    for _ in range(2000):
        os.write(1, (b"y" * 99 + b"\\n") * 1000)
    os.write(1, b"the last line\\n")
"""


def peak_memory(process: subprocess.Popen[bytes]) -> int:
    """KiB that the process itself had at most, waiting for its end."""
    peak = 0
    status = Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        found = re.search(r"VmHWM:\s*(\d+)", status.read_text())
        peak = int(found[1]) if found else peak  # none once it is a zombie
        time.sleep(0.05)
    return peak


def run_and_watch(home: Path, files: Files) -> tuple[bytes, int]:
    """Output of a whole call, and its peak memory in KiB."""
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cvs.cli", "run", "test_aorta", *files.options],
            cwd=home, env={**os.environ, **WITH_TORCH}, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        peak = peak_memory(process)
    return (home / "output").read_bytes(), peak


@pytest.mark.full
def test_200_mb_of_anything(tmp_path: Path, files: Files, script_as_trainer: Callable[[str], None]) -> None:
    script_as_trainer("print('quiet')")
    _, usual = run_and_watch(tmp_path, files)
    (tmp_path / "aorta" / "train.py").write_text(TALKATIVE)
    output, peak = run_and_watch(tmp_path, files)
    assert peak < usual + 16 * 1024

    folder = newest_run_folder(tmp_path / "cvs_runs", "test_aorta")
    assert folder.load_manifest().run.status.value == "completed"
    log = folder.node_log(0).read_bytes()
    assert CAP_BYTES // 2 < len(log) < CAP_BYTES + 200_000
    assert log.startswith(b"[default0]:the first line\n")
    assert b"\x1b[2J\x07\x00" in log  # torchrun puts signs of its own for what is no UTF-8
    assert log.endswith(b"[default0]:the last line\n")
    [left_out] = re.findall(rb"\n\[cvs: (\d+) bytes of output are left out here\]\n", log)
    assert int(left_out) > 100_000_000

    assert b"node-0 rank 0 | the first line\n" in output
    assert b"an escape\n" in output
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", output)
    assert b"node-0 | cvs: too much output to show; the log keeps its beginning and its end\n" in output
    assert len(output) < CAP_BYTES

    [own] = folder.node_logs(0).glob("torchrun/*/attempt_0/0/stdout.log")
    text = own.read_bytes()
    assert RANK_LOG_BYTES < len(text) < RANK_LOG_BYTES + 200
    assert text.startswith(b"the first line\n\x1b[2J\x07\x00\xff\xfe\x9b31m an escape\n")
    assert text.endswith(b"the last line\n")
    assert re.search(rb"\n\[cvs: \d+ bytes of output are left out here\]\n", text)
