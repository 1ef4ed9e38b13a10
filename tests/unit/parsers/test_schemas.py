"""Names that other suites import, and files that they have had for long."""

from __future__ import annotations

import json
from pathlib import Path

from cvs.config import load_files
from cvs.parsers import schemas
from cvs.runners._base_runner import BaseRunner, RunConfig, RunResult, RunStatus
from cvs.runners.aorta import AortaRunner


def test_the_names_stay_importable() -> None:
    fields = {
        "AortaTraceMetrics": (
            "rank",
            "node",
            "local_rank",
            "total_time_us",
            "compute_time_us",
            "communication_time_us",
        ),
        "AortaBenchmarkResult": (
            *("num_nodes", "gpus_per_node", "total_gpus", "avg_iteration_time_us", "avg_compute_ratio"),
            *("avg_comm_ratio", "avg_overlap_ratio", "per_rank_metrics"),
        ),
        "AortaBenchmarkConfigFile": ("aorta_path", "multi_node"),
        "AortaMultiNodeConfigFile": ("master_port",),
        "ClusterConfigFile": ("node_dict",),
    }
    for name, known in fields.items():
        model = getattr(schemas, name)
        assert all(field in model.model_fields or hasattr(model, field) for field in known), name
    assert [status.value for status in schemas.ParseStatus] == ["success", "partial", "failed", "no_data"]
    assert "status" in dir(schemas.ParseResult)
    assert issubclass(AortaRunner, BaseRunner)
    for step in ("setup", "run", "teardown", "execute", "validate_config"):
        assert callable(getattr(AortaRunner, step))
    assert [status.value for status in RunStatus] == ["pending", "running", "completed", "failed", "timeout"]
    assert "status" in RunResult.model_fields
    assert hasattr(RunConfig, "gpus_per_node")


def test_files_of_an_older_user_load(tmp_path: Path) -> None:
    cluster = {
        "_comment": "two racks",
        "username": "{user-id}",
        "priv_key_file": "/home/{user-id}/.ssh/id_rsa",
        "head_node_dict": {"mgmt_ip": "10.0.0.2"},
        "racks": {"r1": {"pdu": "{not ours}"}},
        "container": {"enabled": False, "name": "x"},
        "node_dict": {
            "10.0.0.1": {"bmc_ip": "NA", "vpc_ip": "192.168.0.1", "rack_id": 1},
            "10.0.0.2": {"bmc_ip": "NA", "vpc_ip": "192.168.0.2", "_why": "new board"},
        },
    }
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    (tmp_path / "aorta.yaml").write_text(
        "aorta_path: /home/{user-id}/aorta\ngpus_per_node: 8\n"
        "docker:\n  image: i\nenvironment:\n  NCCL_DEBUG: INFO\n"
    )
    loaded, bench = load_files(tmp_path / "cluster.json", tmp_path / "aorta.yaml")
    assert loaded.head == "10.0.0.2"
    assert loaded.warnings() == [
        "keys that have no effect here: racks, container, node_dict.10.0.0.1.rack_id"
    ]
    assert bench.multi_node.master_launch_mode == "auto"
