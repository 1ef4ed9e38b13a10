"""Faults of nodes that are in reach, and of the user, at every moment of a run.

The right node and words, in bounded time, nothing left. `make test-lab` has some of the cases,
`make test-all` all. The two files of faults share the time evenly, since each runs on one lab.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cluster import Lab
from lab.strikes import IN_REACH, cases, wrong

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(("fault", "moment"), cases(IN_REACH))
def test_a_fault(lab: Lab, tiny_image: str, tmp_path: Path, fault: str, moment: str) -> None:
    assert wrong(lab, tiny_image, tmp_path, fault, moment) == []
