"""Speed, always beside a named baseline that was measured in the same run: `python -m benchmarks`."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.append(str(TESTS))  # for the lab, which is where nodes are
