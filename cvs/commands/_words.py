"""Refuses words of `cvs run` that mean nothing; as a plugin, for pytest knows whose value a word is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

OPTIONS = (
    *("--cluster_file", "--config_file", "--runs_dir", "--run_dir", "--training_overrides", "--wait"),
    *("--no_preflight", "--dry-run", "--json"),
)
"""Of cvs itself, each in one spelling."""
_LOOKING = ("help", "version", "collectonly", "showfixtures", "show_fixtures_per_test", "markers")
"""Options of pytest that run nothing."""
_ERROR = re.compile(r"error: (?:argument )?(?P<what>.*)")
_UNKNOWN = "unrecognized arguments: "


class Words:
    """The words of one call."""

    def __init__(self, module: Path, known: Sequence[str]) -> None:
        """Take the suite's module and the names of its cases."""
        self._module = module
        self._known = known

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_parse(self) -> Generator[None, object, object]:
        """Leave of what pytest says about an option what is of use."""
        try:
            return (yield)
        except pytest.UsageError as error:
            found = _ERROR.search(str(error))
            if found is None:
                raise
            what = found["what"]
        if not what.startswith(_UNKNOWN):
            raise pytest.UsageError(what)
        raise pytest.UsageError("; ".join(_unknown(what.removeprefix(_UNKNOWN).split())) or what)

    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Look at what is to be run, before anything is."""
        names = [word.removeprefix(f"{self._module}::") for word in config.args]
        misspelt = [name for name in names if self._looks_like_a_case(name) and not Path(name).exists()]
        if misspelt:
            raise pytest.UsageError(*map(self._told, misspelt))
        absent = missing_files(config.getoption("cluster_file"), config.getoption("config_file"))
        if absent and not any(getattr(config.option, name, False) for name in _LOOKING):
            raise pytest.UsageError(absent)

    def _looks_like_a_case(self, name: str) -> bool:
        function = function_of(name)
        return re.fullmatch(r"test_\w*", function) is not None and function not in self._known

    def _told(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._known, n=1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        return f"no case {name} in {self._module.stem}{hint}; there are {', '.join(self._known)}"


def function_of(case: str) -> str:
    """The case without its parameter."""
    return case.partition("[")[0]


def missing_files(cluster: str | None, config: str | None) -> str | None:
    """What to tell where a file was not named."""
    files = {"--cluster_file": cluster, "--config_file": config}
    absent = [option for option, file in files.items() if file is None]
    if not absent:
        return None
    return f"{' and '.join(absent)} {'are' if absent[1:] else 'is'} missing: the suite needs both files"


def nearest_option(word: str, cutoff: float) -> str | None:
    """The option of cvs that a word is perhaps meant for."""
    names = {_plain(option): option for option in OPTIONS}
    near = difflib.get_close_matches(_plain(word.partition("=")[0]), names, n=1, cutoff=cutoff)
    return names[near[0]] if near else None


def _plain(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _unknown(words: list[str]) -> Iterator[str]:
    for word in words:
        if word == "--json":
            yield "--json shows the plan of a dry run; give it with --dry-run"
        elif word.startswith("-"):
            near = nearest_option(word, cutoff=0.6)
            yield f"unknown option {word}" + (f" (did you mean {near}?)" if near else "")
