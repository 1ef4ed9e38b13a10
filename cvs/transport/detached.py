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

_JOB = """\
folder=$1; shift
ended() { printf '%-9s\\n' "$1" 1<> "$folder/exit_code" || : > "$folder/exit_code"; }
echo $$ > "$folder/pid" || { ended "126 full"; exit; }
trap : TERM INT HUP
"$@" > "$folder/console.log" 2>&1 < /dev/null
code=$?
printf '%8192s' > "$folder/room" || code="$code full"
rm -f "$folder/room"
ended "$code"
"""
"""The shell outlives a polite signal to the whole group, to note how the job took it.

It writes the exit code over blanks that stand there from the start, which takes no room on a disk that has
become full; where that fails even so, the file is left empty. After the code it notes whether there is room.
"""
LIVES = 'lives() { [ -d "/proc/$1" ] || LC_ALL=C kill -0 "$1" 2>&1 | grep -q permitted; }'
"""Whether there is such a process; where /proc hides those of others, the refusal of a signal tells."""
_FOLLOW = (
    LIVES
    + """
folder=$1 offset=$2 alive=$3
is_heard() { parent=$PPID; read -r _ _ _ parent _ 2> /dev/null < "/proc/$$/stat"; [ "$parent" = "$PPID" ]; }
while is_heard; do
    ended= code=
    lives "$alive" || ended=3
    if [ ! -e "$folder/exit_code" ]; then ended=${ended:-5}
    elif ! read -r code < "$folder/exit_code"; then ended=4
    elif [ -n "$code" ]; then ended=0
    fi
    size=0
    if [ -e "$folder/console.log" ]; then size=$(wc -c < "$folder/console.log") || exit; fi
    if [ "$size" -gt "$offset" ]; then
        dd if="$folder/console.log" bs=64k iflag=skip_bytes,count_bytes \\
            skip="$offset" count="$((size - offset))" 2> /dev/null || exit
        offset=$size
    fi
    [ -z "$ended" ] || exit "$ended"
    sleep 0.2 || exit
done
exit 1
"""
)
"""Looks whether the job has ended before it reads, so that nothing is missed.

It ends when its parent does, which serves the connection: else a quiet job would leave it on the node.
"""
_VANISHED, _UNNOTED, _GONE = 3, 4, 5
"""The job was ended, nothing could be written when it ended, its folder was taken away."""
_NO_PROGRAM = 127
_SIGNALLED = 128
"""What a shell adds to the number of the signal that ended a command."""


def clean_command(folder: str) -> list[str]:
    """Command that makes a job's folder, without what an earlier job left in it."""
    makes = (
        'mkdir -p "$1" && cd "$1" && rm -f pid console.log && { printf "%9s\\n" "" > exit_code'
        ' || { echo "cannot write to $1; is there space left on its disk?" >&2; exit 1; }; }'
    )
    return ["sh", "-c", makes, "sh", folder]


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
    ) -> None:
        """Follow it.

        Args: alive: process on the node that lives as long as the job, or what it runs in, does; send: sends
        it a signal.
        """
        self._transport = transport
        self._folder = folder
        self._alive = alive
        self._send = send
        self._lines = Lines(sink)
        self._patience = transport.patience
        self._offset = 0
        self._exit_code: int | None = None
        self._lost: str | None = None
        self._doubt: str | None = None
        self._follower = threading.Thread(target=self._follow, daemon=True)
        self._follower.start()

    def poll(self) -> int | None:
        """See `Process.poll`."""
        return self._exit_code

    @property
    def lost(self) -> str | None:
        """See `Process.lost`."""
        return self._lost

    @property
    def doubt(self) -> str | None:
        """See `Process.doubt`."""
        return self._doubt

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
                self._until_end()
            except TransportError as error:
                now = time.monotonic()
                # A connection that brought anything was none that stayed away.
                lost_at = now if lost_at is None or self._offset > begun else lost_at
                if now - lost_at > self._patience:
                    self._lost = str(error)
                time.sleep(min(0.5, self._patience / 10))
        self._lines.close()

    def _until_end(self) -> None:
        node = self._transport.node
        argv = ["sh", "-c", _FOLLOW, "sh", self._folder, str(self._offset), str(self._alive)]
        code = self._transport.stream(argv, self._take)
        if code == _VANISHED:
            self._exit_code = -9
        elif code == _UNNOTED:
            self._lost = f"{node}: the job ended, but not even its exit code could be written: {self._full}"
        elif code == _GONE:
            raise TransportError(f"{node}: the job's folder {self._folder} is gone")
        elif code != 0:
            hint = "; it takes wc, dd and sleep there" if code == _NO_PROGRAM else ""
            raise TransportError(f"{node}: the job's output cannot be followed (exit code {code}){hint}")
        else:
            self._note(self._transport.run(["cat", f"{self._folder}/exit_code"], timeout=30).stdout)

    def _note(self, told: str) -> None:
        """Take what the job's shell has noted."""
        code, *doubt = told.split() or [""]
        if not code.isdecimal():
            raise TransportError(f"{self._transport.node}: the job left no exit code")
        if doubt:
            self._lines.close()
            self._doubt = f"output of the job may be lost: {self._full}"
            self._lines.take(f"cvs: {self._doubt}\n".encode())
        self._exit_code = int(code) if int(code) <= _SIGNALLED else _SIGNALLED - int(code)

    @property
    def _full(self) -> str:
        return f"no space left on the disk of {self._folder}"

    def _take(self, piece: bytes) -> None:
        self._offset += len(piece)
        self._lines.take(piece)
