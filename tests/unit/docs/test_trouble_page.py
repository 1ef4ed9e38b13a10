"""The page of what goes wrong against the code: what cvs says stands there, word by word."""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import paramiko
import pytest

from conftest import (
    PACKAGE,
    REPOSITORY,
    SAVED_FAILURES,
    TRACES,
    Files,
    SaveRun,
    holder,
    run_cvs,
    saved_trails,
    torchrun_summary,
)
from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import CvsError, EnvironmentFault, NodeInUse, RunError, TransportError
from cvs.failure import NodeTrail, RankTrail, first_failure
from cvs.hang import Frame, RankStack
from cvs.launch import LaunchPlan, Site, plan_aorta
from cvs.models import Failure, RunResult, RunStatus
from cvs.parsers.torch_trace import TorchTraceParser
from cvs.parsers.tracelens import TraceLensParser
from cvs.pipeline import measure, measure_traces
from cvs.preflight import Finding, JobLook, NodeLook, bad, findings_of_jobs, findings_of_nodes
from cvs.run_folder import RunFolder, new_run_folder
from cvs.runners._node import RunNode
from cvs.runners._node_log import gap
from cvs.runners._preflight import Preflight
from cvs.runners._stall import failure_of
from cvs.runners.aorta import AortaRunner
from cvs.runtime._clone import Workload
from cvs.runtime._engine import Engine
from cvs.runtime._owned import HOLDER
from cvs.runtime._programs import demand_programs
from cvs.runtime.base import rank_stacks
from cvs.runtime.process import ProcessRuntime, find_torch_python
from cvs.thresholds import check_evidence
from cvs.transport._ssh_connect import ConnectError, SshLimits, connect
from cvs.transport._ssh_errors import explained
from cvs.transport._ssh_host_keys import KnownHosts, PublicKey, objection
from cvs.transport._ssh_target import SshTarget
from cvs.transport.local import LocalTransport
from engine import Answer, engine
from repositories import Repository, git
from sshd import make_key, public

DOCS = REPOSITORY / "docs"
STACKS = Path(__file__).parents[2] / "data" / "stacks"
RUN_ID = "20261130T080104.631Z-c04272"

VARIES = {
    r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}": "RUN",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00": "TIME",
    r"(?<![^\s=])[/…][\w/….+-]+": "PATH",
    r"of \w+@[\w.-]+": "of USER@HOST",
    r"SHA256:[\w+/]+": "SHA256:DIGEST",
    r"left on [\w.-]+ is": "left on HOST is",
    r"\d+(?=( s|ms| seconds| bytes| MiB)\b)": "N",
    r"(?<=a run needs )\d+": "N",
    r"\b(port:?|Process|127\.0\.0\.1,|train\.py:)( ?)\d+": r"\1\2N",
}
"""What is another in each run."""


def plain(text: str) -> str:
    """The text on one line, and without what varies."""
    text = " ".join(text.split())
    for pattern, name in VARIES.items():
        text = re.sub(pattern, name, text)
    return text


def shown(page: str) -> list[str]:
    """What stands in the blocks of text of a page, one string for each message."""
    text = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"^\.\. code-block:: text\n\n((?:   .*\n|\n)+)", text, re.MULTILINE)
    return [message for block in blocks for message in re.split(r"\n\n|\n   (?! )", block.strip())]


MESSAGES = [plain(message) for message in shown("how-to/trouble.rst")]


def stands(text: str) -> bool:
    """Whether the page shows this, alone or as a part of a message."""
    return any(plain(text) in message for message in MESSAGES)


def assert_stands(text: str) -> None:
    assert stands(text), f"not on the page: {plain(text)}"


# --- who failed first -------------------------------------------------------------------------------------


def reason_of(trails: list[NodeTrail]) -> str:
    found = first_failure(trails)
    assert found is not None
    return found.reason


ANOTHER_A = "forced"
"""A rank that raises, as in A; the case is there for what torchrun did to the other."""
SAVED = sorted({path.name for path in SAVED_FAILURES.iterdir() if path.is_dir()} - {ANOTHER_A})


@pytest.mark.parametrize("case", SAVED)
def test_the_first_failure_of_each_saved_job(case: str) -> None:
    assert_stands(reason_of(saved_trails(case)))


def test_a_rank_that_ends_with_a_code() -> None:
    stderr = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo\n"
    rank = RankTrail(0, 0, stderr=stderr)
    assert_stands(
        reason_of([NodeTrail(0, "node-0", 1, 3.0, output=torchrun_summary((0, 2, 70)), ranks=(rank,))])
    )


def test_all_ranks_that_end_with_one_error() -> None:
    error = "UsageError: inject.knd: no such key, known are kind, rank, step and ms"
    ranks = [RankTrail(rank, rank % 2, error=error) for rank in range(4)]
    nodes = [NodeTrail(n, f"node-{n}", 1, 3.0, ranks=tuple(ranks[2 * n : 2 * n + 2])) for n in (0, 1)]
    assert_stands(reason_of(nodes))


def test_the_sentences_of_the_explanation_are_those_of_the_page() -> None:
    sentences = [line for line in shown("explanation/stopping.rst") if "(node rank" in line]
    assert len(sentences) == 8
    for sentence in sentences:
        assert_stands(sentence.removesuffix("…"))


# --- where the ranks stand --------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return new_run_folder(tmp_path / "cvs_runs", "test_aorta")


def told_of(stacks: list[RankStack], files: Files, folder: RunFolder) -> Failure:
    """What is said of a job that stands still, with two ranks on each of two nodes."""
    runner = AortaRunner(*files.load())
    runner._make_nodes(folder)
    first, second = runner._nodes
    return failure_of({first: stacks[:2], second: stacks[2:]}, 30)


def test_ranks_that_are_loading_modules(files: Files, folder: RunFolder) -> None:
    frame = Frame("_call_with_frames_removed", "<frozen importlib._bootstrap>", 241)
    stacks = [RankStack(rank, (frame,)) for rank in range(4)]
    assert_stands(told_of(stacks, files, folder).reason)


def test_where_the_ranks_of_a_job_stand_that_hangs(files: Files, folder: RunFolder) -> None:
    failure = told_of(rank_stacks((STACKS / "ddp.json").read_text()), files, folder)
    assert failure.ranks == (3,)
    assert_stands(failure.reason)


def test_that_there_is_no_py_spy(files: Files, folder: RunFolder) -> None:
    environment = {**os.environ, "CVS_RUN_ID": RUN_ID, "RANK": "0"}
    look = [sys.executable, str(PACKAGE / "runtime" / "_stacks.py"), RUN_ID, "1", "/no/py-spy"]
    with subprocess.Popen(["sleep", "60"], env=environment) as rank:
        try:
            done = subprocess.run(look, capture_output=True, text=True, timeout=30, check=True)
        finally:
            rank.kill()
    assert_stands(told_of(rank_stacks(done.stdout), files, folder).reason)


# --- runs, without PyTorch --------------------------------------------------------------------------------

STAND_IN = """\
#!/bin/sh
[ "$1" = -c ] && exec echo '{}'
"""
"""Answers what cvs asks the job's interpreter before the start; a script follows in torchrun's place."""


def stand_in(home: Path, script: str) -> str:
    python = home / "python3"
    python.write_text(f"{STAND_IN}{script}\n")
    python.chmod(0o755)
    return str(python)


class Run:
    """Runs of a job that is a script, on the nodes of one folder; no Python looks at them before."""

    def __init__(self, home: Path, files: Files, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.files = files
        self.folder = folder
        self.said: list[str] = []
        self._environment = monkeypatch

    def __call__(self, script: str, *, wait: float = 0, **limits: float) -> RunResult:
        self._environment.setenv("TORCH_PYTHON", stand_in(self.home, script))
        runner = AortaRunner(
            *self.files.load(),
            console=self.said.append,
            adjust=lambda plan: plan.model_copy(update={"limits": plan.limits.model_copy(update=limits)}),
        )
        return runner.execute(self.folder, wait=wait, preflight=False)

    def lines(self, words: str) -> list[str]:
        """The lines on the console that have these words."""
        return [line for line in self.said if words in line]

    def aorta(self, node: str) -> Path:
        return self.folder.nodes_dir / node / "aorta"


@pytest.fixture
def run(tmp_path: Path, files: Files, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path, files, folder, monkeypatch)


def why(result: RunResult) -> str:
    assert result.failure is not None
    return result.failure.reason


PORT_IS_TAKEN = """\
case "$*" in *--node_rank=1*) sleep 2;; esac
for word; do case $word in --master_port=*) port=${word#*=};; esac; done
echo "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network" \\
    "address. port: $port, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
exit 1
"""


def test_a_port_that_is_taken_twice(run: Run) -> None:
    reason = why(run(PORT_IS_TAKEN))
    assert reason.count("port") == 3
    assert_stands(reason)
    [told] = run.lines("was started again")
    assert_stands(told)


ONE_IS_LEFT = 'case "$*" in *--node_rank=0*) exit {code};; esac; exec sleep 60'


def test_nodes_that_do_not_end_by_themselves(run: Run) -> None:
    reason = why(run(ONE_IS_LEFT.format(code=3), grace=0))
    assert reason.startswith("node-0 (node rank 0) ended first, with exit code 3; ")
    assert_stands(reason.partition("; ")[2])


def test_nodes_that_do_not_end_though_others_ended_well(run: Run) -> None:
    assert_stands(why(run(ONE_IS_LEFT.format(code=0), after_first_end=0)))


def test_a_job_that_stands_still(run: Run) -> None:
    result = run("echo '[default0]:one'; exec sleep 60", stall=1)
    assert result.status is RunStatus.FAILED
    [told] = run.lines("no line and no step")
    assert_stands(told)


def test_the_time_limit(run: Run) -> None:
    result = run("exec sleep 60", total=3)
    assert result.status is RunStatus.TIMEOUT
    assert_stands(why(result))


def test_ctrl_c(tmp_path: Path, files: Files) -> None:
    interrupts = 'case "$*" in *--node_rank=0*) kill -INT $PPID;; esac; exec sleep 60'
    python = stand_in(tmp_path, interrupts)
    words = ["run", "test_aorta", *files.options, "--no_preflight"]
    done = run_cvs(*words, cwd=tmp_path, TORCH_PYTHON=python)
    assert done.returncode == 2
    [told] = [line for line in done.stdout.splitlines() if line.startswith("cvs | interrupted")]
    assert_stands(told)
    [reason] = re.findall(r"^evidence: run \S+ did not end well \(failed\): (.*)$", done.stdout, re.MULTILINE)
    assert_stands(reason)


@pytest.mark.parametrize("host", [socket.gethostname(), "other"])
def test_what_a_killed_cvs_left(host: str, run: Run) -> None:
    lock = run.aorta("node-0") / ".cvs" / "lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(holder(RUN_ID, host).model_dump_json())
    run("exit 0")
    [told] = run.lines("did not end")
    assert_stands(told)


def test_nodes_that_another_run_holds(run: Run) -> None:
    other = LocalTransport("other")
    for node in ("node-0", "node-1"):
        other.hold(str(run.aorta(node)), holder(RUN_ID))
    with pytest.raises(NodeInUse) as refused:
        run("exit 0", wait=0.2)
    other.close()
    assert_stands(str(refused.value))
    first = run.lines("waiting up to")[0].partition(f"run {RUN_ID}")[0]
    assert_stands(f"{first}run")


# --- nodes that are not fit -------------------------------------------------------------------------------


def fleet(count: int = 2, address: str = "10.0.0.1", **keys: Any) -> LaunchPlan:
    """A job on gpu01, gpu02 and so on, which meet at this address."""
    nodes = {f"gpu0{number}": {"vpc_ip": f"10.0.0.{number}"} for number in range(1, count + 1)}
    nodes["gpu01"]["vpc_ip"] = address
    bench = {"aorta_path": "/home/alice/aorta", "docker": {"image": "example/torch:2"}, **keys}
    return plan_aorta(
        ClusterConfig.model_validate({"username": "alice", "node_dict": nodes}),
        AortaConfig.model_validate(bench),
        Site(run_id=RUN_ID, master_port=29500),
    )


def assert_one_stands(findings: list[Finding]) -> None:
    """There is one of gpu02 that is not good."""
    [told] = [finding for finding in findings if finding.status != "good"]
    assert told.node == "gpu02"
    assert_stands(str(told))


HERE = ("lo", "eth0", "ib0")
CONFIG = "config/distributed.yaml"
NODES: dict[str, tuple[dict[str, Any], NodeLook, NodeLook]] = {
    "disk": ({}, NodeLook(), NodeLook(free_bytes=64 << 20)),
    "gpus": ({}, NodeLook(), NodeLook(gpus=7)),
    "nccl": ({"environment": {"NCCL_SOCKET_IFNAME": "ens1"}}, NodeLook(), NodeLook(interfaces=HERE)),
    "gloo": ({"environment": {"GLOO_SOCKET_IFNAME": "lo"}}, NodeLook(), NodeLook(interfaces=HERE)),
    "files": ({}, NodeLook(digests={CONFIG: "1"}), NodeLook(digests={CONFIG: "2"})),
    "commit": ({}, NodeLook(revision="1" * 40), NodeLook(revision="2" * 40)),
}


@pytest.mark.parametrize("case", NODES)
def test_what_a_node_says_of_itself(case: str) -> None:
    keys, *looks = NODES[case]
    looks = [look.model_copy(update={"gpus": 8 if look.gpus is None else look.gpus}) for look in looks]
    assert_one_stands(findings_of_nodes(fleet(**keys), dict(zip(("gpu01", "gpu02"), looks, strict=True))))


def of_addresses(*addresses: str) -> list[JobLook]:
    return [JobLook(addresses=(address,)) for address in addresses]


JOBS: dict[str, tuple[dict[str, Any], list[JobLook]]] = {
    "image": ({}, [JobLook(image="sha256:0123456789abcdef"), JobLook(image="sha256:fedcba9876543210")]),
    "itself": ({"address": "gpu01"}, of_addresses("10.0.0.1", "127.0.1.1")),
    "another": (
        {"address": "gpu01", "count": 4},
        of_addresses("127.0.1.1", "10.9.9.9", "10.0.0.1", "10.0.0.1"),
    ),
    "gloo": ({"accelerator": "none"}, [JobLook(), JobLook(own_addresses=("127.0.1.1",))]),
}


@pytest.mark.parametrize("case", JOBS)
def test_what_is_seen_where_the_job_will_run(case: str) -> None:
    keys, looks = JOBS[case]
    plan = fleet(**keys)
    assert_one_stands(
        findings_of_jobs(plan, {node.node: look for node, look in zip(plan.nodes, looks, strict=True)})
    )


def test_what_does_not_work_where_the_job_will_run(tmp_path: Path) -> None:
    (tmp_path / "aorta").touch()
    probe = [sys.executable, str(PACKAGE / "runtime" / "_probe.py"), "head.invalid"]
    probe += [str(tmp_path / "aorta" / "out"), "/dev/no-such"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=True)
    problems: dict[str, str] = json.loads(done.stdout)["problems"]
    assert set(problems) == {"write", "devices", "rendezvous"}
    words = {
        os.strerror(errno.ENOTDIR): os.strerror(errno.EROFS),
        "Temporary failure in name resolution": "Name or service not known",  # without a network
    }
    for text in problems.values():
        for here, there in words.items():
            text = text.replace(here, there)
        assert_stands(f"gpu02: {text}")


@pytest.mark.parametrize(
    "problem", ["Connection refused", "no answer; a firewall?", "something else answers there"]
)
def test_a_head_that_is_not_reached(problem: str, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(*_words: object) -> str:
        time.sleep(0.5)
        return ""

    plan = fleet()
    monkeypatch.setattr(RunNode, "listen", listen)
    monkeypatch.setattr(RunNode, "call", lambda node, *_words: problem if node.name == "gpu02" else "")
    nodes = []
    for node in plan.nodes:
        transport = LocalTransport(node.node)
        nodes.append(RunNode(node, plan, transport, ProcessRuntime(node, transport), folder))
    checks = Preflight(2)
    checks.meet(plan, nodes)
    [told] = [str(each) for each in bad(checks.findings)]
    assert_stands(told)


def test_an_interpreter_that_is_none() -> None:
    plan = fleet().nodes[1].model_copy(update={"torch_python": "true"})
    with pytest.raises(RunError) as failed:
        ProcessRuntime(plan, LocalTransport("gpu02")).probe("10.0.0.1", [], timeout=30)
    assert_stands(str(failed.value))


# --- the machine ------------------------------------------------------------------------------------------


def test_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cvs.run_folder.LEAST_FREE_BYTES", 1 << 60)
    with pytest.raises(RunError) as refused:
        new_run_folder(tmp_path / "cvs_runs", "test_aorta")
    assert_stands(str(refused.value))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cvs_runs").touch()
    with pytest.raises(RunError) as refused:
        new_run_folder(tmp_path / "cvs_runs", "test_aorta")
    words = {number: os.strerror(number) for number in (errno.ENOTDIR, errno.EROFS)}
    assert_stands(str(refused.value).replace(words[errno.ENOTDIR], words[errno.EROFS]))


def test_a_log_that_cannot_be_written(run: Run) -> None:
    run.folder.node_log(0).symlink_to("/dev/full")
    result = run("echo one; exec sleep 60")
    assert result.nodes[0].error is not None
    assert_stands(result.nodes[0].error)


def test_files_for_which_there_is_no_room(tmp_path: Path) -> None:
    paths = [f"torchrun/…/attempt_0/{rank}/stdout.log" for rank in (1, 0)]
    for path in paths:
        for home in ("node", "here"):
            (tmp_path / home / path).parent.mkdir(parents=True)
        (tmp_path / "node" / path).write_text("a line\n")
        (tmp_path / "here" / path).symlink_to("/dev/full")
    fetched = LocalTransport("node-0").fetch(str(tmp_path / "node"), paths, tmp_path / "here", timeout=30)
    assert fetched.problem is not None
    assert_stands(fetched.problem)


def test_too_much_output(run: Run) -> None:
    line = "x" * 9999
    run(f'case "$*" in *--node_rank=0*) yes {line} | head -n 3500;; esac')
    [told] = run.lines("too much output")
    assert_stands(told)
    assert_stands(gap(1).decode())


@pytest.mark.parametrize("there", [True, False])
def test_no_pytorch(there: bool, tmp_path: Path) -> None:
    python = tmp_path / "python"
    if there:
        python.write_text("#!/bin/sh\nexit 1\n")
        python.chmod(0o755)
    with pytest.raises(CvsError) as refused:
        find_torch_python({"TORCH_PYTHON": str(python)})
    assert_stands(str(refused.value))


# --- nodes behind SSH -------------------------------------------------------------------------------------

GPU07 = SshTarget(node="gpu07", host="gpu07", port=22, user="alice")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        TimeoutError(),
        OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)),
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_node_that_cannot_be_reached(error: Exception) -> None:
    assert_stands(f"gpu07: {explained(error, GPU07, SshLimits().connect, '')}")


class TakesNoKey(paramiko.ServerInterface):
    def get_allowed_auths(self, username: str) -> str:
        del username
        return "publickey"


@contextmanager
def host_that_takes_no_key(host_key: Path) -> Iterator[int]:
    """The port of an SSH server."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            server = paramiko.Transport(listening.accept()[0])
            server.add_server_key(paramiko.Ed25519Key.from_private_key_file(str(host_key)))
            server.start_server(server=TakesNoKey())

        threading.Thread(target=serve, daemon=True).start()
        yield listening.getsockname()[1]


def test_a_login_that_is_refused(tmp_path: Path) -> None:
    key = make_key(tmp_path / "id_ed25519")
    with host_that_takes_no_key(make_key(tmp_path / "host_key")) as port:
        target = SshTarget(
            node="gpu07", host="127.0.0.1", port=port, user="alice", keys=(str(key),),
            known_hosts=(str(tmp_path / "known_hosts"),), host_key_policy="accept-new",
        )  # fmt: skip
        with pytest.raises(ConnectError) as refused:
            connect(target, SshLimits())
    assert_stands(str(refused.value).replace(target.address, GPU07.address))


@pytest.mark.parametrize("known", ["", "gpu07 {other}"], ids=["unknown", "changed"])
def test_a_host_key_that_is_not_trusted(known: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(known.format(other=public(make_key(tmp_path / "other"))))
    shown = paramiko.Ed25519Key.from_private_key_file(str(make_key(tmp_path / "shown")))
    target = SshTarget(node="gpu07", host="gpu07", port=22, user="alice", known_hosts=(str(file),))
    why = objection(target, PublicKey(shown.get_name(), shown.asbytes()), KnownHosts([str(file)]))
    assert_stands(f"gpu07: {why}")


# --- containers -------------------------------------------------------------------------------------------

Answers = dict[str, tuple[int, object]]
"""What an engine answers: status and value, by the path that it is asked at."""
IDLE: Answers = {
    "/version": (200, {"ApiVersion": "1.41", "MinAPIVersion": "1.12"}),
    "/info": (200, {}),
    "/containers/json": (200, []),
    "/images/example/torch:2/json": (404, {"message": "No such image: example/torch:2"}),
    "/images/create": (
        404,
        {
            "message": "pull access denied for example/torch, repository does not exist or may require"
            " 'docker login': denied: requested access to the resource is denied"
        },
    ),
}
"""An engine without images and containers, and the words of a registry that knows no such image."""


def answering(answers: Answers) -> Answer:
    return lambda request: answers[re.sub(r"^/v[\d.]+|\?.*", "", request.path)]


RunInContainers = Callable[..., str]


@pytest.fixture
def run_in_containers(
    tmp_path: Path, files: Files, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> RunInContainers:
    """Runs that come no further than to the container; what they say of one node."""
    aorta = tmp_path / "aorta"
    (aorta / "config").mkdir(parents=True)
    for name in ("train.py", "config/distributed.yaml"):
        (aorta / name).touch()

    def run(answers: Answers = IDLE, path: str = str(aorta), **docker: str) -> str:
        keys = {"image": "example/torch:2", "shm_size": "1m", **docker}
        files.edit('"{cvs}/workloads/aorta"', path)
        files.edit("runtime: process", f"runtime: docker\ndocker: {json.dumps(keys)}")
        with engine(answering(answers)) as url:
            monkeypatch.setenv("DOCKER_HOST", url)
            reason = why(AortaRunner(*files.load(), console=lambda _line: None).execute(folder))
        _, first, second = re.split("node-[01]: ", reason)
        assert first == f"{second}; "
        return second

    return run


def test_no_image(run_in_containers: RunInContainers) -> None:
    assert_stands(f"gpu07: {run_in_containers(pull='never')}")


def test_an_image_that_cannot_be_pulled(run_in_containers: RunInContainers) -> None:
    assert_stands(f"gpu07: {run_in_containers()}")


def docker_that_says(words: str, home: Path, monkeypatch: pytest.MonkeyPatch, code: int = 1) -> None:
    """Puts a script in the place of the `docker` program."""
    (home / "docker").write_text(f"#!/bin/sh\necho '{words}' >&2\nexit {code}\n")
    (home / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:{os.environ['PATH']}")


def test_an_image_that_cannot_be_loaded(
    run_in_containers: RunInContainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_that_says("open /data/image.tar: no such file or directory", tmp_path, monkeypatch)
    assert_stands(f"gpu07: {run_in_containers(image_tar='/data/image.tar')}")


def test_no_folder_of_a_trainer(run_in_containers: RunInContainers, tmp_path: Path) -> None:
    assert_stands(f"gpu07: {run_in_containers(path=str(tmp_path / 'none'))}")


def test_a_folder_without_a_trainer(run_in_containers: RunInContainers, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_stands(f"gpu07: {run_in_containers(path=str(tmp_path / 'empty'))}")


def told_of_the_workload(folder: Path, url: str | None = None, revision: str | None = None) -> str:
    """What a run says of the folder on one node; the same on the page, but for commits."""
    keys = {"node": "gpu07", "aorta_path": str(folder), "clone_url": url, "revision": revision}
    plan = fleet().nodes[0].model_copy(update=keys)
    with pytest.raises(RunError) as failed:
        Workload(plan, LocalTransport("gpu07")).provide(lambda _line: None, timeout=30)
    known = iter(("1f2e3d4c5b6a", "0a9b8c7d6e5f"))
    return re.sub(r"\b[0-9a-f]{12}\b", lambda _found: next(known), str(failed.value))


def test_a_trainer_at_another_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    origin = Repository(tmp_path)
    git(origin.bare, "tag", "v1.2", origin.commit({"train.py": "one"}))
    origin.commit({"train.py": "two"})
    git(tmp_path, "clone", "--quiet", str(origin.bare), "aorta")
    assert_stands(told_of_the_workload(tmp_path / "aorta", revision="v1.2"))
    assert_stands(told_of_the_workload(tmp_path / "aorta", revision="v1.3"))
    (tmp_path / "empty").mkdir()
    assert_stands(told_of_the_workload(tmp_path / "empty", revision="v1.2"))


def test_a_trainer_that_cannot_be_cloned(tmp_path: Path) -> None:
    told = told_of_the_workload(tmp_path / "aorta", url="https://example.invalid/aorta.git")
    assert_stands(told.partition("Could not")[0].replace("example.invalid", "example.com"))


def test_nodes_with_containers_of_another_run(run_in_containers: RunInContainers) -> None:
    labels = {HOLDER: holder(RUN_ID).model_dump_json()}
    busy = {"Id": "1", "Names": ["/aorta-benchmark"], "State": "running", "Labels": labels}
    with pytest.raises(NodeInUse) as refused:
        run_in_containers({**IDLE, "/containers/json": (200, [busy])})
    assert_stands(re.sub(r"node-(\d)", lambda found: f"gpu0{int(found[1]) + 1}", str(refused.value)))


def test_a_container_of_our_name_that_is_not_of_cvs(run_in_containers: RunInContainers) -> None:
    made = datetime(2026, 11, 30, 8, 1, 4, tzinfo=timezone.utc).timestamp()
    other = {
        "Id": "1",
        "Names": ["/aorta-benchmark"],
        "State": "running",
        "Image": "rocm/pytorch",
        "Labels": {},
    }
    with pytest.raises(NodeInUse) as refused:
        run_in_containers({**IDLE, "/containers/json": (200, [{**other, "Created": made}])})
    assert_stands(
        str(refused.value).partition("; gpu")[0].partition("; node-1")[0].replace("node-0", "gpu01")
    )


def test_no_engine_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(TransportError) as failed:
        LocalTransport("node-0").dial_docker(5)
    assert_stands(str(failed.value))


def test_a_node_that_lacks_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault) as failed:
        demand_programs(LocalTransport("gpu07"), ["sh", "timeout", "setsid"])
    assert_stands(str(failed.value))


class OverDialStdio(LocalTransport):
    """This machine, as if a `docker system dial-stdio` that ends at once led to its engine."""

    def dial_docker(self, timeout: float) -> socket.socket:
        del timeout
        here, there = socket.socketpair()
        there.close()
        return here


SOCKET = "unix:///var/run/docker.sock"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (f"permission denied while trying to connect to the Docker daemon socket at {SOCKET}", 1),
        (f"Cannot connect to the Docker daemon at {SOCKET}. Is the docker daemon running?", 1),
        ("sh: 1: docker: not found", 127),
    ],
    ids=["closed", "down", "missing"],
)
def test_an_engine_that_cannot_be_asked(
    words: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_that_says(words, tmp_path, monkeypatch, code)
    with pytest.raises(TransportError) as failed:
        Engine(OverDialStdio("gpu07")).ask("list containers", lambda client: client.containers())
    assert_stands(str(failed.value))


def test_a_container_that_is_killed() -> None:
    stopped = NodeTrail(0, "gpu01", -15, 9.0, stopped_by_cvs=True, output="", ranks=())
    killed = NodeTrail(1, "gpu02", -9, 3.0, output="", ranks=())
    assert_stands(reason_of([stopped, killed]))


# --- traces -----------------------------------------------------------------------------------------------


def flaws(folder: RunFolder) -> list[str]:
    return [violation.message for violation in check_evidence(measure(folder, TorchTraceParser()))]


def assert_all_stand(messages: list[str], *begins: str) -> None:
    assert [next(filter(message.startswith, begins), message) for message in messages] == list(begins)
    for message in messages:
        assert_stands(message)


def test_a_run_that_has_not_ended(save_run: SaveRun) -> None:
    assert_all_stand(flaws(save_run(RunStatus.RUNNING)), "run ")


def test_a_trace_that_is_missing(save_run: SaveRun) -> None:
    assert_all_stand(flaws(save_run(without=("rank3",))), "3 of 4")


def test_no_trace_at_all(save_run: SaveRun) -> None:
    folder = save_run(RunStatus.FAILED, Failure(reason="interrupted before its end"), without=("artifacts",))
    assert_all_stand(flaws(folder)[1:], "no trace", "0 of 4")


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Those of four ranks, of which rank 1 is on its way to trouble."""
    for rank in range(4):
        place = tmp_path / "traces" / f"rank{rank}"
        place.mkdir(parents=True)
        shutil.copy(TRACES / "multirank" / "mr4" / f"rank{rank}_trace.json.gz", place / "trace.json.gz")
    return tmp_path / "traces"


def judged(traces: Path, **known: Any) -> list[str]:
    return [
        violation.message for violation in check_evidence(measure_traces(traces, TraceLensParser(), **known))
    ]


def without_checksum(packed: bytes) -> bytes:
    return packed[:-8] + bytes(byte ^ 255 for byte in packed[-8:-4]) + packed[-4:]


@pytest.mark.parametrize(
    ("damaged", "words"),
    [
        (lambda packed: packed[: len(packed) // 2], "rank 1: trace is truncated: cut off: the gzip"),
        (lambda _: b"", "rank 1: trace is unreadable: empty"),
        (lambda _: b"hello", "rank 1: trace is unreadable: not JSON"),
        (without_checksum, "rank 1: trace is unreadable: gzip: "),
    ],
)
def test_a_packed_trace_that_is_damaged(damaged: Callable[[bytes], bytes], words: str, traces: Path) -> None:
    trace = traces / "rank1" / "trace.json.gz"
    trace.write_bytes(damaged(trace.read_bytes()))
    assert_all_stand(judged(traces), words)


def test_a_trace_that_is_cut_off(traces: Path) -> None:
    trace = traces / "rank1" / "trace.json.gz"
    text = gzip.decompress(trace.read_bytes())
    trace.unlink()
    trace.with_suffix("").write_bytes(text[: len(text) // 2])
    assert_all_stand(judged(traces), "rank 1: trace is truncated: cut off")


def test_a_rank_with_two_traces(traces: Path) -> None:
    for rank in range(4):
        (traces / "node_0").mkdir(exist_ok=True)
        (traces / f"rank{rank}").rename(traces / "node_0" / f"rank{rank}")
    other = traces / "node_1" / "rank1" / "trace.json"
    other.parent.mkdir(parents=True)
    other.write_bytes(gzip.decompress((traces / "node_0" / "rank2" / "trace.json.gz").read_bytes())
                      .replace(b'"rank": 2', b'"rank": 1', 1))  # fmt: skip
    assert_all_stand(judged(traces), "rank 1: trace is duplicate: ")


def as_told(traces: Path, name: str, distributed: dict[str, Any] | None) -> None:
    """A trace that says this of its job."""
    trace = json.loads(gzip.decompress((TRACES / "multirank" / "mr4" / "rank0_trace.json.gz").read_bytes()))
    trace["distributedInfo"] = distributed
    (traces / name).write_text(json.dumps({**trace, "traceName": name}))


def test_traces_whose_rank_nobody_knows(tmp_path: Path) -> None:
    as_told(tmp_path, "a.json", None)
    as_told(tmp_path, "b.json", None)
    first, _ = judged(tmp_path)
    assert_stands(first)


def test_traces_of_separate_worlds(traces: Path, tmp_path: Path) -> None:
    shutil.rmtree(traces / "rank3")
    assert_all_stand(judged(traces, world_size=3), "separate worlds: ranks 0-2 claim")
    lone = tmp_path / "lone"
    lone.mkdir()
    for rank in (0, 1):
        as_told(lone, f"rank{rank}.json", {"rank": 0, "world_size": 1})
    assert_stands(judged(lone)[0])
    mixed = tmp_path / "mixed"
    mixed.mkdir()
    for rank in range(4):
        as_told(mixed, f"rank{rank}.json", {"rank": rank, "world_size": 4 if rank else 2})
    assert_stands(judged(mixed)[0])


def test_no_gpu_events(save_run: SaveRun) -> None:
    folder = save_run()
    manifest = folder.load_manifest()
    declared = manifest.run.model_copy(update={"accelerator": "rocm"})
    folder.save_manifest(manifest.model_copy(update={"run": declared}))
    assert_all_stand(flaws(folder), "accelerator is rocm")
