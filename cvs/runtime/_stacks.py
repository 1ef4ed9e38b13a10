"""Runs where the job runs: prints where each rank of a run stands, as JSON.

Stands alone, for the oldest Python that an image may hold; cvs sends its text and never imports it.
Arguments: the run's id, a time limit in seconds, and where py-spy may lie.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional


def variables(pid: int) -> Dict[str, str]:
    """Environment of a process; empty where it is not ours, or has ended."""
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(entry.split("=", 1) for entry in text.split("\0") if "=" in entry)


def parent(pid: int) -> int:
    """Process id of its parent; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def ranks_of(run_id: str) -> Dict[int, int]:
    """Process of each rank; what a rank starts (loaders of data) has its RANK, but a rank as its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        environment = variables(int(path.name))
        if environment.get("CVS_RUN_ID") == run_id and environment.get("RANK", "").isdecimal():
            found[int(path.name)] = int(environment["RANK"])
    return {rank: pid for pid, rank in found.items() if found.get(parent(pid)) != rank}


def start(py_spy: str, pid: int) -> "subprocess.Popen[bytes]":
    """Begin to read the stacks of a process, which goes on meanwhile."""
    command = [py_spy, "dump", "--json", "--nonblocking", "--pid", str(pid)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def result(process: "subprocess.Popen[bytes]", seconds: float) -> Dict[str, Any]:
    """The threads that were read, or why they were not."""
    try:
        out, err = process.communicate(timeout=seconds)
        return {"threads": json.loads(out.decode())}
    except subprocess.TimeoutExpired:
        process.kill()
        return {"error": "py-spy did not end"}
    except ValueError:
        lines = err.decode(errors="replace").strip().splitlines()
        return {"error": lines[0] if lines else "py-spy said nothing"}


def main(run_id: str, seconds: str, *places: str) -> None:
    """Print one object per rank."""
    py_spy: Optional[str] = next((path for path in map(shutil.which, places) if path), None)
    ranks = ranks_of(run_id)
    found: List[Dict[str, Any]] = []
    if py_spy is None:
        found = [{"rank": rank, "error": "there is no py-spy: pip install py-spy"} for rank in ranks]
    else:
        started = {rank: start(py_spy, pid) for rank, pid in ranks.items()}
        found = [{"rank": rank, **result(process, float(seconds))} for rank, process in started.items()]
    print(json.dumps(found))


main(*sys.argv[1:])
