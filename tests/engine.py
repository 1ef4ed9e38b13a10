"""A stand-in for a Docker Engine on this machine, for what a real one cannot be made to say or to show."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingUnixStreamServer
from tempfile import TemporaryDirectory
from typing import Any

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

        def do_DELETE(self) -> None:
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
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"unix://{server.server_address}"
        finally:
            server.shutdown()
            server.server_close()


class Shelf:
    """Containers that stand there to be listed, looked at and removed; nothing runs in them."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        """What the list says of each, by its name."""
        self.details: dict[str, dict[str, Any]] = {}
        """What else is shown of one that is looked at, by its name."""
        self.refusals: dict[str, int] = {}
        """Status by which the removal of one is refused."""
        self.asked: list[str] = []
        """Method and path of each request, without the version."""
        self.components = ["Engine", "containerd", "runc"]
        """What it is made of, by its own account."""
        self.security = ["name=seccomp,profile=default"]
        """How it keeps containers apart, in its own words."""

    def put(
        self, name: str, state: str = "running", *, created: float = 0, labels: dict[str, str] | None = None,
        **details: object,
    ) -> None:  # fmt: skip
        """Another one; `created` in seconds since 1970."""
        self.entries[name] = {
            "Id": name, "Names": [f"/{name}"], "Image": "example/torch:2", "State": state,
            "Created": int(created), "Labels": labels or {},
        }  # fmt: skip
        shown = {
            "State": {"FinishedAt": "0001-01-01T00:00:00Z"}, "HostConfig": {}, "Mounts": [],
            "Config": {"WorkingDir": "/mnt"},
        }  # fmt: skip
        self.details[name] = {"Id": name, **shown, **details}

    def __call__(self, request: BaseHTTPRequestHandler) -> tuple[int, object]:
        path = re.sub(r"^/v[\d.]+|\?.*", "", request.path)
        self.asked.append(f"{request.command} {path}")
        if path == "/version":
            parts = [{"Name": name} for name in self.components]
            return 200, {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Components": parts}
        if path == "/info":
            return 200, {"SecurityOptions": self.security}
        if path == "/containers/json":
            return 200, list(self.entries.values())
        name = path.split("/")[2]
        if name not in self.entries:
            return 404, {"message": f"No such container: {name}"}
        if request.command == "DELETE":
            return self._remove(name)
        return 200, self.details[name]

    def _remove(self, name: str) -> tuple[int, object]:
        if status := self.refusals.get(name):
            return status, {"message": "refused"}
        del self.entries[name]
        return 200, {}
