"""A stand-in for TraceLens, so that no test needs the real one: it has its names, and does as a test asks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

_PACKAGE = '''\
"""A stand-in for TraceLens in the tests of cvs: what it does with a trace stands in known.json beside it."""

import json, os, subprocess, sys, time
from pathlib import Path

def known(trace):
    entry = json.loads(Path(__file__).with_name("known.json").read_text())[os.path.realpath(trace)]
    exec(entry["does"])
    return entry

class DataLoader:
    @staticmethod
    def load_data(trace):
        entry = known(trace)
        gpu_event = {"t_end": entry["largest_us"], "rows": entry["rows_us"]}
        return {"traceEvents": [gpu_event, {"name": "of the CPU"}]}

class GPUEventAnalyser:
    def __init__(self, events):
        assert [event["UID"] for event in events] == [0, 1]
        self.rows = events[0]["rows"]

    def compute_metrics(self):
        return self.rows
'''
_REPORT = """\
from pathlib import Path
from TraceLens import known

def generate_perf_report_pytorch(profile_json_path, output_xlsx_path=None, include_unlinked_kernels=False):
    known(profile_json_path)
    Path(output_xlsx_path).write_text(f"{profile_json_path}, unlinked kernels: {include_unlinked_kernels}")
"""
_COLLECTIVE = """\
import glob, os
from pathlib import Path
from TraceLens import known

def generate_collective_report(trace_glob=None, world_size=None, output_xlsx_path=None, gpus_per_node=None):
    traces = [os.path.realpath(link) for link in sorted(glob.glob(trace_glob))]
    for trace in traces:
        known(trace)
    Path(output_xlsx_path).write_text(f"{world_size} {gpus_per_node} {' '.join(traces)}")
"""


class StandIn:
    """The stand-in, in a folder where the interpreter of the tests looks."""

    def __init__(self, site: Path) -> None:
        self.package = site / "TraceLens"
        self._known: dict[str, object] = {}
        (self.package / "TreePerf").mkdir(parents=True)
        (self.package / "Reporting").mkdir()
        for part, text in {
            "__init__.py": _PACKAGE,
            "util.py": "",
            "TreePerf/gpu_event_analyser.py": "",
            "Reporting/generate_perf_report_pytorch.py": _REPORT,
            "Reporting/generate_multi_rank_collective_report_pytorch.py": _COLLECTIVE,
        }.items():
            (self.package / part).write_text(text)
        pretend(site, "TraceLens", "0.0.0+stand.in", "Home-page: https://example.com/stand-in")

    def knows(
        self,
        trace: Path,
        rows_us: Mapping[str, float | None] | None = None,
        largest_us: float = 1.0,
        does: str = "pass",
    ) -> None:
        """What it will make of a trace; `does`: Python that it runs before."""
        entry = {"rows_us": rows_us, "largest_us": largest_us, "does": does}
        self._known[os.path.realpath(trace)] = entry
        (self.package / "known.json").write_text(json.dumps(self._known))


def pretend(site: Path, name: str, version: str, link: str) -> None:
    """Have pip's records say that a distribution is installed in `site`."""
    record = site / f"{name}-{version}.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{link}\n")
