"""A file of the user as data, its scalars as written, and where each key stands in it.

JSON and YAML are read alike, whichever of the two files it is. Positions are looked up only when a message
needs them, so that a good file of 10,000 nodes costs nothing for them.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import yaml

from cvs.config.model import blanked
from cvs.config.problem import Key, Place, Problem
from cvs.config.scalars import UNSPEAKABLE, Digits, Plain, is_misread
from cvs.errors import ConfigError

_MAX_VALUES = 1_000_000
"""More than any cluster has; a YAML bomb unfolds to more."""
_MAX_DEPTH = 100
_TOO_DEEP = f"is nested more than {_MAX_DEPTH} levels deep; no key is"


class Document:
    """One file, read."""

    def __init__(
        self, file: Path, data: dict[str, Any], locate: Callable[[], Iterator[tuple[Key, Place]]]
    ) -> None:
        self.file = file
        self.data = data
        self.problems: list[Problem] = []
        """What is wrong with the text itself, such as a key that is given twice."""
        self._locate = locate

    @cached_property
    def _places(self) -> dict[Key, Place]:
        places: dict[Key, Place] = {}
        for key, place in self._locate():
            places.setdefault(key, place)
        return places

    def place(self, key: Key) -> Place:
        """Where `key` stands, or the nearest thing around it that is in the file."""
        while key and key not in self._places:
            key = key[:-1]
        return self._places.get(key, (1, 1))

    def is_given(self, key: Key) -> bool:
        """Whether the file itself says something under `key`."""
        return key in self._places

    def order(self, problem: Problem) -> Place:
        """Where in the file a problem comes."""
        return problem.given_at or self.place(problem.key)

    def line(self, problem: Problem) -> str:
        """The problem as a message: `file:line:column: key: what was found, what is expected`."""
        line, column = self.order(problem)
        return f"{self.file}:{line}:{column}: {problem}"


def read_document(file: Path) -> Document:
    """Read a JSON or YAML file whose top level is a mapping.

    Raises: ConfigError: it cannot be read, or is neither.
    """
    text = _text_of(file)
    if not text.strip():
        raise ConfigError([f"{file}: is empty; a mapping of keys is expected"])
    source = _Source(file, text)
    if text.lstrip()[0] in "{[":
        if file.suffix == ".json":
            return _json_document(source)
        try:
            return _json_document(source)
        except ConfigError:
            pass  # flow style YAML looks alike
    return _yaml_document(source)


def _text_of(file: Path) -> str:
    if UNSPEAKABLE.search(str(file)):
        raise ConfigError([f"{file}: this path is not UTF-8 text, so no record can name it; rename it"])
    try:
        if file.exists() and not file.is_file() and not file.is_dir():  # reading it might never end
            raise ConfigError([f"{file}: is a pipe or a device; write what it gives to a file"])
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text (byte {error.start})"]) from None


_LINE_END = re.compile(r"\r\n|\n|\r")
"""Of editors; YAML knows further ones, which would number the lines otherwise than they are shown."""


class _Source:
    """The text of a file, and at which line and column its characters stand."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.text = text

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *(found.end() for found in _LINE_END.finditer(self.text))]

    def place(self, offset: int) -> Place:
        """Line and column of a character."""
        line = bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def refuse(self, offset: int, message: str) -> NoReturn:
        """Raise a syntax error, shown with its line and a caret."""
        line, column = self.place(offset)
        shown = _LINE_END.split(blanked(self.text)[self._starts[line - 1] :], maxsplit=1)[0]
        # A long line is shown around the place; what is no character to see takes one column.
        start = max(column - 60, 0)
        excerpt = "".join(char if char.isprintable() else " " for char in shown[start : start + 100])
        caret = " " * (column - 1 - start) + "^"
        told = f"{self.file}:{line}:{column}: syntax: {message}\n    {excerpt}\n    {caret}"
        raise ConfigError([told]) from None


def _mapping(file: Path, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise ConfigError([f"{file}: holds {kind}; a mapping of keys is expected"])
    return data


# --- JSON -------------------------------------------------------------------------------------------------


class _NoNumberError(Exception):
    """`NaN` or `Infinity`, which Python's reader would take."""


def _json_document(source: _Source) -> Document:
    file, text = source.file, source.text
    doubled = False

    def mapping_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal doubled
        mapping = dict(pairs)
        doubled |= len(mapping) < len(pairs)
        return mapping

    def refuse(word: str) -> NoReturn:
        raise _NoNumberError(word)

    try:
        data = json.loads(
            text, object_pairs_hook=mapping_of, parse_int=Digits, parse_float=Digits, parse_constant=refuse
        )
    except json.JSONDecodeError as error:
        source.refuse(error.pos, _json_message(error, text))
    except _NoNumberError as error:
        offset = next(token.start() for token in _TOKEN.finditer(text) if token[0] == str(error))
        source.refuse(offset, f"{error} is no number in JSON")
    except RecursionError:
        raise ConfigError([f"{file}: {_TOO_DEEP}"]) from None
    if _is_too_deep(data):
        raise ConfigError([f"{file}: {_TOO_DEEP}"])
    document = Document(file, _mapping(file, data), lambda: _json_places(source))
    if doubled:
        document.problems += _given_twice(_json_places(source))
    return document


def _is_too_deep(data: Any) -> bool:
    level = [data]
    for _ in range(_MAX_DEPTH + 1):
        mappings = [item.values() for item in level if isinstance(item, dict)]
        lists = [item for item in level if isinstance(item, list)]
        level = [item for items in (*mappings, *lists) for item in items]
    return bool(level)


_JSON_HINTS = (
    (re.compile(r"//|/\*|#"), "JSON has no comments"),
    (re.compile(r"'"), "single quotes; JSON knows double ones only"),
    (re.compile(r"\t"), "a tab inside a text is written \\t"),
    (re.compile(r"[\r\n]"), "a text ends in the line in which it begins; a line end inside is written \\n"),
    (re.compile(r"(?<=\d)[\w.]|[.+]"), "no number as JSON writes it; text stands in double quotes"),
    (re.compile(r'(?<!")([^\W\d]|[/~<$])'), "a word without quotes; only true, false and null need none"),
    (re.compile(r"\Z"), "the file ends too early"),
)
"""What stands at the place of the error, and what to do about it."""


def _json_message(error: json.JSONDecodeError, text: str) -> str:
    if text[: error.pos].rstrip().endswith(",") and text[error.pos : error.pos + 1] in ("}", "]"):
        return "a comma before a closing bracket"
    message = re.sub("( starting)? at$", "", error.msg[0].lower() + error.msg[1:])
    hints = [hint for start, hint in _JSON_HINTS if start.match(text, error.pos)]
    return ": ".join([message, *hints[:1]])


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def _json_places(source: _Source) -> Iterator[tuple[Key, Place]]:
    """Every key and every list item with its place, in order; the text is known to be JSON."""
    way: list[str | int] = []  # innermost last
    for token in _TOKEN.finditer(source.text):
        word, place = token[0], source.place(token.start())
        if word in ("}", "]"):
            way.pop()
        elif word == ",":
            way[-1] = way[-1] + 1 if isinstance(way[-1], int) else _NEXT_KEY
        elif word != ":":
            if way and way[-1] == _NEXT_KEY:
                way[-1] = json.loads(word)
                yield tuple(way), place
            elif way and isinstance(way[-1], int):
                yield tuple(way), place
            if word in ("{", "["):
                way.append(_NEXT_KEY if word == "{" else 0)


_NEXT_KEY = "\0next"
"""Stands in a way for the key that comes next; no key of a file that is accepted."""


def _given_twice(places: Iterable[tuple[Key, Place]]) -> Iterator[Problem]:
    seen: dict[Key, Place] = {}
    for key, place in places:
        if key in seen:
            yield Problem(key, f"is given twice, first in line {seen[key][0]}", place)
            seen = {known: at for known, at in seen.items() if known[: len(key)] != key}
        seen[key] = place


# --- YAML -------------------------------------------------------------------------------------------------

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset(
    _TAG + kind for kind in ("str", "null", "bool", "int", "float", "timestamp", "value", "merge")
)
_MERGE = _TAG + "merge"
_BARE_PLACEHOLDER = re.compile(r"\{[\w-]+\}\s*\Z")


def _yaml_document(source: _Source) -> Document:
    file, text = source.file, source.text
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(filter(None, (error.context, error.problem)))
        offset = mark.index if mark else 0
        if _BARE_PLACEHOLDER.search(text[:offset]):
            message += "; a value that begins with a placeholder stands in quotes"
        source.refuse(offset, message)
    except yaml.YAMLError as error:
        raise ConfigError([f"{file}: syntax: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise ConfigError([f"{file}: {_TOO_DEEP}"]) from None
    if root is None:
        raise ConfigError([f"{file}: holds comments only; a mapping of keys is expected"])
    tree = _YamlTree(source)
    data = tree.value(root, ())
    document = Document(file, _mapping(file, data), lambda: tree.places(root, ()))
    document.problems += tree.problems
    if tree.doubled:
        document.problems += _given_twice(tree.places(root, ()))
    return document


class _YamlTree:
    """Nodes as data, scalars as written; and where each of them stands."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.doubled = False
        self.problems: list[Problem] = []
        self._values = 0
        self._known: dict[int, list[tuple[Any, Any]]] = {}

    def value(self, node: Any, way: Key) -> Any:
        """Data of `node`, which stands at `way`."""
        self._values += 1
        if self._values > _MAX_VALUES:
            self._refuse(node, "unfolds to more than any file needs (an alias of aliases?)")
        if len(way) > _MAX_DEPTH:
            self._refuse(node, _TOO_DEEP)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, way)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*way, index)) for index, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: Any, way: Key) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in self._entries(node):
            key = self._scalar(key_node)
            if is_misread(key):
                text = f"the key `{key}` is not read as text; write it in quotes"
                self.problems.append(Problem((*way, str(key)), text, self._place(key_node)))
            self.doubled |= str(key) in mapping
            mapping[str(key)] = self.value(value_node, (*way, str(key)))
        return mapping

    def _scalar(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(node, "a key is a text")
        if node.tag not in _PLAIN_TAGS:
            self._refuse(node, "a tag (a word that begins with !) has no meaning here; quotes make it text")
        return str(node.value) if node.style else Plain(node.value)

    def _refuse(self, node: Any, message: str) -> NoReturn:
        self.source.refuse(node.start_mark.index, message)

    def _place(self, node: Any) -> Place:
        return self.source.place(node.start_mark.index)

    def _entries(self, node: Any) -> list[tuple[Any, Any]]:
        """Keys and values of a mapping; those merged into it come last, where it has none of its own."""
        if id(node) in self._known:
            return self._known[id(node)]
        own = [(key, value) for key, value in node.value if key.tag != _MERGE]
        self._known[id(node)] = own  # also what a mapping that merges itself gets
        names = {str(key.value) for key, _ in own}
        merged = []
        for source in self._merged(node):
            for key, value in self._entries(source):
                if str(key.value) not in names:
                    names.add(str(key.value))
                    merged.append((key, value))
        self._known[id(node)] = [*own, *merged]
        return self._known[id(node)]

    def _merged(self, node: Any) -> list[Any]:
        sources: list[Any] = []
        for key, value in node.value:
            if key.tag == _MERGE:
                sources += value.value if isinstance(value, yaml.SequenceNode) else [value]
        for source in sources:
            if not isinstance(source, yaml.MappingNode):
                self._refuse(source, "only a mapping can be merged (<<)")
        return sources

    def places(self, node: Any, way: Key) -> Iterator[tuple[Key, Place]]:
        """Every key and every list item below `node` with its place."""
        if isinstance(node, yaml.MappingNode):
            for key_node, value in self._entries(node):
                key = (*way, str(key_node.value))
                yield key, self._place(key_node)
                yield from self.places(value, key)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield (*way, index), self._place(item)
                yield from self.places(item, (*way, index))
