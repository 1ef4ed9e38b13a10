"""Whether the cvs of a run lives on this machine, as the files tell that its process has open.

While a job runs, that is the log of each node. With containers, which are there before that and after, it is
also a file in memory, which has no place on any disk and goes with its process, however that ends.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from cvs.run_folder import RunFolder


def sign_of_life(run_id: str) -> IO[bytes] | None:
    """What tells that this process is the run's cvs, until it is closed; None where there is no such file."""
    with suppress(OSError):
        return os.fdopen(os.memfd_create(_sign(run_id)), "wb")
    return None


def living_cvs(run_id: str) -> int | None:
    """The process of the run's cvs; None where there is none here, or none that this user may look into."""
    logs = f"/{RunFolder(Path(run_id)).node_log(0).parent}/"
    for process, file in _written_files():
        if logs in file or file.startswith(f"/memfd:{_sign(run_id)} "):
            return process
    return None


def _sign(run_id: str) -> str:
    return f"cvs/{run_id}"


def _written_files() -> Iterator[tuple[int, str]]:
    """Each process with each file that it has open to write."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for file in (process / "fd").iterdir():
                with suppress(OSError):
                    if file.lstat().st_mode & stat.S_IWUSR:
                        yield int(process.name), str(file.readlink())
