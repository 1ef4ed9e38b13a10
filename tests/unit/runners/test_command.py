"""One shell command on every node, on local ones."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from cvs.config import ClusterConfig
from cvs.runners.command import KEPT_BYTES, Answer, run_on_nodes
from processes import eventually, processes_of

RUN_ID = secrets.token_hex(6)
"""What all that these tests start has in its environment, by which what is left of it is found."""


def cluster(env_vars: Mapping[str, Mapping[str, str]], max_parallel: int = 64) -> ClusterConfig:
    """Local nodes, each with environment variables of its own."""
    return ClusterConfig.model_validate(
        {
            "username": "u",
            "transport": "local",
            "max_parallel": max_parallel,
            "env_vars": {"TEST_RUN_ID": RUN_ID, "OF": "all", "BY": "the cluster"},
            "node_dict": {
                name: {"vpc_ip": "::1", "env_vars": variables} for name, variables in env_vars.items()
            },
        }
    )


ONE = cluster({"a": {}})
TWO = cluster({"a": {"ME": "a", "OTHER": "b"}, "b": {"ME": "b", "OTHER": "a"}})


def answers(script: str, nodes: ClusterConfig = ONE, seconds: int = 20) -> list[Answer]:
    told: list[str] = []
    try:
        return run_on_nodes(list(nodes.node_dict), script, nodes, seconds=seconds, console=told.append)
    finally:
        assert told == []


def answer(script: str, seconds: int = 20) -> Answer:
    [only] = answers(script, seconds=seconds)
    assert only.seconds is not None
    assert only.seconds > 0
    return only._replace(seconds=None)


# --- what is answered -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo out; echo err >&2; exit 3", Answer("a", 3, "out\n", "err\n")),
        ("false | true", Answer("a", 0)),
        ("printf '%s' \"it's $OF\"", Answer("a", 0, "it's all")),
        ("cat; echo end", Answer("a", 0, "end\n")),
        ("no-such-program 2>/dev/null", Answer("a", 127)),
        ("kill -TERM $$", Answer("a", 128 + signal.SIGTERM)),
        ("kill -KILL $$", Answer("a", 128 + signal.SIGKILL)),
        ("kill -KILL 0", Answer("a", 128 + signal.SIGKILL)),
        ("printf '\\377'", Answer("a", 0, "�")),
    ],
)
def test_both_outputs_and_the_exit_code(script: str, expected: Answer) -> None:
    assert answer(script) == expected


def test_the_command_gets_no_file_but_its_own() -> None:
    assert answer("ls /proc/$$/fd").stdout.split() == ["0", "1", "2"]


def test_variables_of_the_node_stand_over_those_of_the_cluster() -> None:
    own = cluster({"a": {}, "b": {"BY": "b itself"}})
    assert [each.stdout for each in answers('echo "$OF, $BY"', own)] == [
        "all, the cluster\n",
        "all, b itself\n",
    ]


def test_answers_come_in_order(tmp_path: Path) -> None:
    waits = f"[ $ME = b ] || until [ -e {tmp_path}/b ]; do sleep 0.01; done; touch {tmp_path}/$ME"
    assert [each.node for each in answers(waits, TWO)] == ["a", "b"]


def test_of_long_output_the_beginning_is_kept() -> None:
    long = answer(f"head -c {KEPT_BYTES + 7} /dev/zero; echo all >&2; head -c {KEPT_BYTES} /dev/zero >&2")
    assert long.exit_code == 0
    assert long.stdout == "\0" * KEPT_BYTES + "\n[cvs: 7 bytes of output are left out here]\n"
    assert long.stderr == "all\n" + "\0" * (KEPT_BYTES - 4) + "\n[cvs: 4 bytes of output are left out here]\n"


def test_output_that_just_fits_is_whole() -> None:
    assert answer(f"head -c {KEPT_BYTES} /dev/zero").stdout == "\0" * KEPT_BYTES


# --- side by side -----------------------------------------------------------------------------------------

MEET = "cd {0} && touch $ME && until [ -e $OTHER ]; do sleep 0.01; done"
ALONE = "cd {0} && mkdir lock && sleep 0.3 && rmdir lock"


def test_nodes_work_at_the_same_time(tmp_path: Path) -> None:
    assert [each.exit_code for each in answers(MEET.format(tmp_path), TWO)] == [0, 0]


def test_but_at_most_max_parallel_of_them(tmp_path: Path) -> None:
    three = cluster({"a": {}, "b": {}, "c": {}}, max_parallel=1)
    assert [each.exit_code for each in answers(ALONE.format(tmp_path), three)] == [0, 0, 0]


# --- time -------------------------------------------------------------------------------------------------


def test_what_takes_too_long_is_ended_and_what_it_had_said_is_kept() -> None:
    late = answer("echo before; setsid sleep 60 > /dev/null 2>&1 & sleep 60; echo behind", seconds=1)
    assert late == Answer("a", None, "before\n", "", error="did not end within 1 s and was stopped")
    assert processes_of(RUN_ID) == []


HELD = "[cvs: what it left running held its output, and was stopped]\n"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("sleep 60 & echo hi", Answer("a", 0, "hi\n", HELD)),
        ("setsid sleep 60 >&2 & echo err >&2; exit 3", Answer("a", 3, "", f"err\n{HELD}")),
        ("(while :; do sleep 60; done) & printf begun", Answer("a", 0, "begun", HELD)),
    ],
)
def test_what_a_command_leaves_behind_that_holds_its_output_is_ended(script: str, expected: Answer) -> None:
    begun = time.monotonic()
    assert answer(script, seconds=60) == expected
    assert time.monotonic() - begun < 15
    assert processes_of(RUN_ID) == []


def test_what_it_leaves_behind_may_say_more_for_a_moment() -> None:
    assert answer("(sleep 0.3; echo two) & echo one") == Answer("a", 0, "one\ntwo\n")


def test_one_node_that_is_late_costs_no_other() -> None:
    late, good = answers("[ $ME = b ] || sleep 60", TWO, seconds=1)
    assert (late.exit_code, good.exit_code) == (None, 0)
    assert processes_of(RUN_ID) == []


def test_what_lets_go_of_its_output_may_go_on(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    assert answer(f"setsid sh -c 'echo $$ > {pid}; exec sleep 60' > /dev/null 2>&1 &").exit_code == 0
    assert eventually(lambda: pid.exists() and pid.read_text().strip())
    os.kill(int(pid.read_text()), signal.SIGKILL)


# --- Ctrl-C -----------------------------------------------------------------------------------------------


def interrupt_when(holds: Callable[[], object]) -> None:
    def wait() -> None:
        eventually(holds)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


def test_an_interrupt_ends_it_everywhere(tmp_path: Path) -> None:
    interrupt_when(lambda: len(list(tmp_path.iterdir())) == 2)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        answers(f"setsid sleep 60 & touch {tmp_path}/$ME; sleep 60", TWO, seconds=60)
    assert time.monotonic() - begun < 30
    assert processes_of(RUN_ID) == []


def test_also_where_the_command_itself_has_ended(tmp_path: Path) -> None:
    leaves = f"setsid sleep 60 > /dev/null 2>&1 & touch {tmp_path}/$ME; [ $ME = a ] || sleep 60"
    interrupt_when(lambda: len(list(tmp_path.iterdir())) == 2)
    with pytest.raises(KeyboardInterrupt):
        answers(leaves, TWO, seconds=60)
    assert processes_of(RUN_ID) == []


def test_after_an_interrupt_nothing_begins(tmp_path: Path) -> None:
    three = cluster({"a": {"ME": "a"}, "b": {"ME": "b"}, "c": {"ME": "c"}}, max_parallel=1)
    interrupt_when(lambda: (tmp_path / "a").exists())
    with pytest.raises(KeyboardInterrupt):
        answers(f"touch {tmp_path}/$ME; sleep 60", three, seconds=60)
    time.sleep(0.5)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert processes_of(RUN_ID) == []
