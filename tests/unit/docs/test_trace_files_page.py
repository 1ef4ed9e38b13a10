"""The page on trace files has the words that users meet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cvs.models import LeftOut, TraceFile
from cvs.parsers import other_json, trace_files, trace_sets
from cvs.parsers.rank_pattern import rank_names
from cvs.pipeline import _not_of_this_run

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "trace-files.rst").read_text("utf-8")
TABLE = PAGE.partition(".. _trace-files-words:")[2]


def by_path(*paths: str) -> list[LeftOut]:
    return trace_files.candidates(
        TraceFile(path=path, node_rank=None, size=0, sha256="") for path in ("rank0/t.json", *paths)
    )[1]


WORDS = [
    *(left.why for left in by_path("t.json", "rank0/t.log")),
    *(what for _, what in trace_files._LEFTOVERS),
    *(what for what, _ in other_json._KINDS),
    *other_json.NO_TRACE[:2],
    *trace_sets._KINDS.values(),
    rank_names("(?P<rank>x)", []).missing,
    *(left.why for left in _not_of_this_run(["x"])),
]


@pytest.mark.parametrize("words", dict.fromkeys(WORDS))
def test_the_page_has_all_words(words: str) -> None:
    assert f"``{words}" in TABLE
