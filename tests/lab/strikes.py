"""Runs that a fault comes over at a certain moment, what is then said of the node, and which are tests.

The jobs are scripts and the limits are short, so that a run takes seconds; all else is as in any run.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import run_cvs
from cvs.config import load_files
from cvs.launch import LaunchPlan, NodePlan
from cvs.models import RunResult, RunStatus
from cvs.parsers.torch_trace import TorchTraceParser
from cvs.pipeline import measure
from cvs.run_folder import RunFolder, make_run_folder
from cvs.runners.aorta import AortaRunner
from cvs.transport._ssh_connect import SshLimits
from cvs.transport.base import Transport
from cvs.transport.ssh import SshTransport
from lab import faults
from lab.cluster import Lab
from lab.faults import WORK, heal
from lab.jobs import benchmark_file, lay_out, own
from lab.node import Node
from lab.root_folder import BY_PASSWORD, NO_DOCKER
from processes import eventually

HASTY = SshLimits(connect=3, banner=3, auth=5, keepalive=1, silence=3, patience=6)
TRACE = json.dumps(
    {
        "distributedInfo": {"rank": "RANK", "world_size": 4, "backend": "nccl"},
        "traceEvents": [
            {
                "ph": "X",
                "cat": "user_annotation",
                "name": "ProfilerStep#1",
                "ts": 1,
                "dur": 99,
                "pid": 1,
                "tid": 1,
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "gemm",
                "ts": 9,
                "dur": 50,
                "pid": 0,
                "tid": 7,
                "args": {"stream": 7},
            },
        ],
    }
).replace('"RANK"', "RANK")
TRAINS = f"""#!/bin/sh
for word; do case $word in --node_rank=*) first=$((2 * ${{word#*=}})) ;; esac; done
for rank in $first $((first + 1)); do
    mkdir -p artifacts/torch_profiler/rank$rank
    echo '{TRACE}' | sed "s/RANK/$rank/" > artifacts/torch_profiler/rank$rank/x.pt.trace.json
done
echo '[default0]:trains'
"""
GOES_ON = "for number in $(seq 40); do printf '%5000s\\n' $number || exit 1; sleep 0.2; done\n"
PROGRAMS = {
    "setup": (
        "docker",
        '#!/bin/sh\ncase "$*" in *load*) touch /shared/reached; sleep 2 ;; esac\nexec /usr/bin/docker "$@"\n',
    ),
    "collection": ("tar", '#!/bin/sh\ntouch /shared/reached; sleep 2\nexec /usr/bin/tar "$@"\n'),
}
"""On the node: called in the midst of these moments, and slow."""
BOUND = 60
"""Seconds in which each run is over: a guard against hanging."""


class Hasty(AortaRunner):
    """A runner that gives a node up soon."""

    def _transport(self, plan: NodePlan) -> Transport:
        return SshTransport(plan.node, self.cluster, limits=HASTY)


def hasty(plan: LaunchPlan) -> LaunchPlan:
    """The same job, with short limits."""
    limits = {"grace": 1, "shutdown": 3, "transfer": 20, "teardown": 8}
    return plan.model_copy(update={"limits": plan.limits.model_copy(update=limits)})


class Strike:
    """A fault that comes over a node at a certain moment."""

    def __init__(self, lab: Lab, act: Fault, moment: str) -> None:
        self.came = threading.Event()
        self.lines: list[str] = []
        self._node = lab.nodes[1]
        self._mark = lab.shared / "reached"
        self._act = act
        self._moment = moment
        self._is_over = threading.Event()

    def console(self, line: str) -> None:
        """Takes the run's lines; `trains` says that it trains."""
        self.lines.append(line)
        if self._moment == "run" and line == f"{self._node.address} rank 2 | trains":
            threading.Thread(target=self._come).start()

    def __enter__(self) -> Strike:
        if self._moment == "before":
            self._come()
        elif self._moment in PROGRAMS:
            name, text = PROGRAMS[self._moment]
            program = self._node.root / "opt/node/bin" / name
            program.write_text(text)
            program.chmod(0o755)
            threading.Thread(target=self._come_when_reached, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()

    def _come_when_reached(self) -> None:
        while not self._is_over.wait(0.02):
            if self._mark.exists():
                self._come()
                return

    def _come(self) -> None:
        self._act(self._node)
        self.came.set()


Fault = Callable[[Node], object]


def put_on_small_disk(node: Node) -> None:
    """What lies on the tests' ground comes to lie on a small disk, which has room for a run."""
    node.run("sh", "-c", f"cp -a {WORK} /var/kept")
    faults.small_disk(node, size="1100m")
    node.run("sh", "-c", f"cp -a /var/kept/. {WORK} && rm -rf /var/kept")


def fill(node: Node) -> None:
    """What is free of the small disk that the test has mounted is used up."""
    node.run("sh", "-c", f"cat /dev/zero > {WORK}/filler", check=False)


FAULTS: dict[str, Fault] = {
    "link-down": faults.link_down,
    "blackhole": faults.blackhole,
    "hang": faults.hang,
    "power-off": faults.power_off,
    "stop-sshd": faults.stop_sshd,
    "drop-sessions": faults.drop_sessions,
    "host-key": faults.host_key,
    "stop-dockerd": faults.stop_dockerd,
    "kill-dockerd": faults.kill_dockerd,
    "loss": lambda node: faults.loss(node, percent=10),
    "slow": faults.slow,
    "small-disk": fill,
}
LOGINS: dict[str, Callable[[Lab], dict[str, str | None]]] = {
    "no-docker-group": lambda _lab: {"username": NO_DOCKER.name},
    "wrong-password": lambda _lab: {
        "username": BY_PASSWORD.name, "priv_key_file": None, "password": "not-the-password"
    },
    "wrong-key": lambda lab: {"priv_key_file": str(lab.other_key)},
}  # fmt: skip
"""What may be wrong with the user: keys of the cluster file, which are for all nodes."""
MOMENTS = ("before", "setup", "run", "collection")
GOOD = ""
"""The run is none the worse."""
CANNOT_BE = "cannot be: who logs in, and with what, is settled before the start"
"""There is no such run."""
NO_WAY = r"(there is no way to|did not answer within 3 s)"
SILENT, NO_BANNER = r"did not answer within 3 s", r"showed no SSH banner within 3 s"
LOST = r"the connection was lost while docker ran"
REFUSED = r"the login as \w+ is refused; \S+ accepts publickey or password; it took none of"
NO_DAEMON = r"Is the docker daemon running\?"
TABLE: dict[str, tuple[str, str, str, str]] = {
    "link-down": (NO_WAY, LOST, NO_WAY, NO_WAY),
    "blackhole": (SILENT, LOST, SILENT, SILENT),
    "hang": (NO_BANNER, LOST, NO_BANNER, NO_BANNER),
    "power-off": (NO_WAY, LOST, NO_WAY, NO_WAY),
    # Sessions that are open go on, and lost ones come again.
    "drop-sessions": (GOOD, LOST, GOOD, GOOD),
    "host-key": (r"is not the one that is known", GOOD, GOOD, GOOD),
    "stop-sshd": (r"refuses connections", GOOD, GOOD, GOOD),
    # A stopped engine ends its containers, a killed one does not.
    "stop-dockerd": (NO_DAEMON, NO_DAEMON, r"lost its launcher to signal 9", NO_DAEMON),
    "kill-dockerd": (NO_DAEMON, NO_DAEMON, NO_DAEMON, NO_DAEMON),
    "loss": (GOOD, GOOD, GOOD, GOOD),
    "slow": (GOOD, GOOD, GOOD, GOOD),
    "small-disk": (
        r"only 0 MiB are free at aorta_path",
        r"is there space left on its disk",
        r"no space left on the disk",
        GOOD,
    ),
}
"""What is said of the node, by the moment; where all goes on, nothing."""
LOGIN_TABLE: dict[str, tuple[str, str, str, str]] = {
    "no-docker-group": (
        r"Docker cannot list containers: the login user may not use it; .* usermod -aG docker",
        *(CANNOT_BE, CANNOT_BE, CANNOT_BE),
    ),
    "wrong-password": (rf"{REFUSED}: password;", CANNOT_BE, CANNOT_BE, CANNOT_BE),
    "wrong-key": (rf"{REFUSED}: key \S+ \(ssh-ed25519 ", CANNOT_BE, CANNOT_BE, CANNOT_BE),
}
"""The same of what is wrong with the user; it is said of every node."""
ROWS = {**TABLE, **LOGIN_TABLE}
CUT_OFF = ("link-down", "blackhole", "hang", "power-off", "drop-sessions", "host-key")
"""Faults by which the node is out of reach, at least for a while."""
IN_REACH = tuple(fault for fault in ROWS if fault not in CUT_OFF)
CHOICE = {
    *(("link-down", "before"), ("blackhole", "before"), ("hang", "setup"), ("power-off", "before")),
    *(("drop-sessions", "collection"), ("host-key", "before"), ("stop-sshd", "run")),
    *(("stop-dockerd", "run"), ("kill-dockerd", "before"), ("loss", "before"), ("slow", "setup")),
    *(("small-disk", "run"), ("no-docker-group", "before")),
}
"""What `make test-lab` runs: each fault but for two of the login, and each moment, at least once."""


def cases(faults: tuple[str, ...]) -> list[object]:
    """The tests of some faults: at every moment at which they can be."""
    return [
        pytest.param(fault, moment, marks=[] if (fault, moment) in CHOICE else [pytest.mark.full])
        for fault in faults
        for moment, says in zip(MOMENTS, ROWS[fault], strict=True)
        if says != CANNOT_BE
    ]


@dataclass(frozen=True)
class Struck:
    """A run that a fault came over, or was to."""

    folder: RunFolder
    result: RunResult
    seconds: float
    has_come: bool
    nodes: tuple[Node, Node]
    """The sound one, and the other."""

    @property
    def ranks(self) -> set[int | None]:
        """Ranks that were brought home and can be measured."""
        parsed = measure(self.folder, TorchTraceParser()).parse
        return {rank.rank for rank in parsed.ranks if rank.quality.is_evidence}

    def wrong(self, fault: str, moment: str) -> str:
        """What is not as the table has it; empty if all is."""
        if not self.has_come:
            return "the fault did not come"
        if self.seconds > BOUND:
            return f"took {self.seconds:.0f} s"
        says = ROWS[fault][MOMENTS.index(moment)]
        if fault in LOGIN_TABLE:
            return self._not_refused(says)
        return self._not_red(says, moment) if says else self._not_good()

    def _not_good(self) -> str:
        if self.result.status is not RunStatus.COMPLETED or self.result.failure is not None:
            return f"{self.result.status.value}: {self.result.failure}"
        return "" if self.ranks == {0, 1, 2, 3} else f"only ranks {self.ranks}"

    def _not_refused(self, says: str) -> str:
        reason = self.result.failure.reason if self.result.failure else ""
        told = [re.search(rf"{re.escape(node.address)}: {says}", reason) for node in self.nodes]
        return "" if all(told) else f"{self.result.status.value}: {reason}"

    def _not_red(self, says: str, moment: str) -> str:
        sound, other = (re.escape(node.address) for node in self.nodes)
        reason = self.result.failure.reason if self.result.failure else ""
        if self.result.status is not RunStatus.FAILED:
            return f"{self.result.status.value}: {reason}"
        if not re.search(rf"{other}\b.*{says}", reason):
            return f"says: {reason}"
        if re.search(rf"\b{sound}\b", reason):
            return f"names the sound node: {reason}"
        if moment in ("run", "collection") and not self.ranks >= {0, 1}:
            return f"only ranks {self.ranks}"
        return ""


def struck(lab: Lab, image: str, home: Path, fault: str, moment: str) -> Struck:
    """One run on the first two nodes, of which the second is struck."""
    sound, node = lab.nodes[:2]
    lay_out([sound, node], TRAINS + (GOES_ON if moment == "run" else ""))
    for each in (sound, node):
        each.run("docker", "save", "--output", f"{WORK}/image.tar", image)
        own(each)
    if fault == "small-disk":
        put_on_small_disk(node)
    docker = f"{{image: {image}, pull: always, image_tar: {WORK}/image.tar}}"
    login = LOGINS[fault](lab) if fault in LOGINS else {}
    (home / "cluster.json").write_text(json.dumps({**lab.cluster(2), **login}))
    cluster, bench = load_files(home / "cluster.json", benchmark_file(home, "", docker=docker))
    folder = make_run_folder(home / f"{fault}-{moment}-{time.time_ns()}")
    with Strike(lab, FAULTS.get(fault, lambda _node: None), moment) as strike:
        runner = Hasty(cluster, bench, console=strike.console, adjust=hasty)
        begun = time.monotonic()
        result = runner.execute(folder)
        seconds = time.monotonic() - begun
    return Struck(folder, result, seconds, strike.came.is_set(), (sound, node))


def wrong(lab: Lab, image: str, home: Path, fault: str, moment: str) -> list[str]:
    """What is not as it should be with such a run, and after it."""
    run = struck(lab, image, home, fault, moment)
    # What was left where nobody could get is gone once cvs can get there again.
    heal(run.nodes[1])
    cluster = home / "sound.json"
    cluster.write_text(json.dumps(lab.cluster(2)))
    done = run_cvs("cleanup", f"--cluster_file={cluster}", "--run", run.result.run_id)
    said = done.stdout + done.stderr if done.returncode else ""
    told = [run.wrong(fault, moment), said, *still_left(lab)]
    lab.clear()
    return list(filter(None, told))


def still_left(lab: Lab) -> list[str]:
    """What cvs has left for good, but for the server's half of a connection whose end it was never told.

    A command whose connection is gone ends by itself, as late as its own limit.
    """
    of_ssh = ("sshd: ", "docker system dial-stdio")

    def left() -> list[str]:
        return [line for line in lab.leftovers() if not any(words in line for words in of_ssh)]

    eventually(lambda: not left())
    return left()
