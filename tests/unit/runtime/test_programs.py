"""Programs that are missing on a node."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cvs.errors import EnvironmentFault
from cvs.runtime._programs import demand_programs
from cvs.transport.local import LocalTransport


@pytest.fixture
def has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of the node's PATH: `sh`, `tar` and `gzip` are in it."""
    folder = tmp_path / "the programs"
    folder.mkdir()
    for name in ("sh", "tar", "gzip"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def missing(*names: str | tuple[str, ...]) -> str:
    with pytest.raises(EnvironmentFault) as fault:
        demand_programs(LocalTransport("a"), names)
    return str(fault.value)


@pytest.mark.usefixtures("has")
def test_those_that_are_missing_are_named_with_their_packages() -> None:
    told = "a: programs missing on the node: timeout, setsid, wc; install coreutils, util-linux"
    assert missing("sh", "timeout", "tar", "setsid", "wc") == told


@pytest.mark.usefixtures("has")
def test_of_some_one_is_enough() -> None:
    demand_programs(LocalTransport("a"), ["sh", ("zstd", "gzip")])
    told = "a: programs missing on the node: sha256sum or openssl; install coreutils"
    assert missing(("gzip", "zstd"), ("sha256sum", "openssl")) == told


def test_a_builtin_of_the_shell_is_no_program_and_neither_is_a_folder_or_a_text(has: Path) -> None:
    (has / "find").mkdir()
    (has / "grep").touch()
    assert "kill, find, grep;" in missing("kill", "find", "grep")


def test_a_node_without_a_shell(has: Path) -> None:
    (has / "sh").unlink()
    (has / "sh").write_text("#!/nowhere/sh\n")
    (has / "sh").chmod(0o755)
    with pytest.raises(Exception, match="cannot start sh"):
        demand_programs(LocalTransport("a"), ["tar"])
