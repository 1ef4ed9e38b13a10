"""The worked example and the kinds on the page about collectives, against the code."""

from __future__ import annotations

import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

from conftest import TRACES
from cvs.collective_tables import GB, GIB, collective_report, implicit_sync
from cvs.collectives import KINDS, CommKernel, CommMeta, RankKernels, match

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "collectives.rst").read_text("utf-8")


def cells(after: str) -> list[list[str]]:
    """Rows, without the header, of the first table after some words."""
    rest = PAGE[PAGE.index(after) :]
    rows = re.search(r"((   \* - | {5}- | {7}).*\n)+", rest)
    assert rows
    return [re.sub(r"\n {7}", " ", row).split("\n     - ") for row in rows[0].rstrip().split("   * - ")[2:]]


def test_kinds() -> None:
    documented = {
        name: kind.strip("`")
        for kind, names in cells("Which kernels count")
        for name in re.findall("``(.+?)``", names)
    }
    assert documented == KINDS


def test_the_lines_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        (tmp_path / "traces").mkdir(exist_ok=True)
        trace = TRACES / "multirank" / "mr4" / f"rank{rank}_trace.json.gz"
        shutil.copy(trace, tmp_path / "traces" / f"rank{rank}.json.gz")
    monkeypatch.chdir(tmp_path)
    [block] = re.findall(r"^\.\. code-block:: python\n\n((?:(?:   .*)?\n)+)", PAGE, re.MULTILINE)
    names: dict[str, Any] = {}
    exec(textwrap.dedent(block), names)
    report = collective_report(names["matching"])
    assert len(names["rows"]) == sum(row.count for row in report.collectives) == 27
    assert [row.rank for row in names["by_rank"]] == [row.rank for row in report.stragglers]
    assert sum(row.count for row in names["by_kind"]) == 27
    assert len(names["sends"]) == 3


def test_worked_example() -> None:
    meta = CommMeta(None, "_allgather_base", "0", "[0, 1, 2, 3]", 4, "BFloat16", 1048576, 4194304, "[]", "[]")
    rows = [[float(cell) for cell in row] for row in cells(":name: collective-example-ranks")]
    [found] = implicit_sync(
        match([
            RankKernels(int(rank), [CommKernel(int(start * 1000), int(duration * 1000), 13, meta)], 0)
            for rank, start, duration, _ in rows
        ])
    )  # fmt: skip
    assert found.waits_ns == tuple(wait * 1000 for *_, wait in rows)
    assert found.collective.start_skew_ns is not None
    assert found.mean_wait_ns is not None
    assert found.end_skew_ns is not None
    assert found.algo_bytes_per_s is not None
    assert found.bus_bytes_per_s is not None
    documented = {name: float(number) for name, number, _ in cells(":name: collective-example-values")}
    assert documented == pytest.approx({
        "latency, µs": found.latency_ns / 1e3,
        "skew of the starts, µs": found.collective.start_skew_ns / 1e3,
        "mean wait, µs": found.mean_wait_ns / 1e3,
        "skew of the ends, µs": found.end_skew_ns / 1e3,
        "message, bytes": found.meta.full_bytes,
        "algorithm bandwidth, GB/s": found.algo_bytes_per_s / GB,
        "algorithm bandwidth, GiB/s": found.algo_bytes_per_s / GIB,
        "bus bandwidth, GB/s": found.bus_bytes_per_s / GB,
        "bus bandwidth, GiB/s": found.bus_bytes_per_s / GIB,
    }, rel=2e-6)  # fmt: skip
