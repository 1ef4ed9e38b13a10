"""Base of the config models: frozen, and able to tell itself for the record without its secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr

HIDDEN = "**********"
_SECRET_NAME = re.compile(
    # As the end of a word: HF_TOKEN, but neither TOKENIZERS_PARALLELISM nor max_tokens.
    r"((?:TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE|SESSION)[_-]?KEY"
    # As a whole word: GITHUB_PAT, but neither PATH nor author.
    r"|(?<![A-Z])(?:PAT|AUTH|AUTHORIZATION|COOKIES?|SESSION)"
    # As a word behind another: MYSQL_PWD, but not the current folder, PWD.
    r"|(?<=[A-Z0-9][_.-])(?:PWD|(?-i:PASS)))(?![A-Z]))",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Whether a key or variable of this name holds what must not be written down."""
    return _SECRET_NAME.search(name) is not None


_CREDENTIALS = re.compile(r"(?P<web>https?://)[^/@\s]+@|(?P<other>\w+://[^/:@\s]+:)[^/@\s]+@")
"""In an URL: a user of a web address is as good as its password, it may be a token."""
_HEADER = re.compile(
    r"(?P<name>\b(?i:(?:Proxy-)?Authorization|(?:Set-)?Cookie|X-[\w-]*(?:Key|Token))\s*:\s*"
    # "Basic" may begin a sentence; a user with a password in base64 looks like no word of one.
    r"|\b(?i:Bearer)\s+|\bBasic\s+(?=[a-z]*[A-Z0-9+/=]))(?P<value>\S[^\r\n]*)"
)
"""In a header of HTTP: what proves who asks, to the end of the line."""


def shown(name: str, value: str) -> str:
    """`value` as it may be written down: no secret by its `name`, no credentials in an URL or a header."""
    if is_secret(name):
        return HIDDEN
    value = _CREDENTIALS.sub(lambda found: f"{found['web'] or found['other']}{HIDDEN}@", value)
    return _HEADER.sub(lambda found: f"{found['name']}{HIDDEN}", value)


def shown_argument(argument: str) -> str:
    """An argument as it may be written down: `key=value` pairs lose the value of a secret."""
    name, equals, value = argument.partition("=")
    return shown("", f"{name}={shown(name, value)}" if equals else argument)


def shown_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """The same of several; of `--token value` the one behind the option is hidden."""
    is_value = False
    for argument in arguments:
        yield HIDDEN if is_value and not argument.startswith("-") else shown_argument(argument)
        is_value = _OPTION.fullmatch(argument) is not None and is_secret(argument)


def shown_words(name: str, text: str) -> str:
    """`text` as it may be written down where its words may be arguments."""
    return shown(name, " ".join(shown_arguments(text.split(" "))))


_OPTION = re.compile(r"--?\w[\w.-]*")
_SECRET_IN_FILE = re.compile(
    rf"""^(?P<indent>[ \t]*)(?P<name>.*?(?:{_SECRET_NAME.pattern})[\w.-]*["']?\s*[:=]\s*)"""
    # To the end of the line, and on in lines that are indented further or begin no key of their own.
    rf"""(?P<value>.*(?:\n(?:(?P=indent)[ \t].*|(?![ \t]*["']?[\w.-]+["']?[ \t]*:|[ \t\]}},]*$).*))*)""",
    re.IGNORECASE | re.MULTILINE,
)


def blanked(text: str) -> str:
    """The text of a file, perhaps of a broken one, with every secret in it overwritten by as many `*`."""
    text = _SECRET_IN_FILE.sub(
        lambda found: found["indent"] + found["name"] + re.sub(r"\S", "*", found["value"]), text
    )
    text = _CREDENTIALS.sub(lambda found: re.sub(r"[^\s:/@]", "*", found[0]), text)
    return _HEADER.sub(lambda found: found["name"] + re.sub(r"\S", "*", found["value"]), text)


class ConfigModel(BaseModel):
    """A part of one of the two files."""

    model_config = ConfigDict(frozen=True)

    def resolved(self) -> dict[str, Any]:
        """Every recorded key with its value, defaults included, as plain data; secrets hidden."""
        return {name: _plain(name, getattr(self, name)) for name in self._recorded_keys()}

    def _recorded_keys(self) -> list[str]:
        # Keys of other suites are not ours to write down: they may hold secrets.
        return list(type(self).model_fields)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, ConfigModel):
        return value.resolved()
    if isinstance(value, dict):
        return {key: _plain(key, item) for key, item in value.items()}
    if isinstance(value, tuple):
        words = shown_arguments(value) if all(isinstance(item, str) for item in value) else value
        return [_plain(name, item) for item in words]
    if isinstance(value, SecretStr):
        return HIDDEN
    return shown_words(name, value) if isinstance(value, str) else value
