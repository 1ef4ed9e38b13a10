"""Names of hosts, written short: `a[01-16]`, `r[1-2]n[1,3]-ib`, `10.0.0.5-9`. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cvs.errors import ConfigError

_MOST = 100_000
"""More hosts than any cluster has; a range that unfolds to more is a slip."""
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(?P<first>\d+)(?:-(?P<last>\d+))?")
_ADDRESSES = re.compile(r"(?P<net>(?:\d{1,3}\.){3})(?P<first>\d{1,3})-(?:(?P=net))?(?P<last>\d{1,3})")


def hosts_in(text: str) -> list[str]:
    """Every host that a list names, in order.

    Raises: ConfigError: a range that is none, or a host that is named twice.
    """
    hosts: list[str] = []
    for word in _words(text):
        hosts += _unfold(word)
        if len(hosts) > _MOST:
            raise ConfigError([f"{word}: names more than {_MOST} hosts"])
    twice = sorted({host for host in hosts if hosts.count(host) > 1}) if len(set(hosts)) < len(hosts) else []
    if twice:
        raise ConfigError([f"{host}: is named twice" for host in twice])
    return hosts


def hosts_in_lines(text: str) -> list[str]:
    """As `hosts_in`, for a file: one or more a line, `#` begins a comment."""
    return hosts_in(",".join(line.partition("#")[0] for line in text.splitlines()))


def _words(text: str) -> Iterator[str]:
    """Words between commas and blanks that stand in no brackets."""
    yield from re.findall(r"(?:\[[^\]]*\]|[^,\s])+", text)


def _unfold(word: str) -> list[str]:
    addresses = _ADDRESSES.fullmatch(word)
    if addresses:
        numbers = _numbers(word, addresses["first"], addresses["last"])
        return [f"{addresses['net']}{number}" for number in numbers]
    found = _BRACKETS.search(word)
    if not found:
        if "[" in word or "]" in word:
            raise ConfigError([f"{word}: a bracket without its partner"])
        return [word]
    before, after = word[: found.start()], word[found.end() :]
    return [
        f"{before}{middle}{rest}" for middle in _members(word, found[1]) for rest in _unfold(after) or [""]
    ]


def _members(word: str, inside: str) -> Iterator[str]:
    for part in inside.split(","):
        found = _RANGE.fullmatch(part.strip())
        if not found:
            raise ConfigError([f"{word}: [{inside}] is no range such as [01-16] or [1,3,5-7]"])
        yield from _numbers(word, found["first"], found["last"] or found["first"])


def _numbers(word: str, first: str, last: str) -> list[str]:
    """From first to last, as wide as the first is written."""
    if int(last) < int(first):
        raise ConfigError([f"{word}: the range ends ({last}) before it begins ({first})"])
    if int(last) - int(first) >= _MOST:
        raise ConfigError([f"{word}: names more than {_MOST} hosts"])
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
