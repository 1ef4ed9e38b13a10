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

from cvs.config.problem import Key, Place, Problem
from cvs.config.scalars import Digits, Plain, is_misread
from cvs.errors import ConfigError

_MAX_VALUES = 1_000_000
"""More than any cluster has; a YAML bomb unfolds to more."""


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
    if text.lstrip()[0] in "{[":
        if file.suffix == ".json":
            return _json_document(file, text)
        try:
            return _json_document(file, text)
        except ConfigError:
            pass  # flow style YAML looks alike
    return _yaml_document(file, text)


def _text_of(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError([f"{file}: cannot be read: {error.strerror or error}"]) from None
    except UnicodeDecodeError as error:
        raise ConfigError([f"{file}: is not UTF-8 text (byte {error.start})"]) from None


def _syntax_error(file: Path, text: str, place: Place, message: str) -> NoReturn:
    line, column = place
    lines = text.splitlines()
    shown = lines[line - 1] if line <= len(lines) else ""
    # A long line is shown around the place; a tab takes one column, as it does in `column`.
    start = max(column - 60, 0)
    excerpt = shown[start : start + 100].replace("\t", " ")
    caret = " " * (column - 1 - start) + "^"
    raise ConfigError([f"{file}:{line}:{column}: syntax: {message}\n    {excerpt}\n    {caret}"]) from None


def _mapping(file: Path, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise ConfigError([f"{file}: holds {kind}; a mapping of keys is expected"])
    return data


# --- JSON -------------------------------------------------------------------------------------------------


class _NoNumberError(Exception):
    """`NaN` or `Infinity`, which Python's reader would take."""


def _json_document(file: Path, text: str) -> Document:
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
        _syntax_error(file, text, (error.lineno, error.colno), _json_message(error, text))
    except _NoNumberError as error:
        place = next(place for word, place in _json_tokens(text) if word == str(error))
        _syntax_error(file, text, place, f"{error} is no number in JSON")
    except RecursionError:
        raise ConfigError([f"{file}: is nested too deeply"]) from None
    document = Document(file, _mapping(file, data), lambda: _json_places(text))
    if doubled:
        document.problems += _given_twice(_json_places(text))
    return document


def _json_message(error: json.JSONDecodeError, text: str) -> str:
    before = text[: error.pos].rstrip()
    if before.endswith(",") and text[error.pos : error.pos + 1] in "}]":
        return "a comma before a closing bracket"
    message = error.msg[0].lower() + error.msg[1:]
    return f"{message}: trailing comma" if before.endswith(",") else message


_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')
_LINE_END = re.compile(r"\r\n|\n|\r")


def _json_tokens(text: str) -> Iterator[tuple[str, Place]]:
    starts = [0, *(found.end() for found in _LINE_END.finditer(text))]
    for token in _TOKEN.finditer(text):
        line = bisect_right(starts, token.start())
        yield token[0], (line, token.start() - starts[line - 1] + 1)


def _json_places(text: str) -> Iterator[tuple[Key, Place]]:
    """Every key and every list item with its place, in order; `text` is known to be JSON."""
    way: list[str | int] = []  # innermost last; -1 where a mapping's next key is still to come
    for word, place in _json_tokens(text):
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
_PLAIN_TAGS = frozenset(_TAG + kind for kind in ("str", "null", "bool", "int", "float", "timestamp", "value"))
_MERGE = _TAG + "merge"
_MAX_DEPTH = 100


def _yaml_document(file: Path, text: str) -> Document:
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = " ".join(filter(None, (error.context, error.problem)))
        _syntax_error(file, text, _place_of(mark) if mark else (1, 1), message)
    except yaml.YAMLError as error:
        raise ConfigError([f"{file}: syntax: {' '.join(str(error).split())}"]) from None
    except RecursionError:
        raise ConfigError([f"{file}: is nested too deeply"]) from None
    if root is None:
        raise ConfigError([f"{file}: holds comments only; a mapping of keys is expected"])
    tree = _YamlTree(file, text)
    data = tree.value(root, ())
    document = Document(file, _mapping(file, data), lambda: tree.places(root, ()))
    document.problems += tree.problems
    if tree.doubled:
        document.problems += _given_twice(tree.places(root, ()))
    return document


def _place_of(mark: Any) -> Place:
    return mark.line + 1, mark.column + 1


class _YamlTree:
    """Nodes as data, scalars as written; and where each of them stands."""

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.text = text
        self.doubled = False
        self.problems: list[Problem] = []
        self._values = 0
        self._known: dict[int, list[tuple[Any, Any]]] = {}

    def value(self, node: Any, way: Key) -> Any:
        """Data of `node`, which stands at `way`."""
        self._values += 1
        if self._values > _MAX_VALUES or len(way) > _MAX_DEPTH:
            self._refuse(node, "unfolds to more than any file needs (an alias of aliases?)")
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
                self.problems.append(Problem((*way, str(key)), text, _place_of(key_node.start_mark)))
            self.doubled |= str(key) in mapping
            mapping[str(key)] = self.value(value_node, (*way, str(key)))
        return mapping

    def _scalar(self, node: Any) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(node, "a key is a text")
        if node.tag not in _PLAIN_TAGS:
            self._refuse(node, f"the tag {node.tag} has no meaning here")
        return str(node.value) if node.style else Plain(node.value)

    def _refuse(self, node: Any, message: str) -> NoReturn:
        _syntax_error(self.file, self.text, _place_of(node.start_mark), message)

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
                yield key, _place_of(key_node.start_mark)
                yield from self.places(value, key)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                yield (*way, index), _place_of(item.start_mark)
                yield from self.places(item, (*way, index))
