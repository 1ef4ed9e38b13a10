"""The page of the checks against the code: every check stands there, and the table as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conftest import REPOSITORY, Command, stand_in_python
from cvs.preflight import _CHECKS

PAGE = (REPOSITORY / "docs" / "how-to" / "check-nodes.rst").read_text("utf-8")


def test_every_check_has_a_row_in_the_order_of_the_table() -> None:
    rows = re.findall(r"^   \* - ``(\w+)``\n     - (\S.*)\n(?:       .*\n)*     -(.*)$", PAGE, re.MULTILINE)
    assert [check for check, _bad, _warning in rows] == _CHECKS


def test_the_example_prints_what_is_shown(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_PYTHON", stand_in_python(tmp_path, "exit 1"))
    monkeypatch.chdir(REPOSITORY)
    [block] = re.findall(r"^   \$ cvs (.*)\n((?:   .*\n)+)", PAGE, re.MULTILINE)
    words, shown = block
    done = command(*words.split())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [line[3:] for line in shown.splitlines()]
