"""A folder and its copy: what has gone from the source goes from the copy, what a job wrote there stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

_NOT_COPIED = {".git", ".cvs", ".venv", "__pycache__", "combined_traces"}
"""Version control, caches, and what runs leave."""


def mirror(source: Path, target: Path) -> None:
    """Bring the copy of `source` at `target` up to date, file by file.

    Raises: OSError: something cannot be read or written; `filename` says what.
    """
    record = target / ".cvs" / "copied"
    copied = sorted(_files(source, target.resolve()))
    for path in set(_recorded(record)) - set(copied):
        _remove(target, path)
    for path in copied:
        _replace(source / path, target / path)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_bytes(b"\0".join(os.fsencode(path) for path in copied))


def _recorded(record: Path) -> list[str]:
    paths = record.read_bytes().split(b"\0") if record.exists() else []
    return [os.fsdecode(path) for path in paths if path]


def _remove(target: Path, path: str) -> None:
    """Remove a copy, and the folders that are empty without it: one may be a file in the source now."""
    (target / path).unlink(missing_ok=True)
    for folder in Path(path).parents[:-1]:
        try:
            (target / folder).rmdir()
        except OSError:
            break  # not empty: a job's own files, or other copies


def _files(source: Path, target: Path) -> Iterator[str]:
    """Files and links below `source`, relative to it; never the folder that the copy itself lies in."""
    for folder, names, files in os.walk(source, onerror=_raise):
        names[:] = [
            name
            for name in names
            if name not in _NOT_COPIED and not target.is_relative_to(Path(folder, name).resolve())
        ]
        linked = [name for name in names if Path(folder, name).is_symlink()]
        for name in (*files, *linked):
            path = Path(folder, name)
            if path.is_symlink() or path.is_file():  # neither a pipe nor a socket nor a device
                yield os.path.relpath(path, source)


def _raise(error: OSError) -> None:
    raise error


def _replace(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.unlink(missing_ok=True)
        target.symlink_to(source.readlink())
    elif not _same(source, target):
        target.unlink(missing_ok=True)
        shutil.copy2(source, target)


def _same(source: Path, target: Path) -> bool:
    if target.is_symlink() or not target.exists():
        return False
    here, there = source.stat(), target.stat()
    return (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)
