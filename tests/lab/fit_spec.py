"""Takes out of a container's specification what this machine cannot give. Runs on nodes, before runc.

Where root lacks capabilities, runc refuses privileged containers ("unable to apply caps") and limits above
the machine's own ("error setting rlimits"). What Docker says of the container stays as it was asked for.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

_CAPABILITIES = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE"
    " NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_CHROOT"
    " SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG MKNOD LEASE"
    " AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG WAKE_ALARM BLOCK_SUSPEND AUDIT_READ"
    " PERFMON BPF CHECKPOINT_RESTORE"
).split()
"""In the kernel's order."""


def fit(process: dict[str, Any], bounding: int, hard_limits: dict[str, int]) -> None:
    """Leave the capabilities that are in the `bounding` set, and limits that are not above the machine's."""
    lacking = {f"CAP_{name}" for bit, name in enumerate(_CAPABILITIES) if not bounding >> bit & 1}
    for kind, names in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in names if name not in lacking]
    if "CAP_SYS_RESOURCE" in lacking:
        for limit in process.get("rlimits") or []:
            most = hard_limits.get(limit["type"], limit["hard"])
            limit["hard"], limit["soft"] = min(limit["hard"], most), min(limit["soft"], most)


def spec_path(words: list[str]) -> Path | None:
    """Where runc is told to read: for an exec the process, else the specification in the bundle."""
    if "exec" in words:
        path = _option(words, "--process", "-p")
        return Path(path) if path else None
    return Path(_option(words, "--bundle", "-b") or ".", "config.json")


def _option(words: list[str], *names: str) -> str | None:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in names:
            return following
        if word.startswith(f"{names[0]}="):
            return word.partition("=")[2]
    return None


def _bounding_set() -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in status if line.startswith("CapBnd")), 16)


def _hard_limits() -> dict[str, int]:
    kinds = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    limits = {kind: resource.getrlimit(getattr(resource, kind))[1] for kind in kinds}
    return {kind: most for kind, most in limits.items() if most != resource.RLIM_INFINITY}


def main() -> None:
    """Change the specification that runc is about to read."""
    path = spec_path(sys.argv[1:])
    if path:
        spec = json.loads(path.read_text())
        fit(spec.get("process", spec), _bounding_set(), _hard_limits())
        path.write_text(json.dumps(spec))


if __name__ == "__main__":
    main()
