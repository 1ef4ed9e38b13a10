"""Images for the nodes, built here without `docker build`: a node has no way out to fetch anything.

The archives are written by hand, in the form that `docker load` reads, so that an image has one id on all
nodes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import shlex
import shutil
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab.machine import LabError, remove_tree, run, side_by_side
from lab.root_folder import GROUPS

NAMES = ("tiny", "torch")
"""`tiny` is busybox, `torch` Debian with Python and PyTorch for the CPU."""

_DEBIAN_PACKAGES = "python3 libstdc++6 libgomp1 ca-certificates iproute2 procps passwd".split()
_LEFT_OUT = ("doc", "man", "locale", "info")
_NOT_RUN = ("torch/bin", "torch/include", "torch/test")
_WHEELS = ("manylinux_2_28", "manylinux2014", "linux")
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


def _torch_packages() -> list[str]:
    """What pip is told to install into the image `torch`; CVS_LAB_TORCH_PIP takes its place."""
    return shlex.split(os.environ.get("CVS_LAB_TORCH_PIP", "torch==2.13.0 numpy pyyaml"))


def build(name: str, folder: Path) -> Image:
    """The image of this name; built in `folder` unless it is there, made as it would be now.

    Raises: LabError: it cannot be built.
    """
    make = {"tiny": _tiny, "torch": _torch}[name]
    recipe = " ".join([*_DEBIAN_PACKAGES, *_torch_packages()])
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:8]
    image = Image(f"cvs-lab/{name}", folder / f"{name}-{digest}.tar")
    if not image.archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}-*.tar"):
            old.unlink()
        make(image, folder)
    return image


def _busybox() -> str:
    path = shutil.which("busybox")
    if not path or run("ldd", path, check=False).returncode == 0:
        raise LabError("the image tiny needs a static busybox: apt-get install busybox-static")
    return path


def _tiny(image: Image, folder: Path) -> None:
    """Busybox, and the groups that a container is given."""
    busybox, layer = Path(_busybox()), folder / "tiny.layer"
    groups = {"root": 0, **{name: GROUPS[name] for name in ("tty", "video", "render")}}
    with tarfile.open(layer, "w") as tar:
        for name in ("bin", "dev", "etc", "proc", "root", "sys", "tmp", "usr", "usr/bin"):
            tar.addfile(_entry(name, 0o1777 if name == "tmp" else 0o755, tarfile.DIRTYPE))
        _add(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        _add(tar, "etc/group", "".join(f"{name}:x:{gid}:\n" for name, gid in groups.items()).encode())
        _add(tar, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in run(busybox, "--list").stdout.split():
            if applet != "busybox":
                _link(tar, f"bin/{applet}", "/bin/busybox")
    _pack(image, [layer], {"Env": ["PATH=/bin:/usr/bin"], "Cmd": ["sh"]})


def _torch(image: Image, folder: Path) -> None:
    """One layer of Debian with Python, one of PyTorch."""
    base, layer, site = folder / "base.tar", folder / "torch.layer", folder / "site"
    python = _debians_python()
    halves: list[Callable[[], None]] = [
        partial(_build_debian, base),
        partial(_install_torch, site, python),
    ]
    side_by_side(lambda half: half(), halves)
    with tarfile.open(layer, "w") as tar:
        tar.add(site, f"usr/local/lib/{python}/dist-packages", filter=_of_root)
        _add(tar, "usr/local/bin/torchrun", _TORCHRUN, 0o755)
        _link(tar, "usr/local/bin/python", "/usr/bin/python3")
    remove_tree(site)
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    _pack(image, [base, layer], {"Env": [path], "Cmd": ["bash"]})


def _build_debian(base: Path) -> None:
    suite, mirror = _debian()
    add = 'chroot "$1" groupadd -f -g'
    groups = [f"--customize-hook={add} {GROUPS[name]} {name}" for name in ("video", "render")]
    run(
        "mmdebstrap", "--mode=root", "--variant=essential", '--aptopt=Acquire::Languages "none"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT),
        f"--include={','.join(_DEBIAN_PACKAGES)}", *groups, suite, base, mirror, timeout=1800,
    )  # fmt: skip


def _debian() -> tuple[str, str]:
    """Release and mirror of this machine's own apt; CVS_LAB_MIRROR names another mirror."""
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    named = os.environ.get("CVS_LAB_MIRROR")
    targets = ("Created-By: Packages", f"Codename: {suite}", "Component: main")
    mirrors = named or run("apt-get", "indextargets", "--format", "$(REPO_URI)", *targets, check=False).stdout
    if not suite or not mirrors:
        raise LabError("apt names no mirror of this release: apt-get update, or name one in CVS_LAB_MIRROR")
    return suite, mirrors.split()[0]


def _debians_python() -> str:
    """Such as `python3.11`."""
    shown = run("apt-cache", "show", "--no-all-versions", "python3").stdout
    return "python" + ".".join(shown.partition("\nVersion: ")[2].split(".")[:2])


def _install_torch(site: Path, python: str) -> None:
    remove_tree(site)
    platforms = [f"--platform={tag}_{platform.machine()}" for tag in _WHEELS]
    run(
        sys.executable, "-m", "pip", "install", "--quiet", f"--target={site}", "--only-binary=:all:",
        *platforms, f"--python-version={python.removeprefix('python')}", *_torch_packages(), timeout=1800,
    )  # fmt: skip
    for name in _NOT_RUN:
        remove_tree(site / name)


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
