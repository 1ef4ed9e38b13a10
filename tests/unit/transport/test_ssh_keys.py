"""Keys of every kind, from files and an agent, at a real sshd."""

from __future__ import annotations

import getpass
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from pydantic import SecretStr

from sshd import (
    KINDS,
    QUICK,
    Sshd,
    StartAgent,
    StartSshd,
    assert_reached,
    dsa_key,
    make_key,
    pem,
    refused,
    run,
)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_every_kind(kind: str, sshd: Sshd, tmp_path: Path) -> None:
    key = make_key(tmp_path / "key", *KINDS[kind])
    sshd.authorize(key)
    # A passphrase does a key no harm that has none.
    assert_reached(sshd.target(key, passphrase=SecretStr("open sesame")))


def test_the_second_key_is_good(sshd: Sshd, key: Path, tmp_path: Path) -> None:
    sshd.authorize(key)
    assert_reached(sshd.target(tmp_path / "missing", make_key(tmp_path / "another"), key))


def unusable(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    """Key files of no use, and what is said of each."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "junk").write_text("secret junk")
    (tmp_path / "cut").write_text(make_key(tmp_path / "whole").read_text()[:200])
    locked = make_key(tmp_path / "locked", "-N", "the right one")
    return {
        "missing": (tmp_path / "none", "there is no key file"),
        "folder": (tmp_path / "folder", "Is a directory"),
        "junk": (tmp_path / "junk", "is no private key"),
        "cut": (tmp_path / "cut", "is no private key"),
        "public": (Path(f"{locked}.pub"), "is no private key"),
        "wrong": (locked, "does not open with the passphrase; check priv_key_passphrase"),
        "dsa": (dsa_key(tmp_path / "dsa"), "is of a type that cannot be used"),
        "x25519": (pem(tmp_path / "x25519", X25519PrivateKey.generate()), "is of a type that cannot be used"),
    }


@pytest.mark.filterwarnings("ignore:SSH DSA key")
@pytest.mark.parametrize("case", ["missing", "folder", "junk", "cut", "public", "wrong", "dsa", "x25519"])
def test_key_files_of_no_use(case: str, sshd: Sshd, tmp_path: Path) -> None:
    file, said = unusable(tmp_path)[case]
    error = refused(sshd.target(file, passphrase=SecretStr("hush hush")))
    assert str(file) in str(error)
    assert said in str(error)
    assert "hush" not in str(error)
    assert "secret" not in str(error)
    assert not error.passing


def test_a_passphrase_is_needed(sshd: Sshd, tmp_path: Path) -> None:
    locked = make_key(tmp_path / "locked", "-N", "the right one")
    assert f"key {locked} needs a passphrase; set priv_key_passphrase" in str(refused(sshd.target(locked)))


# --- certificates -----------------------------------------------------------------------------------------


def certify(authority: Path, key: Path, validity: str = "always:forever") -> Path:
    run(
        "ssh-keygen", "-q", "-s", authority, "-I", "me", "-n", getpass.getuser(), "-V", validity, f"{key}.pub"
    )
    return Path(f"{key}-cert.pub")


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_beside_the_key(
    kind: str, start_sshd: StartSshd, tmp_path: Path, authority: Path
) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    key = make_key(tmp_path / "key", *KINDS[kind])
    certify(authority, key)
    assert_reached(sshd.target(key))


def test_a_certificate_elsewhere(start_sshd: StartSshd, key: Path, authority: Path, tmp_path: Path) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    elsewhere = certify(authority, key).rename(tmp_path / "cert")
    others = certify(authority, make_key(tmp_path / "another"))
    assert_reached(sshd.target(key, certificates=(str(others), str(elsewhere))))


def test_certificates_of_no_use(start_sshd: StartSshd, key: Path, authority: Path, tmp_path: Path) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    expired = certify(authority, key, "20200101:20200102")
    none = (str(tmp_path / "none"), f"{key}.pub")
    error = str(refused(sshd.target(key, certificates=none)))
    assert f"certificate {expired} (ssh-ed25519-cert-v01@openssh.com, expired)" in error
    assert f"certificate {none[0]}: No such file or directory, certificate {none[1]} is none" in error


# --- the agent --------------------------------------------------------------------------------------------


def test_a_key_that_the_agent_holds(sshd: Sshd, key: Path, start_agent: StartAgent, tmp_path: Path) -> None:
    rsa = make_key(tmp_path / "rsa", *KINDS["rsa"])
    agent = start_agent(key, rsa)
    for held in (key, rsa):
        sshd.authorize(held)
        assert_reached(sshd.target(agent=agent))


def test_an_encrypted_key_that_the_agent_holds(sshd: Sshd, key: Path, start_agent: StartAgent) -> None:
    sshd.authorize(key)
    agent = start_agent(key)
    run("ssh-keygen", "-q", "-p", "-N", "unknown", "-f", key)
    assert_reached(sshd.target(key, agent=agent))
    # Its public half can be told without the passphrase, even if no file has it.
    Path(f"{key}.pub").unlink()
    assert_reached(sshd.target(key, agent=agent, only_keys=True))


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_certificate_that_the_agent_holds(
    kind: str, start_sshd: StartSshd, tmp_path: Path, authority: Path, start_agent: StartAgent
) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    key = make_key(tmp_path / "key", *KINDS[kind])
    certify(authority, key)
    assert_reached(sshd.target(agent=start_agent(key)))  # ssh-add takes the certificate along


def test_a_certificate_for_a_key_that_the_agent_holds(
    start_sshd: StartSshd, key: Path, authority: Path, start_agent: StartAgent, tmp_path: Path
) -> None:
    sshd = start_sshd(f"TrustedUserCAKeys {authority}.pub")
    certificate = certify(authority, key).rename(tmp_path / "elsewhere")
    assert_reached(sshd.target(agent=start_agent(key), certificates=(str(certificate),)))


def test_an_agent_that_does_not_sign(sshd: Sshd, key: Path, start_agent: StartAgent, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    agent = start_agent(key, options=("-c",))  # asks, and is told no
    sshd.authorize(key, other)
    assert_reached(sshd.target(agent=agent, keys=(str(other),)))
    assert "key id_ed25519 of the agent" in str(refused(sshd.target(agent=agent)))


def test_agents_of_no_use(sshd: Sshd, start_agent: StartAgent, tmp_path: Path) -> None:
    empty, none = start_agent(), str(tmp_path / "none")
    assert f"agent {empty} holds no key" in str(refused(sshd.target(agent=empty)))
    assert f"agent {none}: No such file or directory" in str(refused(sshd.target(agent=none)))
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "silent"))
        silent.listen()
        started = time.monotonic()
        error = refused(sshd.target(agent=str(tmp_path / "silent")), replace(QUICK, auth=0.5))
        assert f"agent {tmp_path}/silent: timed out" in str(error)
        assert time.monotonic() - started < 4
