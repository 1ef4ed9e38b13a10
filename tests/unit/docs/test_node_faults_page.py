"""The page of faults has what the lab's tables have, by fault and moment."""

from __future__ import annotations

import re

import pytest

from conftest import REPOSITORY
from lab.strikes import CANNOT_BE, GOOD, MOMENTS, ROWS

PAGE = (REPOSITORY / "docs" / "reference" / "node-faults.rst").read_text("utf-8")
SHOWN = {
    name: re.findall(r"^     - (.*)$", cells, re.MULTILINE)
    for name, cells in re.findall(r"^   \* - ``([a-z-]+)``.*\n((?:     - .*\n)+)", PAGE, re.MULTILINE)
}


def test_it_has_every_fault_at_every_moment() -> None:
    assert list(SHOWN) == list(ROWS)
    assert {len(cells) for cells in SHOWN.values()} == {len(MOMENTS)}


@pytest.mark.parametrize(
    ("fault", "moment", "says"),
    [(fault, moment, says) for fault, row in ROWS.items() for moment, says in zip(MOMENTS, row, strict=True)],
)
def test_it_says_what_a_run_says(fault: str, moment: str, says: str) -> None:
    cell = SHOWN[fault][MOMENTS.index(moment)]
    # The lab's limits are shorter.
    in_full = re.sub(r"within \d+ s", "within 3 s", cell)
    assert cell == (says or "–") if says in (GOOD, CANNOT_BE) else re.search(says, in_full)
