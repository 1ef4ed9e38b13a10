"""A stand-in for a Docker Engine on this machine, for what a real one cannot be made to say or to show."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from tempfile import TemporaryDirectory

Answer = Callable[[BaseHTTPRequestHandler], tuple[int, object]]
"""Status and JSON for one request."""


@contextmanager
def engine(answer: Answer) -> Iterator[str]:
    """One that answers so, and where it listens, as DOCKER_HOST has it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            status, value = answer(self)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(value).encode())

        def log_message(self, *_words: object) -> None:
            pass

    # Not below pytest's own folders: the path of a socket must be short.
    with TemporaryDirectory(prefix="cvs-docker-") as folder:
        server = ThreadingUnixStreamServer(f"{folder}/docker.sock", Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"unix://{server.server_address}"
        finally:
            server.shutdown()
            server.server_close()
