"""No secret is seen where it does not belong: on this machine, on the nodes, or in anything that is left.

Everything is run with secrets that are made up for the test. Meanwhile all processes of this machine, also
those of the nodes and of containers there, are looked at again and again. In the end all that was written
anywhere is searched.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import bcrypt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    PublicFormat,
)

from conftest import run_cvs
from cvs.config.model import HIDDEN
from lab.cluster import Lab
from lab.faults import WORK
from lab.jobs import AORTA, INTERPRETER, PYTHON, benchmark_file, container_of, folder_of, lay_out, own
from lab.machine import wait_for
from lab.node import Node
from lab.root_folder import BY_PASSWORD, CVS
from repositories import USER, Repository, served

pytestmark = pytest.mark.lab

_PAUSE = 0.1
_RUN = b"CVS_RUN_ID="
"""In the environment of a job, and of what works beside it."""


class Secrets(dict[str, str]):
    """Each by what it is for."""

    def __missing__(self, what: str) -> str:
        self[what] = f"mark{secrets.token_hex(12)}"
        return self[what]

    def in_text(self, text: bytes) -> set[str]:
        """Which of them are there, as they are or within something in base64."""
        # A copy: another thread may just be adding one.
        return {what for what, value in [*self.items()] if any(form in text for form in _forms(value))}


@cache
def _forms(value: str) -> tuple[bytes, ...]:
    plain = value.encode()
    # Of the characters at either end a part belongs to the neighbours.
    return (plain, *(b64encode(b"\0" * before + plain)[4 if before else 0 : -4] for before in range(3)))


# --- while something runs ---------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Looks at all processes, and notes the secrets that these have in words or environment."""

    def __init__(self, marked: Secrets) -> None:
        super().__init__(daemon=True)
        self.of_jobs: set[str] = set()
        """Those that a job has had: variables, and arguments, which everybody on its node can read."""
        self.seen: set[str] = set()
        """Those where they do not belong: which, where, and the program."""
        self._marked = marked
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(_PAUSE):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    self._look_at(process)

    def _look_at(self, process: Path) -> None:
        texts = {name: (process / name).read_bytes() for name in ("cmdline", "environ")}
        found = {(what, where) for where, text in texts.items() for what in self._marked.in_text(text)}
        if not found:
            return
        is_on_node = len(_namespaces(process)) > 1
        of_job = {("argument", "cmdline"), *([("variable", "environ")] if _RUN in texts["environ"] else [])}
        for what, where in found:
            if is_on_node and (what, where) in of_job:
                self.of_jobs.add(what)
            elif is_on_node or where == "cmdline":  # here the user's files may name variables
                self.seen.add(f"{what} in the {where} of {(process / 'comm').read_text().strip()}")

    def end(self) -> None:
        assert self.is_alive()
        self._is_over.set()
        self.join()


def _namespaces(process: Path) -> list[str]:
    """Its number in each namespace that it is in: this machine's, a node's, a container's."""
    lines = (process / "status").read_text().splitlines()
    return next(line for line in lines if line.startswith("NSpid:")).split()[1:]


# --- what is left -----------------------------------------------------------------------------------------


def files_with(marked: Secrets, places: Iterable[Path], since: float = 0) -> list[str]:
    """Files at or below the places that have a secret, and which; of those that were changed since then."""
    found = []
    for path in _files(places):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_ctime >= since:
                found += [f"{what} in {path}" for what in sorted(marked.in_text(path.read_bytes()))]
    return found


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        yield place
        yield from (Path(folder, name) for folder, _, names in os.walk(place) for name in names)


def new_in(folder: Path, since: float) -> list[Path]:
    """What lies in it, not deeper, and has come or was changed since then."""
    found = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            found += [path] if path.lstat().st_ctime >= since else []
    return found


OF_A_NODE = ("etc", "home", "opt", "root", "run", "shared", "srv", "tmp", "var", "dev/shm")
"""All that a node has on its disk and in memory, but for what is this machine's."""


@dataclass
class Calls:
    """Calls of cvs, with folders of their own for all that they write."""

    folder: Path
    marked: Secrets = field(default_factory=Secrets)
    variables: dict[str, str] = field(default_factory=dict)
    """What the cluster file takes from the environment."""
    of_jobs: set[str] = field(default_factory=set)
    """Secrets that jobs are given and run with."""
    since: float = field(init=False)

    def __post_init__(self) -> None:
        for folder in (self.given / "docker", self.left / "home", self.left / "tmp"):
            folder.mkdir(parents=True)
        self.since = self.left.stat().st_ctime

    @property
    def given(self) -> Path:
        """What the user gives; secrets stand there."""
        return self.folder / "given"

    @property
    def left(self) -> Path:
        """What is written."""
        return self.folder / "left"

    def call(self, *words: str) -> str:
        """One call to its end; what it says."""
        done = run_cvs(*words, cwd=self.left, **self._environment())
        said = done.stdout + done.stderr
        with (self.left / "console").open("a") as console:
            console.write(said)
        return said

    @contextmanager
    def run(self, *words: str) -> Iterator[Path]:
        """A run that tells and writes as much as it can; its console."""
        told = self.left / "console-of-run"
        with told.open("wb") as console:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "cvs.cli", "run", "test_aorta", *words),
                    *("--log-cli-level=DEBUG", "--junitxml=junit.xml", "--html=all.html", "-vv", "-rA", "-l"),
                ],
                cwd=self.left, stdout=console, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, **self._environment()},
            )  # fmt: skip
            try:
                yield told
                process.wait(120)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait(60)

    def left_on(self, node: Node) -> list[str]:
        """Files of a node that have a secret."""
        places = [Path(f"/proc/{node.pid()}/root", name) for name in OF_A_NODE]
        assert all(map(Path.is_dir, places))
        return files_with(self.marked, places, self.since)

    def _environment(self) -> dict[str, str]:
        return {
            "HOME": str(self.left / "home"),
            "TMPDIR": str(self.left / "tmp"),
            "DOCKER_CONFIG": str(self.given / "docker"),
            **self.variables,
        }


@pytest.fixture
def calls(lab: Lab, tmp_path: Path) -> Iterator[Calls]:
    """Calls of cvs; in the end, and while they ran, no secret is where it does not belong."""
    calls = Calls(tmp_path)
    watch = Watch(calls.marked)
    watch.start()
    yield calls
    watch.end()
    assert watch.seen == set()
    assert watch.of_jobs == calls.of_jobs, "or the watch has missed the jobs"
    assert files_with(calls.marked, [calls.given]), "or nothing is found at all"
    assert files_with(calls.marked, [calls.left]) == []
    others = (path for path in new_in(Path("/tmp"), calls.since) if not tmp_path.is_relative_to(path))
    assert files_with(calls.marked, others, calls.since) == []
    assert [line for node in lab.nodes for line in calls.left_on(node)] == []


# --- what users give --------------------------------------------------------------------------------------

REGISTRY = f"""\
version: 0.1
storage: {{filesystem: {{rootdirectory: {WORK}/registry}}}}
http: {{addr: 127.0.0.1:5000}}
auth: {{htpasswd: {{realm: lab, path: {WORK}/htpasswd}}}}
"""
ADDRESS = "localhost:5000"
PULLED = f"{ADDRESS}/tiny"


def docker_config(folder: Path, password: str) -> None:
    """Credentials as `docker login` leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    login = b64encode(f"alice:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {ADDRESS: {"auth": login}}}))


@pytest.fixture
def registry(lab: Lab, tiny_image: str, calls: Calls) -> Iterator[Node]:
    """A node with a registry that asks for a password, and has the image `tiny` under another name."""
    node, password = lab.nodes[0], calls.marked["registry"]
    work = node.root / WORK.lstrip("/")
    work.mkdir(parents=True, exist_ok=True)
    (work / "registry.yaml").write_text(REGISTRY)
    (work / "htpasswd").write_text(f"alice:{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()}\n")
    docker_config(calls.given / "docker", password)
    docker_config(work / "docker", password)
    node.run("sh", "-c", f"setsid docker-registry serve {WORK}/registry.yaml > {WORK}/log 2>&1 &")
    try:
        wait_for(
            "the registry",
            lambda: "refused" not in node.run("docker", "pull", PULLED, check=False).stderr,
            20,
        )
        for words in (("tag", tiny_image, PULLED), ("push", PULLED), ("rmi", PULLED)):
            node.run("docker", "--config", f"{WORK}/docker", *words)
        node.run("rm", "-r", f"{WORK}/docker")
        own(node)
        yield node
    finally:
        node.run("pkill", "docker-registry")
        node.run("docker", "rmi", "--force", PULLED, check=False)


@pytest.fixture
def key(lab: Lab, calls: Calls) -> Iterator[Path]:
    """A key with a passphrase that logs in on the first node, in a file that others can read."""
    key, pair = calls.given / "key", Ed25519PrivateKey.generate()
    passphrase = BestAvailableEncryption(calls.marked["passphrase"].encode())
    key.write_bytes(pair.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, passphrase))
    key.chmod(0o644)
    public = pair.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    accepted = lab.nodes[0].root / CVS.home / ".ssh/authorized_keys"
    before = accepted.read_text()
    accepted.write_text(f"{before}{public}\n")
    try:
        yield key
    finally:
        accepted.write_text(before)


TRAINS = """#!/bin/sh
mkdir -p out/torch_profiler/rank0
echo '{}' > out/torch_profiler/rank0/x.pt.trace.json
echo trains
until [ -e go ]; do sleep 0.1; done
"""
FAILS = "#!/bin/sh\nsleep 0.5; echo 'OSError: no such rail' >&2; exit 3\n"


def files_of(calls: Calls, lab: Lab, cluster: Mapping[str, object], bench: dict[str, str]) -> tuple[str, str]:
    """The two files for a job on the first node that is given secrets, as options."""
    marked = calls.marked
    given = {name: value for name, value in {**lab.cluster(1), **cluster}.items() if value is not None}
    (calls.given / "cluster.json").write_text(json.dumps(given))
    file = benchmark_file(
        calls.given, "cvs-lab/tiny",
        **{
            "environment": f"{{PATH: '/mnt/bin:/bin:/usr/bin', HF_TOKEN: '{marked['variable']}'}}",
            "multi_node": "{master_launch_mode: torchrun, grace_seconds: 2,"
            f" extra_train_args: ['--api-key={marked['argument']}']}}",
            **bench,
        },
    )  # fmt: skip
    return f"--cluster_file={calls.given}/cluster.json", f"--config_file={file}"


# --- the tests --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_that_goes_well(
    registry: Node, key: Path, lab: Lab, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked = calls.marked
    monkeypatch.setattr("repositories.PASSWORD", marked["clone"])
    calls.variables["PASSPHRASE"] = marked["passphrase"]
    origin = Repository(calls.given)
    origin.commit(
        {"train.py": "", "config/distributed.yaml": "{}", "bin/python3": PYTHON, "bin/torchrun": TRAINS}
    )
    with served(calls.given, lambda: None, str(lab.network.subnet[1])) as address:
        url = f"http://{USER}:{marked['clone']}@{address}/{origin.bare.name}"
        docker = f"{{image: '{PULLED}', pull: always}}"
        files = files_of(
            calls, lab,
            {"priv_key_file": str(key), "priv_key_passphrase": "${PASSPHRASE}"},
            {"docker": docker, "aorta_auto_clone": "true", "aorta_clone_url": f"'{url}'"},
        )  # fmt: skip
        paper = calls.call("run", "test_aorta", *files, "--dry-run")
        assert f"HF_TOKEN={HIDDEN}" in paper
        assert f"{key}: others can read this private key; chmod 600 {key}" in paper
        assert HIDDEN in calls.call("run", "test_aorta", *files, "--dry-run", "--json")
        assert "a run clones it" in calls.call("doctor", *files)
        assert ": exit 0" in calls.call("exec", files[0], "--cmd", "env; ps -ef; docker ps")
        calls.of_jobs = {"variable", "argument"}
        with calls.run(*files) as console:
            wait_for("the job", lambda: " | trains" in console.read_text(), 60, console)
            assert PULLED in container_of(registry, "{{.Config.Image}}")
            assert marked.in_text(container_of(registry, "{{json .}}").encode()) == set()
            assert calls.left_on(registry) == []
            registry.run("touch", f"{AORTA}/go")
    run_folder = folder_of(calls.left)
    assert run_folder.load_manifest().run.status.value == "completed"
    assert run_folder.path.stat().st_mode & 0o777 == 0o700
    assert f"{key}: others can read this private key; chmod 600 {key}" in console.read_text()
    calls.call("cleanup", *files)


def test_a_wrong_password(lab: Lab, calls: Calls) -> None:
    calls.variables["PASSWORD"] = calls.marked["wrong password"]
    by_password = {"username": BY_PASSWORD.name, "priv_key_file": None, "password": "${PASSWORD}"}
    with calls.run(*files_of(calls, lab, by_password, {})) as console:
        pass
    assert f"the login as {BY_PASSWORD.name} is refused" in console.read_text()


@pytest.mark.full
def test_a_wrong_passphrase(key: Path, lab: Lab, calls: Calls) -> None:
    calls.variables["PASSPHRASE"] = calls.marked["wrong passphrase"]
    by_key = {"priv_key_file": str(key), "priv_key_passphrase": "${PASSPHRASE}"}
    with calls.run(*files_of(calls, lab, by_key, {})) as console:
        pass
    assert f"key {key} does not open with the passphrase" in console.read_text()


@pytest.mark.full
def test_a_registry_that_refuses(registry: Node, lab: Lab, calls: Calls) -> None:
    lay_out([registry], TRAINS)
    docker_config(calls.given / "docker", calls.marked["wrong registry"])
    docker = f"{{image: '{PULLED}', pull: always}}"
    with calls.run(*files_of(calls, lab, {}, {"docker": docker})) as console:
        pass
    assert f"{registry.address}: Docker cannot pull {PULLED}: " in console.read_text()


SHARED = "/shared/aorta"


@pytest.mark.full
def test_a_job_that_fails_after_a_login_by_password(lab: Lab, calls: Calls) -> None:
    """As plain processes, whose environment goes over the connection of the login."""
    calls.marked["password"] = calls.variables["PASSWORD"] = lab.password
    for name, text in {
        "train.py": "",
        "config/distributed.yaml": "{}",
        "bin/python": INTERPRETER,
        "bin/python3": PYTHON,
        "bin/torchrun": FAILS,
    }.items():
        path = lab.shared / "aorta" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for path in (lab.shared / "aorta", *(lab.shared / "aorta").rglob("*")):
        os.chown(path, BY_PASSWORD.uid, BY_PASSWORD.uid)
    files = files_of(
        calls, lab,
        {"username": BY_PASSWORD.name, "priv_key_file": None, "password": "${PASSWORD}",
         "env_vars": {"TORCH_PYTHON": f"{SHARED}/bin/python"}},
        {"aorta_path": SHARED, "runtime": "process", "accelerator": "none",
         "environment": f"{{HF_TOKEN: '{calls.marked['variable']}'}}"},
    )  # fmt: skip
    calls.of_jobs = {"variable", "argument"}
    with calls.run(*files) as console:
        pass
    assert "ended first, with exit code 3: OSError: no such rail" in console.read_text()
