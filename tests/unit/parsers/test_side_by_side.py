"""Traces read in processes of their own: the same answers, whatever happens to a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cvs.parsers import side_by_side
from cvs.parsers.rank_trace import Question
from cvs.parsers.side_by_side import Place, read_all
from processes import eventually, is_running

TRACES = Path(__file__).parents[2] / "data" / "traces"
NAMES = [f"multirank/mr4/rank{rank}_trace.json.gz" for rank in range(4)]
GPU = Question("gpu")


def places(*names: str) -> list[Place]:
    return [Place(str(TRACES), name, (TRACES / name).stat().st_size) for name in names]


@pytest.mark.parametrize("workers", [2, 3, 9])
def test_processes_give_what_one_gives_in_the_same_order(workers: int) -> None:
    wanted = places(*NAMES)
    assert read_all(wanted, GPU, workers=workers) == read_all(wanted, GPU, workers=1)


def test_what_cannot_be_read_costs_itself(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{")
    wanted = [Place(str(tmp_path), "a.json", 1), Place(str(tmp_path), "gone.json", 1), *places(NAMES[0])]
    broken, gone, good = read_all(wanted, GPU, workers=2)
    assert broken.quality.cause == "cut off before the first complete event"
    assert gone.quality.cause == f"No such file or directory: {tmp_path / 'gone.json'}"
    assert good.quality.status == "complete"


def test_nobody_starts_processes_for_small_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert len(read_all(places(*NAMES), GPU)) == len(NAMES)


@pytest.mark.parametrize(
    ("sizes", "cores", "free", "expected"),
    [
        ([30 << 20] * 16, 2, 1 << 34, 2),
        ([30 << 20] * 16, 64, 1 << 34, 16),
        ([30 << 20] * 16, 64, 1 << 30, 4),
        ([30 << 20, 1000, 1000], 64, 1 << 34, 1),
        ([1 << 20] * 16, 64, 1 << 34, 0),
    ],
)
def test_as_many_as_traces_cores_and_memory_ask_for(
    sizes: list[int], cores: int, free: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "cores_here", lambda: cores)
    monkeypatch.setattr(side_by_side, "memory_here", lambda: free)
    assert side_by_side._workers([Place("", "a.json", size) for size in sizes]) == expected


def _children() -> list[int]:
    found = [
        int(pid) for task in Path("/proc/self/task").iterdir() for pid in _read(task / "children").split()
    ]
    return [pid for pid in found if "cvs.parsers.side_by_side" in _read(Path(f"/proc/{pid}/cmdline"))]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # gone meanwhile
        return ""


@pytest.fixture
def slow_trace(tmp_path: Path) -> Place:
    """A trace that takes some seconds to read."""
    event = b'{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"correlation": 1}}'
    text = b'{"traceEvents": [%b]}' % b",\n".join([event] * 150_000)
    (tmp_path / "slow.json").write_bytes(text)
    return Place(str(tmp_path), "slow.json", len(text))


def test_a_process_that_dies_costs_the_trace_that_it_read(slow_trace: Place) -> None:
    def kill() -> None:
        while not (found := _children()):
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(found[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    documents = read_all([slow_trace, slow_trace, *places(*NAMES)], GPU, workers=2)
    killer.join()
    causes = [document.quality.cause for document in documents if document.quality.status == "unreadable"]
    assert causes == ["the process that read it ended with signal 9: out of memory?"]
    assert [document.quality.status for document in documents[2:]] == ["complete"] * 4


def test_an_interrupt_leaves_no_process(slow_trace: Place) -> None:
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        read_all([slow_trace] * 8, GPU, workers=2)
    timer.join()
    assert _children() == []


def test_a_reader_does_not_outlive_who_asked(slow_trace: Place) -> None:
    code = (
        "from cvs.parsers.side_by_side import *\n"
        f"place = Place({slow_trace.root!r}, {slow_trace.path!r}, 1)\n"
        "read_all([place] * 8, Question('gpu'), workers=2)\n"
    )
    asking = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    task = Path(f"/proc/{asking.pid}/task")

    def readers() -> list[int]:
        listed = " ".join(_read(each / "children") for each in task.iterdir())
        return [int(pid) for pid in listed.split()]

    assert eventually(lambda: len(readers()) == 2)
    time.sleep(0.3)
    found = readers()
    asking.terminate()
    assert asking.communicate()[1] == ""
    assert eventually(lambda: not any(map(is_running, found)))


def test_a_script_without_a_main_guard_is_run_once(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from cvs.models import ParseOptions\n"
        "from cvs.parsers.torch_trace import TorchTraceParser, trace_set_of\n"
        f"traces = trace_set_of({str(TRACES / 'multirank' / 'mr4')!r}, 'rocm')\n"
        "result = TorchTraceParser(ParseOptions(workers=2)).parse(traces)\n"
        "print('ranks', len(result.ranks))\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "ranks 4\n"


def test_how_far_it_is_is_told_now_and_then(slow_trace: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "_SECONDS_BETWEEN_LINES", 0.05)
    lines: list[str] = []
    read_all([slow_trace, slow_trace], GPU, workers=1, progress=lines.append)
    size = 2 * slow_trace.size / 1e6
    assert lines
    assert all(line.startswith("reading traces: ") and line.endswith(f" of {size:.0f} MB") for line in lines)
    shares = [float(line.split(", ")[1].split(" ")[0]) / size for line in lines]
    assert shares == sorted(shares)
    assert any(0.1 < share < 0.9 for share in shares)
