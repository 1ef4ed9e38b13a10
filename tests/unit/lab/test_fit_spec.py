"""What is taken out of a container's specification where root lacks capabilities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.fit_spec import fit, spec_path

EVERY = (1 << 41) - 1
WITHOUT_SYS_RESOURCE = EVERY & ~(1 << 24)
UNLIMITED = 2**64 - 1


def asked() -> dict[str, Any]:
    return {
        "capabilities": {"bounding": ["CAP_CHOWN", "CAP_SYS_RESOURCE", "CAP_SYS_PTRACE"], "ambient": []},
        "rlimits": [
            {"type": "RLIMIT_MEMLOCK", "hard": UNLIMITED, "soft": UNLIMITED},
            {"type": "RLIMIT_STACK", "hard": 67108864, "soft": 67108864},
        ],
    }


def test_root_that_lacks_nothing_gives_all() -> None:
    process = asked()
    fit(process, EVERY, {"RLIMIT_MEMLOCK": 8192})
    assert process == asked()


def test_what_root_lacks_is_taken_out() -> None:
    process = asked()
    fit(process, WITHOUT_SYS_RESOURCE, {"RLIMIT_MEMLOCK": 8192})
    assert process["capabilities"] == {"bounding": ["CAP_CHOWN", "CAP_SYS_PTRACE"], "ambient": []}
    assert process["rlimits"] == [
        {"type": "RLIMIT_MEMLOCK", "hard": 8192, "soft": 8192},
        {"type": "RLIMIT_STACK", "hard": 67108864, "soft": 67108864},
    ]


def test_another_lacking_capability_leaves_the_limits() -> None:
    process = asked()
    fit(process, EVERY & ~1, {"RLIMIT_MEMLOCK": 8192})
    assert process["capabilities"]["bounding"] == ["CAP_SYS_RESOURCE", "CAP_SYS_PTRACE"]
    assert process["rlimits"] == asked()["rlimits"]


def test_a_process_that_asks_for_nothing_stays() -> None:
    process: dict[str, Any] = {"args": ["true"]}
    fit(process, 0, {})
    assert process == {"args": ["true"]}


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("--root /run/runc create --bundle /b --pid-file /p id", "/b/config.json"),
        ("run -b /b id", "/b/config.json"),
        ("create --bundle=/b id", "/b/config.json"),
        ("create id", "config.json"),
        ("--log /l exec --process /tmp/p.json --detach id", "/tmp/p.json"),
        ("exec -p /tmp/p.json id", "/tmp/p.json"),
        ("exec --process=/tmp/p.json id", "/tmp/p.json"),
    ],
)
def test_runc_is_told_where_to_read(words: str, path: str) -> None:
    assert spec_path(words.split()) == Path(path)


def test_an_exec_without_a_file_has_nothing_to_change() -> None:
    assert spec_path("exec id true".split()) is None
