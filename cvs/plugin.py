"""cvs under pytest: options, and fixtures over `cvs.pipeline`. Does nothing in runs without a cluster file.

A suite is a test module with a `BENCHMARK`; its cases take the fixture `suite` and, for one case per limit,
`limit`.
"""

from __future__ import annotations

import argparse
import shlex
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from cvs.config import AortaConfig, ClusterConfig
from cvs.config.scalars import MOST_SECONDS
from cvs.errors import ConfigError, CvsError, EvidenceError
from cvs.launch import plan_tracelens
from cvs.models import BenchmarkResult, ParseOptions, RunResult, Violation
from cvs.pipeline import (
    Parser,
    consult_tracelens,
    differences,
    measure,
    parse_options,
    result_of,
    write_report,
)
from cvs.reports.table import text_report
from cvs.run_folder import Manifest, RunFolder, new_run_folder, newest_run_folder, open_run_folder
from cvs.runners._base_runner import BaseRunner
from cvs.runners._interrupts import ignore_from_here
from cvs.terminal import printable, printable_lines
from cvs.thresholds import EVIDENCE, check_evidence, check_limit

DEFAULT_RUNS_DIR = "cvs_runs"


class CvsWarning(UserWarning):
    """Something in the user's files that works, but perhaps not as meant."""


@dataclass(frozen=True)
class Benchmark:
    """What a suite is about: how its two files are loaded, who runs it, who parses what it leaves."""

    suite: str
    load_files: Callable[[Path, Path], tuple[ClusterConfig, AortaConfig]]
    runner: type[BaseRunner]
    parser: Callable[[ParseOptions, Callable[[str], None]], Parser]


class Suite:
    """One suite within one pytest call: loads, runs and measures once, when a case first asks for it."""

    def __init__(self, benchmark: Benchmark, config: pytest.Config) -> None:
        self.benchmark = benchmark
        self._config = config
        self._ran = False
        self._own_run: RunFolder | None = None
        self._refused: str | None = None
        self._measured: BenchmarkResult | None = None
        self._reported: Path | None = None

    # --- the two files ---

    @cached_property
    def _files(self) -> tuple[ClusterConfig, AortaConfig]:
        cluster, bench = self.benchmark.load_files(self._file("cluster_file"), self._file("config_file"))
        return cluster, bench.with_overrides(parse_overrides(self._config.getoption("training_overrides")))

    @property
    def cluster(self) -> ClusterConfig:
        """The cluster file. Raises: ConfigError."""
        return self._files[0]

    @property
    def config(self) -> AortaConfig:
        """The benchmark file, with what the command line overrides. Raises: ConfigError."""
        return self._files[1]

    def _file(self, option: str) -> Path:
        value = self._config.getoption(option)
        if value is None:
            raise ConfigError([f"--{option} is missing: name the file that this suite is to use"])
        return Path(self._config.invocation_params.dir, value)

    def runner(self) -> BaseRunner:
        """A runner for the two files."""
        files = (str(self._file("cluster_file")), str(self._file("config_file")))
        return self.benchmark.runner(self.cluster, self.config, files=files)

    # --- the run ---

    def run(self) -> RunResult:
        """Run the benchmark in a new folder; its output is seen at once, whatever pytest captures."""
        self._ran = True
        self._measured = None
        self.__dict__.pop("folder", None)
        runner = self.runner()
        folder = new_run_folder(self._runs_dir, self.benchmark.suite)
        with self._uncaptured():
            try:
                return self._execute(runner, folder)
            except KeyboardInterrupt:
                try:
                    self._report_interrupted()
                finally:
                    ignore_from_here()
                raise

    def _execute(self, runner: BaseRunner, folder: RunFolder) -> RunResult:
        try:
            option = self._config.getoption
            return runner.execute(folder, wait=option("wait"), preflight=not option("no_preflight"))
        finally:
            # A run that was refused leaves none.
            self._own_run = folder if folder.is_recorded else None

    def _report_interrupted(self) -> None:
        """Report what a run left that the user broke off, where it had begun and collects traces at all."""
        with suppress(EvidenceError):
            self._measured = measure(self.folder, self._parser)
            print(f"cvs | interrupted, and stopped on all nodes; report: {self.report()}", flush=True)

    @contextmanager
    def _uncaptured(self) -> Iterator[None]:
        capture = self._config.pluginmanager.get_plugin("capturemanager")
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        with capture.global_and_fixture_disabled() if capture else nullcontext():
            if terminal is not None:
                terminal.ensure_newline()
            yield

    @property
    def _runs_dir(self) -> Path:
        return Path(self._config.invocation_params.dir, self._config.getoption("runs_dir"))

    @cached_property
    def folder(self) -> RunFolder:
        """This call's run, else `--run_dir`, else the newest that was made with these files.

        Raises: EvidenceError: there is none.
        """
        if self._ran:
            if self._own_run is None:
                raise EvidenceError("this call's run could not be started: see test_run_benchmark")
            return self._own_run
        named = self._config.getoption("run_dir")
        if named is not None:
            return open_run_folder(Path(self._config.invocation_params.dir, named))
        return self._newest()

    def _newest(self) -> RunFolder:
        if self._refused:
            raise EvidenceError(self._refused)
        folder = newest_run_folder(self._runs_dir, self.benchmark.suite)
        manifest = folder.load_manifest()
        changed = differences(manifest, self.cluster, self.config)
        if changed:
            # The first case tells all of it, each further one that there is nothing to judge.
            self._refused = f"nothing to judge: the newest run {folder.run_id} was not made with these files"
            raise EvidenceError(self._changed_since(folder, manifest, changed))
        return folder

    def _changed_since(self, folder: RunFolder, manifest: Manifest, changed: list[str]) -> str:
        then = (manifest.cluster_file, manifest.config_file)
        now = (str(self._file("cluster_file")), str(self._file("config_file")))
        same = "  made with the same files, with other values:"
        other = f"  made with {then[0]} and {then[1]},\n  now given {now[0]} and {now[1]}; they differ in"
        overridden = any(line.startswith("training_overrides") for line in changed)
        cures = ["give the --training_overrides of that run"] if overridden else []
        cures += ["run the benchmark again", "or name a run with --run_dir"]
        return "\n".join(
            [
                f"the newest run {folder.path} was not made with these files as they are now:",
                same if then == now else other,
                *(f"    {line}" for line in changed),
                f"To judge it: {', '.join(cures)}",
            ]
        )

    # --- its numbers ---

    def measure(self) -> BenchmarkResult:
        """Parse the run's traces, and keep the metrics."""
        self._measured = self._consulted(measure(self.folder, self._parser))
        return self._measured

    @property
    def result(self) -> BenchmarkResult:
        """The run's metrics; its traces are parsed where none are saved."""
        if self._measured is None:
            self._measured = self._consulted(result_of(self.folder, self._parser))
        return self._measured

    @property
    def _parser(self) -> Parser:
        return self.benchmark.parser(parse_options(self.config), self._tell)

    def _tell(self, line: str) -> None:
        """Say at once what is going on, whatever pytest captures."""
        with self._uncaptured():
            print(f"cvs | {line}", flush=True)

    def _consulted(self, result: BenchmarkResult) -> BenchmarkResult:
        """The metrics, with what TraceLens made of the same traces where the file asks for it."""
        plan = plan_tracelens(self.config)
        if plan and not result.tracelens:
            self._tell(f"TraceLens works on the traces ({plan.mode}, at most {plan.seconds:g} s)")
        return consult_tracelens(self.folder, result, plan)

    def violations(self, limit: str) -> list[Violation]:
        """What speaks against the run in one respect: `evidence`, or the name of a limit that is set."""
        if limit == EVIDENCE:
            return check_evidence(self.result)
        bound = self.config.expected_results.limits()[limit]
        missed = check_limit(self.result, limit, bound)
        return [missed] if missed else []

    def report(self) -> Path:
        """Write the report; its path."""
        self._reported = write_report(self.folder, self.result, self.config.expected_results)
        return self._reported

    def summary(self, *, width: int, color: bool) -> str | None:
        """The report for people; None where this call measured nothing."""
        if self._measured is None:
            return None
        try:
            text = text_report(self._measured, self.config.expected_results, width=width, color=color)
        except ConfigError:
            return None  # told by the cases already
        where = f"report: {self._reported}" if self._reported else f"run folder: {self.folder.path}"
        return f"{text}{where}\n"


def parse_overrides(text: str) -> dict[str, str]:
    """What `--training_overrides` says.

    Raises: ConfigError: a word that is no `key=value`, or a quote without its end.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        message = f"--training_overrides: {str(error).lower()} (words are split as in a shell)"
        raise ConfigError([message]) from None
    pairs = [word.partition("=") for word in words]
    wrong = [key for key, equals, _ in pairs if not equals or not key]
    if wrong:
        raise ConfigError([f"--training_overrides: {word!r} is not key=value" for word in wrong])
    return {key: value for key, _, value in pairs}


def seconds_to_wait(text: str) -> float:
    """What `--wait` says."""
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) <= MOST_SECONDS:
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0 to {MOST_SECONDS}")


# --- pytest's hooks and fixtures ---------------------------------------------------------------------------

_SUITES = pytest.StashKey[dict[str, Suite]]()
_TOLD = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of all suites; the hyphen spelling of each is an alias."""
    group = parser.getgroup("cvs", "cvs, the cluster validation suite")
    group.addoption("--cluster_file", "--cluster-file", metavar="FILE", help="cluster.json: the machines")
    # pytest has a --config-file of its own; `cvs run` takes that spelling, too.
    group.addoption("--config_file", metavar="FILE", help="the benchmark's YAML file: the job and its limits")
    group.addoption(
        "--runs_dir",
        "--runs-dir",
        metavar="DIR",
        default=DEFAULT_RUNS_DIR,
        help="where runs are kept (default: %(default)s)",
    )
    group.addoption(
        "--run_dir", "--run-dir", metavar="DIR", help="judge this earlier run instead of the newest"
    )
    group.addoption(
        "--training_overrides",
        "--training-overrides",
        metavar="'KEY=VALUE …'",
        default="",
        help="for the trainer, over the benchmark file's training_overrides",
    )
    group.addoption(
        "--wait",
        metavar="SECONDS",
        type=seconds_to_wait,
        default=0,
        help="how long to wait for nodes that another run holds (default: refuse at once)",
    )
    group.addoption(
        "--no_preflight",
        "--no-preflight",
        action="store_true",
        help="start the job without a look at what the nodes have and reach (cvs doctor)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make room for this call's suites."""
    config.stash[_SUITES] = {}
    config.stash[_TOLD] = []


def _suite_of(module: Any, config: pytest.Config) -> Suite:
    benchmark: Benchmark = module.BENCHMARK
    return config.stash[_SUITES].setdefault(module.__name__, Suite(benchmark, config))


@pytest.fixture
def suite(request: pytest.FixtureRequest) -> Suite:
    """The suite of the module that asks, shared by its cases."""
    return _suite_of(request.module, request.config)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[[str, object], None]:
    """Keeps a number as a property of the case, for `--junitxml`."""
    properties = request.node.user_properties
    return lambda name, value: properties.append((name, value))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One case per limit that is set, and always the one about the evidence."""
    if "limit" not in metafunc.fixturenames or not hasattr(metafunc.module, "BENCHMARK"):
        return
    try:
        limits = list(_suite_of(metafunc.module, metafunc.config).config.expected_results.limits())
    except ConfigError:
        limits = []  # test_validate_runner_config tells why, and so does the case about the evidence
    metafunc.parametrize("limit", [EVIDENCE, *limits])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Turn an error that is meant for the user into a failure without a traceback."""
    try:
        return (yield)
    except CvsError as error:
        message = printable_lines(str(error))
    # Outside the handler, where it would be shown as a second error during the first.
    pytest.fail(message, pytrace=False)


def pytest_cmdline_main(config: pytest.Config) -> None:
    """Keep the cases of a suite in one process under pytest-xdist: they share what is on disk.

    However the tests were to be spread: also `each` would have every process run the benchmark.
    """
    if config.getoption("cluster_file") and config.getoption("dist", "no") != "no":
        config.option.dist = "loadfile"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand this process's summaries to the one that has the terminal."""
    config = session.config
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    width = terminal._tw.fullwidth if terminal else 110
    color = bool(terminal and terminal.hasmarkup)
    for suite in config.stash[_SUITES].values():
        told = suite.summary(width=max(width, 100), color=color)
        if told:
            config.stash[_TOLD].append(told)
    if hasattr(config, "workeroutput"):
        config.workeroutput["cvs"] = config.stash[_TOLD]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take a worker's summaries (pytest-xdist)."""
    node.config.stash[_TOLD].extend(getattr(node, "workeroutput", {}).get("cvs", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show every suite's table, verdict and report."""
    for told in config.stash[_TOLD]:
        terminalreporter.section("cvs")
        terminalreporter.write(told)


def warn(messages: list[str]) -> None:
    """Have pytest show what is no error."""
    for message in messages:
        warnings.warn(CvsWarning(printable(message)), stacklevel=2)
