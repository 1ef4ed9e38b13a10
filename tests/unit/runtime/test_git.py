"""What git is told, and what is kept from everybody who can look."""

from __future__ import annotations

import pytest

from cvs.runtime._git import last_words, without_credentials


@pytest.mark.parametrize(
    ("url", "seen", "secret"),
    [
        ("https://example.com/a.git", "https://example.com/a.git", ""),
        ("https://me:pw@example.com/a.git", "https://example.com/a.git", "https://me:pw@example.com\n"),
        ("https://tok@example.com:8443/a", "https://example.com:8443/a", "https://tok:@example.com:8443\n"),
        ("http://me:p@w@h/a@b", "http://h/a@b", "http://me:p%40w@h\n"),
        ("ssh://git@example.com/a.git", "ssh://git@example.com/a.git", ""),
        ("ssh://git:pw@example.com/a.git", "ssh://git@example.com/a.git", ""),
        ("git@example.com:a/b.git", "git@example.com:a/b.git", ""),
        ("/srv/a@b.git", "/srv/a@b.git", ""),
    ],
)
def test_credentials_go_another_way(url: str, seen: str, secret: str) -> None:
    assert without_credentials(url) == (seen, secret)


def test_what_git_says_is_told_in_a_line() -> None:
    assert last_words("Cloning into 'x'...\nfatal: no such thing\n\nand more\n") == (
        "fatal: no such thing and more"
    )
    assert last_words("\n") == "no message"
    assert len(last_words("x" * 1000)) == 400
