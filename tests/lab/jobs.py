"""Jobs on nodes of the lab that load nothing: scripts in the place of torchrun, in the tiny image."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import Done, run_cvs
from cvs.run_folder import RunFolder, newest_run_folder
from lab.faults import WORK
from lab.node import Node
from lab.root_folder import CVS

AORTA = f"{WORK}/aorta"
ClusterFile = Callable[..., Path]

PYTHON = """#!/bin/sh
case "$2" in
    *"tried_to_write("*) echo '{"problems": {}}' ;;
    *"listener("*) echo '{"problem": ""}' ;;
    *) echo '{"torch": "none"}' ;;
esac
"""
"""Stands in for the image's Python, which says what the job is made with, and that all is well there."""

INTERPRETER = """#!/bin/sh
case "$*" in *torch.distributed.run*) exec sh $(dirname $0)/torchrun "$@" ;; esac
exec sh $(dirname $0)/python3 "$@"
"""
TALKS = """#!/bin/sh
for number in $(seq 40); do echo "[default0]:line $number"; sleep 0.1; done
"""
TRAINS_FOR_EVER = """#!/bin/sh
echo '[default0]:trains'
while :; do sleep 0.2; done
"""
TELLS = """#!/bin/sh
echo "words: $*"
echo "who: $(id)"
echo "gpu: $(head -c 1 /dev/kfd | wc -c) $(ls /dev/dri | tr '\\n' ' ')"
echo "place: $(pwd) $(hostname) seccomp $(grep Seccomp: /proc/self/status | tr -d '\\t')"
echo "variables: $EXTRA $HOW_MANY $PER_NODE"
mkdir -p artifacts/torch_profiler/rank0
echo '{}' > artifacts/torch_profiler/rank0/x.pt.trace.json
"""


def lay_out(nodes: list[Node], torchrun: str) -> None:
    """A workload on each node whose `torchrun` is a script."""
    for node in nodes:
        write_workload(node.root / AORTA.lstrip("/"), torchrun)
        own(node)


def write_workload(folder: Path, torchrun: str) -> None:
    """The same, in a folder."""
    for name, text in {
        "train.py": "",
        "config/distributed.yaml": "{}",
        "bin/python3": PYTHON,
        "bin/python": INTERPRETER,
        "bin/torchrun": torchrun,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def own(node: Node) -> None:
    """Gives the tests' ground there to the login user."""
    for path in (node.root / WORK.lstrip("/"), *(node.root / WORK.lstrip("/")).rglob("*")):
        os.chown(path, CVS.uid, CVS.uid, follow_symlinks=False)


def benchmark_file(folder: Path, image: str, **keys: str) -> Path:
    """A benchmark file for the tiny image; `keys` are further lines, by their first word."""
    lines = {
        "aorta_path": AORTA,
        "base_config": "config/distributed.yaml",
        "gpus_per_node": "2",
        "timeout_seconds": "120",
        "skip_rccl_build": "true",
        "docker": f"{{image: '{image}', pull: never}}",
        "environment": "{PATH: '/mnt/bin:/bin:/usr/bin'}",
        "analysis": "{enable_tracelens: false}",
        "multi_node": "{master_launch_mode: torchrun, grace_seconds: 2}",
        **keys,
    }
    path = folder / "aorta.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
    return path


def run(home: Path, cluster: Path, bench: Path, *words: str) -> Done:
    """The whole suite, to its end; its runs lie below `home`."""
    files = (f"--cluster_file={cluster}", f"--config_file={bench}")
    return run_cvs("run", "test_aorta", *files, *words, cwd=home)


def doctor(cluster: Path, bench: Path, *words: str) -> Done:
    """The checks alone."""
    return run_cvs("doctor", f"--cluster_file={cluster}", f"--config_file={bench}", *words)


def folder_of(home: Path) -> RunFolder:
    """The newest run below `home`."""
    return newest_run_folder(home / "cvs_runs", "test_aorta")


@contextmanager
def started(home: Path, cluster: Path, bench: Path) -> Iterator[subprocess.Popen[str]]:
    """The same, while it runs; it is ended with the block."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "cvs.cli", "run", "test_aorta"),
            *(f"--cluster_file={cluster}", f"--config_file={bench}"),
        ],
        cwd=home, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Reads on to a line with this text."""
    assert process.stdout is not None
    assert any(text in line for line in process.stdout), f"no line had {text!r}"


def container_of(node: Node, template: str = "{{.Name}}") -> str:
    """What `docker inspect` says of the one container that is there."""
    return node.run("sh", "-c", 'docker inspect -f "$1" $(docker ps -aq)', "sh", template).stdout.strip()


def rooted(node: Node) -> str:
    """What root has in the login user's home."""
    return node.run("find", f"/{CVS.home}", "-user", "0").stdout
