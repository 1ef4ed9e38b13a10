"""One shell command on every node, side by side.

Its output is cut on the node, so that what comes here is bounded. Its time ends there, so that what it had
said by then comes here, too. All that it starts bears a mark in its environment, by which it is found again.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from cvs.config import ClusterConfig
from cvs.errors import TransportError
from cvs.runners._fanout import Outcome, side_by_side
from cvs.runners._interrupts import Interrupts
from cvs.runtime._leftovers import kill_processes
from cvs.transport.base import Transport
from cvs.transport.choice import transport_to

KEPT_BYTES = 512 * 1024
"""Of each of the two outputs of a node, from its beginning."""
_REACH_SECONDS = 60
_MARGIN_SECONDS = 10
"""How much later than on the node time is up here."""
_END_SECONDS = 20
_MARK = "CVS_RUN_ID"
_KILLED = 137
_BOUNDED = """\
command=$1 seconds=$2 kept=$3
kept() {
    head -c "$kept"
    left=$(($(wc -c)))
    [ "$left" -eq 0 ] || printf '\\n[cvs: %s bytes of output are left out here]\\n' "$left"
}
holders() {
    for file in /proc/[0-9]*/fd/[12]; do
        [ "$file" -ef /proc/self/fd/6 ] || [ "$file" -ef /proc/self/fd/7 ] || continue
        file=${file#/proc/}
        echo "${file%%/*}"
    done
}
end_holders() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ -n "$(holders)" ] || return
        sleep 0.1
    done
    echo '[cvs: what it left running held its output, and was stopped]' >&7
    while left=$(holders) && [ -n "$left" ]; do
        kill -KILL $left
        sleep 0.1
    done
}
exec 3>&1 4>&2
code=$(
    exec 5>&1
    {
        {
            (exec timeout -s KILL "$seconds" sh -c "$command" >&6 2>&7 3>&- 4>&- 5>&- 6>&- 7>&-)
            echo $?
            end_holders
        } 7>&1 >&5 2> /dev/null | kept >&4 5>&- 6>&-
    } 6>&1 >&5 | kept >&3 5>&-
)
exit "$code"
"""
"""Runs `$1` for at most `$2` seconds, with its exit code; up to `$3` bytes of either output come through.

What this shell itself has to say of a command that was killed is none of that. The command ends when its own
shell does; what that left running, and holds its output a moment later, is ended.
"""
_Value = TypeVar("_Value")


class Answer(NamedTuple):
    """How the command went on one node."""

    node: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    seconds: float | None = None
    """None: the node could not be reached."""
    error: str | None = None
    """Why there is no exit code."""


class _Node:
    """One node, and at most one command there."""

    def __init__(self, name: str, transport: Transport, environment: Mapping[str, str]) -> None:
        self.name = name
        self.is_over = False
        """Whether nothing may begin any more."""
        self._transport = transport
        self._environment = environment
        self._at_work = threading.Lock()
        self._has_begun = False

    def answer(self, command: str, seconds: int) -> Answer:
        """Run the command to its end, or until time is up.

        Raises: TransportError: the node cannot be reached.
        """
        # Connects, too: that takes none of the command's time.
        self._transport.run(["true"], timeout=_REACH_SECONDS)
        with self._at_work:
            if self.is_over:
                raise TransportError(f"{self.name}: the command was not begun")
            self._has_begun = True
            return self._run(command, seconds)

    def _run(self, command: str, seconds: int) -> Answer:
        argv = ["sh", "-c", _BOUNDED, "sh", command, str(seconds), str(KEPT_BYTES)]
        limit = seconds + _MARGIN_SECONDS
        begun = time.monotonic()
        try:
            result = self._transport.run(argv, timeout=limit, environment=self._environment)
        except TransportError as error:
            spent = time.monotonic() - begun
            answer = Answer(self.name, seconds=round(spent, 3), error=_without_name(error, self.name))
            # Something that cannot be ended may keep its output open.
            is_late = spent >= seconds
        else:
            spent = result.seconds
            answer = Answer(self.name, result.exit_code, result.stdout, result.stderr, round(spent, 3))
            is_late = result.exit_code == _KILLED and spent >= seconds
        return self._stopped(answer, seconds) if is_late else answer

    def _stopped(self, answer: Answer, seconds: int) -> Answer:
        try:
            self._end_processes()
        except TransportError as error:
            end = f"; {_without_name(error, self.name)}"
        else:
            end = " and was stopped"
        return answer._replace(exit_code=None, error=f"did not end within {seconds} s{end}")

    def end(self) -> None:
        """End what was begun here, and whatever it has left.

        Raises: TransportError: some of it cannot be ended.
        """
        while not self._at_work.acquire(timeout=0.1):
            self._end_processes()
        if self._has_begun:
            self._end_processes()

    def _end_processes(self) -> None:
        if left := kill_processes(self._transport, self._environment[_MARK]):
            raise TransportError(f"{self.name}: processes {left} cannot be ended")

    def close(self) -> None:
        """Let the connection go."""
        self._transport.close()


def run_on_nodes(
    names: Sequence[str],
    command: str,
    cluster: ClusterConfig,
    *,
    seconds: int,
    console: Callable[[str], None],
) -> list[Answer]:
    """What each of the nodes answers to `sh -c command`, in order; `seconds` is its time on each.

    Args: console: takes a line about a node where the command cannot be ended.
    Raises: KeyboardInterrupt: on Ctrl-C, SIGTERM or SIGHUP, after all that was begun has been ended.
    """
    nodes = [_node(name, cluster) for name in names]

    def on_each(work: Callable[[_Node], _Value], what: str, limit: float) -> list[Outcome[_Node, _Value]]:
        rounds = -(-len(nodes) // cluster.max_parallel)
        return side_by_side(nodes, work, what=what, timeout=rounds * limit, at_most=cluster.max_parallel)

    limit = _REACH_SECONDS + seconds + _MARGIN_SECONDS + _END_SECONDS
    with Interrupts():
        try:
            outcomes = on_each(lambda node: node.answer(command, seconds), "the command", limit)
        except BaseException:
            for node in nodes:
                node.is_over = True
            for ended in on_each(_Node.end, "ending the command", _END_SECONDS):
                if ended.error:
                    console(str(ended.error))
            raise
    on_each(_Node.close, "closing the connection", _END_SECONDS)
    return [_answer(outcome) for outcome in outcomes]


def _node(name: str, cluster: ClusterConfig) -> _Node:
    # A mark of its own: local nodes are one machine, where one node must not end another's processes.
    mark = {_MARK: f"exec-{secrets.token_hex(6)}"}
    environment = {**cluster.env_vars, **cluster.node_dict[name].env_vars, **mark}
    return _Node(name, transport_to(name, cluster), environment)


def _answer(outcome: Outcome[_Node, Answer]) -> Answer:
    name = outcome.node.name
    return outcome.value or Answer(name, error=_without_name(outcome.error, name))


def _without_name(error: Exception | None, name: str) -> str:
    return str(error).removeprefix(f"{name}: ")
