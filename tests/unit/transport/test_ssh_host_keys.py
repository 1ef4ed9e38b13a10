"""What files of known hosts say, against what ssh-keygen makes of them."""

from __future__ import annotations

import base64
import shutil
import stat
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cvs.transport._ssh_host_keys import KnownHosts, PublicKey, Verdict, names_of, objection, remember
from cvs.transport._ssh_target import SshTarget


def key(number: int, kind: str = "ssh-ed25519") -> PublicKey:
    """A key as far as these files care, which never look into one."""
    head = b"".join(len(part).to_bytes(4, "big") + part for part in (kind.encode(), bytes([number]) * 32))
    return PublicKey(kind, head)


def line(hosts: str, shown: PublicKey, marker: str = "") -> str:
    return f"{marker} {hosts} {shown.type} {base64.b64encode(shown.blob).decode()} a comment\n".lstrip()


MINE, OTHER = key(1), key(2)


def verdict(tmp_path: Path, text: str, *names: str, shown: PublicKey = MINE) -> Verdict:
    file = tmp_path / "known_hosts"
    file.write_text(text)
    return KnownHosts([str(file)]).look_up(names, shown).verdict


TARGET = SshTarget(node="node-0", host="Node-0.Example", port=22, user="alice")


@pytest.mark.parametrize(
    ("target", "names"),
    [
        (TARGET, ("node-0.example",)),
        (replace(TARGET, port=2222), ("[node-0.example]:2222", "node-0.example")),
        (replace(TARGET, host="fe80::1"), ("fe80::1",)),
        (replace(TARGET, host="fe80::1", port=2222), ("[fe80::1]:2222", "fe80::1")),
        (replace(TARGET, host_key_alias="Head", port=2222), ("head",)),
    ],
)
def test_names_of_a_host(target: SshTarget, names: tuple[str, ...]) -> None:
    assert names_of(target) == names


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        ("node-0", "node-0"),
        ("NODE-0", "node-0"),
        ("a,node-0,b", "node-0"),
        ("10.0.0.5", "10.0.0.5"),
        ("[node-0]:2222", "[node-0]:2222"),
        ("fe80::1", "fe80::1"),
        ("[fe80::1]:2222", "[fe80::1]:2222"),
        ("node-*", "node-17"),
        ("node-?", "node-7"),
        ("*,!node-1", "node-0"),
    ],
)
def test_hosts_that_a_line_is_about(hosts: str, name: str, tmp_path: Path) -> None:
    assert verdict(tmp_path, line(hosts, MINE), name) is Verdict.KNOWN
    assert verdict(tmp_path, line(hosts, OTHER), name) is Verdict.CHANGED


@pytest.mark.parametrize(
    ("hosts", "name"),
    [
        ("node-0", "node-01"),
        ("node.0", "node-0"),
        ("[node-0]:2222", "node-0"),
        ("[node-0]:2222", "[node-0]:2223"),
        ("[ab]:2222", "a:2222"),
        ("node-?", "node-17"),
        ("*,!node-0", "node-0"),
        ("!node-0", "node-1"),
    ],
)
def test_hosts_that_a_line_is_not_about(hosts: str, name: str, tmp_path: Path) -> None:
    assert verdict(tmp_path, line(hosts, MINE), name) is Verdict.UNKNOWN


def test_hashed_names(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(line("node-0,[10.0.0.5]:2222", MINE))
    assert shutil.which("ssh-keygen"), "ssh-keygen is missing; install openssh-client"
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert "node-0" not in file.read_text()
    known = KnownHosts([str(file)])
    assert known.look_up(["node-0"], MINE).verdict is Verdict.KNOWN
    assert known.look_up(["[10.0.0.5]:2222"], OTHER).verdict is Verdict.CHANGED
    assert known.look_up(["10.0.0.5"], MINE).verdict is Verdict.UNKNOWN


def test_a_host_with_several_keys(tmp_path: Path) -> None:
    text = line("node-0", key(1)) + line("node-0", key(2)) + line("node-0", key(3, "ssh-rsa"))
    assert verdict(tmp_path, text, "node-0", shown=key(2)) is Verdict.KNOWN
    assert verdict(tmp_path, text, "node-0", shown=key(4)) is Verdict.CHANGED
    # A type that nobody has seen yet is no way around the keys that are known.
    assert verdict(tmp_path, text, "node-0", shown=key(4, "ecdsa-sha2-nistp256")) is Verdict.CHANGED


def test_the_line_that_a_verdict_rests_on(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("# mine\n\n" + line("node-0", key(3, "ssh-rsa")) + line("node-0", OTHER))
    found = KnownHosts([str(file)]).look_up(["node-0"], MINE).line
    assert found is not None
    assert found.where == f"{file}:4"  # the one of the same type
    assert found.key == OTHER


def test_a_port_may_be_known_by_the_bare_name(tmp_path: Path) -> None:
    names = ("[node-0]:2222", "node-0")
    assert verdict(tmp_path, line("node-0", MINE), *names) is Verdict.KNOWN
    assert verdict(tmp_path, line("node-0", OTHER), *names) is Verdict.UNKNOWN  # of another sshd
    assert verdict(tmp_path, line("node-0", MINE) + line(names[0], OTHER), *names) is Verdict.KNOWN


def test_types_that_are_known(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        line("node-0", key(1, "ssh-rsa"))
        + line("node-0", MINE, "@revoked")
        + line("*", MINE, "@cert-authority")
        + line("other", MINE)
    )
    assert KnownHosts([str(file)]).key_types(["[node-0]:2222", "node-0"]) == ["ssh-rsa"]


def test_marked_lines(tmp_path: Path) -> None:
    revoked = line("*", MINE, "@revoked")
    assert verdict(tmp_path, line("node-0", MINE) + revoked, "node-0") is Verdict.REVOKED
    assert verdict(tmp_path, revoked, "node-0", shown=OTHER) is Verdict.UNKNOWN
    file = tmp_path / "known_hosts"
    file.write_text(line("*.example", MINE, "@cert-authority"))
    # The key of an authority is no key of a host.
    finding = KnownHosts([str(file)]).look_up(["node-0.example"], MINE)
    assert (finding.verdict, finding.certified) == (Verdict.UNKNOWN, True)
    assert not KnownHosts([str(file)]).look_up(["node-0"], MINE).certified


ODD = [
    "node-0\n",
    "node-0 ssh-ed25519\n",
    "node-0 ssh-ed25519 no=base64\n",
    "node-0 ssh-ed25519 ünïcode\n",
    "|1|broken|hash ssh-ed25519 AAAA\n",
    "|1|onlysalt ssh-ed25519 AAAA\n",
    "@revoked\n",
    "# node-0 ssh-ed25519 AAAA\n",
    "\x00\x01\x02\n",
    " \t \n",
]


@pytest.mark.parametrize("odd", ODD)
def test_odd_lines_do_not_count(odd: str, tmp_path: Path) -> None:
    assert verdict(tmp_path, odd, "node-0") is Verdict.UNKNOWN
    assert verdict(tmp_path, odd + line("node-0", MINE), "node-0") is Verdict.KNOWN


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.write_bytes(b"\xff\xfe odd\n" + line("node-0", MINE).encode())
    files = [str(tmp_path / "none"), str(tmp_path), str(good)]
    assert KnownHosts(files).look_up(["node-0"], MINE).verdict is Verdict.KNOWN


def test_a_file_that_cannot_be_read_is_told_where_no_other_has_the_key(tmp_path: Path) -> None:
    target = replace(TARGET, known_hosts=(str(tmp_path), str(tmp_path / "none")))
    assert objection(target, MINE, KnownHosts(target.known_hosts)) == (
        f"the host key of node-0.example cannot be checked: {tmp_path} cannot be read: Is a directory; set"
        " known_hosts"
    )


def test_one_good_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(line("node-0", OTHER))
    (tmp_path / "new").write_text(line("node-0", MINE))
    known = KnownHosts([str(tmp_path / "old"), str(tmp_path / "new")])
    assert known.look_up(["node-0"], MINE).verdict is Verdict.KNOWN


# --- writing ----------------------------------------------------------------------------------------------


def test_a_new_file(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    remember(str(file), "[node-0]:2222", MINE)
    assert file.read_text() == f"[node-0]:2222 ssh-ed25519 {base64.b64encode(MINE.blob).decode()}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_what_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("# the last line has no end")
    file.chmod(0o644)
    remember(str(file), "node-0", MINE)
    remember(str(file), "node-1", OTHER)
    first, *others = file.read_text().splitlines()
    assert first == "# the last line has no end"
    assert [other.split()[0] for other in others] == ["node-0", "node-1"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_many_at_once(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    threads = [
        threading.Thread(target=remember, args=(str(file), f"node-{number}", key(number)))
        for number in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    known = KnownHosts([str(file)])
    found = [known.look_up([f"node-{number}"], key(number)).verdict for number in range(40)]
    assert found == [Verdict.KNOWN] * 40


def test_no_objection_writes_down_what_is_new(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    target = replace(TARGET, port=2222, known_hosts=(str(file),), host_key_policy="accept-new")
    assert "is not known" in objection(replace(target, host_key_policy="strict"), MINE, KnownHosts([]))
    assert not file.exists()
    assert objection(target, MINE, KnownHosts(target.known_hosts)) == ""
    assert objection(target, MINE, KnownHosts(target.known_hosts)) == ""
    assert file.read_text() == line("[node-0.example]:2222", MINE).replace(" a comment", "")
    assert "is not the one that is known" in objection(target, OTHER, KnownHosts(target.known_hosts))
