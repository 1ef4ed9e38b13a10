"""The Docker API of one node over SSH: cvs's one connection beside the two ways of Docker's own SDK.

Each run is a process of its own: it connects and asks for an answer, makes ten calls, and runs `true` in a
container.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import docker

from benchmarks.measure import fresh, one_node, rounds, seconds
from benchmarks.table import Table
from cvs.config import ClusterConfig
from cvs.runtime._engine import Engine
from cvs.transport.ssh import SshTransport
from lab.cluster import Lab
from lab.machine import write
from lab.node import Node

CALLS = 10
_CONTAINER = "cvs-bench"
_STEPS = ("connect", f"{CALLS} calls", "exec")
_CVS, _SHELL, _PARAMIKO = "cvs", "SDK, ssh client", "SDK, paramiko"
_SSH = """\
#!/bin/sh
exec {ssh} -F {config} "$@"
"""
"""The SDK has no way to name a config, and OpenSSH takes none from $HOME."""


def tables(count: int) -> Iterator[Table]:
    """One table for each step, of so many rounds."""
    with one_node() as (lab, cluster), tempfile.TemporaryDirectory() as folder:
        image = lab.load("tiny", 1)
        environment = _client_of(lab, Path(folder))
        sdk = partial(fresh, _by_sdk, f"ssh://{cluster.username}@{lab.nodes[0].address}", environment)
        contenders = {
            _CVS: partial(fresh, _by_cvs, cluster),
            _SHELL: partial(sdk, True),
            _PARAMIKO: partial(sdk, False),
        }
        with _container(lab.nodes[0], image):
            results = rounds(contenders, count)
    for step in _STEPS:
        yield Table(
            f"api, {step}: Docker over SSH; milliseconds",
            {name: [result[step] * 1e3 for result in rows] for name, rows in results.items()},
            baselines=(_SHELL, _PARAMIKO),
        )


def _client_of(lab: Lab, folder: Path) -> dict[str, str]:
    """Environment in which `ssh` and paramiko know the lab's nodes."""
    path = os.environ["PATH"]
    write(folder / "ssh", _SSH.format(ssh=shutil.which("ssh"), config=lab.ssh_config), 0o755)
    return {"HOME": str(lab.home), "PATH": f"{folder}{os.pathsep}{path}"}


@contextmanager
def _container(node: Node, image: str) -> Iterator[None]:
    node.run("docker", "run", "-d", "--name", _CONTAINER, "--network", "host", image, "sleep", "3600")
    try:
        yield
    finally:
        node.run("docker", "rm", "-f", _CONTAINER)


def _by_cvs(cluster: ClusterConfig) -> dict[str, float]:
    [address] = cluster.node_dict
    transport = SshTransport(address, cluster)
    engine = Engine(transport)
    try:
        return _timed(
            lambda: engine.ask("answer", lambda client: client.ping()),
            lambda: engine.ask("look", lambda client: client.inspect_container(_CONTAINER)),
            lambda: engine.execute(_CONTAINER, ["true"], timeout=30).exit_code,
        )
    finally:
        engine.close()
        transport.close()


def _by_sdk(url: str, environment: dict[str, str], use_ssh_client: bool) -> dict[str, float]:
    os.environ.update(environment)
    clients: list[docker.DockerClient] = []

    def connect() -> None:
        clients.append(docker.DockerClient(url, use_ssh_client=use_ssh_client))
        clients[0].ping()

    try:
        return _timed(
            connect,
            lambda: clients[0].api.inspect_container(_CONTAINER),
            lambda: _exit_code(clients[0].api),
        )
    finally:
        for client in clients:
            client.close()


def _exit_code(client: docker.APIClient) -> int:
    command = client.exec_create(_CONTAINER, ["true"])["Id"]
    with suppress(BrokenPipeError):  # the SDK says good-bye to its ssh, which may be gone by then
        client.exec_start(command)
    return int(client.exec_inspect(command)["ExitCode"])


def _timed(
    connect: Callable[[], object], call: Callable[[], object], run: Callable[[], int]
) -> dict[str, float]:
    def call_often() -> None:
        for _ in range(CALLS):
            call()

    def run_well() -> None:
        assert run() == 0

    return {step: seconds(do) for step, do in zip(_STEPS, (connect, call_often, run_well), strict=True)}
