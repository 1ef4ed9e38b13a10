"""Trace sets from disk: what lies below the paths that a user names.

Nothing but regular files is opened, so no named pipe and no device can hold cvs up. What cannot be looked
into costs itself only. A link is followed unless it leads to what is known already.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import BinaryIO

from cvs.errors import TraceError
from cvs.models import Accelerator, LeftOut, TraceFile, TraceSet
from cvs.parsers.trace_files import SUFFIXES
from cvs.rank_paths import rank_folder
from cvs.transport.base import recordable

MOST_ENTRIES = 1_000_000
"""A link may lead to the root of the machine."""


def trace_set_of(
    paths: Path | str | Sequence[Path | str],
    accelerator: Accelerator,
    *,
    world_size: int | None = None,
    local_world_size: int | None = None,
) -> TraceSet:
    """Trace set of any folders and files on disk; paths in it are below the folder that all lie in.

    A folder `node_<R>` in a path, as given or below it, tells the node rank. `sha256` is empty where no other
    file could be equal, and where a file cannot be a trace by its name or cannot be read. Bytes of a name
    that are no UTF-8 are spelt out; `open_trace` knows how to find the file.

    Raises: TraceError: no such path, one that is neither file nor folder, or a folder that cannot be listed.
    """
    given = [Path(path) for path in ([paths] if isinstance(paths, (Path, str)) else paths)]
    if len(given) > 1:
        given = [path.absolute() for path in given]
    walk = _Walk(given)
    files = tuple(walk.trace_files())
    return TraceSet(
        root=recordable(str(walk.root)),
        files=files,
        accelerator=accelerator,
        world_size=world_size,
        local_world_size=local_world_size,
        left_out=tuple(walk.left_out),
        warnings=tuple(walk.warnings),
    )


def open_trace(root: str, path: str) -> BinaryIO:
    """Open a file of a set for reading; nothing else, even if it was put in the file's place meanwhile.

    Raises: OSError: it cannot be opened, or is no regular file any more.
    """
    return _opened(_on_disk(Path(root, path)))


_SPELT_OUT = re.compile(rb"\\x([89a-f][0-9a-f])")


def _on_disk(recorded: Path) -> Path:
    """Where a file lies whose record spells out bytes of its path, such as `\\xff`."""
    if os.path.lexists(recorded):
        return recorded
    raw = _SPELT_OUT.sub(lambda byte: bytes.fromhex(byte[1].decode()), os.fsencode(recorded))
    return Path(os.fsdecode(raw))


def _opened(file: Path) -> BinaryIO:
    # A named pipe without a writer would hold up who opens it, but not with O_NONBLOCK.
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "Not a regular file", str(file))
    return os.fdopen(descriptor, "rb")


# --- the walk ---------------------------------------------------------------------------------------------

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
_NODE_FOLDER = re.compile(r"node_([0-9]{1,9})")

_Identity = tuple[int, int, int | None]
"""Device, inode, and the rank that the path tells: what is there as of two ranks others decide."""


class _Walk:
    """Looks at all that lies below some paths, at each thing once; at links last, so that real paths win."""

    def __init__(self, given: Sequence[Path]) -> None:
        self.left_out: list[LeftOut] = []
        self.warnings: list[str] = []
        self._given = frozenset(given)
        self._folders: dict[_Identity, dict[int | None, Path]] = {}
        self._files: dict[_Identity, dict[Path, int]] = {}
        self._entries = 0
        self._pending = list(reversed(given))
        self._links: deque[Path] = deque()
        self.root = _common_folder(given)
        while self._pending or self._links:
            is_link = not self._pending
            self._look_at(self._links.popleft() if is_link else self._pending.pop(), follow=is_link)

    def trace_files(self) -> Iterator[TraceFile]:
        """What was found, in order of path; of several paths to one file the best for each node."""
        sizes = {file: paths[file] for paths in self._files.values() for file in self._best_of(paths)}
        could_be_equal = Counter(size for file, size in sizes.items() if file.name.endswith(SUFFIXES))
        for file, size in sorted(sizes.items()):
            is_to_digest = file.name.endswith(SUFFIXES) and could_be_equal[size] > 1
            yield TraceFile(
                path=self._name(file),
                node_rank=_node_rank(file),
                size=size,
                sha256=_sha256(file) if is_to_digest else "",
            )

    def _best_of(self, paths: Iterable[Path]) -> Collection[Path]:
        best: dict[int | None, Path] = {}
        for path in sorted(paths, key=_last_choice):
            known = _known(best, _node_rank(path))
            if known:
                self._leave_out(path, f"the same file as {self._name(known)}")
            else:
                best[_node_rank(path)] = path
        return best.values()

    def _look_at(self, path: Path, *, follow: bool) -> None:
        try:
            found = path.stat() if follow else path.lstat()
        except OSError as error:
            self._pass_over(path, error, "a link that leads nowhere" if follow else None)
            return
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFLNK:
            self._links.append(path)
        elif kind == stat.S_IFREG:
            self._files.setdefault(self._identity(path, found), {})[path] = found.st_size
        elif kind != stat.S_IFDIR:
            self._refuse(path, _KINDS.get(kind, "neither file nor folder"))
        elif follow and path not in self._given and _leads_back(path):
            self._leave_out(path, "a link in a circle: it leads to a folder that it lies in")
        else:
            self._look_into(path, self._identity(path / "any", found))

    def _look_into(self, folder: Path, identity: _Identity) -> None:
        places, node = self._folders.setdefault(identity, {}), _node_rank(folder / "any")
        known = _known(places, node)
        if known:
            if known != folder:  # it is where paths are given that lie in each other
                self._leave_out(folder, f"the same folder as {self._name(known)}")
            return
        places[node] = folder
        try:
            inside = sorted(folder.iterdir(), reverse=True)
        except OSError as error:
            self._pass_over(folder, error)
            return
        self._entries += len(inside)
        if self._entries > MOST_ENTRIES:
            raise TraceError(f"{self.root}: more than {MOST_ENTRIES} files; name the traces' own folder")
        if not inside and folder not in self._given:
            self._leave_out(folder, "an empty folder")
        self._pending += inside

    # --- what is not looked at ---

    def _pass_over(self, path: Path, error: OSError, gone: str | None = None) -> None:
        """Note what cannot be looked at: with a warning where a trace may be lost by that."""
        if path in self._given:
            raise _unusable(path, error)
        if error.errno == errno.ELOOP:
            self._leave_out(path, "a link in a circle")
        elif error.errno in _GONE:
            self._leave_out(path, gone or "gone before cvs could look at it")
        else:
            self.warnings.append(f"{self._name(path)}: cannot be looked at: {error.strerror}")

    def _refuse(self, path: Path, what: str) -> None:
        if path in self._given:
            raise TraceError(f"{path}: {what}, neither a file nor a folder")
        self._leave_out(path, what)

    def _leave_out(self, path: Path, why: str) -> None:
        self.left_out.append(LeftOut(file=self._name(path), why=why))

    def _identity(self, path: Path, found: os.stat_result) -> _Identity:
        folder = rank_folder(self._name(path))
        return found.st_dev, found.st_ino, folder and folder[1]

    def _name(self, path: Path) -> str:
        return recordable(path.relative_to(self.root).as_posix())


def _last_choice(path: Path) -> tuple[bool, bool]:
    return not path.name.endswith(SUFFIXES), _node_rank(path) is None


def _known(places: dict[int | None, Path], node: int | None) -> Path | None:
    """Where a thing was found before, as of this node; where the path tells none, as of any."""
    return next(iter(places.values()), None) if node is None else places.get(node)


def _unusable(path: Path, error: OSError) -> TraceError:
    if error.errno in _GONE:
        return TraceError(f"{path}: no such file or folder")
    return TraceError(f"{path}: cannot be looked at: {error.strerror}")


def _common_folder(given: Sequence[Path]) -> Path:
    folders = [path if _is_folder(path) else path.parent for path in given]
    root = Path(os.path.commonpath(folders)) if folders[1:] else folders[0]
    # So that the paths in the set still name the rank.
    return root.parent if rank_folder(f"{root.name}/any") else root


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise _unusable(path, error) from None


def _leads_back(link: Path) -> bool:
    return Path(os.path.realpath(link.parent)).is_relative_to(os.path.realpath(link))


def _node_rank(file: PurePath) -> int | None:
    for folder in reversed(file.parts[:-1]):
        match = _NODE_FOLDER.fullmatch(folder)
        if match:
            return int(match[1])
    return None


def _sha256(file: Path) -> str:
    """Digest of the content; empty where it cannot be read, which reading the trace will say."""
    digest = hashlib.sha256()
    try:
        with _opened(file) as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()
