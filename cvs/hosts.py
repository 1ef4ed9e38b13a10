"""Names of hosts, written short: `a[01-16]`, `r[1-2]n[1,3]-ib`, `10.0.0.5-9`. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from cvs.errors import ConfigError

T = TypeVar("T", bound=Hashable)

_MOST = 100_000
"""More hosts than any cluster has; a range that unfolds to more is a slip."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_NUMBER = re.compile(r"([0-9]+)")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
_ADDRESSES = re.compile(
    r"(?P<net>(?:\d{1,3}\.){3})(?P<first>\d{1,3})-(?P<last_net>(?:\d{1,3}\.){3})?(?P<last>\d{1,3})"
)


def hosts_in(text: str) -> list[str]:
    """Every host that a list names, in order.

    Raises: ConfigError: a range that is none, or a host that is named twice.
    """
    named: Counter[str] = Counter()
    for word in _words(text):
        for host in _unfold(word, word):
            named[host] += 1
            if len(named) > _MOST:
                raise ConfigError([f"{word}: names more than {_MOST} hosts"])
    twice = [host for host, times in named.items() if times > 1]
    if twice:
        raise ConfigError([f"{host}: is named twice" for host in sorted(twice)])
    return list(named)


def hosts_in_lines(text: str) -> list[str]:
    """As `hosts_in`, for a file: one or more a line, `#` begins a comment."""
    return hosts_in(",".join(line.partition("#")[0] for line in text.splitlines()))


def folded(hosts: Iterable[str]) -> str:
    """The hosts written short: a list that `hosts_in` unfolds to the same ones, in the same order."""
    words: list[_Word] = []
    for host in hosts:
        if not (words and words[-1].takes(host)):
            words.append(_Word(host))
    return ",".join(map(str, words))


def together(told: Iterable[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """What each host says, once, with all hosts that say it: `gpu[01-16] (16 nodes)`."""
    hosts: dict[T, list[str]] = {}
    for host, what in told:
        hosts.setdefault(what, []).append(host)
    for what, names in hosts.items():
        yield f"{folded(names)} ({len(names)} nodes)" if len(names) > 1 else folded(names), what


class _Word:
    """Hosts one after the other whose names differ in one number alone."""

    def __init__(self, first: str) -> None:
        self._parts = _NUMBER.split(first)  # text, number, text, …
        self._place: int | None = None
        """Where the number stands that differs; None: there is one host."""
        self._numbers: list[str] = []

    def takes(self, host: str) -> bool:
        """Whether the host is one more of them; it is then counted in."""
        parts = _NUMBER.split(host)
        if len(parts) != len(self._parts):
            return False
        differing = [place for place, part in enumerate(parts) if part != self._parts[place]]
        if len(differing) != 1 or differing[0] % 2 == 0 or self._place not in (None, differing[0]):
            return False
        self._place = differing[0]
        self._numbers = self._numbers or [self._parts[self._place]]
        self._numbers.append(parts[self._place])
        return True

    def __str__(self) -> str:
        parts = list(self._parts)
        if self._place is not None:
            parts[self._place] = f"[{','.join(_ranges(self._numbers))}]"
        return "".join(parts)


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    """The numbers, those that follow each other as `first-last`."""
    start = 0
    for end in range(1, len(numbers) + 1):
        if end == len(numbers) or numbers[end] != _counted(numbers[start], end - start):
            yield numbers[start] if end - start == 1 else f"{numbers[start]}-{numbers[end - 1]}"
            start = end


def _words(text: str) -> Iterator[str]:
    """Words between commas and blanks that stand in no brackets."""
    yield from re.findall(r"(?:\[[^\]]*\]|[^,\s])+", text)


def _unfold(word: str, part: str) -> Iterator[str]:
    """Names that `part` of a word stands for, one by one: a product of ranges fits into no list."""
    addresses = _ADDRESSES.fullmatch(part)
    found = _BRACKETS.search(part)
    if addresses:
        yield from _addresses(word, addresses)
    elif found:
        before, after = part[: found.start()], part[found.end() :]
        if "]" in before:
            raise ConfigError([f"{word}: a bracket without its partner"])
        for middle in _members(word, found[1]):
            for rest in _unfold(word, after) if after else [""]:
                yield f"{before}{middle}{rest}"
    elif "[" in part or "]" in part:
        raise ConfigError([f"{word}: a bracket without its partner"])
    else:
        yield part


def _addresses(word: str, found: re.Match[str]) -> Iterator[str]:
    if found["last_net"] not in (None, found["net"]):
        raise ConfigError([f"{word}: a range of addresses differs only in its last number"])
    if int(found["last"]) > 255:
        raise ConfigError([f"{word}: {found['last']} is no part of an address"])
    for number in _numbers(word, found["first"], found["last"]):
        yield f"{found['net']}{number}"


def _members(word: str, inside: str) -> Iterator[str]:
    for part in inside.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise ConfigError([f"{word}: [{inside}] is no range such as [01-16] or [1,3,5-7]"])
        yield from _numbers(word, found["first"], found["last"] or found["first"])


def _numbers(word: str, first: str, last: str) -> Iterator[str]:
    """From first to last, as wide as the first is written."""
    if int(last) < int(first):
        raise ConfigError([f"{word}: the range ends ({last}) before it begins ({first})"])
    for more in range(int(last) - int(first) + 1):
        yield _counted(first, more)


def _counted(first: str, more: int) -> str:
    """The number that comes so many after the first."""
    width = len(first) if first.startswith("0") else 0
    return f"{int(first) + more:0{width}}"
