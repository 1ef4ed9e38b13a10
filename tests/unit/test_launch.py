"""The launch plan: contract sections 3 and 4, and what a plan survives on its way to a node."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import cvs
from cvs.config import AortaConfig, ClusterConfig, load_aorta, load_cluster
from cvs.launch import LaunchPlan, Site, plan_aorta

PLANS = Path(__file__).parents[1] / "data" / "plans"
PACKAGE = Path(cvs.__file__).resolve().parent
SITE = Site(
    run_id="20261130T120000.000Z-c0ffee",
    master_port=29511,
    nodes_dir="/srv/cvs_runs/test_aorta/nodes",
    torch_python="/opt/venv/bin/python",
)


def cluster_of(*names: str, **keys: Any) -> ClusterConfig:
    nodes = {name: {"vpc_ip": f"192.168.0.{index}"} for index, name in enumerate(names, 1)}
    return ClusterConfig.model_validate({"username": "alice", "node_dict": nodes, **keys})


def aorta_of(**keys: Any) -> AortaConfig:
    return AortaConfig.model_validate({"aorta_path": "/srv/aorta", **keys})


def plan_of(
    *names: str, site: Site | None = SITE, cluster: dict[str, Any] | None = None, **keys: Any
) -> LaunchPlan:
    """Plan for these nodes; further keys are the benchmark file's."""
    return plan_aorta(cluster_of(*(names or ("a",)), **(cluster or {})), aorta_of(**keys), site)


# --- golden plans -----------------------------------------------------------------------------------------


def golden(name: str) -> object:
    return json.loads((PLANS / name / "plan.json").read_text().replace("{cvs}", str(PACKAGE)))


def test_two_nodes_over_ssh_with_containers() -> None:
    cluster = load_cluster(PLANS / "docker_ssh" / "cluster.json")
    bench = load_aorta(PLANS / "docker_ssh" / "aorta.yaml", cluster)
    # The file names the port, so the free one is not used.
    plan = plan_aorta(cluster, bench, SITE)
    assert json.loads(plan.model_dump_json()) == golden("docker_ssh")


def test_the_local_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "alice")
    cluster = load_cluster(PACKAGE / "input" / "cluster_file" / "local_cluster.json")
    bench = load_aorta(PACKAGE / "input" / "config_file" / "aorta" / "aorta_local.yaml", cluster)
    assert json.loads(plan_aorta(cluster, bench, SITE).model_dump_json()) == golden("local")


# --- how the job is started -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "wanted", "mode"),
    [
        ("a", "auto", "script"),
        ("a b", "auto", "torchrun"),
        ("a", "script", "script"),
        ("a", "torchrun", "torchrun"),
        ("a b", "torchrun", "torchrun"),
    ],
)
def test_mode(nodes: str, wanted: str, mode: str) -> None:
    assert plan_of(*nodes.split(), multi_node={"master_launch_mode": wanted}).mode == mode


def test_a_script_gets_the_config_and_its_overrides_in_the_environment() -> None:
    plan = plan_of(
        container_mount_path="/workspace",
        experiment_script="scripts/launch_rocm.sh",
        base_config="config/x.yaml",
        skip_rccl_build=True,
        analysis={"enable_tracelens": False},
        training_overrides={"training.max_steps": "15", "profiling.active": "6"},
    )
    assert plan.head.argv == ("bash", "/workspace/scripts/launch_rocm.sh", "/workspace/config/x.yaml")
    overrides = plan.head.variables()["AORTA_OVERRIDE_ARGS"]
    assert overrides == "--override training.max_steps=15 profiling.active=6"
    assert plan.head.required_files == ("scripts/launch_rocm.sh", "config/x.yaml")


def test_without_overrides_there_is_nothing_to_hand_over() -> None:
    assert "AORTA_OVERRIDE_ARGS" not in plan_of().head.variables()
    assert "--override" not in plan_of("a", "b").head.argv


def test_all_pairs_stand_behind_one_override() -> None:
    """The trainer declares it with nargs="*": of several groups the last would win."""
    argv = plan_of("a", "b", training_overrides={"a": "1", "b": "two words", "c": ""}).head.argv
    assert argv.count("--override") == 1
    start = argv.index("--override")
    assert argv[start + 1 :] == ("a=1", "b=two words", "c=")


def test_every_node_gets_its_rank_and_the_rest_alike() -> None:
    plan = plan_of("a", "b", "c", cluster={"head_node_dict": {"mgmt_ip": "b"}})
    assert [(node.node_rank, node.node) for node in plan.nodes] == [(0, "b"), (1, "a"), (2, "c")]
    for rank, node in enumerate(plan.nodes):
        assert f"--node_rank={rank}" in node.argv
    others = [
        tuple(word.replace(f"/{node.node}/torchrun", "") for word in node.argv if "--node_rank" not in word)
        for node in plan.nodes
    ]
    assert others[0] == others[1] == others[2]


def test_without_a_node_the_rest_is_a_smaller_job_started_in_the_same_way() -> None:
    many = {"on_node_failure": "exclude", "min_nodes": 1}
    plan = plan_of("a", "b", multi_node=many, site=SITE.model_copy(update={"excluded": ("a",)}))
    assert [(node.node_rank, node.node) for node in plan.nodes] == [(0, "b")]
    assert (plan.num_nodes, plan.min_nodes, plan.mode) == (1, 1, "torchrun")
    assert plan.rendezvous.address == plan.head.vpc_ip
    assert "--nnodes=1" in plan.head.argv


def test_each_node_has_a_folder_for_logs_whatever_its_name() -> None:
    plan = plan_of("fe80::1%eth0", "gpu-01.example.org")
    names = [Path(node.out_dir).name for node in plan.nodes]
    assert names == ["fe80__1_eth0", "gpu-01.example.org"]


def option(plan: LaunchPlan, name: str) -> str:
    """Value of an option of torchrun that must be there once."""
    [value] = [word.partition("=")[2] for word in plan.head.argv if word.partition("=")[0] == name]
    return value


def test_the_nodes_meet_at_the_head() -> None:
    plan = plan_of("a", "b", cluster={"head_node_dict": {"mgmt_ip": "b"}})
    assert (plan.rendezvous.address, plan.rendezvous.port, plan.rendezvous.id) == (
        "192.168.0.2",
        29511,
        SITE.run_id,
    )
    assert option(plan, "--master_addr") == "192.168.0.2"
    assert option(plan, "--master_port") == "29511"
    assert option(plan, "--rdzv_id") == SITE.run_id


def test_the_file_may_name_another_place() -> None:
    plan = plan_of("a", "b", multi_node={"master_addr": "10.9.9.9", "master_port": 12345})
    assert option(plan, "--master_addr") == "10.9.9.9"
    assert option(plan, "--master_port") == "12345"


def test_on_paper_the_port_is_still_free() -> None:
    plan = plan_of("a", "b", site=None)
    assert plan.rendezvous.port is None
    assert option(plan, "--master_port") == "<free port on the head>"


@pytest.mark.parametrize(("nproc", "ranks"), [(None, 8), (4, 4)])
def test_ranks(nproc: int | None, ranks: int) -> None:
    many = {} if nproc is None else {"nproc_per_node": nproc}
    plan = plan_of("a", "b", "c", multi_node=many)
    assert option(plan, "--nproc_per_node") == str(ranks)
    assert option(plan, "--nnodes") == "3"
    assert (plan.local_world_size, plan.world_size) == (ranks, 3 * ranks)


def test_a_job_is_never_restarted() -> None:
    """A second attempt would append to the traces and metrics of the first."""
    assert option(plan_of("a", "b"), "--max_restarts") == "0"


def test_further_arguments_stand_with_whom_they_are_for() -> None:
    many = {
        "extra_torchrun_args": ["--local_ranks_filter=0"],
        "extra_train_args": ["--enable-rocm-metrics", "x y"],
    }
    argv = plan_of("a", "b", multi_node=many, training_overrides={"a": "1"}).head.argv
    script = argv.index("/mnt/train.py")
    assert argv.index("--local_ranks_filter=0") < script
    assert argv[script + 1 :] == (
        "--config", "/mnt/config/distributed.yaml", "--override", "a=1", "--enable-rocm-metrics", "x y",
    )  # fmt: skip


def test_limits() -> None:
    plan = plan_of("a", "b", timeout_seconds=600, multi_node={"join_timeout_seconds": 30, "grace_seconds": 5})
    limits = plan.limits
    assert (limits.total, limits.join, limits.grace, limits.after_first_end) == (600, 30, 5, 30)
    # SIGKILL comes after torchrun has had its own time to end its workers.
    assert limits.shutdown == int(plan.head.variables()["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) + 5
    assert option(plan, "--rdzv_conf") == "timeout=30"


# --- where it runs ----------------------------------------------------------------------------------------


def test_in_a_container_the_job_sees_the_mount_point() -> None:
    node = plan_of("a", "b", container_mount_path="/workspace").head
    assert (node.aorta_path, node.workdir) == ("/srv/aorta", "/workspace")
    assert node.out_dir == f"/workspace/.cvs/{SITE.run_id}/{node.node}"
    assert node.out_dir_on_node == f"/srv/aorta/.cvs/{SITE.run_id}/{node.node}"
    assert node.container is not None
    assert node.container.mounts == (("/srv/aorta", "/workspace"),)
    assert node.copied_from is None
    assert node.argv[0] == "torchrun"


@pytest.mark.parametrize(
    ("accelerator", "devices", "groups"),
    [
        ("rocm", ("/dev/kfd", "/dev/dri"), ("video", "render")),
        ("cuda", (), ()),
        ("none", (), ()),
    ],
)
def test_a_container_gets_the_devices_of_its_accelerator(
    accelerator: str, devices: tuple[str, ...], groups: tuple[str, ...]
) -> None:
    container = plan_of("a", "b", accelerator=accelerator).head.container
    assert container is not None
    assert (container.devices, container.groups) == (devices, groups)


@pytest.mark.parametrize(("accelerator", "hidden"), [("rocm", False), ("cuda", False), ("none", True)])
def test_without_an_accelerator_a_process_sees_no_gpu(accelerator: str, hidden: bool) -> None:
    variables = plan_of("a", "b", runtime="process", accelerator=accelerator).head.variables()
    assert (variables.get("CUDA_VISIBLE_DEVICES") == "-1") is hidden
    assert (variables.get("HIP_VISIBLE_DEVICES") == "-1") is hidden


def test_local_processes_get_a_copy_each() -> None:
    plan = plan_of("a", "b", cluster={"transport": "local"}, runtime="process")
    assert [node.aorta_path for node in plan.nodes] == [f"{SITE.nodes_dir}/{name}/aorta" for name in "ab"]
    assert {node.copied_from for node in plan.nodes} == {"/srv/aorta"}
    for node in plan.nodes:
        assert node.workdir == node.aorta_path
        assert node.out_dir == node.out_dir_on_node == f"{node.aorta_path}/.cvs/{SITE.run_id}/{node.node}"
        assert node.argv[:3] == ("/opt/venv/bin/python", "-m", "torch.distributed.run")
        assert f"{node.aorta_path}/train.py" in node.argv
        assert node.container is None


def test_remote_processes_work_in_the_checkout() -> None:
    node = plan_of("a", "b", runtime="process").head
    assert (node.aorta_path, node.workdir, node.copied_from) == ("/srv/aorta", "/srv/aorta", None)


def test_connection_settings_come_from_the_cluster_file() -> None:
    keys = {
        "ssh_port": 2222,
        "jump_host": "login",
        "ssh_config": "/c",
        "known_hosts": "/k",
        "priv_key_file": "/id",
    }
    plan = plan_of("a", "b", cluster={**keys, "host_key_policy": "accept-new"})
    assert plan.nodes[0].connection == plan.nodes[1].connection
    assert plan.head.connection.model_dump() == {
        "transport": "ssh",
        "username": "alice",
        "port": 2222,
        "priv_key_file": "/id",
        "jump_host": "login",
        "ssh_config": "/c",
        "known_hosts": "/k",
        "host_key_policy": "accept-new",
        "with_password": False,
        "with_passphrase": False,
    }


def test_that_there_are_secrets_is_told_but_not_which() -> None:
    plan = plan_of("a", cluster={"password": "s3cret-1", "priv_key_passphrase": "s3cret-2"})
    assert plan.head.connection.with_password
    assert plan.head.connection.with_passphrase
    assert "s3cret" not in plan.model_dump_json()


# --- what containers are for ------------------------------------------------------------------------------


def test_rccl_is_built_in_the_container_and_found_first() -> None:
    plan = plan_of(rccl={"build_path": "/opt/rccl", "branch": "b", "clone_url": "u"}, build_script="s/b.sh")
    build = plan.head.rccl_build
    assert build is not None
    assert (build.clone_url, build.branch, build.build_path) == ("u", "b", "/opt/rccl")
    assert build.argv == ("bash", "/mnt/s/b.sh")
    assert "s/b.sh" in plan.head.required_files
    variables = plan.head.variables()
    assert variables["rccl_path"] == "/opt/rccl"
    assert variables["LD_LIBRARY_PATH"].split(":")[0] == "/opt/rccl/build/release"


@pytest.mark.parametrize("keys", [{"skip_rccl_build": True}, {"runtime": "process"}])
def test_else_it_is_neither_built_nor_looked_for(keys: dict[str, Any]) -> None:
    node = plan_of(**keys).head
    assert node.rccl_build is None
    assert node.variables().keys().isdisjoint({"rccl_path", "LD_LIBRARY_PATH"})


def test_where_the_workload_comes_from_and_at_which_revision() -> None:
    keys: dict[str, Any] = {"aorta_clone_url": "https://example.com/a.git", "aorta_revision": "v1"}
    assert plan_of(**keys).head.clone_url is None
    head = plan_of(aorta_auto_clone=True, **keys).head
    assert (head.clone_url, head.revision) == ("https://example.com/a.git", "v1")


def test_analyses_run_on_what_the_job_wrote() -> None:
    plan = plan_of(
        training_overrides={"training.output_dir": "out"},
        analysis={"enable_gemm_analysis": True, "gemm_script": "g.sh", "skip_if_exists": True},
    )
    tracelens, gemm = plan.head.analyses
    assert tracelens.name == "tracelens"
    assert gemm.argv == ("bash", "/mnt/g.sh", "/mnt/out")
    assert gemm.skip_if_exists
    assert "g.sh" in plan.head.required_files
    assert plan_of(runtime="process").head.analyses == ()


# --- environment ------------------------------------------------------------------------------------------

SOURCES = ["cluster env_vars", "node_dict.a.env_vars", "default", "environment", "multi_node.extra_env"]
"""In the order of the contract: later wins."""


def planned(name: str, *sources: str) -> tuple[str, str]:
    """Value and source of a variable that each of these sources sets to its own name."""
    node: dict[str, Any] = {"vpc_ip": "1.1.1.1"}
    cluster: dict[str, Any] = {"username": "u", "node_dict": {"a": node}}
    bench: dict[str, Any] = {"aorta_path": "/srv/aorta", "multi_node": {}}
    for source in sources:
        if source == "cluster env_vars":
            cluster["env_vars"] = {name: source}
        elif source == "node_dict.a.env_vars":
            node["env_vars"] = {name: source}
        elif source == "environment":
            bench["environment"] = {name: source}
        elif source == "multi_node.extra_env":
            bench["multi_node"] = {"extra_env": {name: source}}
    plan = plan_aorta(ClusterConfig.model_validate(cluster), AortaConfig.model_validate(bench), SITE)
    [variable] = [variable for variable in plan.head.environment if variable.name == name]
    return variable.value, variable.source


@pytest.mark.parametrize("last", range(len(SOURCES)))
def test_later_sources_win(last: int) -> None:
    """NCCL_DEBUG has a default, which comes between the cluster file and the benchmark file."""
    value, source = planned("NCCL_DEBUG", *SOURCES[: last + 1])
    assert source == SOURCES[max(last, SOURCES.index("default"))]
    assert value == ("VERSION" if source == "default" else source)


@pytest.mark.parametrize("only", [source for source in SOURCES if source != "default"])
def test_every_source_reaches_the_job(only: str) -> None:
    assert planned("MY_OWN", only) == (only, only)


def test_variables_of_one_node_are_not_the_others() -> None:
    nodes = {
        "a": {"vpc_ip": "1.1.1.1", "env_vars": {"X": "a"}},
        "b": {"vpc_ip": "1.1.1.2", "env_vars": {"X": "b"}},
    }
    plan = plan_of(cluster={"node_dict": nodes})
    assert [node.variables()["X"] for node in plan.nodes] == ["a", "b"]


def test_names_are_there_once() -> None:
    plan = plan_of(
        "a", "b", environment={"NCCL_DEBUG": "INFO"}, multi_node={"extra_env": {"NCCL_DEBUG": "WARN"}}
    )
    names = [variable.name for variable in plan.head.environment]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(("channels", "units"), [(1, "255"), (112, "144"), (256, "0")])
def test_the_compute_units_that_communication_leaves(channels: int, units: str) -> None:
    variables = plan_of(environment={"NCCL_MAX_NCHANNELS": channels}).head.variables()
    assert variables["NCCL_MAX_NCHANNELS"] == str(channels)
    assert variables["TENSILE_STREAMK_MAX_CUS"] == units


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "default"])
def test_an_explicit_number_of_compute_units_wins(source: str) -> None:
    assert planned("TENSILE_STREAMK_MAX_CUS", source) == (source, source)


@pytest.mark.parametrize("source", [source for source in SOURCES if source != "default"])
@pytest.mark.parametrize("name", ["CVS_RUN_ID", "TORCHELASTIC_RUN_ID"])
def test_by_what_a_run_is_found_again_cannot_be_changed(name: str, source: str) -> None:
    with pytest.raises(ValidationError, match="is set by cvs, which finds the processes of a run by it"):
        planned(name, source)


# --- secrets ----------------------------------------------------------------------------------------------


def test_no_secret_is_written_down_but_the_job_gets_it() -> None:
    nodes = {"a": {"vpc_ip": "1.1.1.1", "env_vars": {"HF_TOKEN": "s3cret-1"}}, "b": {"vpc_ip": "1.1.1.2"}}
    plan = plan_of(
        cluster={
            "node_dict": nodes,
            "env_vars": {"DB_PASSWORD": "s3cret-2"},
            "password": "s3cret-3",
            "priv_key_passphrase": "s3cret-4",
        },
        environment={"WANDB_API_KEY": "s3cret-5"},
        multi_node={"extra_env": {"AWS_SECRET_ACCESS_KEY": "s3cret-6"}},
    )
    assert "s3cret" not in plan.model_dump_json()
    assert "s3cret" not in str(plan.model_dump())
    given = plan.head.variables()
    names = ("HF_TOKEN", "DB_PASSWORD", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY")
    assert [given[name] for name in names] == ["s3cret-1", "s3cret-2", "s3cret-5", "s3cret-6"]


@pytest.mark.parametrize("nodes", ["a", "a b"], ids=["script", "torchrun"])
def test_what_the_config_hides_the_plan_does_not_show(nodes: str) -> None:
    """An override is hidden in the recorded config by its name; the same record holds the plan."""
    overrides = {"logging.wandb_api_key": "s3cret"}
    assert "s3cret" not in str(aorta_of(training_overrides=overrides).resolved())
    assert "s3cret" not in plan_of(*nodes.split(), training_overrides=overrides).model_dump_json()


def test_a_plan_that_is_printed_shows_no_secret() -> None:
    assert "s3cret" not in str(plan_of("a", "b", environment={"HF_TOKEN": "s3cret"}))


# --- the way to a node ------------------------------------------------------------------------------------

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
ARGUMENTS = WORDS.filter(lambda word: not word.startswith("-"))
NAMES = st.text("ABCDEFXYZ_", min_size=1, max_size=6).map(lambda name: f"V{name}")


@st.composite
def plans(draw: st.DrawFn) -> LaunchPlan:
    """Any plan whose variables have harmless names."""
    count = draw(st.integers(1, 4))
    runtime = draw(st.sampled_from(["docker", "process"]))
    accelerator = draw(st.sampled_from(["rocm", "cuda", "none"]))
    return plan_of(
        *(f"n{index}" for index in range(count)),
        cluster={
            "transport": draw(st.sampled_from(["ssh", "local"])),
            "head_node_dict": {"mgmt_ip": f"n{draw(st.integers(0, count - 1))}"},
            "env_vars": draw(st.dictionaries(NAMES, WORDS, max_size=3)),
            "ssh_port": draw(st.integers(1, 65535)),
        },
        runtime=runtime,
        accelerator=accelerator,
        training_overrides=draw(st.dictionaries(NAMES, WORDS, max_size=3)),
        environment=draw(st.dictionaries(NAMES, WORDS, max_size=3)),
        multi_node={
            "extra_torchrun_args": draw(st.lists(ARGUMENTS, max_size=3)),
            "extra_train_args": draw(st.lists(ARGUMENTS, max_size=3)),
            "extra_env": draw(st.dictionaries(NAMES, WORDS, max_size=3)),
            "collect_traces": draw(st.booleans()),
        },
    )


@settings(max_examples=50, deadline=None)
@given(plans())
def test_a_plan_survives_being_written_and_read(plan: LaunchPlan) -> None:
    assert LaunchPlan.model_validate_json(plan.model_dump_json()) == plan


@settings(max_examples=25, deadline=None)
@given(plans())
def test_its_commands_survive_a_shell(plan: LaunchPlan) -> None:
    for argv in {node.argv for node in plan.nodes[:2]}:
        told = subprocess.run(
            ["sh", "-c", f"printf '%s\\0' {shlex.join(argv)}"], capture_output=True, check=True
        )
        assert told.stdout.decode().split("\0")[:-1] == list(argv)
