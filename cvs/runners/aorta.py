"""The Aorta benchmark: distributed training with profiler traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cvs.config import AortaConfig, ClusterConfig
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

    def _named_rendezvous(self) -> str | None:
        return "multi_node.master_addr" if self.bench.multi_node.master_addr else None

    def validate_config(self) -> list[str]:
        """See `BaseRunner.validate_config`; also `doubts`."""
        return [*super().validate_config(), *self.doubts()]

    def doubts(self) -> list[str]:
        """What in the benchmark file perhaps does not act as meant, as far as this machine alone can tell."""
        here = self._doubts_here() if self.cluster.transport == "local" else []
        return [*here, *self._without_effect(), *self._without_gpus()]

    def _doubts_here(self) -> list[str]:
        """What is missing in the trainer's folder, which is on this machine, and what the script ignores."""
        folder = Path(self.bench.aorta_path)
        if not folder.is_dir() and self.bench.aorta_auto_clone:
            return []
        if not folder.is_dir():
            return [f"aorta_path {folder}: no such folder on this machine"]
        required = self.make_plan(Site()).head.required_files
        missing = ", ".join(name for name in required if not (folder / name).is_file())
        script = folder / self.bench.experiment_script
        return [
            *([f"{missing}: not found below aorta_path {folder}"] if missing else []),
            *(self._unread(script.read_text("utf-8", "replace")) if script.is_file() else []),
        ]

    def _without_effect(self) -> list[str]:
        """What the file asks for, and not by default, that takes a container."""
        bench, analysis = self.bench, self.bench.analysis
        if bench.runtime == "docker":
            return []
        wanted = {
            "enable_tracelens": analysis.enable_tracelens,
            "enable_gemm_analysis": analysis.enable_gemm_analysis,
        }
        told = [
            f"analysis.{name}: true has no effect with runtime process: it takes a container"
            for name, on in wanted.items()
            if on and name in analysis.model_fields_set
        ]
        if not bench.skip_rccl_build and "skip_rccl_build" in bench.model_fields_set:
            told.append("skip_rccl_build: false has no effect with runtime process: no RCCL is built")
        return told

    def _without_gpus(self) -> list[str]:
        """What the file asks for that takes GPU events."""
        mode = self.bench.analysis.host_tracelens
        if mode == "off" or self.bench.accelerator != "none":
            return []
        return [f"analysis.host_tracelens: {mode} has no effect with accelerator none: it takes GPU events"]

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
