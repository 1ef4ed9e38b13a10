"""Real repositories of git for tests, and a server that hands them only to who has the password."""

from __future__ import annotations

import base64
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER, PASSWORD = "me", "s3cret"


def git(folder: Path, *words: str) -> str:
    """What git prints there."""
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Repository:
    """A bare one, with a checkout beside it that commits to its branch `main`."""

    def __init__(self, folder: Path, name: str = "origin.git") -> None:
        self.bare, self._work = folder / name, folder / f"{name}-work"
        self._work.mkdir()
        git(self._work, "init", "--quiet", "--initial-branch=main")
        git(folder, "init", "--quiet", "--bare", "--initial-branch=main", str(self.bare))

    def commit(self, files: dict[str, str]) -> str:
        """One more commit with these files, by their paths, which all can be run; its id."""
        for name, text in files.items():
            path = self._work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        git(self._work, "add", ".")
        git(self._work, "commit", "--quiet", "-m", "x")
        git(self._work, "push", "--quiet", str(self.bare), "main")
        return git(self._work, "rev-parse", "HEAD")


@contextmanager
def served(folder: Path, look: Callable[[], None], host: str = "127.0.0.1") -> Iterator[str]:
    """Host and port where the repositories in `folder` are; `look` is called while a client waits."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            look()
            login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {login}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic realm=x")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            variables = {
                "GIT_PROJECT_ROOT": str(folder),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "PATH": "/usr/bin:/bin",
            }
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            done = subprocess.run(
                ["git", "http-backend"], env=variables, input=body, capture_output=True, check=True
            )
            head, _, answer = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_words: object) -> None:
            pass

    server = ThreadingHTTPServer((host, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
