"""The job as plain processes: making a node ready, and leaving nothing behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from conftest import holder
from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import CvsError, EnvironmentFault, NodeInUse, RunError
from cvs.launch import NodePlan, Site, plan_aorta
from cvs.models import CommandResult
from cvs.runtime.process import ProcessRuntime, find_torch_python
from cvs.transport.local import LocalTransport
from processes import eventually, is_running

RUN_ID = f"20261130T120000.000Z-{secrets.token_hex(3)}"
"""Of its own, since tests beside these (pytest-xdist) end the processes of theirs."""

TORCH = """
__version__ = "9.9.9"
class version: hip = cuda = None
class cuda: is_available = staticmethod(lambda: False)
"""
TORCH_WITH_GPUS = """
__version__ = "9.9.9+rocm6.2"
class version: hip, cuda = "6.2.1", None
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 3)
    get_device_name = staticmethod(lambda i: ["AMD Instinct MI300X", "Other", "AMD Instinct MI300X"][i])
    class nccl: version = staticmethod(lambda: (2, 20, 5))
"""
NO_TORCH = "raise ImportError('libamdhip64.so.6: cannot open shared object file')"


class Node:
    """One local node of a cluster, its workload, and a stand-in for PyTorch that its interpreter imports."""

    def __init__(self, folder: Path, torch: str = TORCH) -> None:
        self.folder = folder
        self.source = folder / "source"
        self.transport = LocalTransport("a")
        modules = folder / "modules" / "torch"
        modules.mkdir(parents=True)
        (modules / "__init__.py").write_text(torch)
        (self.source / "config").mkdir(parents=True)
        (self.source / "train.py").write_text("print()")
        (self.source / "config" / "distributed.yaml").write_text("{}")

    def plan(self, *argv: str) -> NodePlan:
        """This node's plan, with another command where one is given."""
        environment = {"PYTHONPATH": str(self.folder / "modules")}
        cluster = {"username": "u", "transport": "local", "env_vars": environment}
        bench = {"aorta_path": str(self.source), "runtime": "process", "accelerator": "none"}
        site = Site(
            run_id=RUN_ID,
            master_port=29500,
            nodes_dir=str(self.folder / "nodes"),
            torch_python=sys.executable,
        )
        plan = plan_aorta(
            ClusterConfig.model_validate({**cluster, "node_dict": {"a": {"vpc_ip": "127.0.0.1"}}}),
            AortaConfig.model_validate({**bench, "multi_node": {"master_launch_mode": "torchrun"}}),
            site,
        ).head
        return plan.model_copy(update={"argv": argv}) if argv else plan

    def runtime(self, *argv: str) -> ProcessRuntime:
        return ProcessRuntime(self.plan(*argv), self.transport)

    def started(self, script: str) -> ProcessRuntime:
        """The runtime of a job that this script of a shell is, just started in an empty folder."""
        runtime = self.runtime("sh", "-c", script)
        Path(runtime.plan.workdir).mkdir(parents=True)
        runtime.start(lambda _piece: None)
        return runtime

    def pid(self, name: str) -> int:
        """A process id that the job wrote into its folder."""
        file = Path(self.plan().workdir, name)
        assert eventually(lambda: file.exists() and file.read_text().endswith("\n")), "it did not start"
        return int(file.read_text())


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.transport.close()


# --- holding ----------------------------------------------------------------------------------------------


def test_a_node_is_held_by_one_run(node: Node) -> None:
    assert node.runtime().hold(holder(RUN_ID)) is None
    with pytest.raises(NodeInUse, match=f"in use by run {RUN_ID} of alice@here"):
        ProcessRuntime(node.plan(), LocalTransport("a")).hold(holder("another"))


def unfinished(node: Node, run_id: str, host: str = "here") -> None:
    """As a cvs leaves the node that is killed."""
    lock = Path(node.plan().aorta_path, ".cvs", "lock")
    lock.parent.mkdir(parents=True)
    lock.write_text(holder(run_id, host).model_dump_json())


def test_what_a_killed_cvs_left_running_is_ended(node: Node) -> None:
    unfinished(node, "old-run")
    with bystander("sleep", "60", environment={"CVS_RUN_ID": "old-run"}) as worker:
        told = node.runtime().hold(holder(RUN_ID))
        assert eventually(lambda: not is_running(worker))
    assert told is not None
    assert told.startswith("run old-run of alice@here, since 2026-11-30T04:49:07+00:00, did not end: its cvs")


def test_other_runs_processes_are_not(node: Node) -> None:
    unfinished(node, "old-run")
    with bystander("sleep", "60", environment={"CVS_RUN_ID": "old-run-2"}) as worker:
        node.runtime().hold(holder(RUN_ID))
        assert is_running(worker)


def test_what_was_left_on_another_machine_is_told(node: Node) -> None:
    unfinished(node, "old-run", host="login-2")
    told = node.runtime().hold(holder(RUN_ID))
    assert told is not None
    assert told.endswith("what it may have left on login-2 is untouched")


# --- making ready -----------------------------------------------------------------------------------------


def test_a_node_gets_its_copy_and_a_place_for_logs(node: Node) -> None:
    runtime = node.runtime()
    facts = runtime.prepare(timeout=20)
    copy = Path(runtime.plan.aorta_path)
    assert copy == node.folder / "nodes" / "a" / "aorta"
    assert (copy / "train.py").read_text() == "print()"
    assert Path(runtime.plan.out_dir).is_dir()
    assert facts["torch"] == "9.9.9"
    assert facts["interpreter"] == sys.executable
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "gpus" not in facts


def test_nothing_is_written_into_the_source(node: Node) -> None:
    before = sorted(node.source.rglob("*"))
    node.runtime().prepare(timeout=20)
    assert sorted(node.source.rglob("*")) == before


def test_what_an_earlier_run_left_stays(node: Node) -> None:
    node.runtime().prepare(timeout=20)
    left = Path(node.plan().aorta_path, "artifacts", "old")
    left.parent.mkdir()
    left.touch()
    node.transport.close()
    node.runtime().prepare(timeout=20)
    assert left.exists()


def test_gpus_and_their_libraries_are_recorded(tmp_path: Path) -> None:
    facts = Node(tmp_path, TORCH_WITH_GPUS).runtime().prepare(timeout=20)
    assert facts["torch"] == "9.9.9+rocm6.2"
    assert facts["hip"] == "6.2.1"
    assert facts["rccl"] == "2.20.5"
    assert facts["gpus"] == "2 x AMD Instinct MI300X, 1 x Other"


@pytest.mark.parametrize("built_for", ["", "hip = '6.2.1'", "cuda = '12.4'"])
def test_only_a_build_for_gpus_is_loaded(tmp_path: Path, built_for: str) -> None:
    node = Node(tmp_path, NO_TORCH)
    version = f"__version__ = '9.9.9+cpu'\ncuda = hip = None\n{built_for}\n"
    (tmp_path / "modules" / "torch" / "version.py").write_text(version)
    if built_for:
        assert "libamdhip64" in failure(node, EnvironmentFault)
    else:
        assert node.runtime().prepare(timeout=20)["torch"] == "9.9.9+cpu"


def failure(node: Node, kind: type[CvsError]) -> str:
    with pytest.raises(kind) as caught:
        node.runtime().prepare(timeout=20)
    assert type(caught.value) is kind
    return str(caught.value)


def test_no_workload(node: Node) -> None:
    node.source.rename(node.folder / "elsewhere")
    assert failure(node, RunError) == f"a: aorta_path {node.source}: no such folder on this machine"


def test_scripts_that_are_missing_are_named(node: Node) -> None:
    (node.source / "train.py").unlink()
    (node.source / "config" / "distributed.yaml").unlink()
    message = failure(node, RunError)
    assert message == f"a: train.py, config/distributed.yaml: not found below aorta_path {node.source}"


def test_no_torch_on_the_node(tmp_path: Path) -> None:
    message = failure(Node(tmp_path, NO_TORCH), EnvironmentFault)
    assert message.startswith(f"a: {sys.executable}: ImportError: libamdhip64.so.6")
    assert "TORCH_PYTHON" in message
    assert "pip install torch" in message
    assert "\n" not in message


@pytest.mark.parametrize(("python", "printed"), [("/bin/true", "nothing"), ("/bin/echo", "'-c")])
def test_an_interpreter_that_is_none(node: Node, python: str, printed: str) -> None:
    runtime = node.runtime()
    runtime.plan = runtime.plan.model_copy(update={"torch_python": python})
    with pytest.raises(EnvironmentFault) as fault:
        runtime.prepare(timeout=20)
    assert str(fault.value).startswith(f"a: {python}: {printed}")
    assert "\n" not in str(fault.value)


def test_programs_that_are_missing_are_told_before_anything_is_done(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = node.folder / "programs"
    programs.mkdir()
    (programs / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(programs))
    with pytest.raises(EnvironmentFault, match=r"^a: programs missing on the node: .*flock.*util-linux"):
        node.runtime().hold(holder(RUN_ID))
    assert not (node.folder / "nodes").exists()


def test_two_nodes_in_one_folder(node: Node) -> None:
    node.runtime().hold(holder(RUN_ID))
    with pytest.raises(RunError, match="is that of another node of this run, and so is the machine"):
        ProcessRuntime(node.plan(), LocalTransport("a")).hold(holder(RUN_ID))


@pytest.mark.parametrize(
    ("closed", "told"),
    [
        ("", "it, or a folder above it, is closed to the user of cvs on this machine"),
        ("config", "config/distributed.yaml: closed to the user of cvs on this machine"),
    ],
)
def test_a_folder_that_is_closed(closed: str, told: str) -> None:
    class Nobody(LocalTransport):
        """As a user for whom a folder's rights count, which they do not for root."""

        def run(self, argv: Sequence[str], **options: Any) -> CommandResult:
            drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
            return super().run([*drop, *argv], **options)

    # Not below pytest's own folders, which are closed themselves.
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        node = Node(Path(folder))
        node.transport = Nobody("a")
        (node.source / closed).chmod(0)
        try:
            message = failure(node, RunError)
        finally:
            (node.source / closed).chmod(0o755)
    assert message == f"a: aorta_path {node.source}: permission denied: {told}"


# --- which interpreter ------------------------------------------------------------------------------------


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_interpreter_that_is_named(tmp_path: Path) -> None:
    good = script(tmp_path / "my python", "#!/bin/sh\nexit 0\n")
    assert find_torch_python({"TORCH_PYTHON": good, "PATH": "/nowhere"}) == good


def test_a_name_is_looked_up_in_the_path(tmp_path: Path) -> None:
    good = script(tmp_path / "python9", "#!/bin/sh\nexit 0\n")
    assert find_torch_python({"TORCH_PYTHON": "python9", "PATH": str(tmp_path)}) == good


@pytest.mark.parametrize(
    "text", ["#!/bin/sh\nexit 1\n", "no program at all\n"], ids=["no torch", "no program"]
)
def test_one_that_is_named_and_has_no_torch_is_not_replaced_by_another(tmp_path: Path, text: str) -> None:
    bad = script(tmp_path / "python", text)
    with pytest.raises(EnvironmentFault) as caught:
        find_torch_python({"TORCH_PYTHON": bad, "PATH": os.environ["PATH"]})
    assert str(caught.value).startswith(f"no PyTorch: TORCH_PYTHON={bad} cannot import torch; ")
    assert "pip install torch" in str(caught.value)


@pytest.mark.parametrize("name", ["./my python", "venv/bin/python", "venv/../my python"])
def test_a_relative_one_becomes_absolute(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = script(tmp_path / "my python", "#!/bin/sh\nexit 0\n")
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(good)
    monkeypatch.chdir(tmp_path)
    # As it stands, symlinks and all: what a venv's python is a link to does not know the venv.
    assert find_torch_python({"TORCH_PYTHON": name, "PATH": "/nowhere"}) == str(tmp_path / name)


def test_so_does_one_from_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = script(tmp_path / "python9", "#!/bin/sh\nexit 0\n")
    monkeypatch.chdir(tmp_path)
    assert find_torch_python({"TORCH_PYTHON": "python9", "PATH": "."}) == good


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("{}/none", "no such file"),
        ("{}/dangling", "no such file"),
        ("~nobody-of-this-name/bin/python", "no such file"),
        ("python9", "no such program in PATH"),
        ("{}", "cannot be executed"),
        ("{}/text", "cannot be executed"),
    ],
)
def test_one_that_is_no_program(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    named = name.format(tmp_path)
    with pytest.raises(EnvironmentFault) as caught:
        find_torch_python({"TORCH_PYTHON": named, "PATH": str(tmp_path)})
    assert str(caught.value).startswith(f"TORCH_PYTHON={named}: {why}; name an interpreter that has PyTorch")


# --- leaving nothing behind -------------------------------------------------------------------------------


def test_nothing_is_left_of_a_job_that_has_ended(node: Node) -> None:
    runtime = node.started("exit 0")
    assert runtime.kill_leftovers() == []


def test_a_worker_in_its_own_session_that_ignores_sigterm(node: Node) -> None:
    """As torchrun starts its workers: the signal to the launcher's group does not reach them."""
    runtime = node.runtime(
        "sh", "-c", "setsid sh -c 'trap \"\" TERM; echo $$ > worker; exec sleep 60' & wait"
    )
    Path(runtime.plan.workdir).mkdir(parents=True)
    job = runtime.start(lambda _piece: None)
    worker = node.pid("worker")
    job.signal(signal.SIGTERM)
    assert eventually(lambda: job.poll() == -15)
    assert is_running(worker)
    assert runtime.kill_leftovers() == []
    assert not is_running(worker)


def test_workers_whose_launcher_was_killed(node: Node) -> None:
    """SIGKILL on torchrun orphans its workers, which go on training."""
    workers = 'for i in 0 1; do setsid sh -c "echo \\$\\$ > worker$i; exec sleep 60" & done'
    runtime = node.started(f"echo $$ > launcher; {workers}; wait")
    launcher, workers_left = node.pid("launcher"), [node.pid("worker0"), node.pid("worker1")]
    os.kill(launcher, signal.SIGKILL)
    assert eventually(lambda: not is_running(launcher))
    assert all(map(is_running, workers_left))
    assert runtime.kill_leftovers() == []
    assert not any(map(is_running, workers_left))


def test_the_launcher_too_where_it_still_runs(node: Node) -> None:
    runtime = node.started("trap '' TERM INT; echo $$ > launcher; while :; do sleep 60; done")
    launcher = node.pid("launcher")
    assert runtime.kill_leftovers() == []
    assert not is_running(launcher)


def test_a_child_that_keeps_only_the_launchers_variable(node: Node) -> None:
    """A wrapper may clean the environment; torchrun's own mark is as good."""
    runtime = node.started(
        "env -i PATH=$PATH TORCHELASTIC_RUN_ID=$CVS_RUN_ID sh -c 'echo $$ > child; exec sleep 60'"
    )
    child = node.pid("child")
    assert runtime.kill_leftovers() == []
    assert not is_running(child)


def test_one_without_any_environment_in_the_launchers_session(node: Node) -> None:
    runtime = node.started("env -i sh -c 'echo $$ > child; exec sleep 60' & exit 0")
    child = node.pid("child")
    assert runtime.kill_leftovers() == []
    assert not is_running(child)


@contextmanager
def bystander(*argv: str, environment: Mapping[str, str], user: int | None = None) -> Iterator[int]:
    """A process that is not of the run."""
    variables = {"PATH": os.environ["PATH"], **environment}
    command = argv or ("sleep", "60")
    process = subprocess.Popen(command, env=variables, cwd="/", user=user, start_new_session=True)
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


BYSTANDERS = {
    "another run": {"CVS_RUN_ID": "20261130T120000.000Z-abcdefg"},
    "a longer id": {"CVS_RUN_ID": f"{RUN_ID}0"},
    "a shorter id": {"CVS_RUN_ID": RUN_ID[:-1]},
    "an id that a pattern would match": {"CVS_RUN_ID": RUN_ID.replace(".", "x")},
    "another variable": {"MY_CVS_RUN_ID": RUN_ID, "CVS_RUN_ID_2": RUN_ID},
    "two lines": {"NOTE": f"see\nCVS_RUN_ID={RUN_ID}"},
    "no run": {},
}


@pytest.mark.parametrize("environment", BYSTANDERS.values(), ids=BYSTANDERS)
def test_a_process_that_is_not_of_the_run_is_never_touched(node: Node, environment: dict[str, str]) -> None:
    with bystander(environment=environment) as pid:
        assert node.runtime().kill_leftovers() == []
        assert is_running(pid)


def test_nor_is_one_that_only_speaks_of_it(node: Node) -> None:
    with bystander("sh", "-c", "sleep 60; exit", f"CVS_RUN_ID={RUN_ID}", environment={}) as pid:
        assert node.runtime().kill_leftovers() == []
        assert is_running(pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_nor_is_another_users(node: Node) -> None:
    with bystander(user=65534, environment=BYSTANDERS["another run"]) as pid:
        assert node.runtime().kill_leftovers() == []
        assert is_running(pid)


def test_all_at_once_are_told_apart(node: Node) -> None:
    with bystander(environment=BYSTANDERS["another run"]) as other:
        runtime = node.started("setsid sleep 60 & echo $! > worker; exec sleep 60")
        worker = node.pid("worker")
        assert runtime.kill_leftovers() == []
        assert not is_running(worker)
        assert is_running(other)


# --- the job ----------------------------------------------------------------------------------------------


def test_the_job_runs_in_the_workload_with_the_plans_environment(node: Node) -> None:
    runtime = node.runtime("sh", "-c", 'pwd; echo "$CVS_RUN_ID $TORCHELASTIC_RUN_ID $CUDA_VISIBLE_DEVICES"')
    Path(runtime.plan.workdir).mkdir(parents=True)
    said: list[bytes] = []
    job = runtime.start(said.append)
    assert eventually(lambda: job.poll() is not None)
    assert job.drain(5)
    assert b"".join(said).decode() == f"{Path(runtime.plan.aorta_path).resolve()}\n{RUN_ID} {RUN_ID} -1\n"


def test_teardown_leaves_the_workload(node: Node) -> None:
    runtime = node.runtime()
    runtime.prepare(timeout=20)
    runtime.teardown()
    assert Path(runtime.plan.aorta_path, "train.py").exists()
