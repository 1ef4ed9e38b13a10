"""The way to a node's engine: what it is told of the user's own files, and what answers in its place."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from cvs.errors import TransportError
from cvs.runtime._engine import Engine
from cvs.transport.local import LocalTransport
from engine import engine


class Requests(list[str]):
    """All that an engine was sent."""

    def with_word(self, word: str) -> list[str]:
        return [request for request in self if word in request]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """What this machine's engine is sent, which takes everything."""
    sent = Requests()

    def take(request: BaseHTTPRequestHandler) -> tuple[int, object]:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0))).decode()
        sent.append(f"{request.requestline}\n{request.headers}\n{body}")
        return 200, {"ApiVersion": "1.41", "MinAPIVersion": "1.12", "Id": "1"}

    with engine(take) as url:
        monkeypatch.setenv("DOCKER_HOST", url)
        yield sent


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
    client = Engine(LocalTransport("a"))
    client.ask("pull", lambda api: list(api.pull("registry.example/image", stream=True)))
    client.ask("make", lambda api: api.create_container("image", use_config_proxy=False))
    client.ask("run", lambda api: api.exec_create("1", ["true"]))
    client.close()
    assert len(requests) == 4
    assert requests.with_word("SECRET") == []
    assert requests.with_word("Authorization") == []
    [pull] = requests.with_word("X-Registry-Auth")
    assert "fromImage=registry.example" in pull


class WithoutDialStdio(LocalTransport):
    """This machine, as if its docker program ended at once where it should lead to an engine."""

    def dial_docker(self, timeout: float) -> socket.socket:
        del timeout
        here, there = socket.socketpair()
        there.close()
        return here


PODMAN = """\
#!/bin/sh
case "$1" in
    --version) echo podman version 4.3.1 ;;
    *) echo 'Error: unrecognized command' >&2; exit 125 ;;
esac
"""
"""Podman in the place of the docker program, of a version that knows no dial-stdio."""


def test_podman_in_the_place_of_the_docker_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text(PODMAN)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(TransportError) as failed:
        Engine(WithoutDialStdio("gpu07")).ask("list containers", lambda client: client.containers())
    assert str(failed.value) == (
        "gpu07: Docker cannot list containers: the docker program there is Podman's, with which cvs is not"
        " tested; install Docker there, or set runtime: process"
    )
