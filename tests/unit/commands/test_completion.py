"""`cvs completion`: scripts that shells accept, and what they complete in a real bash."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import Command, run_bash

COMPLETE = """
source completion.bash
[[ $(complete -p cvs) == *' -F _shtab_cvs cvs' ]]
COMP_WORDS=({line}); COMP_CWORD=$(({count} - 1))
_shtab_cvs
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
"""What bash does when the user presses Tab behind the last word."""


@pytest.fixture
def script(command: Command, tmp_path: Path) -> Path:
    path = tmp_path / "completion.bash"
    path.write_text(command("completion", "bash").stdout)
    return path


def test_bash_accepts_the_script(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], capture_output=True, check=False).stderr == b""


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("cvs ru", "run"),
        ("cvs c", "check-config cleanup copy-config completion"),
        ("cvs run te", "test_aorta"),
        ("cvs run test_aorta --clu", "--cluster_file --cluster-file"),
        ("cvs run test_aorta --dry", "--dry-run --dry_run"),
        ("cvs run test_aorta --cluster_file mi", "mine.json"),
        ("cvs check-config --config_file mi", "mine.json"),
        ("cvs exec --cluster_file mi", "mine.json"),
        ("cvs exec --no", "--nodes"),
        ("cvs pa", "parse"),
        ("cvs parse mi", "mine.json"),
        ("cvs parse mine.json mi", "mine.json"),
        ("cvs parse mine.json --acc", "--accelerator"),
        ("cvs generate cl", "cluster_json"),
        ("cvs generate cluster_json --ho", "--hosts"),
        ("cvs copy-config --f", "--force"),
        ("cvs schema cl", "cluster"),
        ("cvs zz", ""),
    ],
)
def test_tab_in_bash(line: str, words: str, script: Path) -> None:
    (script.parent / "mine.json").touch()
    done = run_bash(COMPLETE.format(line=line, count=len(line.split())), script.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == sorted(words.split())


@pytest.mark.parametrize("shell", ["zsh", "tcsh"])
def test_scripts_for_other_shells(shell: str, command: Command) -> None:
    done = command("completion", shell)
    assert done.returncode == 0
    for word in ("check-config", "cluster_json", "test_aorta"):
        assert word in done.stdout
