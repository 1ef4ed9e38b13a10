"""Whether an interpreter has TraceLens, found out without importing it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from cvs.host_tracelens.installed import Unusable, version_of
from tracelens_stand_in import StandIn, pretend

INSTALL = "install it from https://github.com/AMD-AGI/TraceLens, or name an interpreter that has it in"


def refusal(python: str, tmp_path: Path, *, for_workbooks: bool = False) -> str:
    with pytest.raises(Unusable) as caught:
        version_of(python, tmp_path / "work", for_workbooks=for_workbooks)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_is_found_with_its_version_and_not_imported(stand_in: StandIn, tmp_path: Path) -> None:
    (stand_in.package / "__init__.py").write_text("raise SystemExit('imported')")
    assert version_of(sys.executable, tmp_path / "work", for_workbooks=True) == "0.0.0+stand.in"
    assert not (stand_in.package / "__pycache__").exists()


def test_one_that_only_lies_there_has_no_version(stand_in: StandIn, tmp_path: Path) -> None:
    [record] = stand_in.package.parent.glob("*.dist-info")
    shutil.rmtree(record)
    assert version_of(sys.executable, tmp_path / "work", for_workbooks=True) is None


def test_none_at_all(bare_python: str, tmp_path: Path) -> None:
    assert refusal(bare_python, tmp_path).startswith(f"{bare_python} has no TraceLens; {INSTALL}")


def test_the_namesake_on_pypi_is_recognised_and_named(site: Path, bare_python: str, tmp_path: Path) -> None:
    (site / "tracelens").mkdir()
    (site / "tracelens" / "__init__.py").write_text("raise SystemExit('imported')")
    pretend(site, "tracelens", "0.7.0", "Project-URL: Homepage, https://github.com/ssf0409/tracelens")
    told = refusal(bare_python, tmp_path)
    assert "has tracelens 0.7.0 (https://github.com/ssf0409/tracelens), another project of that name" in told
    assert INSTALL in told


def test_the_version_of_the_namesake_is_not_that_of_tracelens(stand_in: StandIn, tmp_path: Path) -> None:
    [record] = stand_in.package.parent.glob("*.dist-info")
    shutil.rmtree(record)
    pretend(stand_in.package.parent, "tracelens", "0.7.0", "Home-page: https://example.com")
    assert version_of(sys.executable, tmp_path / "work", for_workbooks=True) is None


def test_a_package_that_lacks_its_parts(stand_in: StandIn, tmp_path: Path) -> None:
    (stand_in.package / "util.py").unlink()
    told = refusal(sys.executable, tmp_path)
    assert told.startswith(f"{stand_in.package} is no TraceLens that cvs knows: it lacks util.py; {INSTALL}")


@pytest.mark.usefixtures("stand_in")
def test_openpyxl_is_needed_for_workbooks_alone(bare_python: str, tmp_path: Path) -> None:
    assert version_of(bare_python, tmp_path / "first", for_workbooks=False) == "0.0.0+stand.in"
    told = refusal(bare_python, tmp_path, for_workbooks=True)
    assert told.startswith(f"{bare_python} lacks openpyxl, without which TraceLens writes no workbook")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "cannot be started: No such file or directory"),
        ("#!/bin/sh\necho no Python here\nexit 3\n", "no Python here"),
        ("#!/bin/sh\nexit 3\n", "ended without a word, with exit code 3"),
    ],
)
def test_an_interpreter_that_is_none(script: str | None, why: str, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if script:
        python.write_text(script)
        python.chmod(0o755)
    told = refusal(str(python), tmp_path)
    assert told.startswith(f"{python}: cannot be asked for TraceLens: ")
    assert told.endswith(why)
