"""`cvs copy-config`: sample files into the user's folder."""

from __future__ import annotations

import argparse
import difflib
import shutil
from pathlib import Path

from cvs.commands.suites import PACKAGE

INPUT = PACKAGE / "input"
_SCHEMA_SUFFIX = ".schema.json"


def samples() -> dict[str, Path]:
    """The sample files by their path below `input/`."""
    files = (path for path in sorted(INPUT.rglob("*")) if path.is_file())
    return {
        path.relative_to(INPUT).as_posix(): path for path in files if not path.name.endswith(_SCHEMA_SUFFIX)
    }


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare `cvs copy-config`."""
    parser = commands.add_parser(
        "copy-config",
        help="copy sample files into your folder",
        description="Copy a sample file, or all of them, into your folder, with the schema that lets an"
        " editor check what you write. A file that is there already is kept, unless --force is given.",
        epilog="example:\n  cvs copy-config --list\n  cvs copy-config aorta_benchmark.yaml --output mine\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a sample; see --list")
    parser.add_argument("--list", action="store_true", help="show the names")
    parser.add_argument("--all", action="store_true", help="every sample, in its folders")
    parser.add_argument(
        "--output", metavar="PATH", default=".", help="folder, or file for one sample (default: here)"
    )
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    parser.set_defaults(handler=_copy)


def _copy(arguments: argparse.Namespace) -> int:
    from cvs.errors import ConfigError

    if arguments.list:
        print(*samples(), sep="\n")
        return 0
    if bool(arguments.name) == arguments.all:
        raise ConfigError(["name one sample, or say --all; --list shows what there is"])
    output = Path(arguments.output)
    if arguments.all:
        wanted = {output / name: source for name, source in samples().items()}
    else:
        source = _sample(arguments.name)
        wanted = {output if output.suffix in (".json", ".yaml", ".yml") else output / source.name: source}
    there = [str(target) for target in wanted if target.exists()]
    if there and not arguments.force:
        raise ConfigError([f"{target}: is there already; --force replaces it" for target in there])
    for target, source in wanted.items():
        _place(source, target)
        print(target)
    return 0


def _sample(name: str) -> Path:
    from cvs.errors import ConfigError

    found = [path for key, path in samples().items() if name in (key, path.name)]
    if len(found) == 1:
        return found[0]
    names = [part for key, path in samples().items() for part in (key, path.name)]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "--list shows what there is"
    raise ConfigError([f"no sample {name}; {hint}"])


def _place(source: Path, target: Path) -> None:
    """Copy a sample, and beside it the schema that its first lines name."""
    from cvs.errors import EnvironmentFault

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        for schema in source.parent.glob(f"*{_SCHEMA_SUFFIX}"):
            shutil.copyfile(schema, target.parent / schema.name)
    except OSError as error:
        raise EnvironmentFault(f"{target}: cannot be written: {error.strerror}") from None
