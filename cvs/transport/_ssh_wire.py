"""A connection that notices when nobody is left at the other end, and keeps what the server says.

paramiko's own limits follow the clock on the wall and leave threads behind; they are out of use here.
"""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Callable
from typing import Any, cast

import paramiko
from paramiko.common import cMSG_GLOBAL_REQUEST
from paramiko.message import Message
from paramiko.packet import Packetizer

from cvs.transport._ssh_errors import readable

_FIRST_WORDS = 256


class Wire:
    """A socket, or a channel over a hop, that notices when nobody is left at the other end."""

    def __init__(self, sock: socket.socket | paramiko.Channel) -> None:
        self.first_words = b""
        self._sock = sock
        self._closed = False  # paramiko looks at it
        self._way: paramiko.Transport | None = None
        self._ask: Callable[[], None]
        self._keepalive = self._silence = math.inf
        self._heard = self._took = self._asked = time.monotonic()

    def live_on(
        self, way: paramiko.Transport | None, ask: Callable[[], None], keepalive: float, silence: float
    ) -> None:
        """See `Connection.live_on`; `ask` asks the peer for an answer."""
        self._heard = self._took = self._asked = time.monotonic()
        self._ask = ask
        self._way = way
        self._keepalive = keepalive
        self._silence = silence

    def recv(self, size: int) -> bytes:
        try:
            data = self._sock.recv(size)
        except TimeoutError as error:
            self._look_at_silence(error, time.monotonic() - self._heard)
            raise
        self._heard = time.monotonic()
        if len(self.first_words) < _FIRST_WORDS:
            self.first_words += data[:_FIRST_WORDS]
        return data

    def send(self, data: bytes) -> int:
        try:
            size = self._sock.send(data)
        except TimeoutError as error:
            self._look_at_silence(error, time.monotonic() - max(self._heard, self._took))
            raise
        self._took = time.monotonic()
        return size

    def _look_at_silence(self, error: TimeoutError, silent: float) -> None:
        if error.errno:  # TCP itself gave up; paramiko would take it for the end of a short wait
            raise ConnectionAbortedError(errno.ECONNABORTED, str(error.strerror))
        if silent > self._silence:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"no answer for {silent:.0f} s")
        now = time.monotonic()
        if silent > self._keepalive and now - self._asked > self._keepalive:
            self._asked = now
            self._ask()

    def settimeout(self, seconds: float) -> None:
        self._sock.settimeout(seconds)

    def getpeername(self) -> Any:
        return self._sock.getpeername()

    def close(self) -> None:
        self._closed = True
        if self._way is not None:
            self._way.close()  # first: a channel says good-bye, and would wait for a hop that is gone
        self._sock.close()


class _Packetizer(Packetizer):
    def start_handshake(self, timeout: float) -> None:
        """No timer: paramiko's keeps the process alive."""


class Connection(paramiko.Transport):
    """A transport that keeps the words with which the server refuses something; paramiko only logs them."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(cast(socket.socket, wire), packetizer_class=_Packetizer)
        self.wire = wire
        self.said = ""
        self.banner_timeout = self.auth_timeout = self.channel_timeout = math.inf

    def live_on(self, way: paramiko.Transport | None, *, keepalive: float, silence: float) -> None:
        """Ask from now on a peer that is silent for an answer, and give it up; and end `way` with this.

        Args: keepalive, silence: s, of silence until it is asked and until it is given up.
        """
        self.wire.live_on(way, self._ask_for_answer, keepalive, silence)

    def _ask_for_answer(self) -> None:
        """Ask for an answer, from within the thread that reads; paramiko's own keep-alive wants none."""
        if not self.clear_to_send.is_set():
            return  # keys are being agreed on anew: there is an answer to come
        question = Message()
        question.add_byte(cMSG_GLOBAL_REQUEST)
        question.add_string("keepalive@openssh.com")
        question.add_boolean(True)
        self.packetizer.send_message(question)

    def close(self) -> None:
        """End the connection, and those to its hops."""
        super().close()
        self.wire.close()

    def _parse_disconnect(self, message: Message) -> None:
        message.get_int()
        self.said = readable(message.get_string())

    def _parse_channel_open_failure(self, message: Message) -> None:
        message.get_int()
        message.get_int()
        self.said = readable(message.get_string())
        message.rewind()
        super()._parse_channel_open_failure(message)  # type: ignore[misc]
