"""The cluster file, key by key: contract section 2."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cvs.config import ClusterConfig, load_cluster
from cvs.errors import ConfigError

TWO_NODES = {"10.0.0.1": {"vpc_ip": "192.168.0.1"}, "10.0.0.2": {"vpc_ip": "192.168.0.2"}}
SMALLEST: dict[str, Any] = {"username": "alice", "node_dict": TWO_NODES}


def load(tmp_path: Path, data: object) -> ClusterConfig:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps(data))
    return load_cluster(file)


def problem(tmp_path: Path, data: object) -> str:
    """The one problem of a file that is wrong in one place."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, data)
    [line] = caught.value.problems
    assert line.startswith(f"{tmp_path}/cluster.json:")
    assert "\n" not in line
    return line


def test_defaults(tmp_path: Path) -> None:
    cluster = load(tmp_path, SMALLEST)
    assert cluster.resolved() == {
        "username": "alice",
        "priv_key_file": None,
        "password": None,
        "head_node_dict": {"mgmt_ip": None},
        "node_dict": {
            "10.0.0.1": {"vpc_ip": "192.168.0.1", "bmc_ip": None, "env_vars": {}},
            "10.0.0.2": {"vpc_ip": "192.168.0.2", "bmc_ip": None, "env_vars": {}},
        },
        "env_vars": {},
        "home_mount_dir_name": "home",
        "node_dir_name": "root",
        "transport": "ssh",
        "ssh_port": None,
        "jump_host": None,
        "ssh_config": None,
        "known_hosts": None,
        "host_key_policy": "strict",
        "priv_key_passphrase": None,
        "max_parallel": 64,
    }
    assert cluster.warnings() == []


def test_every_key_of_ours(tmp_path: Path) -> None:
    keys = {
        "priv_key_file": "/home/alice/.ssh/no_such_key",
        "password": "pw",
        "head_node_dict": {"mgmt_ip": "10.0.0.2"},
        "env_vars": {"LANG": "C"},
        "home_mount_dir_name": "mnt",
        "node_dir_name": "nodes",
        "transport": "local",
        "ssh_port": 2222,
        "jump_host": "login",
        "ssh_config": "/home/alice/.ssh/config",
        "known_hosts": "/home/alice/.ssh/known_hosts",
        "host_key_policy": "accept-new",
        "priv_key_passphrase": "pp",
        "max_parallel": 2,
    }
    cluster = load(tmp_path, {**SMALLEST, **keys})
    assert {key: cluster.resolved()[key] for key in keys} == {
        **keys,
        "password": "**********",
        "priv_key_passphrase": "**********",
    }
    assert cluster.password == SecretStr("pw")
    assert cluster.priv_key_passphrase == SecretStr("pp")
    assert cluster.head == "10.0.0.2"
    assert cluster.warnings() == []


@pytest.mark.parametrize("key", ["priv_key_file", "password", "ssh_port", "jump_host", "priv_key_passphrase"])
def test_null_stands_where_null_is_the_default(tmp_path: Path, key: str) -> None:
    assert load(tmp_path, {**SMALLEST, key: None}).resolved()[key] is None


def test_the_first_node_is_the_head(tmp_path: Path) -> None:
    assert load(tmp_path, SMALLEST).head == "10.0.0.1"


@pytest.mark.parametrize(
    "name", ["node-7", "n7.rack-2.example.com", "10.0.0.7", "fe80::7", "fe80::7%eth0", "2001:db8::1", "::"]
)
def test_node_names(tmp_path: Path, name: str) -> None:
    cluster = load(tmp_path, {"username": "alice", "node_dict": {name: {"vpc_ip": "192.168.0.7"}}})
    assert cluster.head == name


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"username": None}, "username", "in quotes"),
    ({"username": 1000}, "username", "in quotes"),
    ({"username": True}, "username", "in quotes"),
    ({"username": ["alice"]}, "username", "a list is no text"),
    ({"priv_key_file": 7}, "priv_key_file", "in quotes"),
    ({"password": 1234}, "password", "in quotes"),
    ({"priv_key_passphrase": ["a"]}, "priv_key_passphrase", "in quotes"),
    ({"node_dict": {}}, "node_dict", "at least 1"),
    ({"node_dict": ["10.0.0.1"]}, "node_dict", "a mapping"),
    ({"node_dict": {"a": {}}}, "node_dict.a.vpc_ip", "is required and missing"),
    ({"node_dict": {"a": {"vpc_ip": 10}}}, "node_dict.a.vpc_ip", "in quotes"),
    (
        {"node_dict": {"a": {"vpc_ip": "1.1.1.1", "env_vars": {"N": 3}}}},
        "node_dict.a.env_vars.N",
        "in quotes",
    ),
    ({"head_node_dict": {"mgmt_ip": "10.0.0.3"}}, "head_node_dict.mgmt_ip", "did you mean 10.0.0."),
    ({"env_vars": {"NCCL_DEBUG": True}}, "env_vars.NCCL_DEBUG", "in quotes"),
    ({"env_vars": {"X": None}}, "env_vars.X", "in quotes"),
    ({"home_mount_dir_name": 5}, "home_mount_dir_name", "in quotes"),
    ({"node_dir_name": None}, "node_dir_name", "in quotes"),
    ({"transport": "telnet"}, "transport", "'ssh' or 'local'"),
    ({"ssh_port": 0}, "ssh_port", "at least 1"),
    ({"ssh_port": 65536}, "ssh_port", "at most 65535"),
    ({"ssh_port": "22"}, "ssh_port", "no quotes"),
    ({"ssh_port": 22.0}, "ssh_port", "no whole number"),
    ({"host_key_policy": "no"}, "host_key_policy", "'strict' or 'accept-new'"),
    ({"max_parallel": 0}, "max_parallel", "at least 1"),
    ({"max_parallel": True}, "max_parallel", "no whole number"),
    ({"max_parallel": None}, "max_parallel", "no whole number"),
]


@pytest.mark.parametrize(("change", "key", "hint"), REFUSED, ids=[str(change) for change, _, _ in REFUSED])
def test_a_mistake_is_told_with_its_key_and_what_is_expected(
    tmp_path: Path, change: dict[str, Any], key: str, hint: str
) -> None:
    line = problem(tmp_path, {**SMALLEST, **change})
    assert f" {key}: " in line
    assert hint in line


@pytest.mark.parametrize("key", ["username", "node_dict"])
def test_required_keys(tmp_path: Path, key: str) -> None:
    data = {name: value for name, value in SMALLEST.items() if name != key}
    assert f"{key}: is required and missing" in problem(tmp_path, data)


def test_a_required_key_that_is_misspelt_is_found_again(tmp_path: Path) -> None:
    line = problem(tmp_path, {"usernam": "alice", "node_dict": TWO_NODES})
    assert "username" in line
    assert re.search(r"\busernam\b", line)


def test_the_nearest_node_is_offered_as_head(tmp_path: Path) -> None:
    nodes = {"alpha": {"vpc_ip": "1.1.1.1"}, "beta": {"vpc_ip": "1.1.1.2"}}
    line = problem(tmp_path, {**SMALLEST, "node_dict": nodes, "head_node_dict": {"mgmt_ip": "betta"}})
    assert "head_node_dict.mgmt_ip: betta is no key of node_dict (did you mean beta?)" in line


@pytest.mark.parametrize("name", ["10.0.0.1:22", "node-1:2222", "[fe80::7]:22"])
def test_a_port_in_a_node_name_goes_into_ssh_port(tmp_path: Path, name: str) -> None:
    line = problem(tmp_path, {"username": "alice", "node_dict": {name: {"vpc_ip": "192.168.0.1"}}})
    assert name in line
    assert "ssh_port" in line


@pytest.mark.parametrize(
    "name", ["", "node 1", "alice@node-1", "node_dict/1", "-node", "no$de", "fe80::7%", "1:2:3", "::g"]
)
def test_what_is_no_host_name_is_no_node_name(tmp_path: Path, name: str) -> None:
    line = problem(tmp_path, {"username": "alice", "node_dict": {name: {"vpc_ip": "192.168.0.1"}}})
    assert "node_dict" in line


def twins(transport: str) -> dict[str, Any]:
    nodes = {"a": {"vpc_ip": "10.1.1.1"}, "b": {"vpc_ip": "10.1.1.1"}}
    return {"username": "alice", "transport": transport, "node_dict": nodes}


def test_two_nodes_with_one_vpc_ip_are_an_error(tmp_path: Path) -> None:
    line = problem(tmp_path, twins("ssh"))
    assert "vpc_ip" in line
    assert "10.1.1.1" in line


def test_on_one_machine_they_are_none(tmp_path: Path) -> None:
    assert len(load(tmp_path, twins("local")).node_dict) == 2


@pytest.mark.parametrize("value", ["^lo", "=eth0", "^docker0,lo"])
@pytest.mark.parametrize("where", ["cluster", "node"])
def test_gloo_takes_one_interface_name(tmp_path: Path, where: str, value: str) -> None:
    """NCCL's spellings for all but, and exactly, are none of Gloo's."""
    variables = {"env_vars": {"GLOO_SOCKET_IFNAME": value}}
    node = {"vpc_ip": "192.168.0.1", **(variables if where == "node" else {})}
    data = {"username": "alice", "node_dict": {"a": node}, **(variables if where == "cluster" else {})}
    line = problem(tmp_path, data)
    assert "GLOO_SOCKET_IFNAME" in line
    assert value in line


# --- keys of other suites ---------------------------------------------------------------------------------


def test_keys_of_other_suites_are_kept_and_named_in_one_warning(tmp_path: Path) -> None:
    cluster = load(
        tmp_path,
        {
            **SMALLEST,
            "racks": [1, 2],
            "container": {"enabled": False},
            "head_node_dict": {"mgmt_ip": "10.0.0.1", "rack": 3},
            "node_dict": {"10.0.0.1": {"vpc_ip": "192.168.0.1", "rack_id": 3}},
        },
    )
    assert cluster.warnings() == [
        "keys that have no effect here: racks, container, head_node_dict.rack, node_dict.10.0.0.1.rack_id"
    ]
    assert cluster.model_extra == {"racks": [1, 2], "container": {"enabled": False}}


@pytest.mark.parametrize(
    ("key", "ours"), [("pasword", "password"), ("env_var", "env_vars"), ("ssh_prot", "ssh_port")]
)
def test_a_key_that_is_nearly_ours_gets_a_hint(tmp_path: Path, key: str, ours: str) -> None:
    [warning] = load(tmp_path, {**SMALLEST, key: "x"}).warnings()
    assert f"{key} (did you mean {ours}?)" in warning


def test_so_does_one_of_a_node(tmp_path: Path) -> None:
    data = {"username": "alice", "node_dict": {"a": {"vpc_ip": "1.1.1.1", "bmcip": "1.1.1.2"}}}
    [warning] = load(tmp_path, data).warnings()
    assert "node_dict.a.bmcip (did you mean bmc_ip?)" in warning


def test_what_is_not_ours_is_not_written_down(tmp_path: Path) -> None:
    cluster = load(tmp_path, {**SMALLEST, "bmc_password": "s3cret", "racks": [1]})
    assert "s3cret" not in json.dumps(cluster.resolved())
    assert "racks" not in cluster.resolved()


def test_comments_are_ignored_at_any_depth(tmp_path: Path) -> None:
    data = {
        **SMALLEST,
        "_comment": "anything {at} all, even <changeme>",
        "node_dict": {"_why": 3, "a": {"vpc_ip": "1.1.1.1", "_rack": {"deep": ["<changeme>"]}}},
    }
    cluster = load(tmp_path, data)
    assert list(cluster.node_dict) == ["a"]
    assert cluster.warnings() == []


# --- secrets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["password", "priv_key_passphrase"])
def test_a_secret_may_stand_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("CLUSTER_SECRET", "from {the} environment")
    cluster = load(tmp_path, {**SMALLEST, key: "${CLUSTER_SECRET}"})
    assert getattr(cluster, key).get_secret_value() == "from {the} environment"


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLUSTER_SECRET", raising=False)
    line = problem(tmp_path, {**SMALLEST, "password": "${CLUSTER_SECRET}"})
    assert "password: the environment variable CLUSTER_SECRET is not set" in line


def test_only_a_whole_value_is_a_reference(tmp_path: Path) -> None:
    cluster = load(tmp_path, {**SMALLEST, "password": "pa${HOME}ss$"})
    assert cluster.password is not None
    assert cluster.password.get_secret_value() == "pa${HOME}ss$"


def test_no_secret_is_told(tmp_path: Path) -> None:
    data = {
        **SMALLEST,
        "password": "s3cret-1",
        "priv_key_passphrase": "s3cret-2",
        "env_vars": {"HF_TOKEN": "s3cret-3"},
        "node_dict": {"a": {"vpc_ip": "1.1.1.1", "env_vars": {"WANDB_API_KEY": "s3cret-4"}}},
    }
    cluster = load(tmp_path, data)
    assert "s3cret" not in json.dumps(cluster.resolved())
    assert "s3cret-1" not in repr(cluster)
    assert "s3cret-2" not in repr(cluster)
    assert cluster.env_vars["HF_TOKEN"] == "s3cret-3"


def test_a_secret_of_the_wrong_kind_is_refused_without_being_shown(tmp_path: Path) -> None:
    line = problem(tmp_path, {**SMALLEST, "password": 424242})
    assert "424242" not in line
