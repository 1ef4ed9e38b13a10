"""`cvs generate cluster_json`: a cluster file that is accepted, or a message.

What a list of hosts unfolds to is tested with `cvs.hosts`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import Command, Files, assert_refused
from cvs.config import load_cluster

GENERATE = ["generate", "cluster_json", "--username", "me", "--output_json_file", "out.json"]


def test_the_file(command: Command, tmp_path: Path) -> None:
    hosts = ["--hosts", "a[01-02]-ib", "--key_file", "~/.ssh/id"]
    done = command(*GENERATE, *hosts)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "username": "me",
        "priv_key_file": "~/.ssh/id",
        "head_node_dict": {"mgmt_ip": "a01-ib"},
        "node_dict": {"a01-ib": {"vpc_ip": "a01-ib"}, "a02-ib": {"vpc_ip": "a02-ib"}},
    }


def test_it_is_accepted(command: Command, files: Files, tmp_path: Path) -> None:
    hosts = ["--hosts", "a[01-03]-ib,10.0.0.5-7,fd00::5", "--head_node", "a02-ib"]
    assert command(*GENERATE, *hosts).returncode == 0
    cluster = load_cluster(tmp_path / "out.json")
    addresses = ["10.0.0.5", "10.0.0.6", "10.0.0.7", "fd00::5"]
    assert list(cluster.node_dict) == ["a01-ib", "a02-ib", "a03-ib", *addresses]
    assert (cluster.head, cluster.username, cluster.priv_key_file) == ("a02-ib", "me", None)
    assert cluster.warnings() == []
    checked = command("check-config", "--cluster_file=out.json", files.options[1])
    assert (checked.returncode, checked.stderr) == (0, "")


def test_folders_are_made(command: Command, tmp_path: Path) -> None:
    done = command(*GENERATE[:-1], "new/folder/out.json", "--hosts", "a")
    assert (done.returncode, done.stderr) == (0, "")
    assert list(load_cluster(tmp_path / "new" / "folder" / "out.json").node_dict) == ["a"]


def test_a_placeholder_stays_one(command: Command) -> None:
    words = ["--username", "{user-id}", "--key_file", "{home}/.ssh/id", "--hosts", "a"]
    done = command("generate", "cluster_json", *words, "--output_json_file", "-")
    made = json.loads(done.stdout)
    assert (made["username"], made["priv_key_file"]) == ("{user-id}", "{home}/.ssh/id")


def test_from_a_file_with_comments(command: Command, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("# rack 7\nn[1-2]  # two\n\nn9 n8\n")
    assert command(*GENERATE, "--input_hosts_file", "hosts").returncode == 0
    assert list(load_cluster(tmp_path / "out.json").node_dict) == ["n1", "n2", "n9", "n8"]


def test_the_file_that_was_there_is_kept(command: Command, tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text("edited by hand")
    done = command(*GENERATE, "--hosts", "a")
    assert done.returncode == 0
    assert done.stderr == "cvs: the file that was there is now out.json~\n"
    assert (tmp_path / "out.json~").read_text() == "edited by hand"
    assert "node_dict" in (tmp_path / "out.json").read_text()


def test_the_same_file_is_not_kept_twice(command: Command, tmp_path: Path) -> None:
    for _ in range(2):
        assert command(*GENERATE, "--hosts", "a").stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_it_prints(command: Command, tmp_path: Path) -> None:
    done = command(*GENERATE[:-1], "-", "--hosts", "a")
    assert json.loads(done.stdout)["node_dict"] == {"a": {"vpc_ip": "a"}}
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts", "a[3-1]"], "a[3-1]: the range ends (1) before it begins (3)"),
        (["--hosts", "a[x]"], "a[x]: [x] is no range"),
        (["--hosts", "a,a"], "a: is named twice"),
        (["--hosts", "a[1"], "a[1: a bracket without its partner"),
        (["--hosts", "10.0.0.250-256"], "256 is no part of an address"),
        (["--hosts", "10.0.0.5-10.0.1.9"], "a range of addresses differs only in its last number"),
        (["--hosts", "a[1-999999]"], "a[1-999999]: names more than 100000 hosts"),
        (["--hosts", ","], "--hosts: names no host"),
        (["--hosts", "a b/c"], "node_dict.b/c: 'b/c' is no host name, IPv4 or IPv6 address"),
        (["--hosts", "n:22"], "the port goes into ssh_port: 22"),
        (["--hosts", "a", "--head_node", "b"], "mgmt_ip: b is no key of node_dict (did you mean a?)"),
        (["--input_hosts_file", "none"], "none: cannot be read: No such file or directory"),
        (["--hosts", "a", "--input_hosts_file", "x"], "not allowed with"),
        ([], "one of the arguments --hosts --input_hosts_file"),
    ],
)
def test_refuses(words: list[str], message: str, command: Command, tmp_path: Path) -> None:
    assert_refused(command(*GENERATE, *words), 2, message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "hosts: names no host"),
        (b"# none\n", "hosts: names no host"),
        (b"a\xff\n", "hosts: is not UTF-8 text (byte 1)"),
        (b"a\nb a\n", "a: is named twice"),
    ],
)
def test_refuses_a_file(content: bytes, message: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes(content)
    assert_refused(command(*GENERATE, "--input_hosts_file", "hosts"), 2, message)


@pytest.mark.parametrize("left_out", ["--username", "--output_json_file"])
def test_what_is_required(left_out: str, command: Command) -> None:
    at = GENERATE.index(left_out)
    words = [*GENERATE[:at], *GENERATE[at + 2 :]]
    assert_refused(command(*words, "--hosts", "a"), 2, f"required: {left_out}")


def test_a_place_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = command(*GENERATE[:-1], "file/out.json", "--hosts", "a")
    assert_refused(done, 3, "file/out.json: cannot be written: ")


def test_a_kind_that_there_is_not(command: Command) -> None:
    assert_refused(command("generate"), 2, "required: KIND")
    assert_refused(command("generate", "cluster"), 2, "invalid choice: 'cluster'")
