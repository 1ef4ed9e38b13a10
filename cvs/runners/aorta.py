"""The Aorta benchmark: distributed training with profiler traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import ConfigError
from cvs.launch import LaunchPlan, Site, plan_aorta
from cvs.runners._base_runner import BaseRunner
from cvs.runners._node import RunNode

_OVERRIDE_VARIABLE = "AORTA_OVERRIDE_ARGS"


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

    def validate_config(self) -> list[str]:
        """See `BaseRunner.validate_config`; also what an experiment script here would not read."""
        script = Path(self.bench.aorta_path, self.bench.experiment_script)
        readable = self.cluster.transport == "local" and script.is_file()
        return [
            *super().validate_config(),
            *(self._unread(script.read_text("utf-8", "replace")) if readable else []),
            *self._without_effect(),
        ]

    def _without_effect(self) -> list[str]:
        keys = {"tracelens": "enable_tracelens", "gemm": "enable_gemm_analysis"}
        planned = self.make_plan(Site()).head.analyses
        return [
            f"analysis.{keys[step.name]} has no effect in this version: set it to false" for step in planned
        ]

    def refuse_unsupported(self) -> None:
        """See `BaseRunner.refuse_unsupported`."""
        head = self.make_plan(Site()).head
        refused = {"skip_rccl_build: false": head.rccl_build, "aorta_auto_clone: true": head.clone_url}
        if problems := [
            f"{key} can be planned but not carried out by this version"
            for key, asked in refused.items()
            if asked
        ]:
            raise ConfigError(problems)

    def examine(self, node: RunNode) -> list[str]:
        """Whether the node's experiment script reads the overrides."""
        if self.plan.mode != "script" or not self.bench.training_overrides:
            return []
        return self._unread(node.read(self.bench.experiment_script))

    def _unread(self, script: str) -> list[str]:
        unread = self.bench.training_overrides and _OVERRIDE_VARIABLE not in script
        if not unread or self.make_plan(Site()).mode != "script":
            return []
        return [
            f"training_overrides have no effect: {self.bench.experiment_script} does not read"
            f" {_OVERRIDE_VARIABLE}; multi_node.master_launch_mode: torchrun hands them to the trainer"
        ]
