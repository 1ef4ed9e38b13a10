"""The Docker engine of one node: its API over the connection that the node has anyway.

The SDK's own SSH adapters make a connection of their own, and their time-outs do not reach it. Whatever the
SDK and the libraries below it raise is translated here, once.
"""

from __future__ import annotations

import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import docker
import paramiko
import requests
import urllib3
from docker.constants import DEFAULT_DOCKER_API_VERSION
from docker.transport.basehttpadapter import BaseHTTPAdapter
from docker.utils import compare_version

from cvs.errors import EnvironmentFault, RunError, TransportError
from cvs.models import CommandResult
from cvs.runtime._attach import attached
from cvs.transport.base import Stream, Transport

CALL_SECONDS = 30
OLDEST_API = "1.40"
"""Docker 19.03: the first that hands GPUs to containers."""
_URL = "http+docker://node"
_SPARE_SECONDS = 5
"""Over a command's own limit, which its container keeps."""
_KILLED = 137
CONFLICT, NOT_FOUND = 409, 404
_POLL_SECONDS = 0.1
_PODMAN = "Podman's, with which cvs is not tested; install Docker there, or set runtime: process"
_VERSIONS = 'docker --version 2> /dev/null; exec docker version --format "{{.Server.Version}}"'
"""Prints the program's version, and the engine's. Podman has a program of that name, too."""
_LACKS = "so a job there has neither the node's network nor the rights for its GPUs and locked memory"
_UNFIT = {
    "name=rootless": f"is rootless, {_LACKS}; have the login user's docker program ask the node's own engine"
    " (docker context use default, no DOCKER_HOST), or set runtime: process",
    "name=userns": f"maps users, {_LACKS}; take userns-remap out of /etc/docker/daemon.json there, or set"
    " runtime: process",
}
"""Why an engine does not do, by its own word for it."""
_Value = TypeVar("_Value")
_LOST = (
    requests.exceptions.ConnectionError,
    requests.exceptions.ChunkedEncodingError,
    urllib3.exceptions.HTTPError,
    paramiko.SSHException,
    EOFError,
    OSError,
)


class _ConnectionLost(TransportError):
    """The call may have arrived, or not."""


class Refused(RunError):
    """The engine's answer: it cannot do what it was asked for."""

    def __init__(self, message: str, status: int | None, why: str) -> None:
        super().__init__(message)
        self.status = status
        self.why = why
        """In the engine's own words."""


class Engine:
    """API calls to one node's engine; every one is bounded, and named where it fails."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._client: docker.APIClient | None = None
        self._is_podman = False

    def demand_fit(self) -> None:
        """Have an engine of Docker's that runs as root: only there a job has what the node has.

        Raises: EnvironmentFault: it is another; says why that does not do, and what to do; as `ask`.
        """
        info = self.ask("tell what it is", lambda client: client.info())
        engine = f"{self._transport.node}: the Docker engine there"
        if self._is_podman:
            raise EnvironmentFault(f"{engine} is {_PODMAN}")
        for option in info.get("SecurityOptions") or []:
            if why := _UNFIT.get(option.partition(",")[0]):
                raise EnvironmentFault(f"{engine} {why}")

    def ask(
        self,
        what: str,
        call: Callable[[docker.APIClient], _Value],
        *,
        seconds: float = CALL_SECONDS,
        arrived: tuple[int, Callable[[docker.APIClient], _Value]] | None = None,
    ) -> _Value:
        """Make one call, and once more where the connection is lost meanwhile.

        Args: what: it in words, for the message; arrived: HTTP status by which the second call tells that the
        first had arrived, and what to ask then.
        Raises: TransportError: the engine cannot be asked; RunError, and Refused of those: it refuses.
        """
        try:
            return self._ask(what, call, seconds)
        except _ConnectionLost:
            pass
        try:
            return self._ask(what, call, seconds)
        except Refused as refused:
            if arrived is None or refused.status != arrived[0]:
                raise
            return self._ask(what, arrived[1], seconds)

    def _ask(self, what: str, call: Callable[[docker.APIClient], _Value], seconds: float) -> _Value:
        node = self._transport.node
        try:
            client = self._connected()
            client.timeout = math.ceil(seconds)
            return call(client)
        except docker.errors.APIError as error:
            why = str(error.explanation or error)
            raise Refused(f"{node}: Docker cannot {what}: {why}", error.status_code, why) from None
        except requests.exceptions.Timeout:
            self._client = None
            raise TransportError(f"{node}: Docker did not {what} within {seconds:.0f} s") from None
        except docker.errors.DockerException as error:
            raise RunError(f"{node}: Docker cannot {what}: {error}") from None
        except _LOST as error:
            self._client = None
            raise _ConnectionLost(f"{node}: Docker cannot {what}: {self._why_unreachable(error)}") from None

    def _connected(self) -> docker.APIClient:
        if self._client is None:
            client = docker.APIClient(base_url="tcp://node:1", version=OLDEST_API, timeout=CALL_SECONDS)
            # Of what the user's files hold (proxies, headers, ~/.netrc) no engine is told: only a registry's
            # credentials, which the client has read by now.
            client._general_configs = {}  # type: ignore[attr-defined]
            client.trust_env = False
            client.base_url = _URL
            client.mount("http+docker://", _Adapter(self._transport.dial_docker))
            theirs = client.version(api_version=False)
            version = self._common_version(theirs["ApiVersion"], theirs.get("MinAPIVersion", "1.0"))
            client._version = version  # type: ignore[attr-defined]
            parts = theirs.get("Components") or []
            self._is_podman = any(part.get("Name") == "Podman Engine" for part in parts)
            self._client = client
        return self._client

    def _common_version(self, newest: str, oldest: str) -> str:
        if compare_version(OLDEST_API, newest) < 0 or compare_version(DEFAULT_DOCKER_API_VERSION, oldest) > 0:
            ours = f"{OLDEST_API} to {DEFAULT_DOCKER_API_VERSION}"
            raise RunError(
                f"{self._transport.node}: the Docker engine speaks API {oldest} to {newest}, cvs {ours};"
                " update one of them"
            )
        older_is_theirs = compare_version(newest, DEFAULT_DOCKER_API_VERSION) > 0
        return newest if older_is_theirs else DEFAULT_DOCKER_API_VERSION

    def _why_unreachable(self, error: BaseException) -> str:
        """What the node's own client says about its engine; the connection tells only that it ended."""
        found = self._transport.run(["sh", "-c", _VERSIONS], timeout=CALL_SECONDS)
        said = " ".join(found.stderr.split())
        if "podman" in f"{found.stdout} {said}".lower():
            return f"the docker program there is {_PODMAN}"
        if found.exit_code == 0:
            return f"the connection to it was lost ({type(error).__name__})"
        if "permission denied" in said:
            return "the login user may not use it; an administrator can: sudo usermod -aG docker USER"
        if found.exit_code in (126, 127):
            return "there is no docker program; install Docker on the node"
        return f"{said}; is it running? (systemctl status docker)"

    def execute(
        self,
        container: str,
        argv: Sequence[str],
        *,
        timeout: float,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        limited: bool = True,
    ) -> CommandResult:
        """Run a command in a container to its end, as root.

        Args: stdin: what it may read; its end is not told. limited: whether the container ends it, too, when
        its time is up; this needs `timeout` in it.
        Raises: TransportError, RunError: it could not be run, or did not end in time, and was ended.
        """
        started = time.monotonic()
        limit = ["timeout", "-s", "KILL", str(max(int(timeout), 1))] if limited else []
        what = f"run {argv[0]} in its container"
        created = self.ask(
            what,
            lambda client: client.exec_create(
                container,
                [*limit, *argv],
                stdin=bool(stdin),
                user="root",
                environment=dict(environment or {}),
            ),
        )
        deadline = started + timeout + _SPARE_SECONDS
        out, err = self.ask(what, lambda client: self._output_of(client, created["Id"], stdin, deadline))
        code = self._exit_code(created["Id"], what, deadline)
        if code == _KILLED and time.monotonic() - started >= timeout:
            raise TransportError(f"{self._transport.node}: Docker did not {what} within {timeout:.0f} s")
        return CommandResult(
            argv=tuple(argv),
            exit_code=code,
            stdout=out.decode(errors="replace"),
            stderr=err.decode(errors="replace"),
            seconds=time.monotonic() - started,
        )

    def _output_of(
        self, client: docker.APIClient, command: str, stdin: bytes, deadline: float
    ) -> tuple[bytes, bytes]:
        # Not by the SDK, which waits for such a stream without a limit.
        stream = self._transport.dial_docker(CALL_SECONDS)
        try:
            return attached(stream, f"/v{client.api_version}/exec/{command}/start", stdin, deadline)
        except TimeoutError:
            raise requests.exceptions.Timeout from None
        finally:
            stream.close()

    def _exit_code(self, command: str, what: str, deadline: float) -> int:
        # A stream that ends is not a command that ended.
        while True:
            code = self.ask(what, lambda client: client.exec_inspect(command))["ExitCode"]
            if code is not None:
                return int(code)
            if time.monotonic() > deadline:
                raise TransportError(f"{self._transport.node}: Docker did not {what} in time")
            time.sleep(_POLL_SECONDS)

    def launch(
        self, container: str, argv: Sequence[str], *, cwd: str, environment: Mapping[str, str]
    ) -> None:
        """Start a command in a container, as root, and leave it to itself."""
        what = "start the job in its container"
        created = self.ask(
            what,
            lambda client: client.exec_create(
                container, list(argv), user="root", workdir=cwd, environment=dict(environment)
            ),
        )
        self.ask(
            what,
            lambda client: client.exec_start(created["Id"], detach=True),
            arrived=(CONFLICT, lambda _client: b""),
        )

    def close(self) -> None:
        """End its connections."""
        if self._client is not None:
            self._client.close()
            self._client = None


class _Connection(urllib3.connection.HTTPConnection):
    """HTTP over whatever stream the transport opens."""

    def __init__(self, dial: Callable[[float], Stream]) -> None:
        super().__init__("localhost", timeout=CALL_SECONDS)
        self._dial = dial

    def connect(self) -> None:
        self.sock: Any = self._dial(CALL_SECONDS)


class _Pool(urllib3.connectionpool.HTTPConnectionPool):
    """One connection that is kept, and more only while it is in use."""

    def __init__(self, dial: Callable[[float], Stream]) -> None:
        super().__init__("localhost", maxsize=1)
        self._dial = dial

    def _new_conn(self) -> Any:
        return _Connection(self._dial)

    def _put_conn(self, conn: Any) -> None:
        # Nor for the log, where one that was in use beside the kept one is closed.
        assert self.pool is not None
        try:
            self.pool.put(conn, block=False)
        except queue.Full:
            conn.close()

    def _get_conn(self, timeout: float | None = None) -> Any:
        # Not urllib3's own way, which asks an SSH channel for a file descriptor at every turn.
        del timeout
        assert self.pool is not None
        try:
            return self.pool.get(block=False) or self._new_conn()
        except queue.Empty:
            return self._new_conn()


class _Adapter(BaseHTTPAdapter):
    """Requests to one engine."""

    def __init__(self, dial: Callable[[float], Stream]) -> None:
        self._pool = _Pool(dial)
        super().__init__()

    def get_connection(self, url: str | bytes, proxies: Any = None) -> Any:
        del url, proxies
        return self._pool

    def request_url(self, request: requests.PreparedRequest, proxies: Any) -> str:
        del proxies
        return request.path_url

    def close(self) -> None:
        super().close()
        self._pool.close()
