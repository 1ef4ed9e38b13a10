"""RCCL: fetched and built where need be, and only there. Real git; this machine stands in for a container."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import EnvironmentFault, RunError, TransportError
from cvs.launch import NodePlan, Site, plan_aorta
from cvs.models import CommandResult
from cvs.runtime._rccl import Rccl, discard_command
from repositories import Repository, git, served

BUILDS = "mkdir -p $rccl_path/build/release; echo $$ > $rccl_path/build/release/librccl.so.1\n"
FAILS = "mkdir -p $rccl_path/build/release; touch $rccl_path/build/release/librccl.so.1; exit 3\n"


class Container:
    """The folder of a workload that builds RCCL, and a place for it that is empty."""

    def __init__(self, folder: Path, url: str) -> None:
        self.script = folder / "aorta" / "b.sh"
        self.path = folder / "aorta" / "rccl"
        self.url = url
        self.branch = "main"
        self.image = "sha256:1"
        self.followed: list[str] = []
        self.said: list[str] = []
        self.seen: list[str] = []
        self.warnings: list[str] = []
        self.run_id = f"r-{secrets.token_hex(3)}"
        self.environment = {
            **os.environ,
            "rccl_path": str(self.path),
            # As root's and the system's in a container.
            "HOME": str(folder / "home"),
            "GIT_CONFIG_SYSTEM": str(folder / "gitconfig"),
        }
        self.script.parent.mkdir()
        self.script.write_text(BUILDS)
        (folder / "home").mkdir()

    @property
    def plan(self) -> NodePlan:
        rccl = {"clone_url": self.url, "branch": self.branch, "build_path": str(self.path)}
        bench = {"aorta_path": "/a", "build_script": "b.sh", "rccl": rccl}
        cluster = {"username": "u", "node_dict": {"a": {"vpc_ip": "::1"}}}
        given = {**bench, "container_mount_path": str(self.script.parent)}
        return plan_aorta(
            ClusterConfig.model_validate(cluster),
            AortaConfig.model_validate(given),
            Site(run_id=self.run_id),
        ).head

    def run(self, argv: list[str], timeout: float = 30, *, stdin: bytes = b"") -> CommandResult:
        try:
            done = subprocess.run(
                argv, input=stdin, env=self.environment, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise TransportError("a: late") from None
        return CommandResult(
            argv=tuple(argv),
            exit_code=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(),
        )

    def follow(self, what: str, argv: Sequence[str], seconds: float) -> None:
        self.followed.append(what.split(" (")[0])
        done = self.run(list(argv), seconds)
        if done.exit_code:
            raise RunError(f"a: {what} ended with exit code {done.exit_code}: {done.stderr}")

    def provide(self) -> str | None:
        """Another run's set-up; the commit."""
        self.followed.clear()
        rccl = Rccl(self.plan, self.image, self.run, self.follow, self.said.append)
        try:
            return rccl.provide(lambda: 30).get("rccl_revision")
        finally:
            self.warnings = rccl.warnings

    @property
    def library(self) -> Path:
        return self.path / "build" / "release" / "librccl.so.1"


FETCHED_AND_BUILT = ["fetching RCCL", "the build of RCCL"]
BUILT = ["the build of RCCL"]


@pytest.fixture
def origin(tmp_path: Path) -> Repository:
    repository = Repository(tmp_path)
    repository.commit({"install.sh": "one"})
    return repository


@pytest.fixture
def container(origin: Repository, tmp_path: Path) -> Container:
    return Container(tmp_path, str(origin.bare))


# --- once -------------------------------------------------------------------------------------------------


def test_it_is_fetched_and_built_once(container: Container, origin: Repository) -> None:
    head = git(origin.bare, "rev-parse", "main")
    assert container.provide() == head
    assert container.followed == FETCHED_AND_BUILT
    assert container.said == [
        f"a | cvs: fetching RCCL, main of {origin.bare}, into {container.path}",
        f"a | cvs: building RCCL {head[:12]} in {container.path}: bash {container.script}",
    ]
    assert git(container.path, "branch", "--show-current") == "main"
    container.said.clear()
    assert container.provide() == head
    assert container.followed == []
    assert container.said == [f"a | cvs: RCCL {head[:12]} is built already, in {container.path}"]
    assert container.warnings == []


def test_a_folder_that_something_may_be_mounted_at_is_used(container: Container) -> None:
    container.path.mkdir()
    inode = container.path.stat().st_ino
    container.provide()
    assert container.path.stat().st_ino == inode


def another_image(container: Container) -> None:
    container.image = "sha256:2"


def another_script(container: Container) -> None:
    container.script.write_text(f"{BUILDS}# another\n")


def changed_source(container: Container) -> None:
    (container.path / "install.sh").write_text("mine")


def no_build(container: Container) -> None:
    shutil.rmtree(container.path / "build")


def no_library(container: Container) -> None:
    container.library.unlink()


@pytest.mark.parametrize("change", [another_image, another_script, changed_source, no_build, no_library])
def test_what_decides_a_build_has_it_built_again(
    change: Callable[[Container], None], container: Container
) -> None:
    container.provide()
    first = container.library.read_text()
    change(container)
    container.provide()
    assert container.followed == BUILT
    assert container.library.read_text() != first
    container.provide()
    assert container.followed == []


def test_a_build_that_changes_its_source_is_built_once_too(container: Container) -> None:
    container.script.write_text(f"{BUILDS}echo more >> $rccl_path/install.sh\n")
    told = container.provide()
    assert told is not None
    assert told.endswith(" with changes")
    assert container.provide() == told
    assert container.followed == []


def test_a_build_that_failed_is_no_build(container: Container) -> None:
    container.provide()
    container.script.write_text(FAILS)
    with pytest.raises(RunError, match="ended with exit code 3"):
        container.provide()
    container.script.write_text(BUILDS)
    container.provide()
    assert container.followed == BUILT


def test_a_build_without_a_library_is_refused(container: Container) -> None:
    container.script.write_text("echo all is well")
    with pytest.raises(RunError) as refused:
        container.provide()
    assert str(refused.value) == (
        f"a: {container.script} ended well and left no librccl.so in {container.path}/build/release, where"
        " the job looks for it; correct the script or rccl.build_path, or set skip_rccl_build: true"
    )


# --- which revision ---------------------------------------------------------------------------------------


def test_a_branch_that_has_moved_is_fetched_and_built(container: Container, origin: Repository) -> None:
    container.provide()
    newer = origin.commit({"install.sh": "two"})
    assert container.provide() == newer
    assert container.followed == FETCHED_AND_BUILT
    assert (container.path / "install.sh").read_text() == "two"
    assert container.warnings == []


@pytest.mark.parametrize("annotated", [True, False])
def test_another_branch_or_tag_is_fetched(annotated: bool, container: Container, origin: Repository) -> None:
    first = git(origin.bare, "rev-parse", "main")
    git(origin.bare, "tag", "v1", *(["-a", "-m", "x"] if annotated else []))
    origin.commit({"install.sh": "two"})
    container.provide()
    container.branch = "v1"
    for followed in (FETCHED_AND_BUILT, []):
        assert container.provide() == first
        assert container.followed == followed
        assert container.warnings == []


def test_where_nobody_answers_what_is_there_is_used(container: Container, origin: Repository) -> None:
    head = container.provide()
    assert head is not None
    origin.bare.rename(f"{origin.bare}-gone")
    assert container.provide() == head
    assert container.followed == []
    [told] = container.warnings
    assert told.startswith("a: whether rccl.branch main has moved cannot be seen: fatal: ")
    assert told.endswith(f"; {head[:12]}, which is in {container.path}, is used")


def test_where_nobody_answers_nothing_else_is_used_in_its_place(
    container: Container, origin: Repository
) -> None:
    container.provide()
    origin.bare.rename(f"{origin.bare}-gone")
    container.branch = "another"
    with pytest.raises(RunError, match="fetching RCCL ended with exit code"):
        container.provide()
    container.branch = "main"
    container.provide()
    assert container.followed == []


def of_another(container: Container, origin: Repository) -> None:
    git(container.path.parent, "clone", "--quiet", str(origin.bare), str(container.path))


def with_changes(container: Container, _origin: Repository) -> None:
    container.provide()
    changed_source(container)


def with_commits(container: Container, origin: Repository) -> None:
    with_changes(container, origin)
    git(container.path, "commit", "--quiet", "-a", "-m", "mine")


@pytest.mark.parametrize("make", [of_another, with_changes, with_commits])
def test_a_users_own_checkout_is_never_changed(
    make: Callable[[Container, Repository], None], container: Container, origin: Repository
) -> None:
    make(container, origin)
    here = git(container.path, "rev-parse", "HEAD")
    text = (container.path / "install.sh").read_text()
    newer = origin.commit({"install.sh": "two"})
    told = container.provide()
    assert told is not None
    assert told.split()[0] == here
    assert container.followed == BUILT
    assert (container.path / "install.sh").read_text() == text
    assert container.warnings == [
        f"a: rccl.branch main is at {newer[:12]} in {origin.bare}; {here[:12]}, which is in {container.path},"
        " is used"
    ]


def test_a_branch_that_is_gone_is_told(container: Container, origin: Repository) -> None:
    container.provide()
    git(origin.bare, "branch", "-m", "main", "trunk")
    container.provide()
    assert container.followed == []
    [told] = container.warnings
    assert told.startswith(f"a: rccl.branch main is unknown in {origin.bare}; ")


def test_sources_without_git_are_built_by_every_run(container: Container) -> None:
    container.path.mkdir()
    (container.path / "install.sh").write_text("mine")
    for _ in range(2):
        assert container.provide() is None
        assert container.followed == BUILT
    assert (container.path / "install.sh").read_text() == "mine"


# --- when it cannot be fetched ----------------------------------------------------------------------------


def test_a_fetch_that_fails_leaves_nothing(container: Container) -> None:
    container.branch = "nowhere"
    with pytest.raises(RunError, match=r"fetching RCCL ended .* couldn't find remote ref nowhere"):
        container.provide()
    assert not container.path.exists()


def test_a_fetch_that_was_cut_is_discarded_or_made_anew(container: Container) -> None:
    head = container.provide()
    build = container.plan.rccl_build
    assert build is not None
    container.run(discard_command(build))
    assert container.library.exists()
    git(container.path, "config", "cvs.source", "incomplete")
    (container.path / ".git" / "index.lock").touch()
    assert container.provide() == head
    assert container.followed == FETCHED_AND_BUILT
    git(container.path, "config", "cvs.source", "incomplete")
    container.run(discard_command(build))
    assert not container.path.exists()


def test_an_image_without_git_is_named(container: Container, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "bash", "cut", "head", "ls", "rmdir", "sha256sum"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    container.environment["PATH"] = str(folder)
    with pytest.raises(EnvironmentFault) as fault:
        container.provide()
    image = "jeffdaily/pytorch:torchrec-dlrm-complete"
    assert str(fault.value) == (
        f"a: programs missing in the image {image}: git; install git, or set skip_rccl_build: true to use its"
        " own RCCL"
    )


# --- credentials ------------------------------------------------------------------------------------------


def test_a_password_is_used_and_kept_nowhere(
    container: Container, origin: Repository, tmp_path: Path
) -> None:
    there = Path(f"/tmp/cvs-credentials-{container.run_id}")
    modes: list[str] = []
    with served(tmp_path, lambda: modes.append(f"{there.stat().st_mode & 0o777:o}")) as address:
        container.url = f"http://me:s3cret@{address}/{origin.bare.name}"
        head = container.provide()
        assert container.provide() == head
        assert container.followed == []
        assert container.warnings == []
    assert modes
    assert set(modes) == {"600"}
    assert not there.exists()
    told = "".join([*container.said, *container.followed, (container.path / ".git" / "config").read_text()])
    assert "s3cret" not in told
    assert f"main of http://{address}/" in told


def test_a_wrong_password_is_not_told(container: Container, origin: Repository, tmp_path: Path) -> None:
    with served(tmp_path, lambda: None) as address:
        container.url = f"http://me:wr0ng@{address}/{origin.bare.name}"
        with pytest.raises(RunError) as failed:
            container.provide()
    assert f"Authentication failed for 'http://{address}/" in str(failed.value)
    assert "wr0ng" not in str(failed.value)
    assert not Path(f"/tmp/cvs-credentials-{container.run_id}").exists()
