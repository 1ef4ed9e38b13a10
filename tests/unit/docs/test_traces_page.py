"""The page on traces from anywhere against the code: every key stands there, and the lines of Python work."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from conftest import REPOSITORY, TRACES, Command
from cvs.models import Quality, RankMetrics, Step, Timeline, TraceResult
from cvs.reports.csv_report import WHOSE, _columns

DOCS = REPOSITORY / "docs"
PAGE = (DOCS / "reference" / "traces.rst").read_text("utf-8")
FROM_PYTHON = (DOCS / "how-to" / "from-python.rst").read_text("utf-8")


def literals(text: str) -> set[str]:
    return set(re.findall(r"``([^`]+)``", text))


def entry(key: str) -> str:
    """The row of a table on the page that begins with this key, alone or among others."""
    json_keys = PAGE.partition(".. _traces-json:")[2]
    rows = [row for row in json_keys.split("\n   * - ")[1:] if key in literals(row.partition("\n     - ")[0])]
    assert len(rows) == 1, key
    return rows[0]


@pytest.mark.parametrize("key", [*RankMetrics.model_fields, "gpu_timeline"])
def test_every_key_of_a_rank_has_its_row(key: str) -> None:
    table = PAGE.partition("An entry of ``ranks``")[2]
    assert key in literals(table)


@pytest.mark.parametrize(("key", "model"), [("quality", Quality), ("steps", Step)])
def test_so_have_the_keys_within(key: str, model: type[BaseModel]) -> None:
    assert model.model_fields.keys() <= literals(entry(key))


def test_every_key_at_the_top_has_its_row(command: Command) -> None:
    for key in json.loads(command("parse", str(TRACES / "cpu_gloo_2x2"), "--json").stdout):
        assert key in literals(PAGE.partition("An entry of ``ranks``")[0]), key


def test_columns_that_are_named_are_there() -> None:
    section = PAGE.partition(".. _traces-csv:")[2]
    columns = {*_columns(RankMetrics), *(f"steps.{name}" for name in _columns(Step))}
    named = {word for word in literals(section) if re.fullmatch(r"[a-z_]+(\.[a-z_]+)+", word)}
    assert len(named) >= 8
    assert named <= columns
    assert set(WHOSE) <= literals(section)


def test_the_least_benchmark_file_is_one(command: Command, tmp_path: Path) -> None:
    [block] = re.findall(r"^\.\. code-block:: yaml\n\n((?:   .*\n)+)", PAGE, re.MULTILINE)
    (tmp_path / "aorta.yaml").write_text(textwrap.dedent(block))
    traces = str(TRACES / "multirank" / "mr4")
    found = json.loads(command("parse", traces, "--json", "--config_file=aorta.yaml").stdout)
    assert (found["accelerator"], found["verdict"]) == (None, "good")
    assert [limit["name"] for limit in found["limits"]] == ["max_avg_iteration_ms", "min_overlap_ratio"]


def test_every_column_of_the_screen_is_explained(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # so that no head is wrapped
    traces = str(TRACES / "multirank" / "mr4")
    shown = command("parse", traces, "--steps", "--linked", "--micro_idle_us=5").stdout
    heads = [line for line in shown.splitlines() if line.startswith("┃")]
    section = literals(PAGE.partition(".. _traces-screen:")[2].partition(".. _traces-json:")[0])
    explained = {
        *section,
        "step",
        *(row.removesuffix("_time").replace("_", " ") for row in Timeline.model_fields),
    }
    for head in heads:
        for column in filter(None, (cell.strip() for cell in head.split("┃"))):
            assert column.removesuffix(" GB/s") in explained, column


def test_the_lines_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(TRACES / "cpu_gloo_2x2", tmp_path / "traces")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^\.\. code-block:: python\n\n((?:(?:   .*)?\n)+)", FROM_PYTHON, re.MULTILINE)
    [block] = [block for block in blocks if "measure_traces" in block]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(block), names)
    result = names["result"]
    assert isinstance(result, TraceResult)
    assert [rank.rank for rank in result.parse.ranks] == [0, 1, 2, 3]
