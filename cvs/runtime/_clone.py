"""The workload on a node: cloned where it is missing, and at the revision that was asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import PurePosixPath

from cvs.config.model import shown
from cvs.errors import RunError, TransportError
from cvs.launch import NodePlan
from cvs.runtime._git import GIT, last_words, without_credentials
from cvs.runtime._leftovers import kill_processes
from cvs.runtime._programs import demand_programs
from cvs.transport.base import Transport

_SECONDS = 60
"""For a look at what is there."""
_MARK = "CVS_RUN_ID"
_IS_MISSING = """\
[ -e "$1" ] || [ -L "$1" ] || exit 0
[ -d "$1" ] && [ -r "$1" ] && [ -z "$(find "$1/" -mindepth 1 -maxdepth 1 ! -name .cvs)" ]
"""
"""Whether `$1` is not there, or is an empty folder; who holds it is noted in it."""
_CLONE = (
    """\
parent=$1 name=$2 url=$3 revision=$4 run=$5
place=$parent/.$name.cvs-clone-$(uname -n)-
for old in "$place"*; do
    # Of a run whose cvs or node was lost, unless one of its processes is still at it.
    [ -O "$old" ] && ! grep -qszxF "CVS_RUN_ID=${old#"$place"}" /proc/[0-9]*/environ && rm -rf "$old"
done
[ -d "$parent" ] || { echo "there is no folder $parent" >&2; exit 1; }
temporary=$place$run
mkdir -m 700 "$temporary" || exit
trap 'rm -rf "$temporary"' EXIT
credentials=$temporary/credentials tree=$temporary/tree
(umask 077 && cat > "$credentials") || exit
"""
    + GIT
    + """\
knows() { git -C "$tree" rev-parse --quiet --verify "$1^{commit}" > /dev/null; }
at() {
    if knows "$1" || knows "origin/$1"; then git -C "$tree" checkout --quiet "$1" --; return; fi
    git -C "$tree" fetch --quiet origin "$1" && git -C "$tree" checkout --quiet --detach FETCH_HEAD
}
git clone --quiet -- "$url" "$tree" || exit
[ -z "$revision" ] || at "$revision" || exit
git -C "$tree" submodule --quiet update --init --recursive || exit
head=$(git -C "$tree" rev-parse HEAD) || exit
rm -f "$credentials"
held=
if [ "$(ls -A "$parent/$name" 2> /dev/null)" = .cvs ]; then held=.cvs; fi
[ -z "$held" ] || mv "$parent/$name/.cvs" "$tree" || exit
if ! mv -T "$tree" "$parent/$name" 2> "$temporary/why"; then
    # Another node of this run may have the same disk.
    if [ "$(git -C "$parent/$name" rev-parse HEAD 2> /dev/null)" != "$head" ]; then
        [ -z "$held" ] || mv "$tree/.cvs" "$parent/$name"
        cat "$temporary/why" >&2
        exit 1
    fi
fi
echo "$head"
"""
)
"""Clones `$3` beside the folder `$1`/`$2` and puts it there once it is whole; prints the commit.

Credentials come on the input, and lie in a folder of the user alone while git needs them. An environment with
the run's id in it marks all that is at work here.
"""
_CLEAR = 'rm -rf "$1/.$2.cvs-clone-"*"-$3"'
_REVISIONS = """\
cd "$1" && git -c safe.directory='*' rev-parse HEAD || exit
for name in "$2" "origin/$2"; do
    git -c safe.directory='*' rev-parse --quiet --verify "$name^{commit}" && exit
done
:
"""
"""Prints the commit that the folder `$1` is at and, where it is known there, the one that `$2` names."""
_one_at_a_time = threading.Lock()
"""For a folder of this machine, which several local nodes are copies of."""


def is_missing(transport: Transport, folder: str) -> bool:
    """Whether there is nothing yet on the node that a clone could be in the way of.

    Raises: TransportError: the node cannot be asked.
    """
    return transport.run(["sh", "-c", _IS_MISSING, "sh", folder], timeout=_SECONDS).exit_code == 0


class Workload:
    """The folder that a node's job comes from."""

    def __init__(self, plan: NodePlan, transport: Transport) -> None:
        self._plan = plan
        self._transport = transport
        self._folder = plan.copied_from or plan.aorta_path

    @property
    def is_to_be_cloned(self) -> bool:
        """Whether it is not there yet, and may be cloned."""
        return self._plan.clone_url is not None and is_missing(self._transport, self._folder)

    def provide(self, say: Callable[[str], None], *, timeout: float) -> str | None:
        """Clone it if it is not there, and see that it is at the plan's revision; the commit, if known.

        Args: say: takes a line about what takes long.
        Raises: CvsError: it cannot be cloned, and nothing is left of it, or it is at another revision.
        """
        with _one_at_a_time if self._plan.copied_from else nullcontext():
            if self.is_to_be_cloned:
                say(f"{self._plan.node} | cvs: cloning {shown('', self._plan.clone_url or '')}")
                return self._clone(timeout)
        return self._commit(self._plan.revision) if self._plan.revision else None

    def _clone(self, timeout: float) -> str:
        plan, transport = self._plan, self._transport
        demand_programs(transport, ["git", "grep", "uname"])
        assert plan.clone_url is not None
        url, credentials = without_credentials(plan.clone_url)
        told = f"{plan.node}: cannot clone {shown('', plan.clone_url)} into aorta_path {self._folder}"
        argv = ["sh", "-c", _CLONE, "sh", *self._place, url, plan.revision or "", plan.run_id]
        try:
            done = transport.run(
                argv, timeout=timeout, stdin=credentials.encode(), environment={_MARK: plan.run_id}
            )
        except TransportError as error:
            self._clear()
            why = str(error).removeprefix(f"{plan.node}: ").replace("sh did not", "git did not")
            raise TransportError(f"{told}: {why}") from None
        if done.exit_code:
            self._clear()
            raise RunError(f"{told}: {shown('', last_words(done.stderr))}")
        return done.stdout.strip()

    @property
    def _place(self) -> tuple[str, str]:
        path = PurePosixPath(self._folder)
        return str(path.parent), path.name

    def _clear(self) -> None:
        """Leave nothing of a clone that was cut; on a node that is out of reach the next one does."""
        with suppress(TransportError):
            kill_processes(self._transport, self._plan.run_id)
            argv = ["sh", "-c", _CLEAR, "sh", *self._place, self._plan.run_id]
            self._transport.run(argv, timeout=_SECONDS)

    def _commit(self, revision: str) -> str:
        """Have the folder at this revision; cvs changes no checkout of a user's."""
        demand_programs(self._transport, ["git"])
        argv = ["sh", "-c", _REVISIONS, "sh", self._folder, revision]
        found = self._transport.run(argv, timeout=_SECONDS, environment={"LC_ALL": "C"})
        told = f"{self._plan.node}: aorta_path {self._folder}"
        if found.exit_code:
            raise RunError(
                f"{told} cannot be seen to be at aorta_revision {revision}: {last_words(found.stderr)}; leave"
                " aorta_revision out, or put a clone there"
            )
        head, *wanted = found.stdout.split()
        if not wanted:
            raise RunError(
                f"{told} is at {_short(head)} and knows no {revision}, the aorta_revision: fetch it there"
                " (git fetch), or name another"
            )
        if wanted != [head]:
            raise RunError(
                f"{told} is at {_short(head)}, not at aorta_revision {revision} ({_short(wanted[0])}): check"
                f" that out there (git checkout {revision}), or name the other; cvs changes no checkout"
            )
        return head


def _short(commit: str) -> str:
    return commit[:12]
