"""Runs where the job will run: prints what can be seen and done there, as JSON.

Stands alone, for the oldest Python that an image may hold; cvs sends its text and never imports it.
Arguments: the rendezvous host, a folder that the job will write, and the devices that it will open.
"""

import contextlib
import errno
import json
import os
import socket
import sys
from typing import Any, Dict, List


def addresses(host: str) -> List[str]:
    """What a name is resolved to, in order and each once."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def tried_to_write(folder: str) -> Dict[str, str]:
    """Why the job will not be able to write there, or will not own what it writes; empty if all is well."""
    path = os.path.join(folder, ".cvs-probe")
    try:
        os.makedirs(folder, exist_ok=True)
        with open(path, "w") as file:
            file.write("cvs")
        owner = os.stat(path).st_uid
        os.unlink(path)
    except OSError as error:
        refused = error.errno in (errno.EACCES, errno.EPERM) and os.getuid() == 0
        squashed = "; does its NFS server squash root?" if refused else ""
        return {"write": f"{folder} cannot be written by the job: {error.strerror}{squashed}"}
    if owner == os.getuid():
        return {}
    text = f"what the job writes to {folder} belongs to user {owner}, not to {os.getuid()}"
    return {"owner": f"{text}: its file system maps users, as an NFS server that squashes root"}


def render_nodes(folder: str) -> List[str]:
    """The devices by which programs compute."""
    names = [name for name in sorted(os.listdir(folder)) if name.startswith("renderD")]
    return [os.path.join(folder, name) for name in names]


def why_not_opened(devices: List[str]) -> str:
    """Which devices cannot be opened, and why; empty if all can."""
    told = []
    nodes = [node for path in devices for node in (render_nodes(path) if os.path.isdir(path) else [path])]
    for path in nodes:
        try:
            os.close(os.open(path, os.O_RDWR))
        except OSError as error:
            told.append(f"{path} cannot be opened: {error.strerror}")
    return "; ".join(told)


def main(host: str, folder: str, *devices: str) -> None:
    """Print one JSON object."""
    problems = {**tried_to_write(folder), "devices": why_not_opened(list(devices))}
    look: Dict[str, Any] = {"interfaces": [name for _, name in socket.if_nameindex()]}
    try:
        look["addresses"] = addresses(host)
    except OSError as error:
        problems["rendezvous"] = f"the rendezvous address {host} cannot be resolved: {error.strerror}"
    with contextlib.suppress(OSError):
        look["own_addresses"] = addresses(socket.gethostname())
    look["problems"] = {name: text for name, text in problems.items() if text}
    print(json.dumps(look))


main(*sys.argv[1:])
