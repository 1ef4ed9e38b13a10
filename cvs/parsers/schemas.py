"""Names by which other suites know our models. The models themselves live where they are defined."""

from __future__ import annotations

from cvs.config import AortaConfig as AortaBenchmarkConfigFile
from cvs.config import ClusterConfig as ClusterConfigFile
from cvs.config.aorta import MultiNode as AortaMultiNodeConfigFile
from cvs.models import BenchmarkResult as AortaBenchmarkResult
from cvs.models import ParseResult, ParseStatus
from cvs.models import RankMetrics as AortaTraceMetrics

__all__ = [
    "AortaBenchmarkConfigFile",
    "AortaBenchmarkResult",
    "AortaMultiNodeConfigFile",
    "AortaTraceMetrics",
    "ClusterConfigFile",
    "ParseResult",
    "ParseStatus",
]
