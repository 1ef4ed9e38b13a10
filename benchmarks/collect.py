"""Traces from a node's own disk over a link of 1 Gbit/s: cvs beside scp and rsync.

Each run begins without a connection and ends with all files here. What cvs does besides is in its time: the
list of what is there, and the digests on both sides.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.measure import fresh, one_node, rounds, seconds
from benchmarks.table import Table
from benchmarks.traces import write_ranks
from cvs.config import ClusterConfig
from cvs.runners._collect import bring_home, listing
from cvs.transport.ssh import SshTransport
from lab import faults
from lab.cluster import Lab
from lab.machine import run
from lab.node import Node

RANKS, TILES = 4, 4
RATE = "1000mbit"
_TIMEOUT = 120
_FOLDER = f"{faults.WORK}/aorta"
_ZSTD, _GZIP, _SCP, _RSYNC = "cvs, zstd", "cvs, gzip", "scp -r", "rsync -az"


def tables(count: int) -> Iterator[Table]:
    """One table, of so many rounds."""
    with one_node() as (lab, cluster):
        node = lab.nodes[0]
        there = node.root / _FOLDER.lstrip("/")
        paths = write_ranks(there, RANKS, TILES)
        megabytes = sum((there / path).stat().st_size for path in paths) / 1e6
        run("chmod", "-R", "a+rX", there.parent)
        faults.slow(node, rate=RATE)
        scp, rsync = (partial(_copied, lab, node, words) for words in (["scp", "-rq"], ["rsync", "-az"]))
        cvs = partial(fresh, _collected, cluster)
        contenders = {_ZSTD: cvs, _GZIP: partial(_without_zstd, node, cvs), _SCP: scp, _RSYNC: rsync}
        figures = rounds(contenders, count)
    yield Table(
        f"collect: {RANKS} plain traces, {megabytes:.0f} MB together, over {RATE}; seconds",
        figures,
        baselines=(_SCP, _RSYNC),
        goals={(_ZSTD, _SCP): 3, (_ZSTD, _RSYNC): 1, (_GZIP, _SCP): 1},
    )


@contextmanager
def _here() -> Iterator[Path]:
    """A folder on the disk that runs are kept on."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
        yield Path(folder)


def _collected(cluster: ClusterConfig) -> float:
    [address] = cluster.node_dict
    with _here() as here:

        def collect() -> None:
            transport = SshTransport(address, cluster)
            try:
                paths = sorted(listing(transport, _FOLDER, timeout=_TIMEOUT).files)
                files, problems = bring_home(transport, _FOLDER, paths, here / "node_0", 0, timeout=_TIMEOUT)
                assert len(files) == RANKS, problems
            finally:
                transport.close()

        return seconds(collect)


def _without_zstd(node: Node, do: partial[float]) -> float:
    """Do it while the node has no program zstd; its files are this machine's and stay."""
    zstd = node.run("sh", "-c", "command -v zstd").stdout.strip()
    node.run("mount", "--bind", "/dev/null", zstd)
    try:
        return do()
    finally:
        node.run("umount", zstd)


def _copied(lab: Lab, node: Node, words: list[str]) -> float:
    with _here() as here:
        ssh = f"ssh -F {lab.ssh_config}"
        way = ["-F", str(lab.ssh_config)] if words[0] == "scp" else ["-e", ssh]
        copy = partial(run, *words, *way, f"{node.name}:{_FOLDER}", here, timeout=_TIMEOUT)
        return seconds(copy)
