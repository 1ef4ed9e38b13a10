"""RCCL in the container: fetched where it is missing, and built where that has not been done yet.

All of it lies below `rccl.build_path`, by default in the workload's folder, and so outlasts the container.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cvs.config.model import shown
from cvs.errors import CvsError, EnvironmentFault, RunError, TransportError
from cvs.launch import NodePlan, RcclBuild
from cvs.models import CommandResult
from cvs.runtime._git import GIT, last_words, without_credentials
from cvs.runtime._programs import demand_found, look_command

_SECONDS = 60
"""For a look at what is there."""
_UPSTREAM_SECONDS = 30
_LIBRARIES = "build/release"
"""Where the build leaves the library, and the job looks for it."""
_BUILT = ".cvs_build"
"""File beside it that tells what it was built from."""
_INCOMPLETE = "incomplete"
_NEEDS = ("bash", "git", "cut", "head", "ls", "rmdir", "sha256sum")
_HAND_OVER = 'IFS= read -r line && umask 077 && printf "%s\\n" "$line" > "$1"'
_LOOK = f"""\
path=$1 script=$2
# Of the container, not of the image: who owns the folder on the node must not matter to git.
git config --system --replace-all safe.directory '*'
echo "script $(sha256sum < "$script" | cut -c1-16)"
[ -n "$(ls -A "$path" 2> /dev/null)" ] || exit 0
echo "place there"
[ -e "$path/.git" ] || exit 0
cd "$path" || exit
echo "commit $(git rev-parse --quiet --verify HEAD)"
git diff --quiet --ignore-submodules=dirty HEAD ||
    echo "changes $(git diff --ignore-submodules=dirty HEAD | sha256sum | cut -c1-16)"
echo "source $(git config cvs.source)"
ls {_LIBRARIES}/librccl.so* > /dev/null 2>&1 && echo "built $(head -n 1 {_LIBRARIES}/{_BUILT} 2> /dev/null)"
:
"""
"""Prints a word and what it is about, line by line."""
_UPSTREAM = (
    "url=$1 branch=$2 credentials=$3\n"
    + GIT
    + 'git ls-remote -- "$url" "refs/heads/$branch" "refs/tags/$branch" "refs/tags/$branch^{}"\n'
)
_EMPTY = 'find "$path" -mindepth 1 -maxdepth 1 -exec rm -rf {} +'
"""Not the folder itself, which something may be mounted at."""
_FETCH = (
    "path=$1 url=$2 branch=$3 is_new=$4 credentials=$5\n"
    + GIT
    + f"""\
wipe() {{ {_EMPTY}; rmdir "$path" 2> /dev/null; }}
start() {{
    mkdir -p "$path" && {_EMPTY} && git init --quiet "$path" && git -C "$path" config cvs.source {_INCOMPLETE}
}}
check_out() {{
    cd "$path" && git config cvs.source {_INCOMPLETE} && git checkout --quiet -B "$branch" FETCH_HEAD &&
        git submodule --quiet update --init --recursive &&
        git config cvs.source "$url $branch $(git rev-parse HEAD)"
}}
[ -z "$is_new" ] || start || {{ wipe; exit 1; }}
git -C "$path" fetch --depth 1 -- "$url" "$branch" && check_out && exit
code=$?
[ -z "$is_new" ] || wipe
exit "$code"
"""
)
_DISCARD = f"""\
path=$1
grep -qs 'source = {_INCOMPLETE}$' "$path/.git/config" || exit 0
{_EMPTY}; rmdir "$path" 2> /dev/null; :
"""
_NOTE = f'printf "%s\\n" "$2" > "$1/{_LIBRARIES}/{_BUILT}"'


class Run(Protocol):
    """Runs a short command in the container, as the job will be run there."""

    def __call__(self, argv: list[str], timeout: float = ..., *, stdin: bytes = ...) -> CommandResult:
        """Its result, whatever the exit code."""


Follow = Callable[[str, Sequence[str], float], None]
"""Runs a long command there, named first, in so many seconds; a `CvsError` if it does not end well."""


@dataclass(frozen=True)
class _Found:
    """What lies at the build path."""

    script: str
    """Digest of the build script."""
    place: str = ""
    commit: str = ""
    changes: str = ""
    """Digest of changes that are in no commit; empty: there are none."""
    source: str = ""
    """URL, branch and commit of what cvs has fetched."""
    built: str = ""
    """What it was built from, as `recipe`."""

    @property
    def is_usable(self) -> bool:
        """Whether something is there, and all of it."""
        return bool(self.place) and self.source != _INCOMPLETE

    @property
    def is_of_cvs(self) -> bool:
        """Whether it is as cvs has fetched it, and so may be replaced."""
        return bool(self.commit) and self.source.split(" ")[-1] == self.commit and not self.changes

    def recipe(self, image: str) -> str:
        """All that decides how a build comes out; empty where nobody can tell."""
        return f"{self.commit} {self.changes or 'unchanged'} {self.script} {image}" if self.commit else ""


def discard_command(build: RcclBuild) -> list[str]:
    """Command that takes away what was not fetched to the end; it runs in the container."""
    return ["sh", "-c", _DISCARD, "sh", build.build_path]


class Rccl:
    """The library of one node's job."""

    def __init__(
        self, plan: NodePlan, image: str, run: Run, follow: Follow, say: Callable[[str], None]
    ) -> None:
        """Take the plan, which has a build, and the image's id; `say` takes a line about what takes long."""
        assert plan.rccl_build is not None
        assert plan.container is not None
        self.warnings: list[str] = []
        self._plan = plan
        self._build = plan.rccl_build
        self._image = image
        self._image_name = plan.container.image
        self._run = run
        self._follow = follow
        self._say = say
        self._url, self._secret = without_credentials(self._build.clone_url)
        self._credentials = f"/tmp/cvs-credentials-{plan.run_id}" if self._secret else ""

    def provide(self, left: Callable[[], float]) -> dict[str, str]:
        """Have it built; the fact which commit it is. `left` tells how many seconds there are for it.

        Raises: CvsError: it cannot be fetched or built.
        """
        self._demand_programs()
        try:
            self._hand_over_credentials()
            found = self._fetched(self._look(), left)
        finally:
            self._take_back_credentials()
        if found.built and found.built == found.recipe(self._image):
            self._tell(f"RCCL {_short(found.commit)} is built already, in {self._build.build_path}")
        else:
            found = self._make(found, left)
        changed = " with changes" if found.changes else ""
        return {"rccl_revision": f"{found.commit}{changed}"} if found.commit else {}

    def _demand_programs(self) -> None:
        looked = self._run(look_command(_NEEDS))
        try:
            demand_found(looked.stdout, _NEEDS, f"{self._plan.node}:", f"in the image {self._image_name}")
        except EnvironmentFault as fault:
            raise EnvironmentFault(f"{fault}, or set skip_rccl_build: true to use its own RCCL") from None

    def _hand_over_credentials(self) -> None:
        if self._secret:
            argv = ["sh", "-c", _HAND_OVER, "sh", self._credentials]
            if self._run(argv, stdin=self._secret.encode()).exit_code:
                raise RunError(f"{self._plan.node}: cannot write into /tmp of the image {self._image_name}")

    def _take_back_credentials(self) -> None:
        if self._secret:
            try:
                self._run(["rm", "-f", self._credentials])
            except CvsError:  # they go with the container
                return

    def _tell(self, text: str) -> None:
        self._say(f"{self._plan.node} | cvs: {text}")

    def _look(self) -> _Found:
        build = self._build
        looked = self._run(["sh", "-c", _LOOK, "sh", build.build_path, build.argv[-1]], _SECONDS)
        if looked.exit_code:
            told = f"{self._plan.node}: rccl.build_path {build.build_path}"
            raise RunError(f"{told} cannot be looked at: {last_words(looked.stderr)}")
        return _Found(**dict(line.split(" ", 1) for line in looked.stdout.splitlines()))

    def _fetched(self, found: _Found, left: Callable[[], float]) -> _Found:
        """What there is to build, fetched if need be."""
        if not found.is_usable:
            return self._fetch(left, is_new=True)
        if not found.commit:
            return found
        commit, why = self._upstream()
        is_another = not found.source.startswith(f"{self._url} {self._build.branch} ")
        if found.is_of_cvs and (is_another or commit not in ("", found.commit)):
            return self._fetch(left, is_new=False)
        if why:
            self._warn(f"whether rccl.branch {self._build.branch} has moved cannot be seen: {why}", found)
        elif commit != found.commit:
            there = f"is at {_short(commit)}" if commit else "is unknown"
            self._warn(f"rccl.branch {self._build.branch} {there} in {shown('', self._url)}", found)
        return found

    def _warn(self, text: str, found: _Found) -> None:
        used = f"{_short(found.commit)}, which is in {self._build.build_path}, is used"
        self.warnings.append(f"{self._plan.node}: {text}; {used}")

    def _upstream(self) -> tuple[str, str]:
        """The commit that the branch is at where it is cloned from, or why that cannot be seen."""
        argv = ["sh", "-c", _UPSTREAM, "sh", self._url, self._build.branch, self._credentials]
        try:
            asked = self._run(argv, _UPSTREAM_SECONDS)
        except TransportError:
            return "", f"{shown('', self._url)} did not answer within {_UPSTREAM_SECONDS} s"
        if asked.exit_code:
            return "", shown("", last_words(asked.stderr))
        lines = (line.split("\t") for line in asked.stdout.splitlines() if "\t" in line)
        commits = {name: commit for commit, name in lines}
        tag = f"refs/tags/{self._build.branch}"
        names = (f"refs/heads/{self._build.branch}", f"{tag}^{{}}", tag)
        return next((commits[name] for name in names if name in commits), ""), ""

    def _fetch(self, left: Callable[[], float], *, is_new: bool) -> _Found:
        build = self._build
        self._tell(f"fetching RCCL, {build.branch} of {shown('', self._url)}, into {build.build_path}")
        words = [build.build_path, self._url, build.branch, "new" if is_new else "", self._credentials]
        self._follow("fetching RCCL", ["sh", "-c", _FETCH, "sh", *words], left())
        return self._look()

    def _make(self, found: _Found, left: Callable[[], float]) -> _Found:
        build = self._build
        what = f"RCCL {_short(found.commit)}" if found.commit else "RCCL, which is no checkout of git,"
        self._tell(f"building {what} in {build.build_path}: {shlex.join(build.argv)}")
        libraries = f"{build.build_path}/{_LIBRARIES}"
        self._run(["rm", "-f", f"{libraries}/{_BUILT}"])
        self._follow(f"the build of RCCL ({build.argv[-1]})", build.argv, left())
        if self._run(["sh", "-c", 'ls "$1"/librccl.so*', "sh", libraries]).exit_code:
            raise RunError(
                f"{self._plan.node}: {build.argv[-1]} ended well and left no librccl.so in {libraries}, where"
                " the job looks for it; correct the script or rccl.build_path, or set skip_rccl_build: true"
            )
        # A build may change files of the checkout.
        found = self._look()
        if recipe := found.recipe(self._image):
            self._run(["sh", "-c", _NOTE, "sh", build.build_path, recipe])
        return found


def _short(commit: str) -> str:
    return commit[:12]
