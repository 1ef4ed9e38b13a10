"""Who runs cvs here. In a container a user may be a number alone, without a name or a home."""

from __future__ import annotations

import getpass
import os
from pathlib import Path


def user_name() -> str:
    """Login name of the user; the number of one that has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def home_folder() -> Path | None:
    """Home of the user; None for one that has none."""
    try:
        return Path.home()
    except RuntimeError:
        return None
