"""Users without a name, users without a home: numbers alone, as containers have them."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cvs.config.account import home_folder, user_name

NOBODY = 12345
"""A number that no user here has."""
LOGIN = ("LOGNAME", "USER", "LNAME", "USERNAME", "HOME")


def told_to_nobody(expression: str, **environment: str) -> str:
    """What an expression about the account is for a user of whom only the number is known."""
    script = (
        "import os, sys; from cvs.config.account import home_folder, user_name;"
        f" os.getuid() or os.setuid({NOBODY}); print(repr({expression}))"
    )
    kept = {name: value for name, value in os.environ.items() if name not in LOGIN}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**kept, **environment},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root becomes a user that is a number alone")


def test_the_user_and_the_home_of_whoever_runs_this() -> None:
    assert user_name() == getpass.getuser()
    assert home_folder() == Path.home()


@needs_root
def test_a_number_alone_is_the_name() -> None:
    assert told_to_nobody("user_name()") == repr(str(NOBODY))
    assert told_to_nobody("user_name()", USER="alice") == repr("alice")


@needs_root
def test_no_home_is_known_unless_it_is_told() -> None:
    assert told_to_nobody("home_folder()") == "None"
    assert told_to_nobody("str(home_folder())", HOME="/data") == repr("/data")
