"""What is looked at and printed where the job runs, whatever else is printed there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import EnvironmentFault, RunError, TransportError
from cvs.hang import RankStack
from cvs.launch import Site, plan_aorta
from cvs.models import CommandResult
from cvs.runtime.base import Runtime, facts_of, rank_stacks
from cvs.runtime.process import ProcessRuntime
from cvs.transport.local import LocalTransport


def told(stdout: str, stderr: str = "", exit_code: int = 0) -> dict[str, str]:
    result = CommandResult(argv=("python",), exit_code=exit_code, stdout=stdout, stderr=stderr)
    return facts_of(result, "a: /bin/python")


@pytest.mark.parametrize(
    "printed",
    [
        '{"torch": "9"}\n',
        'hello {you}\n{"torch": "9"}\nbye {\n',
        'no end of line{"torch": "9"}bye',
        '{"a": 1}\n[{"b": {}}]\n{"torch": "9"}',
    ],
)
def test_facts_among_other_output(printed: str) -> None:
    assert told(printed) == {"torch": "9"}


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("", "nothing"),
        ("-c import json\nmain()\n", "'-c import json main()'"),
        ('{"a": 1}\n', "'{\"a\": 1}'"),
        ("x" * 1000, f"'{'x' * 80}…'"),
    ],
)
def test_an_interpreter_that_prints_something_else(printed: str, shown: str) -> None:
    with pytest.raises(EnvironmentFault) as fault:
        told(printed)
    asked = "where the versions of Python and PyTorch were asked for"
    assert str(fault.value) == f"a: /bin/python: {shown}, {asked}"


def test_an_interpreter_that_fails() -> None:
    with pytest.raises(EnvironmentFault, match=r"^a: /bin/python: ImportError: no$"):
        told("", "Traceback\nImportError: no\n", 1)


def test_stacks_among_other_output() -> None:
    found = rank_stacks('[hook] here\n[{"rank": 3, "error": "gone"}]\n[1]\n')
    assert found == [RankStack(3, (), "gone")]
    assert rank_stacks("no stacks") == []


# --- the workload -----------------------------------------------------------------------------------------


class Node:
    """This machine as a node with a workload of its own, which is plain processes."""

    def __init__(self, folder: Path, transport: LocalTransport) -> None:
        self.folder = folder
        self.aorta = folder / "aorta"
        self._transport = transport

    def lay_out(self, *names: str) -> None:
        for name in names:
            (self.aorta / name).parent.mkdir(parents=True, exist_ok=True)
            (self.aorta / name).touch()

    def runtime(self, python: str = sys.executable, *, copied: bool = False, **keys: Any) -> Runtime:
        """`python`: the job's; `copied`: it is a local node, whose own folder is elsewhere."""
        bench = {"aorta_path": str(self.aorta), "runtime": "process", "accelerator": "none"}
        mode = {"master_launch_mode": "torchrun"}
        plan = plan_aorta(
            ClusterConfig.model_validate({"username": "u", "node_dict": {"a": {"vpc_ip": "127.0.0.1"}}}),
            AortaConfig.model_validate({**bench, "multi_node": mode, **keys}),
            Site(run_id="r1", master_port=29500),
        ).head
        known: dict[str, Any] = {"torch_python": python}
        if copied:
            known |= {"copied_from": str(self.aorta), "aorta_path": str(self.folder / "nodes" / "a")}
        return ProcessRuntime(plan.model_copy(update=known), self._transport)

    def python(self, script: str) -> str:
        """A script in the place of the job's interpreter; `python` in it is a real one."""
        path = self.folder / "python"
        path.write_text(f'#!/bin/sh\npython() {{ {sys.executable} "$@"; }}\n{script}\n')
        path.chmod(0o755)
        return str(path)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with closing(LocalTransport("a")) as transport:
        yield Node(tmp_path, transport)


WORKLOAD = ("train.py", "config/distributed.yaml")
CLONED: dict[str, Any] = {"aorta_auto_clone": True, "aorta_clone_url": "https://example.org/aorta.git"}


@pytest.mark.parametrize("copied", [False, True])
def test_a_workload_that_is_whole(node: Node, copied: bool) -> None:
    node.lay_out(*WORKLOAD)
    runtime = node.runtime(copied=copied)
    runtime.check_workload(timeout=30)
    assert runtime.lacks() is None


@pytest.mark.parametrize(("copied", "where"), [(False, "on the node"), (True, "on this machine")])
def test_no_folder_of_the_workload(node: Node, copied: bool, where: str) -> None:
    with pytest.raises(RunError) as error:
        node.runtime(copied=copied).check_workload(timeout=30)
    assert str(error.value) == f"a: aorta_path {node.aorta}: no such folder {where}"


@pytest.mark.parametrize("copied", [False, True])
def test_files_of_the_workload_that_are_missing(node: Node, copied: bool) -> None:
    node.lay_out("train.py")
    with pytest.raises(RunError) as error:
        node.runtime(copied=copied).check_workload(timeout=30)
    assert str(error.value) == f"a: config/distributed.yaml: not found below aorta_path {node.aorta}"


@pytest.mark.parametrize("copied", [False, True])
def test_a_workload_that_is_yet_to_be_cloned_is_lacking_and_no_error(node: Node, copied: bool) -> None:
    runtime = node.runtime(copied=copied, **CLONED)
    runtime.check_workload(timeout=30)
    assert runtime.lacks() == f"aorta_path {node.aorta} is not there yet; a run clones it"


def test_a_workload_that_may_be_cloned_and_is_there_is_checked(node: Node) -> None:
    node.lay_out("train.py")
    runtime = node.runtime(**CLONED)
    assert runtime.lacks() is None
    with pytest.raises(RunError, match=r"config/distributed\.yaml: not found"):
        runtime.check_workload(timeout=30)


# --- scripts with the job's interpreter -------------------------------------------------------------------


def test_a_look_from_where_the_job_will_run(node: Node) -> None:
    runtime = node.runtime()
    look = runtime.probe("127.0.0.1", ["/dev/null"], timeout=60)
    assert (look.addresses, look.problems, look.image) == (("127.0.0.1",), {}, None)
    assert Path(runtime.plan.out_dir).is_dir()


def test_a_problem_there_is_told(node: Node) -> None:
    look = node.runtime().probe("127.0.0.1", ["/dev/no-such"], timeout=60)
    assert look.problems == {"devices": "/dev/no-such cannot be opened: No such file or directory"}


def test_what_else_is_printed_there_is_no_answer(node: Node) -> None:
    noisy = node.python("""echo '{"problem": "a hook", "hello": {}}'; python "$@"; echo 'bye {}'""")
    look = node.runtime(noisy).probe("127.0.0.1", [], timeout=60)
    assert look.addresses == ("127.0.0.1",)


UNANSWERED = [
    ("echo one >&2; echo two >&2; exit 3", "two"),
    ("exit 3", "nothing was said"),
    ("exit 0", "nothing was said"),
    ("echo '{}'", "nothing was said"),
    ("""echo '{"problems": {}, "problem": ""}'; exit 1""", "nothing was said"),
]


@pytest.mark.parametrize(("script", "why"), UNANSWERED)
def test_an_interpreter_that_does_not_answer(script: str, why: str, node: Node) -> None:
    runtime = node.runtime(node.python(script))
    told = f"a: a check could not be made where the job runs: {why}"
    with pytest.raises(RunError) as probed:
        runtime.probe("127.0.0.1", [], timeout=60)
    with pytest.raises(RunError) as met:
        runtime.meet("listen", 0, "word", 1, "0")
    assert (str(probed.value), str(met.value)) == (told, told)


def test_an_interpreter_that_is_none(node: Node) -> None:
    with pytest.raises(TransportError, match="cannot start /no/python"):
        node.runtime("/no/python").probe("127.0.0.1", [], timeout=60)


def test_an_interpreter_that_never_ends(node: Node) -> None:
    with pytest.raises(TransportError, match="did not end within"):
        node.runtime(node.python("sleep 60")).probe("127.0.0.1", [], timeout=0.5)


def test_scripts_run_in_the_jobs_environment(node: Node) -> None:
    prints = node.python("""echo "{\\"problem\\": \\"$OF_THE_JOB\\"}\"""")
    runtime = node.runtime(prints, environment={"OF_THE_JOB": "seen"})
    assert runtime.meet("listen", 0, "word", 1, "0") == "seen"


def test_both_ends_of_a_try_of_the_port(node: Node) -> None:
    runtime = node.runtime()
    port = LocalTransport("a").free_port("127.0.0.1")
    with ThreadPoolExecutor() as pool:
        head = pool.submit(runtime.meet, "listen", port, "a word", 60, "1")
        assert runtime.meet("call", port, "a word", 60, "127.0.0.1") == ""
        assert head.result() == ""


def test_a_try_that_fails(node: Node) -> None:
    port = LocalTransport("a").free_port("127.0.0.1")
    assert node.runtime().meet("call", port, "a word", 0.3, "127.0.0.1") == "Connection refused"
