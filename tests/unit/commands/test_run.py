"""`cvs run`: what it makes of its words; and `--dry-run`, which tells all and touches nothing."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PLANS, Command, Files, assert_refused, run_bash, run_cvs
from cvs.commands._words import OPTIONS
from cvs.launch import LaunchPlan, Site, plan_aorta

DOCKER = [f"--cluster_file={PLANS}/docker_ssh/cluster.json", f"--config_file={PLANS}/docker_ssh/aorta.yaml"]


@pytest.mark.parametrize(
    "words",
    [
        ["{options}", "test_aorta", "test_validate_runner_config"],
        ["-q", "test_aorta", "{options}", "-k", "runner_config"],
        ["test_aorta", "test_validate_runner_config", "{options}"],
    ],
    ids=["files first", "an option first", "suite first"],
)
def test_the_suite_may_stand_anywhere(words: list[str], files: Files, tmp_path: Path) -> None:
    given = [part for word in words for part in (files.options if word == "{options}" else [word])]
    done = run_cvs("run", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a suite: test_aorta"),
        (["--cluster_file", "c.json"], "name a suite: test_aorta"),
        (["test_aorte"], "no suite test_aorte; did you mean test_aorta?"),
        (["test_aorte::test_parse_results"], "no suite test_aorte; did you mean test_aorta?"),
        (["zzz", "--dry-run"], "no suite zzz; there are: test_aorta"),
    ],
)
def test_without_a_suite(words: list[str], message: str, command: Command) -> None:
    assert_refused(command("run", *words), 4, f"cvs: {message}\nusage: cvs run SUITE")


CASES = (
    "test_validate_runner_config, test_run_benchmark, test_parse_results, test_validate_thresholds,"
    " test_generate_report"
)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["test_aorta", "test_misspelt"], ["test_misspelt in test_aorta"]),
        (["-x", "test_aorta", "test_misspelt"], ["test_misspelt in test_aorta"]),
        (["-x", "test_misspelt", "test_aorta"], ["test_misspelt in test_aorta"]),
        (
            ["test_aorta", "test_parse_results", "test_parse_result"],
            ["test_parse_result in test_aorta (did you mean test_parse_results?)"],
        ),
        (
            ["test_aorta::test_parse_result"],
            ["test_parse_result in test_aorta (did you mean test_parse_results?)"],
        ),
        (
            ["test_aorta", "test_validate_threshold[a limit]", "test_x"],
            [
                "test_validate_threshold[a limit] in test_aorta (did you mean test_validate_thresholds?)",
                "test_x in test_aorta",
            ],
        ),
    ],
)
def test_a_misspelt_case(words: list[str], told: list[str], files: Files, tmp_path: Path) -> None:
    done = run_cvs("run", *words, *files.options, cwd=tmp_path)
    assert_refused(done, 4)
    lines = [line for line in done.stderr.splitlines() if line]
    assert lines == [f"ERROR: no case {what}; there are {CASES}" for what in told]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dryrun"], "unknown option --dryrun (did you mean --dry-run?)"),
        (["--runs-dri", "x"], "unknown option --runs-dri (did you mean --runs_dir?)"),
        (["--overrides=a=1"], "unknown option --overrides=a=1 (did you mean --training_overrides?)"),
        (
            ["--foo", "--runs-dri"],
            "unknown option --foo; unknown option --runs-dri (did you mean --runs_dir?)",
        ),
        (["--json"], "--json shows the plan of a dry run; give it with --dry-run"),
        (["--wait", "abc"], "--wait: 'abc' is no number of seconds from 0 to 2592000"),
        (["--wait=-1"], "--wait: '-1' is no number of seconds from 0 to 2592000"),
        (["--wait=nan"], "--wait: 'nan' is no number of seconds from 0 to 2592000"),
        (["--wait=1e300"], "--wait: '1e300' is no number of seconds from 0 to 2592000"),
        (["--runs_dir"], "--runs_dir/--runs-dir: expected one argument"),
    ],
)
def test_a_mistyped_option(words: list[str], told: str, files: Files, tmp_path: Path) -> None:
    done = run_cvs("run", "test_aorta", *files.options, *words, cwd=tmp_path)
    assert_refused(done, 4)
    assert done.stderr.split() == ["ERROR:", *told.split()]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--runs-dri", "x"], "unknown option --runs-dri (did you mean --runs_dir?)"),
        (["--wait", "abc"], "--wait: 'abc' is no number of seconds from 0 to 2592000"),
        (["--training_overrides"], "--training_overrides/--training-overrides: expected one argument"),
    ],
)
def test_a_mistyped_option_of_a_dry_run(words: list[str], told: str, command: Command, files: Files) -> None:
    done = command("run", "test_aorta", *files.options, "--dry-run", *words)
    assert_refused(done, 4, f"cvs: {told}\nusage: cvs run SUITE")


def test_every_option_of_cvs_is_known_where_one_is_mistyped(command: Command) -> None:
    told = re.findall(r"^  (?:-h, )?(--[\w-]+)", command("run", "--help").stdout, re.MULTILINE)
    assert set(told) - {"--help"} == set(OPTIONS)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    script = (
        f"import os; from cvs.cli import main; os.mkdir({str(gone)!r}); os.chdir({str(gone)!r});"
        f" os.rmdir({str(gone)!r}); raise SystemExit(main(['run', 'test_aorta', '--cluster_file', 'c.json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert_refused(done, 3, "the current folder: No such file or directory; change to one that is there\n")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_output(closed: str, files: Files, tmp_path: Path) -> None:
    words = f"run test_aorta {' '.join(files.options)} test_validate_runner_config --junitxml=j.xml"
    done = run_bash(f"cvs {words} {closed}", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert 'tests="1"' in (tmp_path / "j.xml").read_text()


@pytest.mark.parametrize("words", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "--cluster_file and --config_file are missing: the suite needs both files"),
        (["--cluster_file=c.json"], "--config_file is missing: the suite needs both files"),
        (["--config-file=a.yaml"], "--cluster_file is missing: the suite needs both files"),
    ],
)
def test_both_files_are_wanted(given: list[str], told: str, words: list[str], tmp_path: Path) -> None:
    done = run_cvs("run", "test_aorta", *given, *words, cwd=tmp_path)
    assert_refused(done, 4, told)
    assert done.stderr.strip().count("\n") == (1 if words else 0)  # the usage


@pytest.mark.parametrize("word", ["--collect-only", "--markers", "--help"])
def test_looking_around_needs_no_files(word: str, tmp_path: Path) -> None:
    done = run_cvs("run", "test_aorta", word, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "passed"),
    [
        (["--junitxml", "test_junit"], 1),
        (["--runs_dir", "test_runs"], 1),
        (["-k", "test_misspelt or runner_config"], 1),
        (["test_folder"], 2),
        (["test_mine.py"], 2),
        (["test_mine.py::test_mine"], 2),
        (["./test_folder/test_other.py::test_other[1]"], 2),
    ],
)
def test_what_is_no_case_but_a_path_or_a_value_is_left_to_pytest(
    words: list[str], passed: int, files: Files, tmp_path: Path
) -> None:
    (tmp_path / "test_folder").mkdir()
    (tmp_path / "test_mine.py").write_text("def test_mine(): pass\n")
    other = "import pytest\n@pytest.mark.parametrize('n', [1])\ndef test_other(n): pass\n"
    (tmp_path / "test_folder" / "test_other.py").write_text(other)
    done = run_cvs("run", "test_aorta", "test_validate_runner_config", *words, *files.options, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{passed} passed" in done.stdout


# --- the plan on paper ------------------------------------------------------------------------------------


def test_the_whole_plan(command: Command) -> None:
    done = command("run", "test_aorta", *DOCKER, "--dry-run")
    assert done.returncode == 0
    for text in (
        "2 nodes x 8 ranks = 16 ranks",
        "192.168.0.2, port 29500",
        "set-up and run 3600 s, join 120 s, grace 15 s",
        "collected    torch_profiler/**",
        "checked      evidence, min_overlap_ratio 0.5",
        "node-a: node rank 1",
        "reached      by SSH as alice@node-a:2222, key /home/alice/.ssh/id_ed25519",
        ", passphrase, via alice@login:22, known_hosts ",
        "/home/alice/aorta [on the node] at /mnt [in the container]",
        "/dev/kfd, /dev/dri; groups video, render",
        "must exist   below aorta_path: train.py, config/profile_overlap_2gpu.yaml, scripts/build_rccl.sh",
        "torchrun --nnodes=2 --node_rank=1 --nproc_per_node=8",
    ):
        assert text in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["OMP_NUM_THREADS=03", "[environment]"] in lines
    assert ["NCCL_IB_HCA=mlx5_2", "[multi_node.extra_env]"] in lines
    assert "s3cret" not in done.stdout + done.stderr


def test_what_takes_a_container_is_no_warning_where_there_is_one(command: Command) -> None:
    assert command("run", "test_aorta", *DOCKER, "--dry-run").stderr == ""


def test_what_processes_do_not_do_is_a_warning(command: Command, files: Files) -> None:
    files.edit("skip_rccl_build: true", "skip_rccl_build: false")
    files.edit("enable_tracelens: false", "enable_tracelens: true")
    assert command("run", "test_aorta", *files.options, "--dry-run").stderr.splitlines() == [
        "warning: analysis.enable_tracelens: true has no effect with runtime process: it takes a container",
        "warning: skip_rccl_build: false has no effect with runtime process: no RCCL is built",
    ]


def test_tracelens_without_gpus_is_a_warning_and_not_planned(command: Command, files: Files) -> None:
    files.edit("enable_tracelens: false", "host_tracelens: check")
    done = command("run", "test_aorta", *files.options, "--dry-run")
    assert done.stderr.splitlines() == [
        "warning: analysis.host_tracelens: check has no effect with accelerator none: it takes GPU events"
    ]
    assert "TraceLens" not in done.stdout
    files.edit("accelerator: none", "accelerator: rocm")
    done = command("run", "test_aorta", *files.options, "--dry-run")
    assert done.stderr == ""
    assert "TraceLens    check, by the Python that runs cvs [here], at most 1800 s" in done.stdout


def test_what_processes_do_not_do_by_default_is_none(command: Command, files: Files) -> None:
    files.edit("skip_rccl_build: true", "")
    files.edit("analysis:\n  enable_tracelens: false", "")
    assert command("run", "test_aorta", *files.options, "--dry-run").stderr == ""


def test_a_trainer_that_is_not_on_this_machine_is_a_warning(
    command: Command, files: Files, tmp_path: Path
) -> None:
    files.edit('"{cvs}/workloads/aorta"', f"{tmp_path}/aorta")
    folder = f"aorta_path {tmp_path}/aorta"
    done = command("run", "test_aorta", *files.options, "--dry-run")
    assert (done.returncode, done.stderr) == (0, f"warning: {folder}: no such folder on this machine\n")
    (tmp_path / "aorta").mkdir()
    missing = "train.py, config/distributed.yaml"
    done = command("run", "test_aorta", *files.options, "--dry-run")
    assert (done.returncode, done.stderr) == (0, f"warning: {missing}: not found below {folder}\n")


def test_a_trainer_that_is_yet_to_be_cloned_is_no_warning(
    command: Command, files: Files, tmp_path: Path
) -> None:
    cloned = f"{tmp_path}/aorta\naorta_auto_clone: true\naorta_clone_url: https://example.com/a.git"
    files.edit('"{cvs}/workloads/aorta"', cloned)
    done = command("run", "test_aorta", *files.options, "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
    assert "cloned from https://example.com/a.git if it is not there" in done.stdout


AS_TEXT_AND_JSON = pytest.mark.parametrize("words", [[], ["--json"]], ids=["text", "json"])


@AS_TEXT_AND_JSON
def test_nothing_is_started_or_written(words: list[str], files: Files, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = run_cvs("run", "test_aorta", *files.options, "--dry-run", *words, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "node-1" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_json_is_the_plan(command: Command, files: Files, tmp_path: Path) -> None:
    overrides = ["--training_overrides", "training.max_steps=3 'a.b=two words'"]
    done = command("run", "test_aorta", *files.options, "--dry_run", "--json", *overrides)
    plan = LaunchPlan.model_validate_json(done.stdout)
    cluster, bench = files.load()
    bench = bench.with_overrides({"training.max_steps": "3", "a.b": "two words"})
    nodes = f"{tmp_path}/cvs_runs/test_aorta/nodes"
    assert plan.head.torch_python is not None
    site = Site(nodes_dir=nodes, torch_python=plan.head.torch_python)
    assert json.loads(done.stdout) == json.loads(plan_aorta(cluster, bench, site).model_dump_json())


# --- how nodes are reached --------------------------------------------------------------------------------


def over_ssh(files: Files, text: str, **keys: object) -> list[str]:
    """A cluster of two nodes over SSH with an ssh configuration of its own, and the options that name it."""
    config = files.cluster_file.with_name("ssh_config")
    config.write_text(text)
    nodes = {name: {"vpc_ip": f"10.0.0.{number}"} for number, name in enumerate(("node-0", "node-1"))}
    cluster = {"username": "alice", "node_dict": nodes, "ssh_config": str(config), **keys}
    files.cluster_file.write_text(json.dumps(cluster))
    return ["run", "test_aorta", *files.options, "--dry-run"]


def test_the_way_to_each_node(command: Command, files: Files) -> None:
    """The server would take every connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        text = f"Host node-1\n  HostName 127.0.0.1\n  Port {port}\n  ProxyJump carol@localhost:{port}\n"
        dry = over_ssh(files, text, priv_key_file="/none", known_hosts="/known")
        done = command(*dry)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (done.returncode, done.stderr) == (0, "")
    here = f"known_hosts /known, strict, ssh config {files.cluster_file.parent}/ssh_config; files [here]"
    assert [line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if "  reached " in line] == [
        f"by SSH as alice@node-0:22, key /none (missing), {here}",
        f"by SSH as alice@127.0.0.1:{port}, key /none (missing), via carol@localhost:{port}, {here}",
    ]


def test_the_way_to_a_local_node(command: Command, files: Files) -> None:
    done = command("run", "test_aorta", *files.options, "--dry-run")
    assert done.stdout.count(f"  reached      on this machine, as {files.load()[0].username}\n") == 2


@AS_TEXT_AND_JSON
def test_a_key_that_others_can_read(words: list[str], command: Command, files: Files, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch(mode=0o644)
    done = command(*over_ssh(files, "", priv_key_file=str(key)), *words)
    assert done.returncode == 0
    assert done.stderr == f"warning: {key}: others can read this private key; chmod 600 {key}\n"


@AS_TEXT_AND_JSON
def test_a_way_that_cannot_be_told(
    words: list[str], command: Command, files: Files, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dry = over_ssh(files, "Host node-*\n  ProxyCommand nc %h %p\n")
    done = command(*dry, *words)
    assert_refused(done, 2, "node-0: the ssh configuration gives node-0 a ProxyCommand, which cvs cannot use")
    assert done.stderr.count("\n") == 1
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command(*dry, *words)
    assert_refused(done, 3, "ssh is missing, which reads the ssh configuration; install openssh-client")
    assert done.stderr.count("\n") == 1


# --- the words of a dry run -------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--runs_dir", "--runs-dir"])
def test_local_nodes_live_below_the_runs(option: str, command: Command, files: Files, tmp_path: Path) -> None:
    done = command("run", "test_aorta", *files.options, "--dry-run", "--json", option, "r")
    head = LaunchPlan.model_validate_json(done.stdout).head
    assert head.aorta_path == f"{tmp_path}/r/test_aorta/nodes/node-0/aorta"


def test_options_and_cases_of_pytest_do_not_matter(command: Command, files: Files) -> None:
    dry = ["run", "test_aorta", *files.options, "--dry-run"]
    pytests = ["-k", "validate", "--co", "-x", "--junitxml=j.xml", "test_parse_results"]
    plain, furnished = command(*dry), command(*dry, *pytests)
    assert (furnished.returncode, furnished.stdout) == (0, plain.stdout)


def test_every_mistake_of_both_files(command: Command, files: Files) -> None:
    files.edit("gpus_per_node: 2", "gpus_per_node: two")
    files.edit("runtime: process", "runtime: podman")
    files.cluster_file.write_text('{"username": "a", "transport": "ssh", "node_dict": {}}')
    assert_refused(
        command("run", "test_aorta", *files.options, "--dry-run"),
        2,
        f"{files.cluster_file}:1:39: node_dict: needs at least 1 entry",
        f"{files.config_file}:8:1: runtime: must be",
        f"{files.config_file}:10:1: gpus_per_node: `two`",
    )


def test_a_file_that_is_not_there(command: Command) -> None:
    files = ["--cluster_file=c.json", "--config_file=a.yaml"]
    done = command("run", "test_aorta", "--dry-run", *files)
    assert_refused(done, 2, "c.json: cannot be read: No such file")


def test_an_override_that_is_none(command: Command, files: Files) -> None:
    done = command("run", "test_aorta", *files.options, "--dry-run", "--training_overrides=steps")
    assert_refused(done, 2, "--training_overrides: 'steps' is not key=value")


ONE_NODE = '{"username": "me", "transport": "local", "node_dict": {"a": {"vpc_ip": "127.0.0.1"}}}'


def test_overrides_that_no_script_reads(command: Command, files: Files, tmp_path: Path) -> None:
    workload = tmp_path / "aorta"
    (workload / "scripts").mkdir(parents=True)
    (workload / "scripts" / "rccl_exp.sh").write_text("torchrun --standalone train.py\n")
    (workload / "config").mkdir()
    (workload / "config" / "distributed.yaml").touch()
    files.edit('"{cvs}/workloads/aorta"', str(workload))
    files.edit("master_launch_mode: torchrun", "master_launch_mode: auto")
    files.cluster_file.write_text(ONE_NODE)
    overrides = "--training_overrides=training.max_steps=3"
    done = command("run", "test_aorta", *files.options, "--dry-run", overrides)
    assert done.returncode == 0
    assert "warning: training_overrides have no effect: scripts/rccl_exp.sh does not read" in done.stderr
    assert "multi_node.master_launch_mode: torchrun" in done.stderr
    assert command("run", "test_aorta", *files.options, "--dry-run").stderr == ""


def test_the_bundled_script_reads_them(command: Command, files: Files) -> None:
    files.edit("master_launch_mode: torchrun", "master_launch_mode: script")
    files.cluster_file.write_text(ONE_NODE)
    overrides = "--training_overrides=training.max_steps=3"
    done = command("run", "test_aorta", *files.options, "--dry-run", overrides)
    assert (done.returncode, done.stderr) == (0, "")
    assert "AORTA_OVERRIDE_ARGS=--override training.max_steps=3" in done.stdout
