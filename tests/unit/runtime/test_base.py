"""What is printed where the job runs, whatever else is printed there."""

from __future__ import annotations

import pytest

from cvs.errors import EnvironmentFault
from cvs.hang import RankStack
from cvs.models import CommandResult
from cvs.runtime.base import facts_of, rank_stacks


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
