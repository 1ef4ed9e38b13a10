"""The workload: cloned where it is missing, and never changed where it is not."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import CvsError, EnvironmentFault, RunError, TransportError
from cvs.launch import NodePlan, Site, plan_aorta
from cvs.runtime._clone import Workload, is_missing
from cvs.runtime._leftovers import processes_of
from cvs.transport.local import LocalTransport
from processes import eventually
from repositories import Repository, git, served

RUN_ID = f"20261130T120000.000Z-{secrets.token_hex(3)}"


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """A bare repository: a branch `main` of two commits, the first tagged v1, and a branch `side` there."""
    repository = Repository(tmp_path)
    first = repository.commit({"train.py": "one"})
    git(repository.bare, "tag", "v1", first)
    git(repository.bare, "branch", "side", first)
    repository.commit({"train.py": "two"})
    git(repository.bare, "config", "uploadpack.allowAnySHA1InWant", "true")
    return repository.bare


def plan_of(folder: Path, url: Path | str | None, revision: str | None = None) -> NodePlan:
    bench = AortaConfig(
        aorta_path=str(folder),
        aorta_auto_clone=url is not None,
        aorta_clone_url=str(url) if url else None,
        aorta_revision=revision,
        skip_rccl_build=True,
    )
    cluster = {"username": "u", "transport": "local", "node_dict": {"a": {"vpc_ip": "127.0.0.1"}}}
    return plan_aorta(ClusterConfig.model_validate(cluster), bench, Site(run_id=RUN_ID)).head


def provide(plan: NodePlan, *, timeout: float = 30, said: list[str] | None = None) -> str | None:
    say = (said if said is not None else []).append
    return Workload(plan, LocalTransport("a")).provide(say, timeout=timeout)


def beside(folder: Path) -> list[str]:
    """What lies beside a folder that should be there alone."""
    return sorted(path.name for path in folder.parent.iterdir() if path != folder)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "node").mkdir()
    return tmp_path / "node" / "aorta"


# --- cloning ----------------------------------------------------------------------------------------------


def test_it_is_cloned_where_it_is_missing(origin: Path, target: Path) -> None:
    said: list[str] = []
    commit = provide(plan_of(target, origin), said=said)
    assert commit == git(origin, "rev-parse", "main")
    assert (target / "train.py").read_text() == "two"
    assert said == [f"a | cvs: cloning {origin}"]
    assert git(target, "status", "--porcelain", "--branch") == "## main...origin/main"
    assert target.stat().st_mode & 0o777 == 0o777 & ~umask()
    assert beside(target) == []


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@pytest.mark.parametrize("name", ["v1", "side", "commit", "unreachable"])
def test_a_revision_is_checked_out(name: str, origin: Path, target: Path) -> None:
    first = git(origin, "rev-parse", "v1")
    if name == "commit":
        name = first
    elif name == "unreachable":  # of no branch or tag, as the head of a pull request
        first = name = git(origin, "commit-tree", "-p", first, "-m", "x", f"{first}^{{tree}}")
    assert provide(plan_of(target, origin, name)) == first == git(target, "rev-parse", "HEAD")
    assert (target / "train.py").read_text() == "one"


def test_the_lock_of_the_run_that_holds_the_folder_stays_in_it(origin: Path, target: Path) -> None:
    (target / ".cvs").mkdir(parents=True)
    (target / ".cvs" / "lock").write_text("held")
    inode = (target / ".cvs" / "lock").stat().st_ino
    provide(plan_of(target, origin))
    assert (target / ".cvs" / "lock").stat().st_ino == inode
    assert (target / "train.py").exists()


def test_what_is_there_is_left_as_it_is(origin: Path, target: Path) -> None:
    target.mkdir()
    (target / "mine").write_text("mine")
    assert provide(plan_of(target, origin)) is None
    assert [path.name for path in target.iterdir()] == ["mine"]


def test_nothing_is_cloned_unasked(target: Path) -> None:
    assert provide(plan_of(target, None)) is None
    assert not target.exists()


def test_local_nodes_share_one_clone(origin: Path, target: Path) -> None:
    plan = plan_of(target, origin).model_copy(update={"copied_from": str(target)})
    said: list[str] = []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: provide(plan, said=said), range(4)))
    assert len(said) == 1
    assert (target / "train.py").exists()


# --- when it fails ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "revision", "text"),
    [
        ("/nowhere/a.git", None, "/nowhere/a.git' does not exist"),
        (None, "v9", "v9"),
        ("ssh://nobody@127.0.0.1:1/a.git", None, "Connection refused"),
    ],
)
def test_a_clone_that_fails_leaves_nothing(
    url: str | None, revision: str | None, text: str, origin: Path, target: Path
) -> None:
    with pytest.raises(RunError) as failed:
        provide(plan_of(target, url or origin, revision))
    assert str(failed.value).startswith(f"a: cannot clone {url or origin} into aorta_path {target}: ")
    assert text in str(failed.value)
    assert "\n" not in str(failed.value)
    assert [*target.parent.iterdir()] == []


def test_a_folder_above_that_is_missing_is_named_and_not_made(origin: Path, target: Path) -> None:
    with pytest.raises(RunError, match=rf"there is no folder {target}$"):
        provide(plan_of(target / "aorta", origin))
    assert not target.exists()


@contextmanager
def slow_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A git that begins to clone and never ends."""
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\ncase " $* " in *" clone "*) touch "$PWD/begun"; sleep 60;; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    yield


def test_a_clone_that_is_late_is_ended_and_leaves_nothing(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        slow_git(tmp_path, monkeypatch),
        pytest.raises(TransportError, match=r": git did not end within 1 s and was stopped$"),
    ):
        provide(plan_of(target, "https://me:s3cret@h/a"), timeout=1)
    assert [*target.parent.iterdir()] == []
    assert processes_of(LocalTransport("a"), RUN_ID) == []


def test_a_clone_whose_processes_are_killed_leaves_nothing(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with slow_git(tmp_path, monkeypatch), ThreadPoolExecutor(1) as pool:
        cloning = pool.submit(provide, plan_of(target, "/srv/a.git"))
        assert eventually((tmp_path / "begun").exists)
        for process in processes_of(LocalTransport("a"), RUN_ID):
            os.kill(process, 9)
        with pytest.raises(CvsError, match=r"cannot clone /srv/a\.git"):
            cloning.result()
    assert [*target.parent.iterdir()] == []


def test_what_a_lost_cvs_left_is_removed_by_the_next(origin: Path, target: Path) -> None:
    left = target.parent / f".aorta.cvs-clone-{os.uname().nodename}-20260101T000000.000Z-dead00"
    other = target.parent / ".aorta.cvs-clone-another-host-20260101T000000.000Z-dead00"
    for folder in (left, other):
        (folder / "tree").mkdir(parents=True)
    provide(plan_of(target, origin))
    assert beside(target) == [other.name]


def test_a_missing_git_is_named(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sh", "find"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"^a: programs missing on the node: git, "):
        provide(plan_of(target, "/srv/a.git"))


# --- the revision of what is there ------------------------------------------------------------------------


@pytest.fixture
def checkout(origin: Path, target: Path) -> Path:
    """A user's, at v1."""
    git(target.parent, "clone", "--quiet", str(origin), str(target))
    git(target, "checkout", "--quiet", "v1")
    return target


@pytest.mark.parametrize("name", ["v1", "side"])
def test_what_is_at_the_revision_is_used(name: str, checkout: Path) -> None:
    assert provide(plan_of(checkout, None, name)) == git(checkout, "rev-parse", "v1")
    assert git(checkout, "branch", "--show-current") == ""


def test_what_is_at_another_is_refused_and_left_there(checkout: Path) -> None:
    here, there = (git(checkout, "rev-parse", name)[:12] for name in ("HEAD", "main"))
    with pytest.raises(RunError) as refused:
        provide(plan_of(checkout, None, "main"))
    assert str(refused.value) == (
        f"a: aorta_path {checkout} is at {here}, not at aorta_revision main ({there}): check that out there"
        " (git checkout main), or name the other; cvs changes no checkout"
    )
    assert git(checkout, "rev-parse", "HEAD")[:12] == here


def test_what_is_not_known_there_is_told(checkout: Path) -> None:
    with pytest.raises(RunError, match=r" knows no v7, the aorta_revision: fetch it there \(git fetch\)"):
        provide(plan_of(checkout, None, "v7"))


def test_a_folder_without_git_has_no_revision(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(target.parent))
    target.mkdir()
    (target / "train.py").touch()
    told = "seen to be at aorta_revision v1: fatal: not a git repository .*; leave aorta_revision out"
    with pytest.raises(RunError, match=told):
        provide(plan_of(target, None, "v1"))


# --- what is missing --------------------------------------------------------------------------------------


def test_what_counts_as_missing(tmp_path: Path) -> None:
    empty, held, full, link = (tmp_path / name for name in ("empty", "held", "full", "link"))
    for folder in (empty, held / ".cvs", full / ".git"):
        folder.mkdir(parents=True)
    link.symlink_to("nowhere")
    found = {
        path.name: is_missing(LocalTransport("a"), str(path))
        for path in (tmp_path / "none", empty, held, full, link)
    }
    assert found == {"none": True, "empty": True, "held": True, "full": False, "link": False}


# --- credentials ------------------------------------------------------------------------------------------


def seen_by_all(folder: Path) -> list[str]:
    """Command lines and environments of what clones, and what lies beside the folder meanwhile."""
    processes = processes_of(LocalTransport("a"), RUN_ID)
    files = (Path(f"/proc/{process}/{name}") for process in processes for name in ("cmdline", "environ"))
    modes = (f"{path} {path.stat().st_mode & 0o777:o}" for path in folder.parent.glob(".a*/*"))
    return [*(file.read_bytes().decode(errors="replace") for file in files), *modes]


@pytest.mark.usefixtures("origin")
def test_a_password_is_used_and_seen_nowhere(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "home" / ".git-credentials"
    store.parent.mkdir()
    (store.parent / ".gitconfig").write_text("[credential]\n\thelper = store\n")
    monkeypatch.setenv("HOME", str(store.parent))
    said: list[str] = []
    seen: list[str] = []
    with served(tmp_path, lambda: seen.extend(seen_by_all(target))) as address:
        provide(plan_of(target, f"http://me:s3cret@{address}/origin.git"), said=said)
    assert (target / "train.py").read_text() == "two"
    assert any("clone" in text for text in seen)
    assert any(text.endswith("/credentials 600") for text in seen)
    told = "".join([*seen, *said, (target / ".git" / "config").read_text()])
    assert "s3cret" not in told
    assert not store.exists()
    assert beside(target) == []


@pytest.mark.usefixtures("origin")
def test_a_wrong_password_asks_nobody_and_is_not_told(target: Path, tmp_path: Path) -> None:
    with served(tmp_path, lambda: None) as address, pytest.raises(RunError) as failed:
        provide(plan_of(target, f"http://me:wr0ng@{address}/origin.git"))
    assert "cannot clone http://**********@" in str(failed.value)
    assert "wr0ng" not in str(failed.value)
    assert "me@" not in str(failed.value)
    assert [*target.parent.iterdir()] == []
