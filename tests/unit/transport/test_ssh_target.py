"""How nodes are reached, by what a real `ssh -G` says."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
import time
from pathlib import Path

import pytest
from pydantic import SecretStr

from cvs.config import ClusterConfig
from cvs.errors import ConfigError, EnvironmentFault
from cvs.transport import _ssh_target
from cvs.transport._ssh_target import SshTarget, describe, resolve, warnings

HOME = pwd.getpwuid(os.getuid()).pw_dir
ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture(autouse=True)
def _with_ssh() -> None:
    assert shutil.which("ssh"), "ssh is missing; install openssh-client"


def cluster(tmp_path: Path, text: str = "", **keys: object) -> ClusterConfig:
    """A cluster file, with an ssh configuration of its own."""
    file = tmp_path / "ssh config"
    file.write_text(text)
    nodes = {name: {"vpc_ip": f"10.0.0.{number}"} for number, name in enumerate(("node-0", "node-1"), 5)}
    values: dict[str, object] = {"username": "alice", "node_dict": nodes, "ssh_config": str(file), **keys}
    return ClusterConfig.model_validate(values)


def target(tmp_path: Path, text: str = "", node: str = "node-0", **keys: object) -> SshTarget:
    return resolve(node, cluster(tmp_path, text, **keys))


def misfit(tmp_path: Path, text: str = "", **keys: object) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve("node-0", cluster(tmp_path, text, **keys))
    (problem,) = caught.value.problems
    assert problem.startswith("node-0: ")
    return problem


def test_nothing_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    found = target(tmp_path)
    assert (found.node, found.host, found.port, found.user) == ("node-0", "node-0", 22, "alice")
    assert f"{HOME}/.ssh/id_ed25519" in found.keys
    assert found.agent == "/run/agent"
    assert found.known_hosts[0] == f"{HOME}/.ssh/known_hosts"
    assert "/etc/ssh/ssh_known_hosts" in found.known_hosts
    assert (found.password, found.passphrase, found.jumps, found.certificates) == (None, None, (), ())
    assert found.host_key_policy == "strict"
    assert not found.only_keys
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert target(tmp_path).agent is None


EVERYTHING = """
Include {folder}/included
Match user alice
  CertificateFile "~/my keys/alice-cert.pub"
Match originalhost node-0 exec "test -e {folder}/included"
  IdentityFile /second
Host node-*
  HostName %h.example
  User bob
  IdentityFile "~/my keys/%n %r %p"
  IdentityFile ${{CVS_TEST}}/third
  IdentityAgent "{folder}/the agent"
  IdentitiesOnly yes
  UserKnownHostsFile "{folder}/my hosts" ~/.ssh/more
  GlobalKnownHostsFile /etc/hosts-of-%h
  HostKeyAlias cluster-a
Host *
  Port 1
"""


def test_everything_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CVS_TEST", "/from the environment")
    (tmp_path / "included").write_text("Host node-0\n  Port 2201\n")
    (tmp_path / "my hosts").touch()
    found = target(tmp_path, EVERYTHING.format(folder=tmp_path))
    assert (found.host, found.port, found.user) == ("node-0.example", 2201, "alice")
    own = f"{HOME}/my keys/node-0 alice 2201"
    assert found.keys == ("/second", own, "/from the environment/third")
    assert found.certificates == (f"{HOME}/my keys/alice-cert.pub",)
    assert found.agent == f"{tmp_path}/the agent"
    assert found.only_keys
    assert found.known_hosts[:2] == (f"{tmp_path}/my hosts", f"{HOME}/.ssh/more")
    assert found.host_key_alias == "cluster-a"


def test_the_cluster_file_wins(tmp_path: Path) -> None:
    (tmp_path / "included").touch()
    found = target(
        tmp_path,
        EVERYTHING.format(folder=tmp_path),
        ssh_port=2222,
        priv_key_file="~/.ssh/id_cluster",
        priv_key_passphrase="open sesame",
        known_hosts="/cluster/known_hosts",
        host_key_policy="accept-new",
    )
    assert (found.host, found.port, found.user) == ("node-0.example", 2222, "alice")
    assert found.keys == (str(Path.home() / ".ssh/id_cluster"),)
    assert found.agent is None
    assert found.passphrase == SecretStr("open sesame")
    assert found.known_hosts == ("/cluster/known_hosts",)
    assert found.host_key_policy == "accept-new"


def test_a_password_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    found = target(tmp_path, "IdentityFile /key\n", password="open sesame")
    assert (found.keys, found.agent, found.password) == ((), None, SecretStr("open sesame"))
    both = target(tmp_path, password="open sesame", priv_key_file="/key")
    assert (both.keys, both.agent, both.password) == (("/key",), None, SecretStr("open sesame"))


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        ("IdentityAgent none", None),
        ("IdentityAgent SSH_AUTH_SOCK", "/run/agent"),
        ("IdentityAgent $CVS_TEST", "/run/other"),
        ("IdentityAgent $CVS_TEST_UNSET", None),
        ("IdentityAgent ~/agent-%r", f"{HOME}/agent-alice"),
    ],
)
def test_agents(line: str, agent: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    monkeypatch.setenv("CVS_TEST", "/run/other")
    assert target(tmp_path, line).agent == agent


def test_no_known_hosts(tmp_path: Path) -> None:
    assert target(tmp_path, "UserKnownHostsFile none\nGlobalKnownHostsFile none\n").known_hosts == ()


@pytest.mark.parametrize("node", ["10.0.0.5", "fe80::1", "fe80::1%eth0"])
def test_addresses(node: str, tmp_path: Path) -> None:
    found = target(tmp_path, node=node)
    assert (found.host, found.port) == (node, 22)
    assert found.address == (f"[{node}]:22" if ":" in node else f"{node}:22")


# --- hops -------------------------------------------------------------------------------------------------


def logins(found: SshTarget) -> list[str]:
    return [hop.login for hop in found.jumps]


HOPS = """
Host node-*
  ProxyJump carol@gate:2201,[fe80::2]:2202,ssh://inner
Host gate
  HostName gate.example
  User nobody
  IdentityFile /gate/key
  ProxyJump front
Host inner
  User dave
  Port 2203
  ProxyJump ignored
  HostKeyAlias inside
"""


def test_hops_of_the_ssh_configuration(tmp_path: Path) -> None:
    text = HOPS + "Host * !front\n  ProxyCommand nc %h %p\n"  # of no effect behind a hop
    found = target(tmp_path, text, priv_key_file="/key", password="open sesame")
    front, gate, second, inner = found.jumps
    assert front.login == f"{ME}@front:22"
    assert gate.login == "carol@gate.example:2201"
    assert second.login == f"{ME}@[fe80::2]:2202"
    assert inner.login == "dave@inner:2203"
    assert inner.host_key_alias == "inside"
    assert gate.keys == ("/key", "/gate/key")
    assert [hop.jumps for hop in found.jumps] == [found.jumps[:number] for number in range(4)]
    # The password is for those alone that the file with it names.
    assert {hop.password for hop in found.jumps} == {None}
    assert found.password == SecretStr("open sesame")


def test_hops_of_the_cluster_file(tmp_path: Path) -> None:
    text = HOPS + "Host * !front\n  ProxyCommand nc %h %p\n"
    found = target(
        tmp_path, text, jump_host="front,carol@gate:2201", password="open sesame", known_hosts="/known"
    )
    assert logins(found) == ["alice@front:22", "carol@gate.example:2201"]
    assert found.jumps[0].password == SecretStr("open sesame")
    assert found.jumps[1].keys == ("/gate/key",)
    assert found.jumps[1].known_hosts[0] == "/known"
    assert f"{HOME}/.ssh/known_hosts" in found.jumps[1].known_hosts
    assert {hop.node for hop in found.jumps} == {"node-0"}


def test_no_hop(tmp_path: Path) -> None:
    assert target(tmp_path, HOPS, jump_host="none").jumps == ()
    assert target(tmp_path, "ProxyJump none\nProxyCommand none").jumps == ()


def test_a_node_that_is_the_hop_to_the_others(tmp_path: Path) -> None:
    assert logins(target(tmp_path, jump_host="node-0", node="node-1")) == ["alice@node-0:22"]
    assert target(tmp_path, jump_host="node-0", node="node-0").jumps == ()
    assert logins(target(tmp_path, jump_host="gate,bob@node-0", node="node-0")) == ["alice@gate:22"]


@pytest.mark.parametrize(
    ("text", "keys", "said"),
    [
        (
            "ProxyCommand nc %h %p",
            {},
            "gives node-0 a ProxyCommand, which cvs cannot use; use ProxyJump there",
        ),
        ("Host gate\n ProxyCommand nc %h %p\nHost node-0\n ProxyJump gate", {}, "gives gate a ProxyCommand"),
        ("ProxyCommand nc %h %p", {"jump_host": "gate"}, "gives gate a ProxyCommand"),
        ("Porrt 22", {}, "line 1: Bad configuration option: porrt"),
        ("ProxyJump gate", {}, "jumphost loop via gate"),
        ("Host a\n ProxyJump b\nHost b\n ProxyJump a\nHost node-0\n ProxyJump a", {}, "leads over a itself"),
        ("", {"jump_host": "gate:ssh"}, "'gate:ssh' is no host to jump over; user@host:port is one"),
        ("", {"jump_host": "gate,"}, "'' is no host to jump over"),
        ("", {"jump_host": "-oProxyCommand=x"}, "hostname contains invalid characters"),
        (
            "",
            {"ssh_config": "/none/such"},
            "Can't open user config file /none/such: No such file or directory",
        ),
    ],
)
def test_mistakes(text: str, keys: dict[str, str], said: str, tmp_path: Path) -> None:
    assert said in misfit(tmp_path, text, **keys)


def test_a_configuration_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ssh_target, "_ASK_SECONDS", 0.3)
    started = time.monotonic()
    assert "ssh did not end within 0 s and was stopped; does a `Match exec`" in misfit(
        tmp_path, 'Match exec "exec sleep 5"'
    )
    assert time.monotonic() - started < 4


def test_no_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"ssh is missing, .*; install openssh-client"):
        target(tmp_path)


def test_no_connection_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would take every one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = f"Host *\n  HostName 127.0.0.1\n  Port {port}\nHost node-0\n  ProxyJump gate\n"
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "none"))
        describe(target(tmp_path, text))
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


# --- what users see ---------------------------------------------------------------------------------------


def test_the_line_for_the_dry_run(tmp_path: Path) -> None:
    (tmp_path / "key").touch()
    found = target(tmp_path, priv_key_file=str(tmp_path / "key"), jump_host="gate,bob@[fe80::2]:2222",
                   known_hosts="/known", password="open sesame", ssh_port=2201)  # fmt: skip
    assert describe(found) == (
        f"alice@node-0:2201, key {tmp_path}/key, password, via alice@gate:22 and bob@[fe80::2]:2222,"
        " known_hosts /known, strict"
    )
    missing = target(tmp_path, "HostKeyAlias a\nUserKnownHostsFile none\nGlobalKnownHostsFile none",
                     priv_key_file="/none", host_key_policy="accept-new")  # fmt: skip
    assert describe(missing) == (
        "alice@node-0:22, key /none (missing), host key of a, known_hosts none, accept-new"
    )
    agent = target(tmp_path, "IdentitiesOnly yes\nIdentityAgent /agent\nIdentityFile /a\nIdentityFile /b")
    assert describe(agent).startswith("alice@node-0:22, agent /agent (only these keys), known_hosts ")


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    found = target(tmp_path, password="open sesame", priv_key_passphrase="open barley", jump_host="gate")
    for shown in (repr(found), str(found), describe(found)):
        assert "open" not in shown


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o600)
    found = target(tmp_path, priv_key_file=str(key), jump_host="gate")
    assert warnings(found) == []
    for mode in (stat.S_IRGRP, stat.S_IROTH, stat.S_IWOTH):
        key.chmod(0o600 | mode)
        assert warnings(found) == [f"{key}: others can read this private key; chmod 600 {key}"]
    key.unlink()
    assert warnings(found) == []
