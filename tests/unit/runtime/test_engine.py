"""What a node's engine is told of the user's own files: a registry's credentials, and nothing else."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from tempfile import TemporaryDirectory

import pytest

from cvs.runtime._engine import Engine
from cvs.transport.local import LocalTransport


class Requests(list[str]):
    """All that an engine was sent."""

    def with_word(self, word: str) -> list[str]:
        return [request for request in self if word in request]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """What this machine's engine is sent, which takes everything."""
    sent = Requests()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            sent.append(f"{self.requestline}\n{self.headers}\n{body}")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps({"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Id": "1"}).encode())

        def log_message(self, *_words: object) -> None:
            pass

    # Not below pytest's own folders: the path of a socket must be short.
    with TemporaryDirectory(prefix="cvs-docker-") as folder:
        server = ThreadingUnixStreamServer(f"{folder}/docker.sock", Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{server.server_address}")
        try:
            yield sent
        finally:
            server.shutdown()
            server.server_close()


def test_what_an_engine_is_told(requests: Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    login = base64.b64encode(b"alice:PASSWORD").decode()
    config = {
        "auths": {"registry.example": {"auth": login}},
        "proxies": {"default": {"httpProxy": "http://u:SECRET@p:1"}},
        "HttpHeaders": {"X-Meta": "SECRET"},
        "detachKeys": "SECRET",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / ".netrc").write_text("default login alice password SECRET\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    engine = Engine(LocalTransport("a"))
    engine.ask("pull", lambda client: list(client.pull("registry.example/image", stream=True)))
    engine.ask("make", lambda client: client.create_container("image", use_config_proxy=False))
    engine.ask("run", lambda client: client.exec_create("1", ["true"]))
    engine.close()
    assert len(requests) == 4
    assert requests.with_word("SECRET") == []
    assert requests.with_word("Authorization") == []
    [pull] = requests.with_word("X-Registry-Auth")
    assert "fromImage=registry.example" in pull
