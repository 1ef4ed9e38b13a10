"""Runs in the interpreter that has TraceLens: looks for it there, or has it do one piece of work.

Stands alone; cvs sends its text and never imports it. What to do stands in `order.json` in the current
folder, where the answer goes, too. What is printed is a log. TraceLens may ask on standard input, raise or
exit: then there is no answer.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import signal
from importlib import import_module
from pathlib import Path

PARTS = (
    "__init__.py",
    "util.py",
    "TreePerf/gpu_event_analyser.py",
    "Reporting/generate_perf_report_pytorch.py",
    "Reporting/generate_multi_rank_collective_report_pytorch.py",
)
"""What AMD's TraceLens has, and no other package of that name."""
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl."""


def look() -> dict[str, object]:
    """What goes by the name of TraceLens here, without importing it."""
    spec = importlib.util.find_spec("TraceLens")
    folder = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    return {
        "folder": folder,
        "lacks": [part for part in PARTS if folder and not Path(folder, part).is_file()],
        "distribution": _distribution(),
        "openpyxl": importlib.util.find_spec("openpyxl") is not None,
    }


def _distribution() -> dict[str, str] | None:
    """What pip knows under this name: it takes `TraceLens` and `tracelens` for one."""
    try:
        found = importlib.metadata.distribution("TraceLens")
    except importlib.metadata.PackageNotFoundError:
        return None
    about = found.metadata
    links = [*(about.get_all("Home-page") or ()), *(about.get_all("Project-URL") or ()), ""]
    return {"name": about["Name"], "version": found.version, "home": links[0].rpartition(" ")[2]}


def rows(trace: str) -> dict[str, object]:
    """The rows of the GPU timeline over all GPU events, in microseconds, and the largest stamp among them."""
    tracelens = import_module("TraceLens")
    events = tracelens.DataLoader.load_data(trace)["traceEvents"]
    for number, event in enumerate(events):
        event["UID"] = number
    found = tracelens.GPUEventAnalyser(events).compute_metrics()
    largest = max(abs(event["t_end"]) for event in events if "t_end" in event)
    return {"rows_us": {name: float(value) for name, value in found.items()}, "largest_us": float(largest)}


def report(trace: str, workbook: str) -> dict[str, object]:
    """The workbook of one rank, over all GPU events."""
    reporting = import_module("TraceLens.Reporting.generate_perf_report_pytorch")
    reporting.generate_perf_report_pytorch(trace, output_xlsx_path=workbook, include_unlinked_kernels=True)
    return {}


def collective(traces: list[str], workbook: str, ranks_per_node: int) -> dict[str, object]:
    """The workbook over all ranks; `traces` are in their order."""
    reporting = import_module("TraceLens.Reporting.generate_multi_rank_collective_report_pytorch")
    # It finds each rank's trace by a name that tells the rank, and how to read it by how the name ends.
    for rank, trace in enumerate(traces):
        Path(f"rank{rank}.json{'.gz' if trace.endswith('.gz') else ''}").symlink_to(trace)
    reporting.generate_collective_report(
        trace_glob="rank*.json*",
        world_size=len(traces),
        output_xlsx_path=workbook,
        gpus_per_node=ranks_per_node,
    )
    return {}


TASKS = {task.__name__: task for task in (look, rows, report, collective)}


def main() -> None:
    """Do what the order says."""
    # A cvs that is killed can stop nobody.
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    order = json.loads(Path("order.json").read_text("utf-8"))
    answer = TASKS[order["task"]](**order["arguments"])
    Path("answer.json").write_text(json.dumps(answer), "utf-8")


if __name__ == "__main__":
    main()
