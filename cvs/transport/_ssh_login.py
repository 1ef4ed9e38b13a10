"""The login at a host: with the keys, then with the password."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import paramiko
from pydantic import SecretStr

from cvs.transport._ssh_errors import Fault
from cvs.transport._ssh_keys import Offers
from cvs.transport._ssh_target import SshTarget
from cvs.transport._ssh_wire import Connection


class Login:
    """Offers one thing after the other, until the host is content."""

    def __init__(self, connection: Connection, host: SshTarget, offers: Offers) -> None:
        self._connection = connection
        self._host = host
        self._offers = offers
        self._accepted: Sequence[str] = ()
        self._refused: list[str] = []

    def run(self) -> None:
        """Log in."""
        connection, user = self._connection, self._host.user
        if self._suffices(lambda: connection.auth_none(user)):
            return
        for offer in self._offers.keys:
            if "publickey" not in self._accepted:
                break
            if self._suffices(partial(connection.auth_publickey, user, offer.key), offer.name):
                return
        for method, attempt in (("password", self._give_password), ("keyboard-interactive", self._answer)):
            if self._host.password and method in self._accepted:
                if self._suffices(attempt, "password"):
                    return
                break
        raise Fault(self._refusal())

    def _suffices(self, attempt: Callable[[], list[str]], name: str = "") -> bool:
        """Whether the host is content with this; if not, it has said what it accepts."""
        try:
            self._accepted = attempt()
            if not self._accepted:
                return True
            name = f"{name} (taken, but not enough)"
        except paramiko.BadAuthenticationType as error:
            self._accepted = error.allowed_types
        except paramiko.AuthenticationException:
            if not self._connection.is_active():
                raise self._ended(name) from None
        if name:
            self._refused.append(name)
        return False

    def _give_password(self) -> list[str]:
        return self._connection.auth_password(self._host.user, self._password(), fallback=False)

    def _answer(self) -> list[str]:
        """Give the password in answer to the first question; a second one is about something else."""
        answers = iter([self._password()])

        def answer(_title: str, _instructions: str, prompts: list[tuple[str, bool]]) -> list[str]:
            return [next(answers, "") for _ in prompts]

        return self._connection.auth_interactive(self._host.user, answer)

    def _password(self) -> str:
        return cast(SecretStr, self._host.password).get_secret_value()

    def _ended(self, name: str) -> Fault:
        """The host has ended the connection in the middle of the login."""
        said = self._connection.said
        tried = f" after {', '.join([*self._refused, name])}" if name else ""
        too_many = "Too many" in said
        hint = "; name the one key with priv_key_file, or with IdentitiesOnly" if too_many else ""
        words = f' ("{said}")' if said else ""
        return Fault(
            f"{self._host.address} ended the login as {self._host.user}{tried}{words}{hint}",
            passing=not too_many,
        )

    def _refusal(self) -> str:
        host = self._host
        took = (
            f"it took none of: {', '.join(self._refused)}" if self._refused else "nothing of that is at hand"
        )
        parts = [
            f"the login as {host.user} is refused",
            f"{host.address} accepts {' or '.join(self._accepted)}",
            took,
        ]
        if self._offers.problems:
            parts.append(f"not offered: {', '.join(self._offers.problems)}")
        if self._offers.keys and "publickey" in self._accepted:
            hint = (
                f"put the public key into {host.user}'s ~/.ssh/authorized_keys there, or name another key;"
                " sshd also refuses an account that is locked or whose login shell does not exist"
            )
        else:
            hint = "name a key with priv_key_file, have an agent hold one, or give a password"
        return "; ".join([*parts, hint])
