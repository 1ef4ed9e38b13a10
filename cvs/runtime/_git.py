"""git on a node and in a container: it asks nobody anything, and credentials stand in no command line."""

from __future__ import annotations

import re

_SAID = 400
"""Characters of what git says."""
_USER = re.compile(r"(?P<scheme>[\w+.-]+://)(?P<user>[^/\s]+)@(?P<rest>[^/]*)(?P<path>.*)")

GIT = """\
unset GIT_ASKPASS SSH_ASKPASS
ssh=${GIT_SSH_COMMAND:-$(command git config core.sshCommand || echo ssh)}
export GIT_TERMINAL_PROMPT=0 GIT_SSH_COMMAND="$ssh -o BatchMode=yes" LC_ALL=C
git() {
    if [ -s "$credentials" ]; then
        set -- -c credential.helper= -c "credential.helper=store --file=$credentials" "$@"
    fi
    command git -c core.askPass= "$@" < /dev/null
}
"""
"""Beginning of a script that calls git; `$credentials` is a file for git's credential store, or empty.

Where there are some, they are the only ones: else git would hand them to the user's own stores, to be kept.
"""


def without_credentials(url: str) -> tuple[str, str]:
    """The URL as it may be seen on the node, and a line for git's credential store; empty: it needs none."""
    found = _USER.fullmatch(url)
    if not found:
        return url, ""
    user, _, password = found["user"].replace("@", "%40").partition(":")
    if found["scheme"] in ("http://", "https://"):
        # A user of a web address is as good as its password: it may be a token.
        return (
            f"{found['scheme']}{found['rest']}{found['path']}",
            f"{found['scheme']}{user}:{password}@{found['rest']}\n",
        )
    return f"{found['scheme']}{user}@{found['rest']}{found['path']}", ""


def last_words(text: str) -> str:
    """What git has to say in the end, without its account of how it came there."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and "Cloning into" not in line]
    return " ".join(lines)[-_SAID:] or "no message"
