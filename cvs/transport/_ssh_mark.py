"""Where the output of a command begins: a login shell may print, too, before it runs any.

sshd hands the command to the login shell, which reads start-up files of its user and the administrator first.
So each command prints a mark on both of its outputs, and what came before it is dropped.
"""

from __future__ import annotations

import shlex
import time

import paramiko

from cvs.transport._ssh_errors import readable

_MARK = b"\x1ecvs\x1e"
_PRINT = r"printf '\036cvs\036'; printf '\036cvs\036' >&2; "
"""Spelt otherwise than it comes out, for shells that print the commands they run."""
_KEPT_BYTES = 4096


class ShellError(Exception):
    """The login shell did not run the command; in words that lack only which node."""


def marked(script: str, *words: str) -> str:
    """Command line that runs `script` with the positional parameters `words`, marked."""
    return shlex.join(["sh", "-c", _PRINT + script, "sh", *words])


def skip_to_mark(channel: paramiko.Channel, deadline: float) -> None:
    """Read a channel to the end of the mark and no further.

    Raises: ShellError: the mark did not come before the end or the deadline.
    """
    said, begun = bytearray(), b""
    while begun != _MARK:
        channel.settimeout(max(deadline - time.monotonic(), 0.01))
        try:
            piece = channel.recv(len(_MARK) - len(begun))
        except TimeoutError:
            raise _unmarked(channel, bytes(said), " in time") from None
        if not piece:
            raise _unmarked(channel, bytes(said))
        said += piece[: _KEPT_BYTES - len(said)]
        begun = _mark_begun_in(begun + piece)
    channel.settimeout(None)


def _mark_begun_in(text: bytes) -> bytes:
    """As much of the mark as stands at the end of the text."""
    return next(_MARK[:size] for size in range(len(_MARK), -1, -1) if text.endswith(_MARK[:size]))


def _unmarked(channel: paramiko.Channel, out: bytes, when: str = "") -> Exception:
    channel.status_event.wait(1)
    connection = channel.get_transport()
    if not when and channel.exit_status == -1 and not connection.is_active():
        return EOFError("before the command ran")
    errors = channel.recv_stderr(_KEPT_BYTES) if channel.recv_stderr_ready() else b""
    said = " / ".join(filter(None, map(readable, (errors, out)))) or "nothing"
    return ShellError(
        f"the login shell of {connection.get_username()} did not run the command{when}; it said: {said};"
        " it must be one such as bash, and its start-up files (.bashrc) must neither end it nor wait"
    )


def after_mark(errors: bytes) -> bytes:
    """What the command itself wrote there."""
    return errors.partition(_MARK)[2]
