"""Where the interpreter of these tests finds TraceLens, or what is taken for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tracelens_stand_in import StandIn


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where Python looks for packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return folder


@pytest.fixture
def stand_in(site: Path) -> StandIn:
    """The stand-in, installed."""
    return StandIn(site)


@pytest.fixture
def bare_python(tmp_path: Path) -> str:
    """An interpreter without any package but those of `site`."""
    path = tmp_path / "bare-python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return str(path)
