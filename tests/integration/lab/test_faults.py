"""Every fault of a node at every moment of a run: the right node and words, in bounded time, nothing left.

`make test-lab` has each fault and each moment at least once; `make test-all` has all.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import run_cvs
from lab.cluster import Lab
from lab.faults import heal
from lab.jobs import ClusterFile
from lab.strikes import MOMENTS, TABLE, still_left, struck

pytestmark = pytest.mark.lab

CHOICE = {
    *(("link-down", "before"), ("blackhole", "before"), ("hang", "setup"), ("power-off", "before")),
    *(("stop-sshd", "run"), ("drop-sessions", "collection"), ("host-key", "before")),
    *(("stop-dockerd", "run"), ("kill-dockerd", "before"), ("loss", "before"), ("slow", "setup")),
    ("small-disk", "run"),
}
"""What `make test-lab` runs."""
CASES = [
    pytest.param(fault, moment, marks=[] if (fault, moment) in CHOICE else [pytest.mark.full])
    for fault in TABLE
    for moment in MOMENTS
]


@pytest.mark.parametrize(("fault", "moment"), CASES)
def test_a_fault(
    lab: Lab, tiny_image: str, cluster_file: ClusterFile, tmp_path: Path, fault: str, moment: str
) -> None:
    run = struck(lab, tiny_image, tmp_path, fault, moment)
    assert run.wrong(fault, moment) == ""
    # What was left where nobody could get is gone once cvs can get there again.
    heal(run.nodes[1])
    done = run_cvs("cleanup", f"--cluster_file={cluster_file()}", "--run", run.result.run_id)
    assert done.returncode == 0, done.stdout + done.stderr
    assert still_left(lab) == []
    lab.clear()
