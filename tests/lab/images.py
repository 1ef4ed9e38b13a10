"""Images for the nodes, made of what is installed here: neither they nor this machine need fetch anything.

The archives are written by hand, in the form that `docker load` reads, so that an image has one id on all
nodes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import re
import shutil
import sys
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from lab.machine import LabError, held, run
from lab.root_folder import GROUPS

NAMES = ("tiny", "torch")
"""`tiny` is busybox, `torch` Debian with Python and PyTorch for the CPU."""

_DEBIAN_PACKAGES = (
    "bash coreutils dash findutils grep gzip hostname iproute2 libc-bin libstdc++6 passwd procps python3 sed"
    " tar util-linux"
).split()
_PYTHON_PACKAGES = ("torch", "pyyaml")
_LEFT_OUT = tuple(f"/usr/share/{name}/" for name in ("doc", "info", "lintian", "locale", "man"))
_NOT_RUN = ("../", "torch/include/", "torch/test/")
_DOCKER_NAMES = {"x86_64": "amd64", "aarch64": "arm64"}
_TORCHRUN = b"#!/usr/bin/python3\nfrom torch.distributed.run import main\nmain()\n"


@dataclass(frozen=True)
class Image:
    """An image as a file here."""

    tag: str
    archive: Path

    @property
    def id(self) -> str:
        """What Docker calls it once it is loaded."""
        with tarfile.open(self.archive) as archive:
            manifest = archive.extractfile("manifest.json")
            assert manifest is not None
            return "sha256:" + str(json.load(manifest)[0]["Config"]).removesuffix(".json")


def build(name: str, folder: Path) -> Image:
    """The image of this name; built in `folder` unless it is there, made as it would be now.

    Raises: LabError: it cannot be built.
    """
    make = {"tiny": _tiny, "torch": _torch}[name]
    digest = hashlib.sha256(_recipe(name).encode()).hexdigest()[:8]
    image = Image(f"cvs-lab/{name}", folder / f"{name}-{digest}.tar")
    with held(folder, 600):
        if not image.archive.exists():
            for old in folder.glob(f"{name}-*.tar"):
                old.unlink()
            make(image, folder)
    return image


def _recipe(name: str) -> str:
    """Of what versions it would be made."""
    if name == "tiny":
        return _busybox()
    shown = run("dpkg-query", "--show", *_debian_packages()).stdout
    return shown + repr([(package.name, package.version) for package in _python_packages()])


def _busybox() -> str:
    path = shutil.which("busybox")
    if not path or run("ldd", path, check=False).returncode == 0:
        raise LabError("the image tiny needs a static busybox: apt-get install busybox-static")
    return path


def _tiny(image: Image, folder: Path) -> None:
    """Busybox, and the groups that a container is given."""
    busybox, layer = Path(_busybox()), folder / "tiny.layer"
    with tarfile.open(layer, "w") as tar:
        _add_root(tar)
        _add(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in run(busybox, "--list").stdout.split():
            if applet != "busybox":
                _link(tar, f"bin/{applet}", "/bin/busybox")
    _pack(image, [layer], {"Env": ["PATH=/bin:/usr/bin"], "Cmd": ["sh"]})


def _add_root(tar: tarfile.TarFile) -> None:
    """Folders that every image has, its user and its groups."""
    for name in ("dev", "etc", "proc", "root", "sys", "tmp", "usr", "usr/bin"):
        tar.addfile(_entry(name, 0o1777 if name == "tmp" else 0o755, tarfile.DIRTYPE))
    groups = {"root": 0, **{name: GROUPS[name] for name in ("tty", "video", "render")}}
    _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
    _add(tar, "etc/group", "".join(f"{name}:x:{gid}:\n" for name, gid in groups.items()).encode())


def _torch(image: Image, folder: Path) -> None:
    """One layer of Debian with Python, one of PyTorch."""
    base, layer = folder / "base.layer", folder / "torch.layer"
    python = Path("/usr/bin/python3").resolve().name
    with tarfile.open(base, "w") as tar:
        _add_root(tar)
        _add_debian(tar)
    with tarfile.open(layer, "w") as tar:
        _add_pytorch(tar, f"usr/local/lib/{python}/dist-packages")
        _add(tar, "usr/local/bin/torchrun", _TORCHRUN, 0o755)
        _link(tar, "usr/local/bin/python", "/usr/bin/python3")
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    _pack(image, [base, layer], {"Env": [path], "Cmd": ["bash"]})


def _debian_packages() -> list[str]:
    """Debian packages of the image and what they need, as they are installed here."""
    told = run("apt-cache", "depends", "--recurse", "--important", "--installed", *_DEBIAN_PACKAGES).stdout
    installed = run("dpkg-query", "--show", "--showformat", "${Package}\n").stdout.splitlines()
    return sorted(set(told.splitlines()).intersection(installed))


def _add_debian(tar: tarfile.TarFile) -> None:
    """The files of the packages, and what Python has compiled of them."""
    listed = run("dpkg", "--listfiles", *_debian_packages()).stdout.splitlines()
    paths = {line for line in listed if line.startswith("/") and not line.startswith(_LEFT_OUT)}
    modules = [Path(path) for path in paths if path.endswith(".py")]
    paths |= {str(found) for file in modules for found in file.parent.glob(f"__pycache__/{file.stem}.*.pyc")}
    # Without links above, such as /bin is one to /usr/bin.
    real = {Path(path).parent.resolve() / Path(path).name for path in [*paths, "/etc/ld.so.cache"]}
    there = {Path("/", name) for name in ("", *tar.getnames())}  # Docker wants no file twice
    for file in sorted(real - there):
        if os.path.lexists(file):
            tar.add(file, str(file).lstrip("/"), recursive=False)


def _python_packages() -> list[Distribution]:
    """PyTorch and what it needs, as installed where this runs."""
    found: dict[str, Distribution] = {}
    wanted = list(_PYTHON_PACKAGES)
    while wanted:
        name = wanted.pop()
        with suppress(PackageNotFoundError):  # one that only other platforms need
            package = distribution(name)
            if package.name not in found:
                found[package.name] = package
                needs = (line for line in package.requires or () if "extra ==" not in line)
                wanted += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in needs]
    return list(found.values())


def _add_pytorch(tar: tarfile.TarFile, site: str) -> None:
    python = Path("/usr/bin/python3").resolve().name
    if python != f"python{sys.version_info[0]}.{sys.version_info[1]}":
        raise LabError(
            f"the image torch needs PyTorch for {python}, as Debian has it: make PYTHON={python} …"
        )
    packages = _python_packages()
    if "torch" not in [package.name for package in packages]:
        raise LabError(f"the image torch needs PyTorch in {sys.prefix}: make test-lab without TORCH_PYTHON")
    for package in packages:
        for path in package.files or ():
            if not str(path).startswith(_NOT_RUN):
                tar.add(str(path.locate()), f"{site}/{path}", recursive=False, filter=_of_root)


def _pack(image: Image, layers: list[Path], config: Mapping[str, list[str]]) -> None:
    """Write the archive; the layers are used up."""
    digests = [_digest(layer) for layer in layers]
    text = json.dumps(
        {
            "architecture": _DOCKER_NAMES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {**config, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
    ).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    files = [f"{digest}/layer.tar" for digest in digests]
    manifest = [{"Config": name, "RepoTags": [f"{image.tag}:latest"], "Layers": files}]
    part = image.archive.with_suffix(".part")
    with tarfile.open(part, "w") as tar:
        _add(tar, name, text)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        for file, layer in zip(files, layers, strict=True):
            tar.add(layer, file)
    part.rename(image.archive)
    for layer in layers:
        layer.unlink()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _entry(name: str, mode: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.type = mode, kind
    return entry


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = _entry(name, mode)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = _entry(name, 0o777, tarfile.SYMTYPE)
    entry.linkname = target
    tar.addfile(entry)


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry
