"""Mistakes in the two files: each is told with its exact line, column and key, and with what to do.

In the texts `^` stands right before the place that the message must name; the file is written without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cvs.config import ClusterConfig, load_aorta, load_cluster, load_files
from cvs.config.document import Document
from cvs.errors import ConfigError

TWO_NODES = ClusterConfig.model_validate(
    {"username": "alice", "node_dict": {"a": {"vpc_ip": "10.0.0.1"}, "b": {"vpc_ip": "10.0.0.2"}}}
)
WHOLE = "is no whole number (digits only, no quotes)"
NUMBER = "is no plain number (digits and a point, no quotes)"
BOOL = "is neither true nor false (without quotes)"
QUOTES = "write it in quotes"
TEXT = "is no text"
INSIDE = "is no path inside aorta_path (relative, without ..)"
ABSOLUTE = "is no absolute path"
MAPPING = "needs a mapping of keys, found"
LEFT = "<changeme> is still there"
EMPTY = "is empty; a value is expected"
DEEP = "is nested more than 100 levels deep"
BARE = "stands in quotes"

AORTA: list[tuple[str, str, str]] = [
    # unknown keys
    ("^gpus: 8", "gpus", "unknown key"),
    ("^gpu_per_node: 8", "gpu_per_node", "did you mean gpus_per_node?"),
    ("^Aorta_path: /b", "Aorta_path", "did you mean aorta_path?"),
    ("^timeout: 60", "timeout", "unknown key"),
    ("docker:\n  ^imge: x", "docker.imge", "did you mean image?"),
    ("docker: {image: i, ^shm-size: 1G}", "docker.shm-size", "did you mean shm_size?"),
    ("rccl:\n  branch: b\n  ^url: x", "rccl.url", "unknown key"),
    ("analysis:\n  ^tracelens: true", "analysis.tracelens", "unknown key"),
    ("multi_node:\n  ^nproc: 2", "multi_node.nproc", "unknown key"),
    ("multi_node:\n  ^master_adr: x", "multi_node.master_adr", "did you mean master_addr?"),
    ("expected_results:\n  # why\n  ^min_overlap: 0.5", "expected_results.min_overlap", "min_overlap_ratio?"),
    ("^collect_traces: true", "collect_traces", "unknown key"),
    ("^nproc_per_node: 8", "nproc_per_node", "unknown key"),
    ("environment: {A: '1'}\n^enviroment: {B: '1'}", "enviroment", "did you mean environment?"),
    ("^'': x", "''", "unknown key"),
    ("^a.b: x", "a.b", "unknown key"),
    # whole numbers
    ("^gpus_per_node: 0", "gpus_per_node", "must be at least 1, found `0`"),
    ("^gpus_per_node: -1", "gpus_per_node", "must be at least 1"),
    ("^gpus_per_node: two", "gpus_per_node", f"`two` {WHOLE}"),
    ("^gpus_per_node: '8'", "gpus_per_node", f"'8' {WHOLE}"),
    ("^gpus_per_node: 08", "gpus_per_node", WHOLE),
    ("^gpus_per_node: 8.0", "gpus_per_node", WHOLE),
    ("^gpus_per_node: 1e1", "gpus_per_node", WHOLE),
    ("^gpus_per_node: 0x8", "gpus_per_node", WHOLE),
    ("^gpus_per_node: 0o10", "gpus_per_node", WHOLE),
    ("^gpus_per_node: 1_0", "gpus_per_node", WHOLE),
    ("^gpus_per_node: +8", "gpus_per_node", WHOLE),
    ("^gpus_per_node:", "gpus_per_node", f"null {WHOLE}"),
    ("^gpus_per_node: true", "gpus_per_node", WHOLE),
    ("^gpus_per_node: [8]", "gpus_per_node", f"a list {WHOLE}"),
    ("^gpus_per_node: {a: 8}", "gpus_per_node", f"a mapping {WHOLE}"),
    ("^gpus_per_node: -0", "gpus_per_node", "must be at least 1, found `-0`"),
    ('^gpus_per_node: "8"', "gpus_per_node", f"'8' {WHOLE}"),
    ("^gpus_per_node: |-\n  8", "gpus_per_node", f"'8' {WHOLE}"),
    ("^gpus_per_node: 8 GPUs", "gpus_per_node", f"`8 GPUs` {WHOLE}"),
    ("^gpus_per_node: 8,", "gpus_per_node", f"`8,` {WHOLE}"),
    ("^gpus_per_node: off", "gpus_per_node", f"`off` {WHOLE}"),
    ("^timeout_seconds: 59", "timeout_seconds", "must be at least 60, found `59`"),
    ("^timeout_seconds: 1:30:00", "timeout_seconds", f"`1:30:00` {WHOLE}"),
    ("^timeout_seconds: 10_800", "timeout_seconds", WHOLE),
    ("^timeout_seconds: 3h", "timeout_seconds", WHOLE),
    ("^timeout_seconds: 2024-01-31", "timeout_seconds", WHOLE),
    ("^timeout_seconds: -60", "timeout_seconds", "must be at least 60, found `-60`"),
    ("^timeout_seconds: 010", "timeout_seconds", f"`010` {WHOLE}"),
    ("^timeout_seconds: .inf", "timeout_seconds", WHOLE),
    ("environment:\n  ^NCCL_MAX_NCHANNELS: 0", "environment.NCCL_MAX_NCHANNELS", "at least 1"),
    ("environment:\n  ^NCCL_MAX_NCHANNELS: 257", "environment.NCCL_MAX_NCHANNELS", "at most 256, found `257`"),
    ("environment:\n  ^NCCL_MAX_NCHANNELS: all", "environment.NCCL_MAX_NCHANNELS", WHOLE),
    ("environment:\n  ^NCCL_MAX_P2P_NCHANNELS: '4'", "environment.NCCL_MAX_P2P_NCHANNELS", WHOLE),
    ("environment:\n  ^NCCL_MAX_P2P_NCHANNELS: 0", "environment.NCCL_MAX_P2P_NCHANNELS", "at least 1, found `0`"),
    ("environment:\n  ^NCCL_MAX_P2P_NCHANNELS: 512", "environment.NCCL_MAX_P2P_NCHANNELS", "at most 256"),
    ("environment: {^NCCL_MAX_NCHANNELS: null}", "environment.NCCL_MAX_NCHANNELS", f"`null` {WHOLE}"),
    ("multi_node:\n  ^nproc_per_node: 0", "multi_node.nproc_per_node", "at least 1"),
    ("multi_node:\n  ^nproc_per_node: auto", "multi_node.nproc_per_node", WHOLE),
    ("multi_node:\n  ^master_port: 80", "multi_node.master_port", "at least 1024, found `80`"),
    ("multi_node:\n  ^master_port: 65536", "multi_node.master_port", "at most 65535"),
    ("^gpus_per_node: 100000000", "gpus_per_node", "at most 1024, found `100000000`"),
    ("multi_node:\n  ^nproc_per_node: 1025", "multi_node.nproc_per_node", "at most 1024"),
    ("^timeout_seconds: 99999999999999", "timeout_seconds", "at most 2592000, found `99999999999999`"),
    ("^stall_seconds: 2592001", "stall_seconds", "at most 2592000"),
    ("multi_node:\n  ^join_timeout_seconds: 2592001", "multi_node.join_timeout_seconds", "at most 2592000"),
    ("multi_node:\n  ^grace_seconds: 2592001", "multi_node.grace_seconds", "at most 2592000"),
    ("multi_node:\n  ^master_port: 010", "multi_node.master_port", WHOLE),
    ("multi_node:\n  ^master_port: 29_500", "multi_node.master_port", f"`29_500` {WHOLE}"),
    ("multi_node:\n  ^master_port: '29500'", "multi_node.master_port", f"'29500' {WHOLE}"),
    ("multi_node:\n  ^join_timeout_seconds: 2m", "multi_node.join_timeout_seconds", f"`2m` {WHOLE}"),
    ("multi_node:\n  ^join_timeout_seconds: null", "multi_node.join_timeout_seconds", WHOLE),
    ("multi_node:\n  ^nproc_per_node: -1", "multi_node.nproc_per_node", "at least 1, found `-1`"),
    ("multi_node:\n  ^join_timeout_seconds: 0", "multi_node.join_timeout_seconds", "at least 1"),
    ("multi_node:\n  ^grace_seconds: -1", "multi_node.grace_seconds", "at least 0"),
    ("multi_node:\n  ^grace_seconds: 1.5", "multi_node.grace_seconds", WHOLE),
    # numbers
    ("expected_results:\n  ^max_avg_iteration_ms: -1", "expected_results.max_avg_iteration_ms", "at least 0"),
    ("expected_results:\n  ^max_avg_iteration_ms: 1e3", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: .inf", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: .nan", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: 200 ms", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: inf", "expected_results.max_avg_iteration_ms", f"`inf` {NUMBER}"),
    ("expected_results:\n  ^max_avg_iteration_ms: nan", "expected_results.max_avg_iteration_ms", f"`nan` {NUMBER}"),
    ("expected_results:\n  ^max_avg_iteration_ms: +5", "expected_results.max_avg_iteration_ms", f"`+5` {NUMBER}"),
    ("expected_results:\n  ^max_avg_iteration_ms: 0x1F", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: 1_000", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: 1:30.5", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: 010", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^max_avg_iteration_ms: [250]", "expected_results.max_avg_iteration_ms", f"a list {NUMBER}"),
    (f"expected_results:\n  ^max_avg_iteration_ms: {'9' * 400}", "expected_results.max_avg_iteration_ms", NUMBER),
    ("expected_results:\n  ^min_compute_ratio: -0.01", "expected_results.min_compute_ratio", "at least 0"),
    ("expected_results:\n  ^min_overlap_ratio: 1.01", "expected_results.min_overlap_ratio", "at most 1, found `1.01`"),
    ("expected_results:\n  ^max_time_variance_ratio: 5e-2", "expected_results.max_time_variance_ratio", NUMBER),
    ("expected_results:\n  ^min_compute_ratio: .5", "expected_results.min_compute_ratio", NUMBER),
    ("expected_results:\n  ^min_compute_ratio: 0,5", "expected_results.min_compute_ratio", NUMBER),
    ("expected_results:\n  ^min_compute_ratio: 5.", "expected_results.min_compute_ratio", NUMBER),
    ("expected_results:\n  ^min_compute_ratio: 1.5", "expected_results.min_compute_ratio", "at most 1, found"),
    ("expected_results:\n  ^min_overlap_ratio: 85%", "expected_results.min_overlap_ratio", NUMBER),
    ("expected_results:\n  ^min_overlap_ratio: '0.5'", "expected_results.min_overlap_ratio", NUMBER),
    ("expected_results:\n  ^min_overlap_ratio: yes", "expected_results.min_overlap_ratio", NUMBER),
    ("expected_results:\n  ^max_time_variance_ratio: -0.1", "expected_results.max_time_variance_ratio", "at least 0"),
    ("expected_results:\n  ^max_time_variance_ratio: 01.5", "expected_results.max_time_variance_ratio", NUMBER),
    # bools
    ("^skip_rccl_build: yes", "skip_rccl_build", f"`yes` {BOOL}"),
    ("^skip_rccl_build: on", "skip_rccl_build", BOOL),
    ("^skip_rccl_build: 1", "skip_rccl_build", BOOL),
    ("^skip_rccl_build: 'true'", "skip_rccl_build", BOOL),
    ("^skip_rccl_build: True", "skip_rccl_build", BOOL),
    ("^skip_rccl_build:", "skip_rccl_build", BOOL),
    ("^aorta_auto_clone: no", "aorta_auto_clone", BOOL),
    ("docker:\n  ^privileged: off", "docker.privileged", BOOL),
    ("analysis:\n  ^enable_tracelens: 0", "analysis.enable_tracelens", BOOL),
    ("analysis:\n  ^enable_gemm_analysis: FALSE", "analysis.enable_gemm_analysis", BOOL),
    ("analysis:\n  ^skip_if_exists: [true]", "analysis.skip_if_exists", BOOL),
    ("multi_node:\n  ^collect_traces: n", "multi_node.collect_traces", BOOL),
    ("multi_node:\n  ^collect_traces: 'false'", "multi_node.collect_traces", f"'false' {BOOL}"),
    ("^aorta_auto_clone: ~", "aorta_auto_clone", f"`~` {BOOL}"),
    ("docker:\n  ^privileged: 0", "docker.privileged", f"`0` {BOOL}"),
    ("analysis:\n  ^enable_tracelens: On", "analysis.enable_tracelens", f"`On` {BOOL}"),
    # text
    ("docker:\n  ^image: null", "docker.image", f"`null` is not read as text; {QUOTES}"),
    ("docker:\n  ^image: on", "docker.image", QUOTES),
    ("docker:\n  ^image: [a]", "docker.image", f"a list {TEXT}"),
    ("docker:\n  ^container_name: ~", "docker.container_name", QUOTES),
    ("docker:\n  ^shm_size:", "docker.shm_size", f"null is not read as text; {QUOTES}"),
    ("docker:\n  ^network_mode: no", "docker.network_mode", QUOTES),
    ("rccl:\n  ^clone_url: {a: b}", "rccl.clone_url", f"a mapping {TEXT}"),
    ("rccl:\n  ^branch: 2024-01-31", "rccl.branch", QUOTES),
    ("^aorta_clone_url: true", "aorta_clone_url", QUOTES),
    ("environment:\n  ^NCCL_DEBUG: off", "environment.NCCL_DEBUG", QUOTES),
    ("environment:\n  ^TORCH_NCCL_HIGH_PRIORITY: true", "environment.TORCH_NCCL_HIGH_PRIORITY", QUOTES),
    ("environment:\n  ^OMP_NUM_THREADS: ~", "environment.OMP_NUM_THREADS", QUOTES),
    ("environment:\n  ^RCCL_MSCCL_ENABLE: No", "environment.RCCL_MSCCL_ENABLE", QUOTES),
    ("environment:\n  ^FURTHER: y", "environment.FURTHER", QUOTES),
    ("environment:\n  ^FURTHER: [1]", "environment.FURTHER", TEXT),
    ('environment:\n  ^FURTHER: "a\\0b"', "environment.FURTHER", "holds a character that no text may hold"),
    ("multi_node:\n  ^master_addr: off", "multi_node.master_addr", QUOTES),
    ("multi_node:\n  extra_torchrun_args: [--a, ^yes]", "multi_node.extra_torchrun_args.1", QUOTES),
    ("multi_node:\n  extra_train_args:\n    - --a\n    - ^null", "multi_node.extra_train_args.1", QUOTES),
    ("multi_node:\n  ^extra_train_args: --a", "multi_node.extra_train_args", "needs a list, found `--a`"),
    ("multi_node:\n  ^extra_torchrun_args: {a: b}", "multi_node.extra_torchrun_args", "needs a list, found a mapping"),
    ("multi_node:\n  extra_env:\n    ^A: off", "multi_node.extra_env.A", QUOTES),
    ("training_overrides:\n  ^a.b: off", "training_overrides.a.b", QUOTES),
    ("training_overrides:\n  ^a.b:", "training_overrides.a.b", QUOTES),
    ("training_overrides:\n  ^a.b: [1, 2]", "training_overrides.a.b", TEXT),
    ("training_overrides:\n  ^a.b: Yes", "training_overrides.a.b", QUOTES),
    ("training_overrides:\n  ^a.b: True", "training_overrides.a.b", QUOTES),
    ("training_overrides:\n  ^a:\n    b: 1", "training_overrides.a", f"a mapping {TEXT}"),
    ("docker:\n  ^image: 2024-1-5 10:00:00", "docker.image", QUOTES),
    ("docker:\n  ^image: ~", "docker.image", QUOTES),
    ("docker:\n  ^shm_size: 17 GB", "docker.shm_size", "'17 GB' is no size (a whole number, and b, k, m or g"),
    ("docker:\n  volumes: [^/data]", "docker.volumes.0", "'/data' is no volume (/folder/on/the/node:/folder"),
    ("docker:\n  volumes: [^'a:/b']", "docker.volumes.0", "'a:/b' is no volume"),
    ("docker:\n  ^image_tar: image.tar", "docker.image_tar", ABSOLUTE),
    ("docker:\n  ^pull: sometimes", "docker.pull", "must be 'missing', 'always' or 'never'"),
    ("docker:\n  ^container_name: YES", "docker.container_name", QUOTES),
    ("^base_config: [a]", "base_config", f"a list {TEXT}"),
    ("^container_mount_path: false", "container_mount_path", QUOTES),
    ("^aorta_clone_url: []", "aorta_clone_url", f"a list {TEXT}"),
    ("multi_node:\n  ^master_addr: {a: b}", "multi_node.master_addr", f"a mapping {TEXT}"),
    ("multi_node:\n  extra_train_args:\n    - --a\n    - ^[b]", "multi_node.extra_train_args.1", f"a list {TEXT}"),
    # words of a set
    ("^accelerator: amd", "accelerator", "must be 'rocm', 'cuda' or 'none', found `amd`"),
    ("^accelerator: null", "accelerator", "must be 'rocm', 'cuda' or 'none'"),
    ("^runtime: podman", "runtime", "must be 'docker' or 'process'"),
    ("analysis:\n  ^host_tracelens: true", "analysis.host_tracelens", "must be 'off', 'report' or 'check', found `true`"),
    ("analysis:\n  ^host_tracelens: Off", "analysis.host_tracelens", "must be 'off', 'report' or 'check', found `Off`"),
    ("multi_node:\n  ^master_launch_mode: mpirun", "multi_node.master_launch_mode", "'auto', 'script' or 'torchrun'"),
    # shapes
    ("^docker: rocm/pytorch", "docker", f"{MAPPING} `rocm/pytorch`"),
    ("^rccl: []", "rccl", f"{MAPPING} a list"),
    ("^environment:", "environment", f"{MAPPING} null"),
    ("^analysis: false", "analysis", f"{MAPPING} `false`"),
    ("^multi_node: 3", "multi_node", f"{MAPPING} `3`"),
    ("^expected_results: []", "expected_results", MAPPING),
    ("^training_overrides: [a=b]", "training_overrides", f"{MAPPING} a list"),
    ("multi_node:\n  ^extra_env: A=1", "multi_node.extra_env", MAPPING),
    # paths
    ("^container_mount_path: mnt", "container_mount_path", ABSOLUTE),
    ("rccl:\n  ^build_path: rccl", "rccl.build_path", ABSOLUTE),
    ("^base_config: /etc/passwd", "base_config", INSIDE),
    ("^base_config: ../x.yaml", "base_config", INSIDE),
    ("^build_script: a/../../b.sh", "build_script", INSIDE),
    ("^experiment_script: /e.sh", "experiment_script", INSIDE),
    ("analysis:\n  ^tracelens_script: ../t.sh", "analysis.tracelens_script", INSIDE),
    ("analysis:\n  ^gemm_script: /g.sh", "analysis.gemm_script", INSIDE),
    ("analysis:\n  ^host_tracelens_python: python3", "analysis.host_tracelens_python", ABSOLUTE),
    ("analysis:\n  ^host_tracelens_seconds: 0", "analysis.host_tracelens_seconds", "must be at least 1, found `0`"),
    ("multi_node:\n  ^train_script: ''", "multi_node.train_script", INSIDE),
    ("multi_node:\n  ^train_script: /t.py", "multi_node.train_script", INSIDE),
    ("^base_config: .", "base_config", INSIDE),
    ("^build_script: ..", "build_script", INSIDE),
    ("^experiment_script: scripts/..", "experiment_script", INSIDE),
    ("^experiment_script: '{home}/e.sh'", "experiment_script", INSIDE),
    ("^container_mount_path: ''", "container_mount_path", ABSOLUTE),
    ("rccl:\n  ^build_path: ~/rccl", "rccl.build_path", ABSOLUTE),
    ("rccl:\n  ^build_path: '{user}/rccl'", "rccl.build_path", ABSOLUTE),
    # keys of maps
    ("environment:\n  ^on: x", "environment.on", f"the key `on` is not read as text; {QUOTES}"),
    ("environment:\n  ^null: x", "environment.null", QUOTES),
    ("environment:\n  ?^\n  : x", "environment.''", QUOTES),
    ("environment:\n  ^'': x", "environment.''", "cannot be the name of a variable"),
    ("environment:\n  ^TORCHELASTIC_RUN_ID: x", "environment.TORCHELASTIC_RUN_ID", "is set by cvs"),
    ("multi_node:\n  extra_env:\n    ^yes: x", "multi_node.extra_env.yes", QUOTES),
    ("multi_node:\n  extra_env: {^'A=B': x}", "multi_node.extra_env.A=B", "cannot be the name of a variable"),
    ("training_overrides:\n  ^'': x", "training_overrides.''", "is no key of the training config"),
    ('training_overrides:\n  ^"a\\tb": x', "training_overrides.a\\tb", "is no key of the training config"),
    ('training_overrides:\n  ^"a\\0b": x', "training_overrides.a\\x00b", "is no key of the training config"),
    ("docker: {^off: x}", "docker.off", f"the key `off` is not read as text; {QUOTES}"),
    ("training_overrides:\n  ^2024-01-31: x", "training_overrides.2024-01-31", QUOTES),
    ("training_overrides:\n  ^a=b: c", "training_overrides.a=b", "is no key of the training config"),
    ("training_overrides:\n  ^'a b': c", "training_overrides.a b", "is no key of the training config"),
    ("environment:\n  ^'A=B': c", "environment.A=B", "cannot be the name of a variable"),
    ("environment:\n  ^CVS_RUN_ID: x", "environment.CVS_RUN_ID", "is set by cvs"),
    ("multi_node:\n  extra_env:\n    ^TORCHELASTIC_RUN_ID: x", "multi_node.extra_env.TORCHELASTIC_RUN_ID", "is set by cvs"),
    # given twice
    ("gpus_per_node: 2\n^gpus_per_node: 4", "gpus_per_node", "is given twice, first in line 2"),
    ("docker: {image: a}\n^docker: {image: b}", "docker", "is given twice, first in line 2"),
    ("docker:\n  image: a\n  ^image: b", "docker.image", "is given twice, first in line 3"),
    ("environment: {A: '1', B: '2', ^A: '3'}", "environment.A", "is given twice, first in line 2"),
    ("^aorta_path: /b", "aorta_path", "is given twice, first in line 1"),
    ("'docker': {image: a}\n^docker: {image: a}", "docker", "is given twice, first in line 2"),
    ("multi_node:\n  extra_env:\n    A: a\n    ^A: a", "multi_node.extra_env.A", "is given twice, first in line 4"),
    ("training_overrides: {a.b: 1,\n  ^'a.b': 2}", "training_overrides.a.b", "is given twice, first in line 2"),
    (
        "environment: &e {A: a}\nmulti_node:\n  extra_env:\n    <<: *e\n    A: b\n    ^A: c",
        "multi_node.extra_env.A",
        "is given twice, first in line 6",
    ),
    # regular expressions
    ("traces:\n  ^rank_pattern: rank(\\d+)", "traces.rank_pattern", "has no group that finds the rank, such as (?P<rank>[0-9]+)"),
    ("traces:\n  ^rank_pattern: 'rank(\\d+)'", "traces.rank_pattern", "'rank(\\d+)' has no group that finds the rank"),
    ("traces:\n  ^rank_pattern: '(?P<rank>'", "traces.rank_pattern", "is no regular expression: missing ), unterminated subpattern"),
    ("traces:\n  ^rank_pattern: '(?<rank>x)'", "traces.rank_pattern", "is no regular expression: unknown extension ?<r"),
    ("traces:\n  ^rank_pattern: ''", "traces.rank_pattern", EMPTY),
    ("traces:\n  ^rank_pattern: '{user}'", "traces.rank_pattern", "'{user}' has no group that finds the rank"),
    ("traces:\n  ^rank_pattern: [a]", "traces.rank_pattern", f"a list {TEXT}"),
    ("traces:\n  ^rank_pattern: <changeme>", "traces.rank_pattern", LEFT),
    (f"traces:\n  ^rank_pattern: {'(' * 500}", "traces.rank_pattern", "(500 characters)' is no regular expression"),
    ("traces:\n  communication_kernels: [a, ^'b(']", "traces.communication_kernels.1", "'b(' is no regular expression: unclosed group"),
    ("traces:\n  communication_kernels: [^'(?=a)']", "traces.communication_kernels.0", "look-around, including look-ahead and look-behind, is not supported"),
    ("traces:\n  communication_kernels:\n    - ^a{1,9999}{1,9999}", "traces.communication_kernels.0", "Compiled regex exceeds size limit"),
    ("traces:\n  communication_kernels: [^'.*']", "traces.communication_kernels.0", "'.*' fits every kernel"),
    ("traces:\n  communication_kernels: [^'']", "traces.communication_kernels.0", EMPTY),
    ("traces:\n  communication_kernels: [^<changeme>]", "traces.communication_kernels.0", LEFT),
    ("traces:\n  ^communication_kernels: mscclpp", "traces.communication_kernels", "needs a list, found `mscclpp`"),
    ("traces:\n  ^rank_patern: x", "traces.rank_patern", "did you mean rank_pattern?"),
    ("^rank_pattern: x", "rank_pattern", "unknown key (it belongs below traces)"),
    ("^traces:", "traces", f"{MAPPING} null"),
    # what holds only together
    ("^aorta_auto_clone: true", "aorta_auto_clone", "true needs aorta_clone_url"),
    ("gpus_per_node: 2\nmulti_node:\n  ^nproc_per_node: 3", "multi_node.nproc_per_node", "3 is more than gpus_per_node (2)"),
    ("multi_node:\n  ^master_launch_mode: script", "multi_node.master_launch_mode", "the cluster file has 2"),
    ("multi_node:\n  extra_torchrun_args:\n    - ^--nnodes=3", "multi_node.extra_torchrun_args.0", "--nnodes is set by cvs"),
    ("multi_node: {extra_torchrun_args: [--a, ^--node-rank]}", "multi_node.extra_torchrun_args.1", "is set by cvs"),
    ("multi_node: {extra_torchrun_args: [^--standalone]}", "multi_node.extra_torchrun_args.0", "is set by cvs"),
    ("multi_node: {extra_torchrun_args: [^--nnode=3]}", "multi_node.extra_torchrun_args.0", "is set by cvs"),
    ("multi_node: {extra_torchrun_args: [--a, ^-t, '1']}", "multi_node.extra_torchrun_args.1", "is set by cvs"),
    ("multi_node: {extra_torchrun_args: [^-r3]}", "multi_node.extra_torchrun_args.0", "is set by cvs"),
    ("multi_node:\n  ^nproc_per_node: 9", "multi_node.nproc_per_node", "9 is more than gpus_per_node (8)"),
    ("^aorta_auto_clone: true\naorta_clone_url: null", "aorta_auto_clone", "true needs aorta_clone_url"),
    ("multi_node: {extra_train_args: [^--config=x]}", "multi_node.extra_train_args.0", "--config is set by cvs"),
    ("multi_node: {extra_train_args: [^--override]}", "multi_node.extra_train_args.0", "is set by cvs"),
    ("environment:\n  ^GLOO_SOCKET_IFNAME: ^lo", "environment.GLOO_SOCKET_IFNAME", "NCCL's spelling"),
    ("multi_node:\n  extra_env:\n    ^GLOO_SOCKET_IFNAME: =eth0", "multi_node.extra_env.GLOO_SOCKET_IFNAME", "Gloo takes"),
    ("multi_node: {extra_torchrun_args: [^--max-restart, '3']}", "multi_node.extra_torchrun_args.0", "is set by cvs"),
    ("multi_node: {extra_train_args: [^--over, a=b]}", "multi_node.extra_train_args.0", "--over is set by cvs"),
    # text that names something
    ("docker:\n  ^image: ''", "docker.image", EMPTY),
    ("docker:\n  ^container_name: ' '", "docker.container_name", EMPTY),
    ("^aorta_clone_url: ''", "aorta_clone_url", EMPTY),
    ("multi_node:\n  ^master_addr: ''", "multi_node.master_addr", EMPTY),
    ("rccl: {^branch: ''}", "rccl.branch", EMPTY),
    # numbers beyond all measure
    (f"^gpus_per_node: {'9' * 5000}", "gpus_per_node", f"9… (5000 characters)` {WHOLE}"),
    # keys in a wrong place
    ("^min_overlap_ratio: 0.5", "min_overlap_ratio", "unknown key (it belongs below expected_results)"),
    ("^nproc_per_node: 2", "nproc_per_node", "unknown key (it belongs below multi_node)"),
    ("multi_node: {^timeout_seconds: 60}", "multi_node.timeout_seconds", "(it belongs at the top of the file)"),
    ("^transport: local", "transport", "unknown key (it belongs in the cluster file)"),
    ("docker: {^vpc_ip: x}", "docker.vpc_ip", "unknown key (it belongs in the cluster file)"),
    ("training_overrides:\n  ^training:\n    max_steps: 10", "training_overrides.training", "write training.max_steps: 10"),
    ("training_overrides: {^a: {b: {api_key: s3cret}}}", "training_overrides.a", "write a.b.api_key: **********"),
    # placeholders
    ("^build_script: {home}", "build_script", f"`{{home}}` is a mapping without quotes; {QUOTES}"),
    ("training_overrides: {^a: {cvs}}", "training_overrides.a", f"`{{cvs}}` is a mapping without quotes; {QUOTES}"),
    ("^base_config: 'a{{user}}'", "base_config", "unknown placeholder {}"),
    ("docker:\n  ^image: <changeme>", "docker.image", LEFT),
    ("environment:\n  ^A: x<CHANGEME>y", "environment.A", LEFT),
    ("environment:\n  ^<changeme>: x", "environment.<changeme>", "write your own name"),
    ("training_overrides:\n  ^model.<changeme>: x", "training_overrides.model.<changeme>", "write your own name"),
    ("multi_node:\n  extra_torchrun_args: [^<changeme>]", "multi_node.extra_torchrun_args.0", LEFT),
    ("^base_config: config/{x}.yaml", "base_config", "unknown placeholder {x}"),
    ("^base_config: config/{Home}.yaml", "base_config", "unknown placeholder {Home}"),
    ("docker:\n  ^container_name: '{usr}'", "docker.container_name", "unknown placeholder {usr} (known here: {user-id}"),
    ("multi_node:\n  extra_train_args: [a, ^'{x}']", "multi_node.extra_train_args.1", "unknown placeholder {x}"),
]  # fmt: skip
ALONE: list[tuple[str, str, str]] = [
    ("^{}", "aorta_path", "is required and missing"),
    ("^gpus_per_node: 2\n", "aorta_path", "is required and missing"),
    ("^aorta_path: aorta\n", "aorta_path", f"aorta {ABSOLUTE}"),
    ("^aorta_path: ~/aorta\n", "aorta_path", ABSOLUTE),
    ("^aorta_path: <changeme>\n", "aorta_path", LEFT),
    ("^aorta_path:\n", "aorta_path", QUOTES),
    ("^aorta_path: 3\n", "aorta_path", ABSOLUTE),
    ('{\n  "aorta_path": "/a",\n  ^"gpus_per_node": "8"\n}', "gpus_per_node", WHOLE),
    ('{"aorta_path": "/a", "environment": {^"A": 3}}', "environment.A", f"`3` {TEXT}; {QUOTES}"),
    ('{"aorta_path": "/a", ^"skip_rccl_build": null}', "skip_rccl_build", BOOL),
    ('{"aorta_path": "/a", "docker": {"image": "a", ^"image": "b"}}', "docker.image", "is given twice, first in line 1"),
    ('{"aorta_path": "/a",\n"docker": {"image": "a"},\n^"d\\u006fcker": {"image": "b"}}', "docker", "is given twice, first in line 2"),
    ('{"aorta_path": "/a", "environment": {^"A": true}}', "environment.A", f"true {TEXT}; {QUOTES}"),
    ('{"aorta_path": "/a", "environment": {^"A": null}}', "environment.A", f"null {TEXT}; {QUOTES}"),
    ('{"aorta_path": "/a", "training_overrides": {^"a.b": 15}}', "training_overrides.a.b", f"`15` {TEXT}; {QUOTES}"),
    ('{"aorta_path": "/a", "docker": {^"image": null}}', "docker.image", f"null {TEXT}"),
    ('{"aorta_path": "/a", ^"gpus_per_node": 8.0}', "gpus_per_node", f"`8.0` {WHOLE}"),
    ('{"aorta_path": "/a", ^"gpus_per_node": 1e0}', "gpus_per_node", f"`1e0` {WHOLE}"),
    ('{"aorta_path": "/a", ^"gpus_per_node": -0}', "gpus_per_node", "must be at least 1, found `-0`"),
    ('{"aorta_path": "/a", ^"gpus_per_node": true}', "gpus_per_node", f"true {WHOLE}"),
    ('{"aorta_path": "/a", ^"gpus_per_node": null}', "gpus_per_node", f"null {WHOLE}"),
    ('{"aorta_path": "/a", ^"skip_rccl_build": "true"}', "skip_rccl_build", f"'true' {BOOL}"),
    ('{"aorta_path": "/a", ^"skip_rccl_build": 1}', "skip_rccl_build", f"`1` {BOOL}"),
    ('{"aorta_path": "/a", ^"runtime": true}', "runtime", "must be 'docker' or 'process', found true"),
    ('{"aorta_path": "/a", ^"docker": null}', "docker", f"{MAPPING} null"),
    (
        '{"aorta_path": "/a",\n\t"expected_results": {\n\t\t^"min_compute_ratio": 1E-1}}',
        "expected_results.min_compute_ratio",
        f"`1E-1` {NUMBER}",
    ),
    (
        '{"aorta_path": "/a", "expected_results": {^"max_avg_iteration_ms": 1e999}}',
        "expected_results.max_avg_iteration_ms",
        NUMBER,
    ),
    (
        '{"aorta_path": "/\\ud83d\\ude00", "multi_node": {"extra_train_args": ["-a",\n ^7]}}',
        "multi_node.extra_train_args.1",
        f"`7` {TEXT}",
    ),
    ('{"aorta_path": "/😀", ^"image": "x"}', "image", "unknown key"),
    ('{"aorta_path": "/a,}\\" {[:", ^"image": "x"}', "image", "unknown key"),
    ('{aorta_path: /a, ^image: x,}', "image", "unknown key"),
    ('aorta_path: "/a\u2028b"\n^image: x', "image", "unknown key"),
    ('{"$schema": "{x}", "aorta_path": "/a", ^"$schemas": ""}', "$schemas", "unknown key"),
]  # fmt: skip

NODES = '"node_dict": {"a": {"vpc_ip": "10.0.0.1"}, "b": {"vpc_ip": "10.0.0.2"}}'
TWINS = '"node_dict": {"a": {"vpc_ip": "10.0.0.1"}, "b": {"vpc_ip": "10.0.0.1"}}'
CLUSTER: list[tuple[str, str, str]] = [
    ("^{%s}" % NODES, "username", "is required and missing"),
    ('^{"usernam": "a", %s}' % NODES, "username", "is required and missing (is usernam meant for it?)"),
    ('^{"username": "a"}', "node_dict", "is required and missing"),
    ('^{"username": "a", "nodes": {"a": {"vpc_ip": "x"}}}', "node_dict", "is required and missing (is nodes meant for it?)"),
    ('^{"user": "a", %s}' % NODES, "username", "is required and missing (is user meant for it?)"),
    ('{^"username": 3, %s}' % NODES, "username", f"`3` {TEXT}; {QUOTES}"),
    ('{^"username": null, %s}' % NODES, "username", f"null {TEXT}"),
    ('{^"username": ["a"], %s}' % NODES, "username", f"a list {TEXT}"),
    ('{^"username": "<changeme>", %s}' % NODES, "username", LEFT),
    ('{^"username": "{usr}", %s}' % NODES, "username", "unknown placeholder {usr}"),
    ('{"username": "a", ^"node_dict": {}}', "node_dict", "needs at least 1 entry"),
    ('{"username": "a", ^"node_dict": ["a"]}', "node_dict", f"{MAPPING} a list"),
    ('{"username": "a",\n "node_dict": {\n  ^"a": {}}}', "node_dict.a.vpc_ip", "is required and missing"),
    ('{"username": "a",\n "node_dict": {\n  "a": {^"vpc_ip": 10}}}', "node_dict.a.vpc_ip", TEXT),
    ('{"username": "a", "node_dict": {"a": {"vpc_ip": "x", ^"bmc_ip": 4}}}', "node_dict.a.bmc_ip", TEXT),
    ('{"username": "a", "node_dict": {"a": {"vpc_ip": "x", "env_vars": {^"N": 3}}}}', "node_dict.a.env_vars.N", TEXT),
    ('{"username": "a", "node_dict": {^"a": "x"}}', "node_dict.a", f"{MAPPING} 'x'"),
    ('{"username": "a", "node_dict": {^"h:22": {"vpc_ip": "x"}}}', "node_dict.h:22", "the port goes into ssh_port: 22"),
    ('{"username": "a", "node_dict": {^"a b": {"vpc_ip": "x"}}}', "node_dict.a b", "is no host name, IPv4 or IPv6 address"),
    ('{"username": "a", "node_dict": {^"../x": {"vpc_ip": "x"}}}', "node_dict.../x", "is no host name"),
    ('{"username": "a", "node_dict": {^"<changeme>": {"vpc_ip": "x"}}}', "node_dict.<changeme>", LEFT),
    ('{"username": "a", "node_dict": {"a": {"vpc_ip": "x"}, "b": {^"vpc_ip": "x"}}}', "node_dict.b.vpc_ip", "x is the vpc_ip of a, too"),
    ('{"username": "a", "node_dict": {"a": {"vpc_ip": "x"}, ^"a": {"vpc_ip": "y"}}}', "node_dict.a", "is given twice"),
    ('{"username": "a",\n ^"username": "b", %s}' % NODES, "username", "is given twice, first in line 1"),
    ('{"username": "a", "head_node_dict": {^"mgmt_ip": "bb"}, %s}' % NODES, "head_node_dict.mgmt_ip", "did you mean b?"),
    ('{"username": "a", ^"head_node_dict": "a", %s}' % NODES, "head_node_dict", MAPPING),
    ('{"username": "a", ^"transport": "telnet", %s}' % NODES, "transport", "must be 'ssh' or 'local', found 'telnet'"),
    ('{"username": "a", ^"host_key_policy": "none", %s}' % NODES, "host_key_policy", "must be 'strict' or 'accept-new'"),
    ('{"username": "a", ^"ssh_port": "22", %s}' % NODES, "ssh_port", f"'22' {WHOLE}"),
    ('{"username": "a", ^"ssh_port": 22.0, %s}' % NODES, "ssh_port", f"`22.0` {WHOLE}"),
    ('{"username": "a", ^"ssh_port": 2e1, %s}' % NODES, "ssh_port", WHOLE),
    ('{"username": "a", ^"ssh_port": 0, %s}' % NODES, "ssh_port", "at least 1"),
    ('{"username": "a", ^"ssh_port": 65536, %s}' % NODES, "ssh_port", "at most 65535"),
    ('{"username": "a", ^"max_parallel": 0, %s}' % NODES, "max_parallel", "at least 1"),
    ('{"username": "a", ^"max_parallel": null, %s}' % NODES, "max_parallel", WHOLE),
    ('{"username": "a", ^"max_parallel": 10001, %s}' % NODES, "max_parallel", "at most 10000"),
    ('{"username": "a", ^"priv_key_file": 7, %s}' % NODES, "priv_key_file", TEXT),
    ('{"username": "a", ^"password": 7, %s}' % NODES, "password", "a secret is text"),
    ('{"username": "a", ^"priv_key_passphrase": [], %s}' % NODES, "priv_key_passphrase", "a secret is text"),
    ('{"username": "a", ^"password": "${CVS_NOT_SET}", %s}' % NODES, "password", "variable CVS_NOT_SET is not set"),
    ('{"username": "a", ^"jump_host": true, %s}' % NODES, "jump_host", f"true {TEXT}"),
    ('{"username": "a", ^"ssh_config": {}, %s}' % NODES, "ssh_config", f"a mapping {TEXT}"),
    ('{"username": "a", ^"known_hosts": 1, %s}' % NODES, "known_hosts", TEXT),
    ('{"username": "a", ^"home_mount_dir_name": null, %s}' % NODES, "home_mount_dir_name", TEXT),
    ('{"username": "a", ^"node_dir_name": 1, %s}' % NODES, "node_dir_name", TEXT),
    ('{"username": "a", ^"env_vars": [], %s}' % NODES, "env_vars", MAPPING),
    ('{"username": "a", "env_vars": {^"A": true}, %s}' % NODES, "env_vars.A", TEXT),
    ('{"username": "a", "env_vars": {^"A=B": "x"}, %s}' % NODES, "env_vars.A=B", "cannot be the name of a variable"),
    ('{"username": "a", "env_vars": {^"GLOO_SOCKET_IFNAME": "=eth0"}, %s}' % NODES, "env_vars.GLOO_SOCKET_IFNAME", "NCCL's"),
    ("username: a\nnode_dict:\n  a:\n    ^vpc_ip: off\n", "node_dict.a.vpc_ip", QUOTES),
    ("username: a\nnode_dict:\n  ^on: {vpc_ip: x}\n", "node_dict.on", "the key `on` is not read as text"),
    ('{"username": "a", "node_dict": {^"alice@h": {"vpc_ip": "x"}}}', "node_dict.alice@h", "is no host name"),
    ('{"username": "a", "node_dict": {^"[fe80::7]:22": {"vpc_ip": "x"}}}', "node_dict.[fe80::7]:22", "ssh_port: 22"),
    ('{"username": "a", "node_dict": {^"": {"vpc_ip": "x"}}}', "node_dict.''", "'' is no host name"),
    ('{"username": "a", "node_dict": {"a": {^"vpc_ip": null}}}', "node_dict.a.vpc_ip", f"null {TEXT}"),
    ('{"username": "a", "node_dict": {"a": {^"vpc_ip": "<changeme>"}}}', "node_dict.a.vpc_ip", LEFT),
    ('{"username": "a", "node_dict": {"a": {^"vpc_ip": "{ip}"}}}', "node_dict.a.vpc_ip", "unknown placeholder {ip}"),
    ('{"username": "a", ^"node_dict": null}', "node_dict", f"{MAPPING} null"),
    (
        '{"username": "a", "node_dict": {"a": {"vpc_ip": "x", "env_vars": {^"GLOO_SOCKET_IFNAME": "^lo"}}}}',
        "node_dict.a.env_vars.GLOO_SOCKET_IFNAME",
        "^lo is NCCL's spelling",
    ),
    ('{"username": "a", "node_dict": {"a": {"vpc_ip": "x", ^"env_vars": []}}}', "node_dict.a.env_vars", MAPPING),
    ('{"username": "a", "env_vars": {^"CVS_RUN_ID": "x"}, %s}' % NODES, "env_vars.CVS_RUN_ID", "is set by cvs"),
    ('{"username": "a", "env_vars": {^"A": null}, %s}' % NODES, "env_vars.A", f"null {TEXT}; {QUOTES}"),
    ('{"username": "a", "env_vars": {^"<changeme>": "x"}, %s}' % NODES, "env_vars.<changeme>", LEFT),
    ('{"username": "a", "head_node_dict": {^"mgmt_ip": 10}, %s}' % NODES, "head_node_dict.mgmt_ip", TEXT),
    ('{"username": "a", "head_node_dict": {^"mgmt_ip": "<changeme>"}, %s}' % NODES, "head_node_dict.mgmt_ip", LEFT),
    ('{"username": "a", ^"priv_key_file": "<changeme>", %s}' % NODES, "priv_key_file", LEFT),
    ('{"username": "a", ^"password": "<changeme>", %s}' % NODES, "password", LEFT),
    ('{"username": "a", ^"priv_key_passphrase": "<changeme>", %s}' % NODES, "priv_key_passphrase", LEFT),
    ('{"username": "a", ^"priv_key_passphrase": "${CVS_NOT_SET}", %s}' % NODES, "priv_key_passphrase", "CVS_NOT_SET"),
    ('{"username": "a", ^"ssh_port": -0, %s}' % NODES, "ssh_port", "at least 1, found `-0`"),
    ('{"username": "a", ^"ssh_port": true, %s}' % NODES, "ssh_port", f"true {WHOLE}"),
    ('{"username": "a", ^"max_parallel": 1e3, %s}' % NODES, "max_parallel", f"`1e3` {WHOLE}"),
    ('{"username": "a", ^"max_parallel": "64", %s}' % NODES, "max_parallel", f"'64' {WHOLE}"),
    ('{"username": "a", ^"transport": null, %s}' % NODES, "transport", "must be 'ssh' or 'local', found null"),
    ('{"username": "a", ^"known_hosts": ["a"], %s}' % NODES, "known_hosts", f"a list {TEXT}"),
    ('{"username": "a", ^"node_dir_name": "{node-dir}", %s}' % NODES, "node_dir_name", "unknown placeholder {node-dir}"),
    ('{"username": "a", "racks": [{"id": 1,\n ^"id": 2}], %s}' % NODES, "racks.0.id", "is given twice, first in line 1"),
    ('{^"username": "", %s}' % NODES, "username", EMPTY),
    ('{"username": "a", ^"priv_key_file": "", %s}' % NODES, "priv_key_file", EMPTY),
    ('{"username": "a", ^"jump_host": " ", %s}' % NODES, "jump_host", EMPTY),
    ('{"username": "a", ^"node_dir_name": "", %s}' % NODES, "node_dir_name", EMPTY),
    ('{"username": "a", "head_node_dict": {^"mgmt_ip": ""}, %s}' % NODES, "head_node_dict.mgmt_ip", EMPTY),
    ('{"username": "a", "node_dict": {"a": {^"vpc_ip": ""}}}', "node_dict.a.vpc_ip", EMPTY),
    ('{"username": "a", "node_dict": {^"cafe:22": {"vpc_ip": "x"}}}', "node_dict.cafe:22", "ssh_port: 22"),
    ('{"username": "a", "node_dict": {^":": {"vpc_ip": "x"}}}', "node_dict.:", "is no host name"),
    ('{"username": "a", "node_dict": {^"12345::": {"vpc_ip": "x"}}}', "node_dict.12345::", "is no host name"),
    ('{"username": "a", ^"home_mount_dir_name": "{node-dir-name}", "jump_host": "{home-mount-dir}", %s}' % NODES,
     "home_mount_dir_name", "unknown placeholder {node-dir-name} (known here: {user-id}, {user}, {home}, {cvs})"),
    ('{"username": "a", ^"transprot": "local", %s}' % TWINS, "transprot", "has no effect here (did you mean transport?)"),
    ('{"username": "a", ^"transport": "loca", %s}' % TWINS, "transport", "must be 'ssh' or 'local'"),
    ("username: a\n^password: yes\nnode_dict: {a: {vpc_ip: x}}\n", "password", QUOTES),
    ("^username: off\nnode_dict: {a: {vpc_ip: x}}\n", "username", QUOTES),
    ("^username:\nnode_dict: {a: {vpc_ip: x}}\n", "username", QUOTES),
    ("username: a\n^ssh_port: 0x16\nnode_dict: {a: {vpc_ip: x}}\n", "ssh_port", f"`0x16` {WHOLE}"),
    ("username: a\n^ssh_port: 22:22\nnode_dict: {a: {vpc_ip: x}}\n", "ssh_port", f"`22:22` {WHOLE}"),
    ("username: a\n^password: off\nnode_dict: {a: {vpc_ip: x}}\n", "password", QUOTES),
    ("username: a\n^password: 2024-01-31\nnode_dict: {a: {vpc_ip: x}}\n", "password", QUOTES),
    ("username: a\n^priv_key_passphrase: true\nnode_dict: {a: {vpc_ip: x}}\n", "priv_key_passphrase", QUOTES),
    ("username: a\nnode_dict:\n  a: {vpc_ip: x}\n  ^h:22: {vpc_ip: z}\n", "node_dict.h:22", "ssh_port: 22"),
    ("username: a\nnode_dict:\n  a: {vpc_ip: x}\n  ^a: {vpc_ip: z}\n", "node_dict.a", "first in line 3"),
    ("username: a\nnode_dict:\n  a: &n\n    ^vpc_ip: x\n  b: {<<: *n}\n", "node_dict.b.vpc_ip", "x is the vpc_ip of a"),
    ("username: a\n^node_dict:\n- a\n", "node_dict", f"{MAPPING} a list"),
    ("username: a\nhead_node_dict: {^mgmt_ip: c}\nnode_dict: {a: {vpc_ip: x}}\n", "head_node_dict.mgmt_ip", "did you mean a?"),
]  # fmt: skip


def placed(text: str) -> tuple[str, str]:
    """The text without the first `^`, and line:column of where that stood."""
    before, _, after = text.partition("^")
    return before + after, f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def one_problem(load: Any, file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    told = caught.value.problems
    assert len(told) == 1, told
    raise caught.value


def expect(load: Any, file: Path, marked: str, key: str, words: str) -> None:
    text, place = placed(marked)
    with pytest.raises(ConfigError) as caught:
        one_problem(load, file, text)
    line = str(caught.value)
    assert line.startswith(f"{file}:{place}: {key}: "), line
    assert words in line
    assert "\n" not in line


def of_aorta(file: Path) -> object:
    return load_aorta(file, TWO_NODES)


def test_the_table_is_long_enough() -> None:
    assert len(AORTA) + len(ALONE) + len(CLUSTER) >= 190


@pytest.mark.parametrize(("marked", "key", "words"), AORTA, ids=[row[0] for row in AORTA])
def test_in_the_benchmark_file(tmp_path: Path, marked: str, key: str, words: str) -> None:
    expect(of_aorta, tmp_path / "aorta.yaml", f"aorta_path: /a\n{marked}\n", key, words)


@pytest.mark.parametrize(("marked", "key", "words"), ALONE, ids=[row[0] for row in ALONE])
def test_in_a_whole_benchmark_file(tmp_path: Path, marked: str, key: str, words: str) -> None:
    expect(of_aorta, tmp_path / "aorta.yaml", marked, key, words)


@pytest.mark.parametrize(("marked", "key", "words"), CLUSTER, ids=[row[0] for row in CLUSTER])
def test_in_the_cluster_file(tmp_path: Path, marked: str, key: str, words: str) -> None:
    expect(
        load_cluster, tmp_path / ("cluster.json" if marked[0] in "^{" else "cluster.yaml"), marked, key, words
    )


# --- syntax -----------------------------------------------------------------------------------------------

SYNTAX = [
    ("aorta.yaml", "aorta_path: [/a\n^", "expected ',' or ']'"),
    ("aorta.yaml", "aorta_path: /a\ndocker:\n^\timage: x\n", "cannot start any token"),
    ("aorta.yaml", "aorta_path: /a\nx: ^*none\n", "undefined alias"),
    ("aorta.yaml", "aorta_path: ^!!python/object:os.system x\n", "has no meaning here"),
    ("aorta.yaml", "aorta_path: ^!mine x\n", "has no meaning here"),
    ("aorta.yaml", "aorta_path: /a\n^---\naorta_path: /b\n", "another document"),
    ("aorta.yaml", "aorta_path: /a\n? ^[x]\n: y\n", "a key is a text"),
    ("aorta.yaml", "aorta_path: /a\nx: {<<: [^y]}\n", "only a mapping can be merged"),
    ("cluster.json", '{"username": "a",^}', "comma before a closing bracket"),
    ("cluster.json", '{\n  "username": "a"\n  ^"node_dict": {}\n}', "delimiter"),
    ("cluster.json", '{"username": ^NaN}', "NaN is no number in JSON"),
    ("cluster.json", "{^'username': 'a'}", "double quotes"),
    ("cluster.json", '{"username": ^"a\n"}', ""),
    ("cluster.json", '{"username": "a^\tb"}', "a tab inside a text is written \\t"),
    ("cluster.json", "{\"username\": ^'a'}", "single quotes; JSON knows double ones only"),
    ("cluster.json", '{"username": "a" ^// me\n}', "JSON has no comments"),
    ("cluster.json", '{"username": "a"\n^# me\n}', "JSON has no comments"),
    ("cluster.json", '{"username": ^alice}', "a word without quotes"),
    ("cluster.json", '{^username: "a"}', "a word without quotes"),
    ("cluster.json", '{"transport": ^None}', "only true, false and null need none"),
    ("cluster.json", '{"ssh_port": 0^22}', "no number as JSON writes it"),
    ("cluster.json", '{"username": "a", ^', "the file ends too early"),
    ("cluster.json", '{"username": "a\u2028b",\n "x": 1,^,\n}', "double quotes"),
    ("aorta.yaml", "aorta_path: '/a\u2028b'\nx: [1\ny^: 2\n", "expected ',' or ']'"),
    ("aorta.yaml", "aorta_path: {home}^/aorta\n", BARE),
    ("aorta.yaml", "aorta_path: /a\nmulti_node: {extra_train_args: [{cvs}^/x]}\n", BARE),
]


@pytest.mark.parametrize(("name", "marked", "words"), SYNTAX, ids=[row[1] for row in SYNTAX])
def test_syntax_is_told_with_the_line_and_a_caret(tmp_path: Path, name: str, marked: str, words: str) -> None:
    text, place = placed(marked)
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        of_aorta(file) if name.startswith("aorta") else load_cluster(file)
    first, excerpt, caret = str(caught.value).split("\n")
    line, column = map(int, first.removeprefix(f"{file}:").split(":")[:2])
    if words:
        assert f"{line}:{column}" == place, first
        assert words in first
    shown = text.split("\n")[line - 1] if line <= len(text.split("\n")) else ""
    assert excerpt == "    " + shown.replace("\t", " ").replace("\u2028", " ")
    assert caret == "    " + " " * (column - 1) + "^"


def bomb(levels: int) -> str:
    """Aliases of aliases: ten to the power of `levels` values in a few lines."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "aorta_path: /a\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (bomb(9), "unfolds to more than any file needs"),
        ("aorta_path: /a\nx: &x [*x]\n", DEEP),
        ("aorta_path: /a\nx: " + "[" * 101 + "]" * 101, DEEP),
        ('{"aorta_path": "/a", "x": ' + '{"a":' * 600 + "1" + "}" * 601, DEEP),
        ("aorta_path: " + "[" * 5000, "nest"),
        ('{"a":' * 100_000, "maximum nesting depth"),
        ("", "is empty"),
        ("# only a comment\n", "a mapping of keys is expected"),
        ("- a\n- b\n", "holds a list"),
        ("text", "holds a single value"),
        ('{"username": "a", "node_dict": {}}', "looks like a cluster file; give it as --cluster_file"),
    ],
    ids=[
        "bomb",
        "circle",
        "101 levels",
        "600 levels of json",
        "deep",
        "deep json",
        "empty",
        "comment",
        "list",
        "text",
        "cluster",
    ],
)
def test_what_is_no_benchmark_file_at_all(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "aorta.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=rf"^{file}.*{words}"):
        of_aorta(file)


def test_a_benchmark_file_is_no_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("aorta_path: /a\n")
    with pytest.raises(ConfigError, match="looks like a benchmark file; give it as --config_file"):
        load_cluster(tmp_path / "x.yaml")


# --- several at once, and what is no mistake --------------------------------------------------------------


def test_all_of_both_files_at_once_in_their_order(tmp_path: Path) -> None:
    cluster, bench = tmp_path / "cluster.json", tmp_path / "aorta.yaml"
    cluster.write_text('{"username": 3,\n "transport": "x",\n "node_dict": {"a": {}}}')
    bench.write_text(
        "runtime: x\naorta_path: a\nimage: i\ngpus_per_node: 0\nmulti_node: {extra_train_args: [--config]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_files(cluster, bench)
    places = [line.removeprefix(f"{tmp_path}/").split(": ")[:2] for line in caught.value.problems]
    assert places == [
        ["cluster.json:1:2", "username"],
        ["cluster.json:2:2", "transport"],
        ["cluster.json:3:16", "node_dict.a.vpc_ip"],
        ["aorta.yaml:1:1", "runtime"],
        ["aorta.yaml:2:1", "aorta_path"],
        ["aorta.yaml:3:1", "image"],
        ["aorta.yaml:4:1", "gpus_per_node"],
        ["aorta.yaml:5:33", "multi_node.extra_train_args.0"],
    ]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffaorta_path: /a\n",
        "aorta_path: /a\r\ngpus_per_node: 2\r\n",
        "environment: &e {A: '1'}\naorta_path: /a\nmulti_node: {extra_env: {<<: *e, A: '2'}}\n",
        "aorta_path: /a\nexpected_results: {max_avg_iteration_ms: null, min_compute_ratio: ~, min_overlap_ratio: }\n",
        '{\n\t"aorta_path": "/a",\n\t"environment": {"FACE": "\\ud83d\\ude00"}\n}',
        'aorta_path: "/a b/ü"\n',
    ],
    ids=["byte-order mark", "CRLF", "merge", "null", "JSON with tabs and surrogates", "unicode"],
)
def test_what_is_no_mistake(tmp_path: Path, text: str) -> None:
    (tmp_path / "aorta.yaml").write_text(text, newline="")
    assert load_aorta(tmp_path / "aorta.yaml", TWO_NODES).aorta_path.startswith("/a")


def test_a_good_file_of_ten_thousand_nodes_looks_up_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ",\n".join(
        f'"n{n:05}": {{"vpc_ip": "10.{n // 65536}.{n // 256 % 256}.{n % 256}"}}' for n in range(10_000)
    )
    (tmp_path / "cluster.json").write_text(f'{{"username": "a", "node_dict": {{{nodes}}}}}')

    def refuse(*_: object) -> None:
        raise AssertionError("a place was looked up")

    monkeypatch.setattr(Document, "place", refuse)
    assert len(load_cluster(tmp_path / "cluster.json").node_dict) == 10_000


def test_a_secret_is_not_shown_in_the_message_about_it(tmp_path: Path) -> None:
    (tmp_path / "aorta.json").write_text('{"aorta_path": "/a", "environment": {"HF_TOKEN": 424242}}')
    with pytest.raises(ConfigError) as caught:
        of_aorta(tmp_path / "aorta.json")
    assert "424242" not in str(caught.value)
    assert "environment.HF_TOKEN" in str(caught.value)


# --- secrets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("environment: {HF_TOKEN: o, A_TOKEN: off}", "environment.A_TOKEN: ********** is not read as text; write it"),
        ("environment: {A_TOKEN: [1]}", "environment.A_TOKEN: a list is no text"),
        ("environment: {A_TOKEN=s3cret}", "environment.A_TOKEN=**********: cannot be the name of a variable"),
        ("environment: {A_TOKEN: 'a{s3cret}b'}", "environment.A_TOKEN: unknown placeholder ********** (known"),
        ("multi_node: {extra_train_args: ['--api_key={s3cret}']}", "args.0: unknown placeholder ********** (known"),
        ("rccl: {clone_url: 'https://{s3cret}@h'}", "rccl.clone_url: unknown placeholder ********** (known"),
        ("base_config: /https://s3cret@h", "base_config: '/https://**********@h' is no path inside aorta_path"),
    ],
)  # fmt: skip
def test_only_the_secret_is_hidden_in_a_message(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "aorta.yaml").write_text(f"aorta_path: /a\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        of_aorta(tmp_path / "aorta.yaml")
    assert told in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("word", ["off", "yes", "2024-01-31", "424242:"])
def test_an_unquoted_secret_is_refused_without_being_shown(tmp_path: Path, word: str) -> None:
    (tmp_path / "cluster.yaml").write_text(
        f"username: a\npassword: {word}\nnode_dict: {{a: {{vpc_ip: x}}}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load_cluster(tmp_path / "cluster.yaml")
    assert word not in str(caught.value)


BROKEN = {
    "json": '{"username": "a",\n "password": "s3"cret",\n "node_dict": {}}',
    "json, next line": '{"username": "a",\n "priv_key_passphrase":\n  "s3"cret"}',
    "json, environment": '{"env_vars": {"HF_TOKEN": s3cret}}',
    "json, address": '{"jump_host": "https://me:s3cret@h", x}',
    "yaml tag": "username: a\npassword: !s3cret\n",
    "yaml quotes": "username: a\npassword: 's3' cret\n",
    "yaml block": "username: a\npassword: |\n   aaa\n s3cret\nx: 1\n",
    "yaml list": "args: [--password=s3cret\nx: 1\n",
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_a_line_that_is_shown_holds_no_secret(tmp_path: Path, text: str) -> None:
    file = tmp_path / ("cluster.json" if text[0] == "{" else "cluster.yaml")
    file.write_text(text)
    with pytest.raises(ConfigError, match="syntax: ") as caught:
        load_cluster(file)
    told = str(caught.value)
    assert "s3" not in told
    assert "cret" not in told
    _, excerpt, caret = told.split("\n")
    assert len(caret) <= len(excerpt)


def test_a_line_after_a_secret_is_shown(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{\n "password": "s3cret",\n "transport": local\n}')
    with pytest.raises(ConfigError) as caught:
        load_cluster(tmp_path / "cluster.json")
    assert '     "transport": local' in str(caught.value).split("\n")


# --- what is wrong hides nothing --------------------------------------------------------------------------


def keys_told(load: Any, file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(file)
    return [line.removeprefix(f"{file}:").split(": ")[1] for line in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('{"username": 3, "head_node_dict": {"mgmt_ip": "q"}, %s}' % TWINS, "username head_node_dict.mgmt_ip node_dict.b.vpc_ip"),
        ('{"username": 3, "head_node_dict": {"mgmt_ip": "a"}, "node_dict": {"a": "x", "b": 3, "c d": {}}}',
         "username node_dict.a node_dict.b node_dict.c d.vpc_ip node_dict.c d"),
        ('{"head_node_dict": {"mgmt_ip": "a"}, "env_vars": {"GLOO_SOCKET_IFNAME": "^lo"}, "node_dict": []}',
         "username env_vars.GLOO_SOCKET_IFNAME node_dict"),
        ('{"username": "a", "transprot": "local", "ssh_port": "3", "pasword": "x", %s}' % TWINS, "transprot ssh_port pasword"),
        ('{"username": "a", "transprot": "local", "password": "${CVS_NOT_SET}", %s}' % TWINS, "transprot password"),
        ('{"username": "a", "transprot": "local", "transport": "ssh", %s}' % TWINS, "node_dict.b.vpc_ip"),
        ('{"username": "a", "racks": [{"id": 1, "id": 2}], "racks": [], %s}' % NODES, "racks.0.id racks"),
        ('{"username": "<changeme>", "env_vars": {"GLOO_SOCKET_IFNAME": "=lo"}, %s}' % TWINS,
         "username env_vars.GLOO_SOCKET_IFNAME node_dict.b.vpc_ip"),
    ],
)  # fmt: skip
def test_all_of_a_cluster_file_at_once(tmp_path: Path, text: str, keys: str) -> None:
    assert " ".join(keys_told(load_cluster, tmp_path / "cluster.json", text)) == keys


def test_all_of_a_benchmark_file_at_once(tmp_path: Path) -> None:
    text = (
        "aorta_path: x\naorta_auto_clone: true\nmulti_node:\n  extra_train_args: [off, --config]\n"
        "  extra_env: {GLOO_SOCKET_IFNAME: =lo}\n  nproc_per_node: 9\n"
    )
    assert keys_told(of_aorta, tmp_path / "aorta.yaml", text) == [
        "aorta_path",
        "aorta_auto_clone",
        "multi_node.extra_train_args.0",
        "multi_node.extra_train_args.1",
        "multi_node.extra_env.GLOO_SOCKET_IFNAME",
        "multi_node.nproc_per_node",
    ]


def test_a_misspelt_key_alone_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"username": "a", "transprot": "local", %s}' % NODES)
    [warning] = load_cluster(tmp_path / "cluster.json").warnings()
    assert "transprot (did you mean transport?)" in warning


def test_what_is_no_number_in_a_key_of_others_is_kept_as_text(tmp_path: Path) -> None:
    text = f"username: a\nnode_dict: {{a: {{vpc_ip: x}}}}\nracks: {'9' * 5000}\nday: 2024-13-01\nsign: =\nmerge: [<<]\n"
    (tmp_path / "cluster.yaml").write_text(text)
    assert load_cluster(tmp_path / "cluster.yaml").model_extra == {
        "racks": "9" * 5000,
        "day": "2024-13-01",
        "sign": "=",
        "merge": ["<<"],
    }
