"""From file to model: what is read, what is filled in, and that every problem of a file is told at once."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cvs
from cvs.config import AortaConfig, ClusterConfig, load_aorta, load_cluster
from cvs.errors import ConfigError

CLUSTER = """\
{
    "username": "{user-id}",
    "node_dict": {"a": {"vpc_ip": "10.0.0.1"}, "b": {"vpc_ip": "10.0.0.2"}}
}
"""
PACKAGE = Path(cvs.__file__).resolve().parent


@pytest.fixture(autouse=True)
def _local_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "localuser")
    monkeypatch.setenv("HOME", "/home/of/localuser")


def cluster_of(tmp_path: Path, text: str | bytes = CLUSTER) -> ClusterConfig:
    file = tmp_path / "cluster.json"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_cluster(file)


def aorta_of(tmp_path: Path, text: str | bytes, username: str = "alice") -> AortaConfig:
    file = tmp_path / "aorta.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    cluster = ClusterConfig.model_validate(
        {
            "username": username,
            "home_mount_dir_name": "mnt",
            "node_dir_name": "n1",
            "node_dict": {"a": {"vpc_ip": "x"}},
        }
    )
    return load_aorta(file, cluster)


def cluster_problems(tmp_path: Path, text: str | bytes) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        cluster_of(tmp_path, text)
    return caught.value.problems


def aorta_problems(tmp_path: Path, text: str | bytes) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        aorta_of(tmp_path, text)
    return caught.value.problems


# --- reading ----------------------------------------------------------------------------------------------


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_cluster(tmp_path / "none.json")
    assert caught.value.problems == (f"{tmp_path}/none.json: cannot be read: No such file or directory",)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: Is a directory"):
        load_cluster(tmp_path)


@pytest.mark.parametrize("name", ["pipe", "zeros"])
def test_what_need_not_end_is_not_read(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=f"{name}: is a pipe or a device; write what it gives to a file"):
        load_cluster(tmp_path / name)


def test_other_encodings_are_named(tmp_path: Path) -> None:
    [line] = aorta_problems(tmp_path, "aorta_path: /h\xe4user".encode("latin-1"))
    assert "is not UTF-8 text (byte 14)" in line


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    assert cluster_of(tmp_path, b"\xef\xbb\xbf" + CLUSTER.encode()).username == "localuser"
    assert aorta_of(tmp_path, b"\xef\xbb\xbfaorta_path: /a\n").aorta_path == "/a"


JSON_SYNTAX = {
    "trailing comma": '{"username": "a", "node_dict": {"a": {"vpc_ip": "x"},}}',
    "comment": '{"username": "a" // me\n}',
    "single quotes": "{'username': 'a'}",
    "cut off": '{"username": "a", ',
    "two documents": "{} {}",
}


@pytest.mark.parametrize("text", JSON_SYNTAX.values(), ids=JSON_SYNTAX)
def test_broken_json_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    [line] = cluster_problems(tmp_path, text)
    assert re.match(rf"{tmp_path}/cluster\.json:.* syntax: ", line)
    assert re.search(r"line 1 column|cluster\.json:1:", line)


YAML_SYNTAX = {
    "tab": "aorta_path: /a\ndocker:\n\timage: x\n",
    "bracket": "aorta_path: [/a\n",
    "alias": "aorta_path: *none\n",
    "tag": "aorta_path: !!python/object:os.system x\n",
    "two documents": "aorta_path: /a\n---\naorta_path: /b\n",
    "key that is a list": "? [a]\n: b\n",
}


@pytest.mark.parametrize("text", YAML_SYNTAX.values(), ids=YAML_SYNTAX)
def test_broken_yaml_is_told_with_its_line_and_a_caret(tmp_path: Path, text: str) -> None:
    [line] = aorta_problems(tmp_path, text)
    first, shown, caret = line.split("\n")
    assert re.match(rf"{tmp_path}/aorta\.yaml:\d+:\d+: syntax: \w", first)
    assert shown.startswith("    ")
    assert re.fullmatch(r" *\^", caret)


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_file(tmp_path: Path, text: str) -> None:
    assert cluster_problems(tmp_path, text) == (
        f"{tmp_path}/cluster.json: is empty; a mapping of keys is expected",
    )


def test_a_control_character_is_named(tmp_path: Path) -> None:
    assert "syntax: " in aorta_problems(tmp_path, "aorta_path: /a\x07\n")[0]


@pytest.mark.parametrize("text", ["[]", '"text"', "3", "null"])
def test_a_file_that_holds_no_keys(tmp_path: Path, text: str) -> None:
    assert "a mapping of keys is expected" in cluster_problems(tmp_path, text)[0]
    assert "a mapping of keys is expected" in aorta_problems(tmp_path, text)[0]


def test_yaml_is_taken_as_written(tmp_path: Path) -> None:
    text = """\
aorta_path: /a
docker: {image: "true", container_name: 'null'}
environment:
    OCTAL: 010
    CLOCK: 1:30:00
    UNDERSCORE: 1_000
    HEX: 0x1F
    FLOAT: 1.10
    EXPONENT: 1e3
    FOLDED: >-
        two
        lines
    007: bond
"""
    variables = aorta_of(tmp_path, text).environment.variables()
    assert {name: value for name, value in variables.items() if "NCCL" not in name} == {
        "OMP_NUM_THREADS": "1",
        "RCCL_MSCCL_ENABLE": "0",
        "OCTAL": "010",
        "CLOCK": "1:30:00",
        "UNDERSCORE": "1_000",
        "HEX": "0x1F",
        "FLOAT": "1.10",
        "EXPONENT": "1e3",
        "FOLDED": "two lines",
        "007": "bond",
    }


def test_anchors_and_merge_keys_work(tmp_path: Path) -> None:
    text = "aorta_path: /a\nmulti_node: {extra_env: &e {A: '1'}}\nenvironment: {<<: *e, B: '2'}\n"
    variables = aorta_of(tmp_path, text).environment.variables()
    assert (variables["A"], variables["B"]) == ("1", "2")


def test_json_is_yaml(tmp_path: Path) -> None:
    bench = aorta_of(tmp_path, json.dumps({"aorta_path": "/a", "gpus_per_node": 2, "skip_rccl_build": True}))
    assert (bench.gpus_per_node, bench.skip_rccl_build) == (2, True)


def test_a_json_file_may_name_its_schema(tmp_path: Path) -> None:
    assert aorta_of(tmp_path, '{"$schema": "aorta.schema.json", "aorta_path": "/a"}').aorta_path == "/a"
    assert (
        cluster_of(tmp_path, CLUSTER.replace("{", '{"$schema": "cluster.schema.json",', 1)).warnings() == []
    )


@pytest.mark.parametrize(
    "deep", ["[" * 99 + "]" * 99, '{"a":' * 99 + "1" + "}" * 99], ids=["list", "mapping"]
)
def test_a_key_of_another_suite_may_be_deep(tmp_path: Path, deep: str) -> None:
    cluster_of(tmp_path, CLUSTER.replace("{", f'{{"racks": {deep},', 1))


# --- placeholders -----------------------------------------------------------------------------------------


def test_placeholders_of_the_cluster_file(tmp_path: Path) -> None:
    data = {
        "username": "{user-id}",
        "priv_key_file": "{home}/.ssh/id",
        "home_mount_dir_name": "mnt",
        "node_dir_name": "n1",
        "env_vars": {"A": "{user-id} {user} {home-mount-dir} {node-dir-name} {cvs}"},
        "node_dict": {"a": {"vpc_ip": "10.0.0.1"}},
    }
    cluster = cluster_of(tmp_path, json.dumps(data))
    assert cluster.username == "localuser" == getpass.getuser()
    assert cluster.priv_key_file == "/home/of/localuser/.ssh/id"
    assert cluster.env_vars == {"A": f"localuser localuser mnt n1 {PACKAGE}"}


def test_placeholders_of_the_benchmark_file_take_the_clusters_values(tmp_path: Path) -> None:
    text = (
        'aorta_path: "{home}/aorta"\n'
        "container_mount_path: /{node-dir-name}/{home-mount-dir}\n"
        "docker: {container_name: 'aorta-{user-id}-{user}'}\n"
        "multi_node: {extra_train_args: ['{cvs}/x']}\n"
    )
    bench = aorta_of(tmp_path, text, username="alice")
    assert bench.aorta_path == "/mnt/alice/aorta"
    assert bench.container_mount_path == "/n1/mnt"
    assert bench.docker.container_name == "aorta-alice-alice"
    assert bench.multi_node.extra_train_args == (f"{PACKAGE}/x",)


def test_a_benchmark_file_by_itself_takes_the_local_users_values(tmp_path: Path) -> None:
    (tmp_path / "aorta.yaml").write_text('aorta_path: "{home}/{user-id}/{node-dir-name}"\n')
    user = getpass.getuser()
    assert load_aorta(tmp_path / "aorta.yaml").aorta_path == f"/home/{user}/{user}/root"


def test_a_folder_may_be_named_by_a_placeholder(tmp_path: Path) -> None:
    data = {
        "username": "a",
        "home_mount_dir_name": "{user-id}",
        "node_dir_name": "of-{user}",
        "priv_key_file": "/{home-mount-dir}/{node-dir-name}",
        "node_dict": {"a": {"vpc_ip": "10.0.0.1"}},
    }
    cluster = cluster_of(tmp_path, json.dumps(data))
    assert cluster.home_mount_dir_name == "localuser"
    assert cluster.priv_key_file == "/localuser/of-localuser"


def test_an_unquoted_placeholder_is_a_placeholder_inside_a_word(tmp_path: Path) -> None:
    assert aorta_of(tmp_path, "aorta_path: /home/{user-id}/aorta\n").aorta_path == "/home/alice/aorta"


# --- all problems at once ---------------------------------------------------------------------------------


def test_every_problem_of_a_cluster_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_SET", raising=False)
    text = json.dumps(
        {
            "username": "a",
            "password": "${NOT_SET}",
            "priv_key_file": "{hme}/id",
            "ssh_port": "22",
            "transport": "telnet",
            "node_dict": {"a": {}},
        }
    )
    problems = cluster_problems(tmp_path, text)
    assert len(problems) == 5
    for key in ("password", "priv_key_file", "ssh_port", "transport", "node_dict.a.vpc_ip"):
        assert any(f" {key}: " in line for line in problems), key


def test_every_problem_of_a_benchmark_file_at_once(tmp_path: Path) -> None:
    text = "aorta_path: <changeme>\ngpus_per_node: 0\nimage: x\nexpected_results: {min_overlap_ration: 1}\n"
    problems = aorta_problems(tmp_path, text)
    assert len(problems) == 4
    for key in ("aorta_path", "gpus_per_node", "image", "expected_results.min_overlap_ration"):
        assert any(f" {key}: " in line for line in problems), key


def test_the_error_is_those_lines(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        aorta_of(tmp_path, "gpus: 1\n")
    assert str(caught.value) == "\n".join(caught.value.problems)
    assert caught.value.exit_code == 2
    assert caught.value.__context__ is None


# --- where it stands --------------------------------------------------------------------------------------


def test_a_problem_in_yaml_is_told_with_line_and_column(tmp_path: Path) -> None:
    text = "aorta_path: /a\n\nexpected_results:\n  # mistyped\n  min_overlap_ration: 0.5\n"
    [line] = aorta_problems(tmp_path, text)
    expected = "expected_results.min_overlap_ration: unknown key (did you mean min_overlap_ratio?)"
    assert line == f"{tmp_path}/aorta.yaml:5:3: {expected}"


def test_so_is_one_in_json(tmp_path: Path) -> None:
    text = '{\n  "username": "a",\n  "node_dict": {\n    "n": {"vpc_ip": "10.0.0.1", "bmc_ip": 4}\n  }\n}\n'
    [line] = cluster_problems(tmp_path, text)
    assert line.startswith(f"{tmp_path}/cluster.json:4:")
    assert ": node_dict.n.bmc_ip: `4` is no text" in line


NOBODY = 12345
"""A number that no user here has."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes a user that is a number alone")
@pytest.mark.parametrize(
    ("username", "told"),
    [
        ("{user-id}", str(NOBODY)),
        ("{home}", ":1:2: username: {home} has no value here: no home is known for this user; set HOME"),
    ],
)
def test_a_user_without_a_name_and_a_home(tmp_path: Path, username: str, told: str) -> None:
    file = tmp_path / "cluster.json"
    file.write_text(json.dumps({"username": username, "node_dict": {"a": {"vpc_ip": "10.0.0.1"}}}))
    script = f"""
import os, sys
from cvs.config import load_cluster
os.setreuid({NOBODY}, -1)  # whoever asks, while the folder of the test stays open to it
try:
    print(load_cluster(sys.argv[1]).username)
except Exception as error:
    print(error)
"""
    kept = {name: value for name, value in os.environ.items() if name not in ("LOGNAME", "USER", "HOME")}
    done = subprocess.run(
        [sys.executable, "-c", script, str(file)], env=kept,
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.strip().removeprefix(str(file)) == told


def test_a_file_that_no_record_can_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"r\xff")
    folder.mkdir()
    with pytest.raises(ConfigError, match="this path is not UTF-8 text, so no record can name it"):
        cluster_of(folder)
