"""The page of faults has what the lab's table has, by fault and moment."""

from __future__ import annotations

import re

import pytest

from conftest import REPOSITORY
from lab.strikes import MOMENTS, TABLE

PAGE = (REPOSITORY / "docs" / "reference" / "node-faults.rst").read_text("utf-8")
ROWS = {
    name: re.findall(r"^     - (.*)$", cells, re.MULTILINE)
    for name, cells in re.findall(r"^   \* - ``([a-z-]+)``.*\n((?:     - .*\n)+)", PAGE, re.MULTILINE)
}


def test_it_has_every_fault_at_every_moment() -> None:
    assert list(ROWS) == list(TABLE)
    assert {len(cells) for cells in ROWS.values()} == {len(MOMENTS)}


@pytest.mark.parametrize(
    ("fault", "moment", "says"),
    [
        (fault, moment, says)
        for fault, row in TABLE.items()
        for moment, says in zip(MOMENTS, row, strict=True)
    ],
)
def test_it_says_what_a_run_says(fault: str, moment: str, says: str) -> None:
    cell = ROWS[fault][MOMENTS.index(moment)]
    # The lab's limits are shorter.
    in_full = re.sub(r"within \d+ s", "within 3 s", cell)
    assert re.search(says, in_full) if says else cell == "–"
