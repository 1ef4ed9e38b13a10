"""`python -m benchmarks.soak`: many short runs on nodes that random faults come over, one after the other.

No speed is measured: it counts runs whose verdict is not as the table of faults has it, and what is left on a
node once it is well again. Needs root, as `make test-lab` does.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from conftest import run_cvs
from lab.cluster import Lab, lab_folder
from lab.faults import heal
from lab.machine import LabError
from lab.strikes import MOMENTS, TABLE, still_left, struck


def main(words: Sequence[str]) -> int:
    """Run and count; 0 nothing wrong and nothing left, 1 otherwise, or no lab."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description="Runs under random faults."
    )
    parser.add_argument("--runs", type=int, default=100, metavar="N")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), metavar="N", help="of the faults' order"
    )
    arguments = parser.parse_args(words)
    try:
        return _soak(arguments.runs, arguments.seed)
    except LabError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 1


def _soak(runs: int, seed: int) -> int:
    print(f"{runs} runs, seed {seed}", flush=True)
    choice = random.Random(seed)
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    lab = Lab(lab_folder())
    with lab.held(), TemporaryDirectory(prefix="cvs-soak-") as home:
        was_up = bool(lab.nodes)
        try:
            lab.up(2)
            image = lab.load("tiny")
            lab.clear()
            for number in range(1, runs + 1):
                fault, moment = choice.choice(list(TABLE)), choice.choice(MOMENTS)
                counts.update(_one(lab, image, Path(home), fault, moment, number))
        finally:
            lab.heal()
            lab.clear()
            if not was_up:
                lab.off()
    minutes = (time.monotonic() - begun) / 60
    told = ", ".join(f"{counts[word]} {word}" for word in ("good", "red", "wrong", "left"))
    print(f"{runs} runs in {minutes:.0f} min: {told}", flush=True)
    return int(bool(counts["wrong"] or counts["left"]))


def _one(lab: Lab, image: str, home: Path, fault: str, moment: str, number: int) -> list[str]:
    """Words to count for one run."""
    run = struck(lab, image, home, fault, moment)
    wrong = run.wrong(fault, moment)
    heal(run.nodes[1])
    cluster = home / "cluster.json"
    done = run_cvs("cleanup", f"--cluster_file={cluster}", "--run", run.result.run_id)
    left = [*still_left(lab), *([done.stdout] if done.returncode else [])]
    lab.clear()
    verdict = "good" if run.result.failure is None else "red"
    print(f"{number:4} {fault:14} {moment:11} {run.seconds:5.1f} s  {verdict}  {wrong}", *left, flush=True)
    return [verdict, *(["wrong"] if wrong else []), *(["left"] if left else [])]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
