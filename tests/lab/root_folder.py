"""The file system of a node: plain folders of its own, into which the /usr of this machine is mounted."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab.machine import lacks_capabilities, remove_tree, run, write

HOST_KEY = "etc/ssh/ssh_host_ed25519_key"
PATH = "/opt/node/bin:/opt/rocm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""A program that a test puts into /opt/node/bin of a node takes the place of the node's own."""
RUNC_FOLDER = "/opt/node/runc"
"""First in the PATH of dockerd."""


@dataclass(frozen=True)
class User:
    """Somebody who may log in on the nodes."""

    name: str
    uid: int
    groups: tuple[str, ...]
    by_password: bool = False
    """Logs in with the lab's password; else with its key."""

    @property
    def home(self) -> str:
        """Below the root folder."""
        return "root" if self.uid == 0 else f"home/{self.name}"


ROOT = User("root", 0, ())
CVS = User("cvs", 1000, ("docker", "video", "render", "sudo"))
NO_DOCKER = User("nodocker", 1001, ("video", "render"))
BY_PASSWORD = User("pwuser", 1002, ("docker", "video", "render"), by_password=True)
USERS = (ROOT, CVS, NO_DOCKER, BY_PASSWORD)
GROUPS = {"tty": 5, "sudo": 27, "shadow": 42, "video": 44, "render": 105, "docker": 106, "nogroup": 65534}

_MADE = "etc/cvs-lab-node"
_FOLDERS = (
    "dev etc home mnt opt/node/bin opt/rocm/bin proc root run shared srv sys tmp usr"
    " var/cache var/lib/docker var/log var/tmp"
).split()
_OUTSIDE_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr on most machines; folders of their own on the others, mounted as /usr is."""
_FROM_HERE = (
    "alternatives bash.bashrc ca-certificates.conf debian_version inputrc iproute2 ld.so.cache ld.so.conf"
    " ld.so.conf.d localtime login.defs os-release pam.d protocols security services ssl/certs"
    " ssl/openssl.cnf timezone"
).split()
"""What a node takes from /etc of this machine."""
_SYSTEM_USERS = (
    "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin",
    "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin",
    "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin",
)
_SSHD_CONFIG = f"""\
Port 22
HostKey /{HOST_KEY}
PermitRootLogin prohibit-password
PasswordAuthentication yes
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
SetEnv PATH={PATH}
"""
_SUDOERS = f"""\
Defaults secure_path="{PATH}"
root ALL=(ALL:ALL) ALL
{CVS.name} ALL=(ALL:ALL) NOPASSWD: ALL
"""
_RUNC = """\
#!/bin/sh
case " $* " in *" create "*|*" run "*|*" exec "*) /usr/bin/python3 {folder}/fit_spec.py "$@";; esac
exec {runc} "$@"
"""


def lay_out(root: Path, *, name: str, hosts: str, public_key: str, password_hash: str) -> None:
    """Make the folders anew, unless they are whole and made as they would be now; `hosts` is the file."""
    recipe = _recipe(name, hosts, public_key, password_hash)
    made = root / _MADE
    if made.exists() and made.read_text() == recipe:
        return
    remove_tree(root)
    _make_folders(root)
    _copy_etc(root / "etc")
    _write_etc(root / "etc", name, hosts)
    _write_users(root, public_key, password_hash)
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", root / HOST_KEY)
    if lacks_capabilities():
        put_before_runc(root / RUNC_FOLDER.lstrip("/"), seen_as=RUNC_FOLDER)
    made.write_text(recipe)


def host_key(root: Path) -> str:
    """The node's public key, as in a known_hosts file."""
    return " ".join((root / f"{HOST_KEY}.pub").read_text().split()[:2])


def _recipe(*words: str) -> str:
    """Digest of all that decides how the folders come out."""
    digest = hashlib.sha256(" ".join(words).encode())
    digest.update(Path(__file__).read_bytes())
    digest.update(Path("/etc/ld.so.cache").read_bytes())  # it must fit /usr
    return digest.hexdigest()


def _make_folders(root: Path) -> None:
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").symlink_to("/run/lock")
    for name in _OUTSIDE_USR:
        here = Path("/", name)
        if here.is_symlink():
            (root / name).symlink_to(here.readlink())
        elif here.is_dir():
            (root / name).mkdir()


def _copy_etc(etc: Path) -> None:
    for name in _FROM_HERE:
        source, target = Path("/etc", name), etc / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True)
        elif source.exists():
            shutil.copy2(source, target)


def _write_etc(etc: Path, name: str, hosts: str) -> None:
    write(etc / "hostname", f"{name}\n")
    write(etc / "hosts", hosts)
    write(etc / "nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")
    write(etc / "resolv.conf", "")
    write(etc / "fstab", "")
    write(etc / "environment", f'PATH="{PATH}"\n')
    write(etc / "profile", f"PATH={PATH}\nexport PATH\n")
    write(etc / "sudoers", _SUDOERS, 0o440)
    write(etc / "ssh/sshd_config", _SSHD_CONFIG)


def _write_users(root: Path, public_key: str, password_hash: str) -> None:
    passwd, group, shadow = list(_SYSTEM_USERS), ["daemon:x:1:"], []
    for name, gid in GROUPS.items():
        group.append(f"{name}:x:{gid}:" + ",".join(user.name for user in USERS if name in user.groups))
    for user in USERS:
        passwd.append(f"{user.name}:x:{user.uid}:{user.uid}:{user.name}:/{user.home}:/bin/bash")
        group.append(f"{user.name}:x:{user.uid}:")
        shadow.append(f"{user.name}:{password_hash if user.by_password else '*'}:19000:0:99999:7:::")
        _make_home(root / user.home, user, public_key)
    write(root / "etc/passwd", _lines(passwd))
    write(root / "etc/group", _lines(group))
    write(root / "etc/shadow", _lines(shadow), 0o600)


def _make_home(home: Path, user: User, public_key: str) -> None:
    keys = home / ".ssh/authorized_keys"
    keys.parent.mkdir(parents=True)
    if not user.by_password:
        write(keys, public_key, 0o600)
    for path in (home, *home.rglob("*")):
        os.chown(path, user.uid, user.uid)
    for path in (home, keys.parent):
        path.chmod(0o700)


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def put_before_runc(folder: Path, *, seen_as: str) -> None:
    """Where root lacks capabilities, runc refuses what asks for them: have that taken out before."""
    runc = shutil.which("runc", path=PATH)
    write(folder / "runc", _RUNC.format(folder=seen_as, runc=runc), 0o755)
    shutil.copy(Path(__file__).with_name("fit_spec.py"), folder)
