"""A run on disk."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cvs.config import AortaConfig, ClusterConfig
from cvs.errors import EvidenceError, RunError
from cvs.launch import Site, plan_aorta
from cvs.models import Aggregates, BenchmarkResult, NodeResult, ParseResult, RunResult, RunStatus, TraceFile
from cvs.run_folder import (
    Manifest,
    RunFolder,
    digest,
    is_live,
    make_run_folder,
    new_run_folder,
    newest_run_folder,
    open_run_folder,
    write_whole,
)

CLUSTER: dict[str, Any] = {"username": "u", "node_dict": {"a": {"vpc_ip": "10.0.0.1"}}}
BENCH: dict[str, Any] = {"aorta_path": "/srv/aorta"}


def manifest_of(
    folder: RunFolder, cluster: dict[str, Any] = CLUSTER, bench: dict[str, Any] = BENCH
) -> Manifest:
    """The record of a run with these two files."""
    cluster_config, aorta = ClusterConfig.model_validate(cluster), AortaConfig.model_validate(bench)
    return Manifest(
        cluster_file="cluster.json",
        config_file=None,
        cluster=cluster_config.resolved(),
        benchmark=aorta.resolved(),
        plan=plan_aorta(cluster_config, aorta, Site(run_id=folder.run_id)),
        run=RunResult(
            benchmark="aorta",
            run_id=folder.run_id,
            status=RunStatus.COMPLETED,
            started="2026-11-30T12:00:00+00:00",
            duration_seconds=1.5,
            accelerator="rocm",
            num_nodes=1,
            local_world_size=8,
            gpus_per_node=8,
            nodes=(NodeResult(node_rank=0, node="a", exit_code=0, facts={"torch": "2.13"}),),
        ),
    )


def saved_run(path: Path) -> RunFolder:
    folder = make_run_folder(path)
    folder.save_manifest(manifest_of(folder))
    return folder


# --- a new one --------------------------------------------------------------------------------------------


def test_a_new_run_has_a_folder_of_its_own_named_by_time(tmp_path: Path) -> None:
    folder = new_run_folder(tmp_path / "cvs_runs", "test_aorta")
    assert folder.path.parent == tmp_path.resolve() / "cvs_runs" / "test_aorta"
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{6}", folder.run_id)
    assert folder.traces.is_dir()
    assert folder.node_log(0).parent.is_dir()


def test_later_runs_sort_behind_earlier_ones(tmp_path: Path) -> None:
    first = new_run_folder(tmp_path, "test_aorta")
    names = {new_run_folder(tmp_path, "test_aorta").run_id for _ in range(5)}
    assert len(names) == 5
    assert all(name[:20] >= first.run_id[:20] for name in names)


def test_it_is_the_users_alone(tmp_path: Path) -> None:
    """Logs may hold what users put into the environment of their jobs."""
    folder = new_run_folder(tmp_path, "test_aorta")
    assert folder.path.stat().st_mode & 0o077 == 0


def test_latest_points_to_the_newest_that_was_begun(tmp_path: Path) -> None:
    link = tmp_path / "test_aorta" / "latest"
    for _ in range(2):
        folder = new_run_folder(tmp_path, "test_aorta")
        assert not folder.is_recorded
        assert not link.is_symlink() or link.resolve() != folder.path
        folder.save_manifest(manifest_of(folder))
        assert folder.is_recorded
        assert link.readlink() == Path(folder.run_id)


def test_a_run_that_was_never_begun_leaves_nothing(tmp_path: Path) -> None:
    new_run_folder(tmp_path, "test_aorta").discard()
    assert list((tmp_path / "test_aorta").iterdir()) == []


def test_no_folder_is_used_twice(tmp_path: Path) -> None:
    make_run_folder(tmp_path / "r1")
    with pytest.raises(
        RunError, match=rf"cannot make the run's folder {tmp_path}/r1: File exists; choose another"
    ):
        make_run_folder(tmp_path / "r1")


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot make the run's folder"):
        new_run_folder(tmp_path / "file", "test_aorta")


def tell_without_root(script: str, *words: str) -> str:
    """What a script prints that runs with the rights of the owner of the files, not with those of root."""
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    whole = f"""
import sys
from pathlib import Path
from cvs.errors import CvsError
from cvs.run_folder import *
try:
    {script}
except CvsError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", whole, *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def long_name(tmp_path: Path) -> Path:
    return tmp_path / ("n" * 300)


def link_to_itself(tmp_path: Path) -> Path:
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path / "loop"


def no_utf8(tmp_path: Path) -> Path:
    return tmp_path / os.fsdecode(b"r\xff")


Mistake = Callable[[Path], Path]
ODD_PLACES = [
    (long_name, "File name too long"),
    (link_to_itself, "Too many levels of symbolic links"),
    (no_utf8, "its name is not UTF-8 text"),
]


@pytest.mark.parametrize(("mistake", "told"), ODD_PLACES)
def test_a_place_that_cannot_be_one(tmp_path: Path, mistake: Mistake, told: str) -> None:
    place = mistake(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RunError) as new:
        new_run_folder(place, "test_aorta")
    with pytest.raises(RunError) as named:
        make_run_folder(place / "r1")
    for message in (str(new.value), str(named.value)):
        assert message.endswith(f": {told}; choose another place")
        assert str(place) in message
    assert sorted(tmp_path.iterdir()) == before


def test_a_place_that_is_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    told = tell_without_root("new_run_folder(Path(sys.argv[1]), 's')", f"{closed}/runs")
    assert told == (
        f"RunError cannot make a run's folder below {closed}/runs: Permission denied; choose another place"
    )


def test_local_nodes_are_shared_by_the_runs_of_a_suite(tmp_path: Path) -> None:
    one, two = (new_run_folder(tmp_path, "test_aorta").nodes_dir for _ in range(2))
    assert one == two == tmp_path.resolve() / "test_aorta" / "nodes"


# --- finding one ------------------------------------------------------------------------------------------


def test_the_newest_is_the_one_that_began_last(tmp_path: Path) -> None:
    for name in ("20261130T120000.000Z-aaaaaa", "20261201T000000.000Z-000000", "20261130T235959.999Z-ffffff"):
        saved_run(tmp_path / "test_aorta" / name)
    (tmp_path / "test_aorta" / "latest").symlink_to("20261130T120000.000Z-aaaaaa")
    (tmp_path / "test_aorta" / "nodes").mkdir()
    assert newest_run_folder(tmp_path, "test_aorta").run_id == "20261201T000000.000Z-000000"


def test_no_run_says_what_to_do(tmp_path: Path) -> None:
    saved_run(tmp_path / "another_suite" / "20261130T120000.000Z-aaaaaa")
    new_run_folder(tmp_path, "test_aorta")  # no manifest yet
    with pytest.raises(EvidenceError) as caught:
        newest_run_folder(tmp_path, "test_aorta")
    assert str(caught.value).startswith(
        f"no run of test_aorta below {tmp_path}: run test_run_benchmark first"
    )
    assert "--run_dir" in str(caught.value)


def test_a_run_that_is_named(tmp_path: Path) -> None:
    saved_run(tmp_path / "r1")
    assert open_run_folder(tmp_path / "r1").run_id == "r1"
    with pytest.raises(EvidenceError, match=rf"--run_dir {tmp_path}: is no folder of a run"):
        open_run_folder(tmp_path)


@pytest.mark.parametrize(("mistake", "told"), ODD_PLACES)
def test_a_run_that_cannot_be_looked_for(tmp_path: Path, mistake: Mistake, told: str) -> None:
    place = mistake(tmp_path)
    for look in (open_run_folder, lambda path: newest_run_folder(path, "test_aorta")):
        with pytest.raises(EvidenceError) as caught:
            look(place)
        message = str(caught.value)
        assert str(place) in message
        # Where a link ends nowhere, there is simply no run.
        nowhere = mistake is link_to_itself
        assert told in message or (
            nowhere and re.search("no run of test_aorta|is no folder of a run", message)
        )


@pytest.mark.parametrize("at", ["runs", "runs/s", "runs/s/r1"])
def test_a_run_that_is_closed(tmp_path: Path, at: str) -> None:
    """It may be the newest, so no other is taken in its place."""
    saved_run(tmp_path / "runs" / "s" / "r0")
    saved_run(tmp_path / "runs" / "s" / "r1")
    (tmp_path / at).chmod(0o000)
    newest = tell_without_root("newest_run_folder(Path(sys.argv[1]), 's')", f"{tmp_path}/runs")
    named = tell_without_root("open_run_folder(Path(sys.argv[1]))", f"{tmp_path}/runs/s/r1")
    (tmp_path / at).chmod(0o700)
    why = "Permission denied; name"
    assert newest == f"EvidenceError cannot look for runs below {tmp_path}/runs: {why} one with --run_dir"
    assert named == f"EvidenceError --run_dir {tmp_path}/runs/s/r1: cannot be looked into: {why} another"


# --- what is written down ---------------------------------------------------------------------------------


def test_a_manifest_survives_being_written_and_read(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r1")
    manifest = manifest_of(folder)
    folder.save_manifest(manifest)
    assert folder.load_manifest() == manifest
    assert json.loads((folder.path / "manifest.json").read_text())["plan"]["run_id"] == "r1"


def test_no_secret_is_in_it(tmp_path: Path) -> None:
    cluster = {
        **CLUSTER,
        "password": "s3cret-1",
        "priv_key_passphrase": "s3cret-2",
        "env_vars": {"HF_TOKEN": "s3cret-3"},
        "bmc_password": "s3cret-4",
        "node_dict": {"a": {"vpc_ip": "10.0.0.1", "env_vars": {"DB_PASSWORD": "s3cret-5"}}},
    }
    bench = {
        **BENCH,
        "environment": {"WANDB_API_KEY": "s3cret-6"},
        "multi_node": {"extra_env": {"AWS_SECRET_ACCESS_KEY": "s3cret-7"}},
    }
    folder = make_run_folder(tmp_path / "r1")
    folder.save_manifest(manifest_of(folder, cluster, bench))
    text = (folder.path / "manifest.json").read_text()
    assert re.findall(r"s3cret-\d", text) == []
    assert text.count('"**********"') == 4 + 6  # in the two files, and each variable or secret in the plan


def test_metrics_survive_too(tmp_path: Path) -> None:
    folder = saved_run(tmp_path / "r1")
    result = BenchmarkResult(
        benchmark="aorta",
        run_id="r1",
        run_status=RunStatus.COMPLETED,
        duration_seconds=1.5,
        num_nodes=1,
        gpus_per_node=8,
        accelerator="rocm",
        parse=ParseResult(parser="test", basis="gpu", world_size=8, missing_ranks=tuple(range(8))),
        aggregates=Aggregates(avg_compute_ratio=1 / 3),
    )
    assert not folder.has_result
    with pytest.raises(
        EvidenceError, match=r"has no metrics yet: run test_parse_results \(metrics.json is missing"
    ):
        folder.load_result()
    folder.save_result(result)
    assert folder.has_result
    assert folder.load_result() == result


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": "x"}', "\xff"])
def test_a_manifest_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    folder = saved_run(tmp_path / "r1")
    (folder.path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(EvidenceError) as caught:
        folder.load_manifest()
    assert str(caught.value).startswith(f"{folder.path}/manifest.json: cannot be read: ")
    assert "\n" not in str(caught.value)


def altered_manifest(folder: RunFolder, way: str, value: object) -> None:
    """Set the value at `way` as an editor would."""
    file = folder.path / "manifest.json"
    data = json.loads(file.read_text())
    *around, last = way.split(".")
    inner = data
    for part in around:
        inner = inner[int(part) if part.isdigit() else part]
    inner[last] = value
    file.write_text(json.dumps(data))


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_manifest_of_another_version(tmp_path: Path, version: int) -> None:
    folder = saved_run(tmp_path / "r1")
    altered_manifest(folder, "schema_version", version)
    with pytest.raises(EvidenceError) as caught:
        folder.load_manifest()
    assert str(caught.value) == (
        f"{folder.path}/manifest.json: schema_version is {version}, and this version of cvs reads 1;"
        " judge the run with the version that made it, or run the benchmark again"
    )


@pytest.mark.parametrize(
    ("way", "value", "told"),
    [
        ("run.started", "yesterday", "'yesterday' is no time"),
        ("run.started", "2026-11-30T12:00:00", "is no time"),
        ("run.ended", "x" * 5000, "is no time"),
        ("run.duration_seconds", 1e300, "no run takes 1e+300 s"),
        ("run.duration_seconds", -1, "no run takes -1 s"),
        ("run.duration_seconds", float("nan"), "no run takes nan s"),
        ("run.num_nodes", 10_000_000, "is 10000000, and there are plans for 1 nodes"),
        ("run.local_world_size", 10_000_000, "10000000 is not from 1 to 1024"),
        ("run.files.0.path", "x" * 5000, "is no path of a collected file"),
        ("run.files.0.path", "a\0b", "is no path of a collected file"),
        ("run.files.0.path", "node_0/../../../secret", "is no path of a collected file"),
        ("run.files.0.path", "/etc/passwd", "is no path of a collected file"),
        ("run.files.0.path", "", "is no path of a collected file"),
    ],
)
def test_a_manifest_of_no_run(tmp_path: Path, way: str, value: object, told: str) -> None:
    folder = make_run_folder(tmp_path / "r1")
    manifest = manifest_of(folder)
    run = manifest.run.model_copy(update={"files": collected(folder, "node_0/a")})
    folder.save_manifest(manifest.model_copy(update={"run": run}))
    assert folder.load_manifest().run == run
    altered_manifest(folder, way, value)
    with pytest.raises(EvidenceError) as caught:
        folder.load_manifest()
    message = str(caught.value)
    assert message.startswith(f"{folder.path}/manifest.json: cannot be read: {way}: ")
    assert told in message
    assert len(message) < 300
    assert "\n" not in message


def test_a_manifest_that_is_closed(tmp_path: Path) -> None:
    folder = saved_run(tmp_path / "r1")
    (folder.path / "manifest.json").chmod(0o000)
    told = tell_without_root("RunFolder(Path(sys.argv[1])).load_manifest()", str(folder.path))
    assert told == f"EvidenceError {folder.path}/manifest.json: cannot be read: Permission denied"


def test_a_folder_without_one(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match=r"is no folder of a run \(manifest.json is missing\)"):
        RunFolder(tmp_path).load_manifest()


def test_a_folder_can_be_moved(tmp_path: Path) -> None:
    folder = saved_run(tmp_path / "r1")
    assert folder.relative(folder.node_log(2)) == "logs/node_2.log"
    folder.path.rename(tmp_path / "moved")
    assert open_run_folder(tmp_path / "moved").load_manifest().run.run_id == "r1"


@pytest.mark.parametrize("status", RunStatus)
def test_which_runs_have_not_ended(status: RunStatus) -> None:
    assert is_live(status) is (status in (RunStatus.PENDING, RunStatus.RUNNING))


# --- whole or not at all ----------------------------------------------------------------------------------


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_whole(file, "old")
    with file.open() as reader:
        write_whole(file, "new")
        assert reader.read() == "old\n"
    assert file.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "f"
    write_whole(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "new \udc80")
    assert file.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [file]


# --- collected files --------------------------------------------------------------------------------------


def collected(folder: RunFolder, *names: str) -> tuple[TraceFile, ...]:
    """Files among the traces, as the manifest would list them."""
    files = []
    for name in names:
        path = folder.traces / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        files.append(TraceFile(path=name, node_rank=0, size=len(name), sha256=digest(path)))
    return tuple(files)


def test_files_that_are_as_they_were_collected(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r1")
    files = collected(folder, "node_0/a", "node_1/b/c")
    assert folder.altered(files) == {}
    assert folder.unlisted(files) == []


def test_files_that_are_not(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r1")
    files = collected(
        folder, "node_0/gone", "node_0/grown", "node_0/same length", "node_0/fine", "node_0/folder"
    )
    (folder.traces / "node_0" / "gone").unlink()
    (folder.traces / "node_0" / "grown").write_text("something longer")
    (folder.traces / "node_0" / "same length").write_text("NODE_0/SAME LENGTH")
    (folder.traces / "node_0" / "folder").unlink()
    (folder.traces / "node_0" / "folder").mkdir()
    assert folder.altered(files) == {
        "node_0/gone": "was collected and is missing now",
        "node_0/grown": "was changed after it was collected",
        "node_0/same length": "was changed after it was collected",
        "node_0/folder": "was collected and is missing now",
    }


@pytest.mark.parametrize("at", ["node_0", "node_0/a"])
def test_files_that_are_closed(tmp_path: Path, at: str) -> None:
    folder = make_run_folder(tmp_path / "r1")
    [file] = collected(folder, "node_0/a")
    folder.save_manifest(manifest_of(folder))
    (folder.traces / at).chmod(0o000)
    words = "folder.altered(files), folder.unlisted(files), folder.result_is_newer(files[0])"
    told = tell_without_root(
        f"folder = RunFolder(Path(sys.argv[1])); files = (TraceFile.model_validate_json(sys.argv[2]),);"
        f" print({words})",
        str(folder.path),
        file.model_dump_json(),
    )
    (folder.traces / at).chmod(0o700)
    assert told == "{'node_0/a': 'cannot be read: Permission denied'} [] False"


def test_files_that_are_not_of_the_run(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "r1")
    files = collected(folder, "node_0/a")
    collected(folder, "node_0/b/stranger", "node_0/another")
    assert folder.unlisted(files) == ["node_0/another", "node_0/b/stranger"]


def test_digest(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    # FIPS 180-2, appendix B.1
    assert digest(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# --- where users look for them ----------------------------------------------------------------------------


def test_traces_are_linked_into_the_workload(tmp_path: Path) -> None:
    aorta = tmp_path / "aorta"
    aorta.mkdir()
    for name in ("r1", "r2"):
        folder = make_run_folder(tmp_path / name)
        folder.publish_traces(aorta)
        assert (aorta / "combined_traces").resolve() == folder.traces
    assert list(aorta.iterdir()) == [aorta / "combined_traces"]


def test_a_real_folder_of_that_name_is_kept(tmp_path: Path) -> None:
    aorta = tmp_path / "aorta"
    (aorta / "combined_traces" / "node_0").mkdir(parents=True)
    (aorta / "combined_traces" / "node_0" / "old").write_text("old")
    folder = make_run_folder(tmp_path / "r1")
    folder.publish_traces(aorta)
    assert (aorta / "combined_traces").is_symlink()
    assert (aorta / "combined_traces.before-r1" / "node_0" / "old").read_text() == "old"


def test_a_folder_where_the_link_to_the_newest_belongs(tmp_path: Path) -> None:
    (tmp_path / "s" / "latest").mkdir(parents=True)
    with pytest.raises(RunError, match=r"s/latest must be a link to the newest run and is not"):
        new_run_folder(tmp_path, "s")
    assert not list((tmp_path / "s").glob(".latest*"))
