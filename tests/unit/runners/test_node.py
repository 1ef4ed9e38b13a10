"""One node of a run, from its start to what it left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from conftest import holder
from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import RunError, TransportError
from cvs.failure import first_failure
from cvs.hang import RankStack
from cvs.launch import AnalysisStep, LaunchPlan, NodePlan, Site, plan_aorta
from cvs.models import CommandResult, Holder
from cvs.run_folder import RunFolder, make_run_folder
from cvs.runners._fanout import Beside
from cvs.runners._node import RunNode
from cvs.runners._watch import Watched
from cvs.runtime.base import Runtime
from cvs.transport.base import Fetched, Process, Sink
from cvs.transport.local import LocalTransport
from processes import eventually

FAILURES = Path(__file__).parents[2] / "data" / "failures"
TRACE = "artifacts/torch_profiler/rank2/host_1.2.pt.trace.json"


class Plain(Runtime):
    """Runs a script of a shell in place of the job; its process is all that can be left."""

    def __init__(self, plan: NodePlan, script: str) -> None:
        super().__init__(plan, LocalTransport(plan.node))
        self.script = script
        self.survivors: list[int] = []

    def hold(self, holder: Holder) -> None:
        self.transport.hold(self.plan.aorta_path, holder)

    def prepare(self, *, timeout: float) -> dict[str, str]:
        self.transport.run(["mkdir", "-p", self.plan.out_dir], timeout=timeout)
        return {"torch": "9.9.9"}

    def _python_there(self, script: str, *words: str, timeout: float) -> CommandResult:
        return self.transport.run([sys.executable, "-c", script, *words], timeout=timeout)

    def start(self, sink: Sink) -> Process:
        argv = ["sh", "-c", self.script]
        return self.transport.start(
            argv,
            cwd=self.plan.workdir,
            environment=self.plan.variables(),
            folder=self.plan.out_dir,
            sink=sink,
        )

    def stacks(self, *, timeout: float) -> list[RankStack]:
        return [RankStack(rank, error=f"within {timeout:.0f} s") for rank in range(4)]

    def kill_leftovers(self) -> list[int]:
        return self.survivors

    def teardown(self) -> None:
        """Nothing was made."""


def plan_of(nodes_dir: Path, collect_traces: bool = True, port: int | None = None) -> LaunchPlan:
    cluster = {"username": "u", "transport": "local"}
    bench = {"aorta_path": "/srv/aorta", "runtime": "process", "accelerator": "none", "gpus_per_node": 2}
    return plan_aorta(
        ClusterConfig.model_validate(
            {**cluster, "node_dict": {"a": {"vpc_ip": "::1"}, "b": {"vpc_ip": "::1"}}}
        ),
        AortaConfig.model_validate({**bench, "multi_node": {"collect_traces": collect_traces}}),
        Site(run_id="r1", nodes_dir=str(nodes_dir), master_port=port),
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return make_run_folder(tmp_path / "r1")


class Factory:
    """Makes node rank 1 of two, with two ranks each."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.made: list[RunNode] = []

    def __call__(self, script: str = "exit 0", collect_traces: bool = True) -> RunNode:
        node = self.unprepared(Plain, script, collect_traces)
        node.prepare()
        return node

    def unprepared(self, kind: type[Plain], script: str = "exit 0", collect_traces: bool = True) -> RunNode:
        job = plan_of(self.folder.nodes_dir, collect_traces)
        runtime = kind(job.nodes[1], script)
        node = RunNode(job.nodes[1], job, runtime.transport, runtime, self.folder)
        self.made.append(node)
        return node

    def ran(self, script: str, collect_traces: bool = True) -> RunNode:
        """A node whose job has ended."""
        node = self(script, collect_traces)
        node.start(self.said.append)
        watched = node.watched
        assert watched is not None
        assert eventually(lambda: watched.process.poll() is not None)
        watched.exit_code = watched.process.poll()
        watched.ended_after = 1.5
        node.end()
        return node


@pytest.fixture
def make(folder: RunFolder) -> Iterator[Factory]:
    factory = Factory(folder)
    yield factory
    for node in factory.made:
        if node.watched:
            node.watched.process.signal(signal.SIGKILL)
        node.teardown()


# --- before the job ---------------------------------------------------------------------------------------


class Builds(Plain):
    """Says something while it builds, and fails or not."""

    says: bytes = b"compiles\n"
    why: str | None = None

    def build(self, log: Sink, *, timeout: float) -> dict[str, str]:
        assert timeout <= 60
        if self.says:
            log(self.says)
        if self.why:
            raise RunError(self.why)
        return {"rccl_revision": "1"}


def test_a_build_has_a_log_and_its_lines_are_shown(make: Factory, folder: RunFolder) -> None:
    node = make.unprepared(Builds)
    node.runtime.say = make.said.append
    node.prepare()
    node.build(time.monotonic() + 60)
    assert node.facts == {"torch": "9.9.9", "rccl_revision": "1"}
    assert make.said == ["b | compiles"]
    assert (folder.node_logs(1) / "rccl_build.log").read_text() == "compiles\n"


def test_a_build_that_fails_names_its_log(make: Factory) -> None:
    node = make.unprepared(type("Fails", (Builds,), {"why": "b: no hipcc"}))
    with pytest.raises(RunError, match=r"^b: no hipcc; log: logs/node_1/rccl_build\.log$"):
        node.build(time.monotonic() + 60)


def test_where_nothing_is_built_there_is_no_log(make: Factory, folder: RunFolder) -> None:
    node = make.unprepared(type("Fails", (Builds,), {"why": "b: no git", "says": b""}))
    with pytest.raises(RunError, match=r"^b: no git$"):
        node.build(time.monotonic() + 60)
    make().build(time.monotonic() + 60)
    assert not (folder.node_logs(1) / "rccl_build.log").exists()


class BreaksOff(Plain):
    """Makes ready until it is told to stop."""

    def prepare(self, *, timeout: float) -> dict[str, str]:
        del timeout
        if not eventually(lambda: self.is_broken_off, 15):
            raise AssertionError("nobody has broken it off")
        raise TransportError("b: was stopped")


def test_what_is_under_way_is_broken_off_at_the_end(make: Factory) -> None:
    node = make.unprepared(BreaksOff)
    preparing = Beside(node.prepare)
    assert eventually(node._lock.locked)
    node.end()
    with pytest.raises(TransportError, match="was stopped"):
        preparing.result()


# --- output -----------------------------------------------------------------------------------------------


def test_each_line_goes_to_the_log_as_it_is_and_to_the_console_with_its_rank(
    make: Factory, folder: RunFolder
) -> None:
    make.ran("echo plain; echo '[default0]:step 1'; echo '[default1]:[rank3]: Traceback'; printf last")
    log = folder.node_log(1).read_bytes()
    assert log == b"plain\n[default0]:step 1\n[default1]:[rank3]: Traceback\nlast"
    assert make.said == ["b | plain", "b rank 2 | step 1", "b rank 3 | [rank3]: Traceback", "b | last"]


def test_what_would_disturb_a_terminal_is_not_shown(make: Factory, folder: RunFolder) -> None:
    make.ran("printf 'red \\033[31m\\tx\\r\\n\\377\\n'")
    assert folder.node_log(1).read_bytes() == b"red \x1b[31m\tx\r\n\xff\n"
    assert make.said == ["b | red �[31m\tx", "b | �"]


def test_a_log_that_cannot_be_written_is_noted_and_does_not_stall_the_job(
    make: Factory, folder: RunFolder
) -> None:
    folder.node_log(1).symlink_to("/dev/full")
    node = make.ran(
        "i=0; while [ $i -lt 40 ]; do head -c 8000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done"
    )
    assert len(make.said) == 40
    assert node.result().exit_code == 0
    assert node.trouble == f"b: its log cannot be written: No space left on device: {folder.path}"
    assert node.result().error == node.trouble


# --- the end ----------------------------------------------------------------------------------------------


def test_what_still_runs_is_ended(make: Factory) -> None:
    node = make("trap '' TERM; while :; do sleep 60; done")
    node.start(make.said.append)
    node.end()
    watched = node.watched
    assert watched is not None
    assert eventually(lambda: watched.process.poll() == -9)
    assert node.left_running == []


def test_a_node_that_was_never_started_ends_too(make: Factory) -> None:
    make().end()


def test_what_survives_everything_is_told(make: Factory) -> None:
    node = make()
    assert isinstance(node.runtime, Plain)
    node.runtime.survivors = [17, 18]
    with pytest.raises(TransportError, match=r"^b: processes \[17, 18\] cannot be ended$"):
        node.end()
    assert node.result().left_running == (17, 18)


# --- analyses ---------------------------------------------------------------------------------------------


class Analyses(Plain):
    """One analysis works, the other does not."""

    def analyse(self, step: AnalysisStep, folder: str, log: Sink, *, timeout: float) -> None:
        assert 0 < timeout <= 1800
        log(f"{step.name} of {folder}\n".encode())
        if step.name == "gemm":
            raise RunError("b: no TraceLens")
        self.transport.run(["mkdir", "-p", f"{self.plan.aorta_path}/{folder}/tracelens_analysis"], timeout=9)
        (Path(self.plan.aorta_path) / folder / "tracelens_analysis" / "x.xlsx").touch()


def analysed(make: Factory, script: str = "", skip_if_exists: bool = False) -> RunNode:
    """A node whose job has ended, with two analyses in its plan."""
    node = make.unprepared(Analyses, script)
    steps = (
        AnalysisStep(name=name, argv=("bash", "x.sh", "?"), skip_if_exists=skip_if_exists)
        for name in ("tracelens", "gemm")
    )
    node.plan = node.plan.model_copy(update={"analyses": tuple(steps)})
    node.prepare()
    write(node, TRACE)
    return node


def write(node: RunNode, name: str) -> None:
    path = Path(node.plan.aorta_path, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")


def test_what_the_job_wrote_is_analysed(make: Factory, folder: RunFolder) -> None:
    node = analysed(make)
    assert node.analyse() == ["b: no TraceLens; log: logs/node_1/gemm.log"]
    assert (folder.node_logs(1) / "tracelens.log").read_text() == "tracelens of artifacts\n"
    assert make.said == []
    node.collect()
    assert "node_1/artifacts/tracelens_analysis/x.xlsx" in [file.path for file in node.files]


def test_what_is_there_already_is_left_out_if_wished(make: Factory, folder: RunFolder) -> None:
    node = analysed(make, skip_if_exists=True)
    write(node, "artifacts/tracelens_analysis/deep/old.xlsx")
    assert node.analyse() == []
    assert not (folder.node_logs(1) / "tracelens.log").exists()


def test_without_new_traces_there_is_nothing_to_analyse(make: Factory) -> None:
    node = analysed(make)
    Path(node.plan.aorta_path, TRACE).unlink()
    assert node.analyse() == ["b: nothing to analyse: the job left no new traces"]


# --- collection -------------------------------------------------------------------------------------------

JOB = f"""
    mkdir -p "$(dirname {TRACE})" && echo new > {TRACE} && echo m > artifacts/rank_02_metrics.jsonl
    logs=.cvs/r1/b/torchrun/r1_abc/attempt_0/1 && mkdir -p $logs && echo e > $logs/stderr.log
"""


def test_this_runs_files_and_logs_come_home(make: Factory, folder: RunFolder) -> None:
    node = make(JOB)
    old = Path(node.plan.aorta_path, "artifacts/torch_profiler/rank2/old.json")
    old.parent.mkdir(parents=True)
    old.touch()
    node.prepare()
    node.start(make.said.append)
    assert node.watched is not None
    assert eventually(lambda: Path(node.plan.out_dir, "torchrun/r1_abc/attempt_0/1/stderr.log").exists())
    node.end()
    node.collect()
    assert [file.path for file in node.files] == ["node_1/artifacts/rank_02_metrics.jsonl", f"node_1/{TRACE}"]
    assert {file.node_rank for file in node.files} == {1}
    assert (folder.traces / "node_1" / TRACE).read_text() == "new\n"
    assert (
        folder.node_logs(1) / "torchrun" / "r1_abc" / "attempt_0" / "1" / "stderr.log"
    ).read_text() == "e\n"
    assert not Path(node.plan.out_dir).exists()
    assert old.exists()


def test_logs_come_home_where_traces_are_not_wanted(make: Factory, folder: RunFolder) -> None:
    node = make.ran(JOB, collect_traces=False)
    node.collect()
    assert node.files == []
    assert (folder.node_logs(1) / "torchrun" / "r1_abc" / "attempt_0" / "1" / "stderr.log").exists()


def test_a_node_that_left_nothing(make: Factory) -> None:
    node = make.ran("exit 1")
    node.collect()
    assert node.files == []


class Lossy(LocalTransport):
    """Loses what it fetches."""

    def fetch(self, folder: str, paths: Sequence[str], into: Path, *, timeout: float) -> Fetched:
        fetched = super().fetch(folder, paths, into, timeout=timeout)
        return fetched._replace(digests=dict.fromkeys(fetched.digests, "another"))


def test_files_that_do_not_arrive_as_they_left_are_an_error(make: Factory) -> None:
    node = make.ran(JOB)
    node.transport = Lossy("b")
    node.collect()
    assert node.files == []
    assert node.result().error == (
        "b: 2 files did not arrive as they left, among them artifacts/rank_02_metrics.jsonl"
    )


# --- where the ranks are ----------------------------------------------------------------------------------


def test_the_stacks_of_the_nodes_own_ranks_are_kept_with_the_last_line_of_each(
    make: Factory, folder: RunFolder
) -> None:
    node = make.ran("echo '[default1]:one'; echo '[default1]:two'; echo three")
    assert [stack.rank for stack in node.stacks()] == [2, 3]
    assert (folder.path / node.stacks_log).read_text() == (
        "rank 2\n    within 20 s\n    last line: –\nrank 3\n    within 20 s\n    last line: two\n"
    )


def test_steps_are_seen(make: Factory) -> None:
    node = make.ran("echo {} > rank_02_metrics.jsonl")
    assert node.makes_steps(60)
    os.utime(Path(node.plan.aorta_path, "rank_02_metrics.jsonl"), (0, 0))
    assert not node.makes_steps(60)


# --- what is known ----------------------------------------------------------------------------------------


def test_result(make: Factory) -> None:
    node = make.ran("echo x; exit 3")
    node.note(RunError("b: one"))
    node.note(RunError("b: two"))
    result = node.result()
    assert (result.node_rank, result.node, result.exit_code, result.seconds) == (1, "b", 3, 1.5)
    assert (result.stopped_by_cvs, result.left_running) == (False, ())
    assert result.log == "logs/node_1.log"
    assert result.facts == {"torch": "9.9.9"}
    assert result.error == "b: one; b: two"


def test_result_of_a_node_that_was_never_started(make: Factory) -> None:
    result = make().result()
    assert (result.exit_code, result.seconds, result.log, result.error) == (None, None, None, None)


def test_a_new_plan_reaches_the_runtime(make: Factory, folder: RunFolder) -> None:
    node = make()
    node.rebind(plan_of(folder.nodes_dir, port=29999))
    assert "--master_port=29999" in node.plan.argv
    assert node.plan == node.runtime.plan
    assert node.plan.node == "b"


def test_teardown_lets_go_of_the_node(make: Factory) -> None:
    node = make()
    node.transport.hold(node.plan.aorta_path, holder("r1"))
    node.teardown()
    other = LocalTransport("b")
    other.hold(node.plan.aorta_path, holder("r2"))
    other.close()


# --- the trail --------------------------------------------------------------------------------------------


def saved(folder: RunFolder, case: str, node_rank: int) -> RunNode:
    """A node whose logs are those of a saved case."""
    shutil.copytree(FAILURES / case, folder.path / "logs", dirs_exist_ok=True)
    job = plan_of(folder.nodes_dir)
    runtime = Plain(job.nodes[node_rank], "exit 1")
    node = RunNode(job.nodes[node_rank], job, runtime.transport, runtime, folder)
    end = json.loads((FAILURES / case / "ends.json").read_text())[str(node_rank)]
    process = runtime.transport.start(["true"], cwd="/", environment={}, folder="", sink=lambda _piece: None)
    node.watched = Watched(process, end["exit_code"], end["seconds"], end["stopped_by_cvs"])
    return node


def test_the_trail_of_a_node_whose_rank_raised(folder: RunFolder) -> None:
    trail = saved(folder, "A", 1).trail()
    assert (trail.node_rank, trail.node, trail.exit_code, trail.stopped_by_cvs) == (1, "b", 1, False)
    assert trail.log == "logs/node_1.log"
    assert "Root Cause (first observed failure)" in trail.output
    assert [(rank.rank, rank.local_rank) for rank in trail.ranks] == [(2, 0), (3, 1)]
    victim, culprit = trail.ranks
    assert victim.error is not None
    assert "Connection closed by peer" in victim.error
    assert culprit.error == "RuntimeError: injected failure: rank 3 raises in step 5 (inject.kind raise)"
    assert culprit.log is not None
    assert (folder.path / culprit.log).read_text() == culprit.stderr


def test_a_rank_without_an_error_file(folder: RunFolder) -> None:
    assert [rank.error for rank in saved(folder, "B", 1).trail().ranks] == [None, None]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"message": {}}', '{"message": null}', "\xff"])
def test_an_error_file_that_says_nothing(folder: RunFolder, text: str) -> None:
    node = saved(folder, "A", 1)
    [file] = folder.node_logs(1).glob("torchrun/*/attempt_0/1/error.json")
    file.write_bytes(text.encode("latin-1"))
    assert node.trail().ranks[1].error == ""


def test_an_error_file_of_plain_text(folder: RunFolder) -> None:
    node = saved(folder, "A", 1)
    [file] = folder.node_logs(1).glob("torchrun/*/attempt_0/1/error.json")
    file.write_text('{"message": "ValueError: wrong"}')
    assert node.trail().ranks[1].error == "ValueError: wrong"


def test_a_node_without_logs(make: Factory) -> None:
    trail = make().trail()
    assert (trail.output, trail.ranks, trail.exit_code) == ("", (), None)


def test_of_a_long_log_the_end_is_looked_into(folder: RunFolder) -> None:
    node = saved(folder, "B", 1)
    log = folder.node_log(1)
    text = log.read_text()
    log.write_text("[default0]:step\n" * 100_000 + text)
    output = node.trail().output
    assert len(output) < 300_000
    assert output.endswith(text)


def test_the_trails_of_all_nodes_name_who_failed(folder: RunFolder) -> None:
    failure = first_failure([saved(folder, "H", node_rank).trail() for node_rank in (0, 1)])
    assert failure is not None
    assert failure.ranks == (3,)
    assert failure.log is not None
    assert (folder.path / failure.log).is_file()
