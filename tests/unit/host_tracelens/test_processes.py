"""Processes side by side: bounded in number, memory and time, and none of them left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cvs.host_tracelens.processes import Job, Outcome, worked_off
from processes import eventually, is_running
from tracelens_stand_in import StandIn

ROWS = {"total_time": 1.0}

Work = Callable[..., dict[str, Outcome]]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """Has jobs worked off in the folder of the test."""

    def run(
        jobs: Sequence[Job], *, seconds: float = 60, memory: int = 100, cores: int = 4
    ) -> dict[str, Outcome]:
        return worked_off(
            jobs,
            sys.executable,
            work=tmp_path / "work",
            logs=tmp_path,
            seconds=seconds,
            memory=memory,
            cores=cores,
        )

    return run


@pytest.fixture
def job(stand_in: StandIn, tmp_path: Path) -> Callable[..., Job]:
    """A job on a trace of its own, with which the stand-in does this."""

    def make(name: str, does: str = "pass", memory: int = 0) -> Job:
        stand_in.knows(tmp_path / name, ROWS, 2.0, does)
        return Job(name, "rows", {"trace": str(tmp_path / name)}, memory)

    return make


MakeJob = Callable[..., Job]


def test_the_answer_of_each(job: MakeJob, work: Work, tmp_path: Path) -> None:
    outcomes = work([job("a"), job("b", "print('something')")])
    assert outcomes == dict.fromkeys("ab", Outcome({"rows_us": ROWS, "largest_us": 2.0}))
    assert not (tmp_path / "a.log").exists()
    assert (tmp_path / "b.log").read_text() == "something\n"


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("raise KeyError('name')", "KeyError: 'name'"),
        ("input('install? [y/N] ')", "EOFError: EOF when reading a line"),
        ("print('cannot go on', flush=True); sys.exit(1)", "cannot go on"),
        ("sys.exit(0)", "ended without a word, with exit code 0"),
        ("os._exit(7)", "ended without a word, with exit code 7"),
        ("os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("print('half way', flush=True); os.abort()", "was ended by signal 6 after: half way"),
        ("print('\\x1b[31mred', flush=True); sys.exit(1)", "\ufffd[31mred"),
    ],
)
def test_one_that_fails_is_told_by_its_last_words_and_costs_itself_alone(
    does: str, why: str, job: MakeJob, work: Work
) -> None:
    outcomes = work([job("bad", does), job("good")])
    assert outcomes["bad"] == Outcome(None, why)
    assert outcomes["good"].answer is not None


def test_an_answer_that_is_cut_off_is_none(job: MakeJob, work: Work) -> None:
    does = "import builtins; Path('answer.json').mkdir()"
    assert work([job("a", does)])["a"].answer is None


@pytest.mark.parametrize(
    ("memory", "cores", "most"), [(100, 4, 4), (100, 2, 2), (65, 4, 2), (59, 4, 1)], ids=str
)
def test_cores_and_memory_bound_how_many_there_are_at_once(
    memory: int, cores: int, most: int, job: MakeJob, work: Work, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    # Goes on only when so many are there, and waits a moment for one too many.
    does = (
        f"diary = Path({str(diary)!r}); diary.open('a').write('+')\n"
        f"while diary.read_text().count('+') < {most}: time.sleep(0.01)\n"
        "time.sleep(0.2); diary.open('a').write('-')"
    )
    jobs = [job(name, does, memory=25 if most == 4 else 30) for name in "abcd"]
    assert all(outcome.answer for outcome in work(jobs, memory=memory, cores=cores).values())
    there = [diary.read_text()[:at].count("+") - diary.read_text()[:at].count("-") for at in range(9)]
    assert max(there) == most


def test_what_cannot_fit_is_not_begun(job: MakeJob, work: Work, tmp_path: Path) -> None:
    outcomes = work([job("large", memory=3 * 2**30), job("small")], memory=2**30)
    assert outcomes["large"] == Outcome(None, "may need 3.0 GiB of memory, and 1.0 GiB are free")
    assert outcomes["small"].answer is not None
    assert not (tmp_path / "work" / "large").exists()


HANGS = """\
print('here', flush=True)
child = subprocess.Popen(['sleep', '600'])
Path(trace).with_suffix('.pids').write_text(f'{os.getpid()} {child.pid}')
time.sleep(600)
"""


def pids(tmp_path: Path, name: str) -> list[int]:
    """The hanging process and its child, once they are there."""
    path = tmp_path / f"{name}.pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def are_gone(numbers: Sequence[int]) -> bool:
    return len(numbers) == 2 and eventually(lambda: not any(map(is_running, numbers)))


def test_when_time_is_up_nothing_is_left(job: MakeJob, work: Work, tmp_path: Path) -> None:
    outcomes = work([job("good"), job("hangs", HANGS), job("later")], seconds=5, cores=1)
    assert outcomes["good"].answer is not None
    assert outcomes["hangs"] == Outcome(None, "was stopped when the 5 s for all of it were up")
    assert outcomes["later"] == Outcome(None, "was not begun within the 5 s for all of it")
    assert are_gone(pids(tmp_path, "hangs"))


def test_what_one_has_started_ends_with_it(job: MakeJob, work: Work, tmp_path: Path) -> None:
    assert work([job("a", HANGS.replace("time.sleep(600)", ""))])["a"].answer is not None
    assert are_gone(pids(tmp_path, "a"))


def test_an_interrupt_ends_them(job: MakeJob, work: Work, tmp_path: Path) -> None:
    jobs = [job("hangs", f"{HANGS.replace('time.sleep(600)', '')}os.kill({os.getpid()}, 2); time.sleep(600)")]
    with pytest.raises(KeyboardInterrupt):
        work(jobs)
    assert are_gone(pids(tmp_path, "hangs"))


def test_a_cvs_that_is_killed_leaves_none(job: MakeJob, tmp_path: Path) -> None:
    job("hangs", HANGS)
    script = textwrap.dedent(f"""\
        import sys
        from pathlib import Path
        from cvs.host_tracelens.processes import Job, worked_off
        job = Job("hangs", "rows", {{"trace": {str(tmp_path / "hangs")!r}}})
        here = Path({str(tmp_path)!r})
        worked_off([job], sys.executable, work=here / "work", logs=here, seconds=60, memory=1, cores=1)
    """)
    with subprocess.Popen([sys.executable, "-c", script]) as cvs:
        assert eventually(lambda: pids(tmp_path, "hangs"))
        worker, child = pids(tmp_path, "hangs")
        cvs.kill()
    try:
        assert eventually(lambda: not is_running(worker))
    finally:
        os.kill(child, signal.SIGKILL)
