"""The Aorta benchmark: distributed training with profiler traces."""

from __future__ import annotations

from typing import Any

from cvs.config import AortaConfig, ClusterConfig
from cvs.launch import LaunchPlan, Site, plan_aorta
from cvs.runners._base_runner import BaseRunner


class AortaRunner(BaseRunner):
    """Runs Aorta's trainer, or one with its command line, on every node."""

    benchmark = "aorta"

    def __init__(self, cluster: ClusterConfig, bench: AortaConfig, **settings: Any) -> None:
        """Take the two validated files; `settings` as in `BaseRunner`."""
        super().__init__(cluster, bench, **settings)
        self.bench = bench

    def make_plan(self, site: Site) -> LaunchPlan:
        """See `BaseRunner.make_plan`."""
        return plan_aorta(self.cluster, self.bench, site)
