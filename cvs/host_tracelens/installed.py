"""Whether an interpreter has TraceLens, and whether it is AMD's: PyPI's `tracelens` is another project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cvs.host_tracelens.processes import Job, worked_off

REPOSITORY = "https://github.com/AMD-AGI/TraceLens"
LOOK_SECONDS = 60
"""To find out what an interpreter has; on a slow disk that takes a while."""
_CURE = f"install it from {REPOSITORY}, or name an interpreter that has it in analysis.host_tracelens_python"


class Unusable(Exception):
    """There is no TraceLens that can be used; its text says why, and what to do."""


def version_of(python: str, work: Path, *, for_workbooks: bool) -> str | None:
    """Version of the TraceLens that `python` has, of which nothing is imported.

    None: it was not installed, and only lies where Python looks.

    Args: work: a folder for what is needed meanwhile.
    Raises: Unusable: it has none, or another package of that name, or lacks what TraceLens would ask for.
    """
    job = Job("look", "look")
    outcome = worked_off([job], python, work=work, logs=work, seconds=LOOK_SECONDS, memory=0, cores=1)["look"]
    if outcome.answer is None:
        raise Unusable(f"{python}: cannot be asked for TraceLens: {outcome.why}")
    return _judged(python, outcome.answer, for_workbooks)


def _judged(python: str, look: dict[str, Any], for_workbooks: bool) -> str | None:
    folder, lacks, known = look["folder"], look["lacks"], look["distribution"]
    if folder is None:
        if known:
            what = f"{known['name']} {known['version']} ({known['home'] or 'home page unknown'})"
            raise Unusable(f"{python} has {what}, another project of that name, and not AMD's; {_CURE}")
        raise Unusable(f"{python} has no TraceLens; {_CURE}")
    if lacks:
        raise Unusable(f"{folder} is no TraceLens that cvs knows: it lacks {', '.join(lacks)}; {_CURE}")
    if for_workbooks and not look["openpyxl"]:
        raise Unusable(
            f"{python} lacks openpyxl, without which TraceLens writes no workbook; pip install openpyxl"
        )
    return str(known["version"]) if known and known["name"] == "TraceLens" else None
