"""A job that outlives the connection it was started over.

It runs in a session of its own on the node, with a folder there that has its process id, its output and, once
it has ended, its exit code. The output is followed; where the connection drops, it is followed on from the
byte that was reached, so that no line is lost and the end of a stream is never taken for the end of the job.
"""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Sequence

from cvs.errors import TransportError
from cvs.transport._lines import Lines
from cvs.transport.base import Process, Sink, Transport

_JOB = (
    'folder=$1; shift; echo $$ > "$folder/pid" || exit 126; trap : TERM INT HUP;'
    ' "$@" > "$folder/console.log" 2>&1 < /dev/null; code=$?;'
    ' echo $code > "$folder/exit_code.part" && mv "$folder/exit_code.part" "$folder/exit_code"'
)
"""The shell outlives a polite signal to the whole group, to note how the job took it."""
LIVES = 'lives() { [ -d "/proc/$1" ] || LC_ALL=C kill -0 "$1" 2>&1 | grep -q permitted; }'
"""Whether there is such a process; where /proc hides those of others, the refusal of a signal tells."""
_FOLLOW = (
    LIVES
    + """
folder=$1 offset=$2 alive=$3
while :; do
    ended=
    if [ -e "$folder/exit_code" ]; then ended=0; elif ! lives "$alive"; then ended=3; fi
    size=$(wc -c 2>/dev/null < "$folder/console.log" || echo 0)
    if [ "$size" -gt "$offset" ]; then
        tail -c "+$((offset + 1))" "$folder/console.log" | head -c "$((size - offset))"
        offset=$size
    fi
    [ -z "$ended" ] || exit "$ended"
    sleep 0.2
done
"""
)
"""Looks whether the job has ended before it reads, so that nothing is missed."""
RECONNECT_SECONDS = 60
"""How long a job is followed without a connection before its node is given up."""
_VANISHED = 3
_SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a command."""


def clean_command(folder: str) -> list[str]:
    """Command that makes a job's folder, without what an earlier job left in it."""
    return ["sh", "-c", 'mkdir -p "$1" && cd "$1" && rm -f pid exit_code console.log', "sh", folder]


def job_command(folder: str, argv: Sequence[str]) -> list[str]:
    """Command that runs `argv` as a job with its `folder`, as seen where it runs."""
    return ["setsid", "sh", "-c", _JOB, "sh", folder, *argv]


def signal_command(folder: str, number: int) -> list[str]:
    """Command that sends the job's process group a signal; a group that is gone is no error."""
    return ["sh", "-c", f'kill -{int(number)} "-$(cat {shlex.quote(folder)}/pid)" 2>/dev/null || :']


class DetachedProcess(Process):
    """A job whose folder is `folder` on the node."""

    def __init__(
        self,
        transport: Transport,
        folder: str,
        *,
        alive: int,
        send: Callable[[int], None],
        sink: Sink,
        patience: float = RECONNECT_SECONDS,
    ) -> None:
        """Follow it.

        Args: alive: process on the node that lives as long as the job, or what it runs in, does; send: sends
        it a signal; patience: s, how long a lost connection may take to come back.
        """
        self._transport = transport
        self._folder = folder
        self._alive = alive
        self._send = send
        self._lines = Lines(sink)
        self._patience = patience
        self._offset = 0
        self._exit_code: int | None = None
        self._lost: str | None = None
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def poll(self) -> int | None:
        """See `Process.poll`."""
        return self._exit_code

    @property
    def lost(self) -> str | None:
        """See `Process.lost`."""
        return self._lost

    def signal(self, number: int) -> None:
        """See `Process.signal`."""
        if self._exit_code is None:
            self._send(number)

    def drain(self, seconds: float) -> bool:
        """See `Process.drain`."""
        self._follower.join(seconds)
        return not self._follower.is_alive()

    def _follow(self) -> None:
        lost_at: float | None = None
        while self._exit_code is None and self._lost is None:
            begun = self._offset
            try:
                self._exit_code = self._until_end()
            except TransportError as error:
                now = time.monotonic()
                # A connection that brought anything was none that stayed away.
                lost_at = now if lost_at is None or self._offset > begun else lost_at
                if now - lost_at > self._patience:
                    self._lost = str(error)
                time.sleep(min(0.5, self._patience / 10))
        self._lines.close()

    def _until_end(self) -> int:
        argv = ["sh", "-c", _FOLLOW, "sh", self._folder, str(self._offset), str(self._alive)]
        code = self._transport.stream(argv, self._take)
        if code == _VANISHED:
            return -9
        if code != 0:
            raise TransportError(
                f"{self._transport.node}: the job's output cannot be followed (exit code {code})"
            )
        told = self._transport.run(["cat", f"{self._folder}/exit_code"], timeout=30).stdout.strip()
        if not told.isdecimal():
            raise TransportError(f"{self._transport.node}: the job left no exit code")
        return int(told) if int(told) <= _SIGNALLED else _SIGNALLED - int(told)

    def _take(self, piece: bytes) -> None:
        self._offset += len(piece)
        self._lines.take(piece)
