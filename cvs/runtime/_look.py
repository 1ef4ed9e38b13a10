"""A look at a node before anything is prepared there."""

from __future__ import annotations

from cvs.launch import NodePlan
from cvs.preflight import NodeLook
from cvs.transport.base import Transport

_LOOK = """\
folder=$1 accelerator=$2; shift 2
there=$folder
while [ ! -d "$there" ]; do there=$(dirname "$there"); done
df -Pk "$there" | sed -n '$s/.* \\([0-9][0-9]*\\)  *[0-9]*% .*/free \\1/p'
case $accelerator in
    rocm) echo "gpus $(ls -d /dev/dri/renderD* 2> /dev/null | wc -l)" ;;
    cuda) listed=$(nvidia-smi -L 2> /dev/null) && echo "gpus $(echo "$listed" | grep -c '^GPU')" ;;
esac
(cd /sys/class/net && echo interfaces */)
cd "$folder" 2> /dev/null || exit 0
[ -e .git ] && echo "revision $(git -c safe.directory='*' rev-parse -q --verify HEAD 2> /dev/null)"
for file; do
    [ -r "$file" ] || continue
    set -- $( (sha256sum || openssl dgst -sha256 -r) < "$file" 2> /dev/null)
    [ -n "$1" ] && printf 'digest %s\t%s\n' "$1" "$file"
done
:
"""
"""Prints a word and what it is about, line by line; `$3` and on: files below the folder `$1`."""


def look_at(transport: Transport, plan: NodePlan, accelerator: str, *, timeout: float) -> NodeLook:
    """What the node says of itself.

    Raises: TransportError: it cannot be asked.
    """
    folder = plan.copied_from or plan.aorta_path
    argv = ["sh", "-c", _LOOK, "sh", folder, accelerator, *plan.required_files]
    said = transport.run(argv, timeout=timeout, environment={"LC_ALL": "C"}).stdout
    told = [line.split(" ", 1) for line in said.splitlines() if " " in line]
    words = {name: text.strip() for name, text in told}
    digests = (text.split("\t", 1) for name, text in told if name == "digest")
    free = _number(words.get("free", ""))
    return NodeLook(
        gpus=_number(words.get("gpus", "")),
        # A local node lies where the run's folder does, which has a limit of its own.
        free_bytes=None if free is None or plan.copied_from else 1024 * free,
        interfaces=tuple(name.rstrip("/") for name in words.get("interfaces", "").split()),
        digests={file: digest for digest, file in digests},
        revision=words.get("revision") or None,
    )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
