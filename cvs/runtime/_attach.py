"""Input and outputs of a command in a container, over a stream to the engine, in bounded time."""

from __future__ import annotations

import struct
import time

from cvs.transport.base import Stream

_REQUEST = (
    "POST {path} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
)
_BODY = '{"Detach": false, "Tty": false}'
_HEADER = struct.Struct(">BxxxL")
_STDERR = 2


def attached(stream: Stream, path: str, stdin: bytes, deadline: float) -> tuple[bytes, bytes]:
    """Start the command at `path`, hand it its input and read its outputs to their end.

    Args: path: of the API, `/v…/exec/<id>/start`; stdin: for a command that was made to take some;
    deadline: on the monotonic clock.
    Raises: TimeoutError: time is up; OSError: the engine refuses, or the stream ends too early.
    """
    stream.settimeout(max(deadline - time.monotonic(), 0.01))
    stream.sendall(_REQUEST.format(path=path, length=len(_BODY), body=_BODY).encode())
    received = _Received(stream, deadline)
    status, _, _ = received.until(b"\r\n\r\n").partition(b"\r\n")
    if status.split()[1:2] not in ([b"101"], [b"200"]):
        raise OSError(f"Docker answers {status.decode(errors='replace')}")
    if stdin:
        stream.sendall(stdin)
    outputs: tuple[list[bytes], list[bytes]] = ([], [])
    while header := received.exactly(_HEADER.size):
        channel, length = _HEADER.unpack(header)
        outputs[channel == _STDERR].append(received.exactly(length))
    return b"".join(outputs[0]), b"".join(outputs[1])


class _Received:
    """What has come, and what will."""

    def __init__(self, stream: Stream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline
        self._rest = b""

    def _more(self) -> bool:
        self._stream.settimeout(max(self._deadline - time.monotonic(), 0.01))
        piece = self._stream.recv(1 << 16)
        self._rest += piece
        return bool(piece)

    def until(self, end: bytes) -> bytes:
        """Everything up to `end`."""
        while end not in self._rest:
            if not self._more():
                raise OSError("Docker ended the connection")
        found, _, self._rest = self._rest.partition(end)
        return found

    def exactly(self, size: int) -> bytes:
        """So many bytes; none where the stream has ended before the first."""
        while len(self._rest) < size:
            if not self._more():
                if self._rest:
                    raise OSError("Docker ended the connection within an answer")
                return b""
        found, self._rest = self._rest[:size], self._rest[size:]
        return found
