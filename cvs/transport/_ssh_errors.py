"""What went wrong on the way to a host, in words for the user."""

from __future__ import annotations

import errno
import logging
import socket

import paramiko
import paramiko.agent
from paramiko.ssh_exception import IncompatiblePeer

from cvs.transport._ssh_target import SshTarget

# What matters of all this is told in our own words; as it is, it would land on the user's terminal.
for _name in ("paramiko", paramiko.agent.__file__):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class Fault(Exception):
    """What went wrong at a host, in words that lack only which host."""

    def __init__(self, text: str, *, passing: bool = False) -> None:
        self.passing = passing
        super().__init__(text)


def explained(error: Exception, host: SshTarget, seconds: float, said: str) -> Fault:
    """What an exception means for the user.

    Args: seconds: how long connecting may take; said: the server's own words, in brackets.
    """
    at, hop = host.address, host.jumps[-1].login if host.jumps else ""
    reason = getattr(error, "strerror", None) or str(error)
    match error:
        case Fault():
            return error
        case socket.gaierror(errno=socket.EAI_AGAIN):
            return Fault(f"the name {host.host} cannot be looked up just now ({reason})", passing=True)
        case socket.gaierror() | UnicodeError():
            return Fault(
                f"there is no host {host.host} ({reason}); check its name, and HostName in the ssh config"
            )
        case ConnectionRefusedError():
            return Fault(f"{at} refuses connections; does sshd run there, and on this port?", passing=True)
        case TimeoutError():
            hint = "is it up, and does no firewall keep silent?"
            return Fault(f"{at} did not answer within {seconds:g} s; {hint}", passing=True)
        case OSError() if error.errno in _NO_ROUTE:
            return Fault(f"there is no way to {at} ({reason}); is it up, and on the network?", passing=True)
        case paramiko.ChannelException(code=1):
            return Fault(
                f"hop {hop} does not let through to {at}{said}; see AllowTcpForwarding in its sshd_config"
            )
        case paramiko.ChannelException():
            return Fault(
                f"hop {hop} cannot connect to {at}{said}; is it up, and is this its port?", passing=True
            )
        case IncompatiblePeer():
            return Fault(f"{at} and cvs have no algorithm in common: {reason}")
        case EOFError() | ConnectionError() | paramiko.AuthenticationException():
            return Fault(f"{at} ended the connection before the login was done{said}", passing=True)
        case OSError():
            return Fault(f"{at} cannot be reached: {reason}", passing=True)
        case paramiko.SSHException():
            return Fault(f"{at} broke the SSH protocol ({reason}){said}", passing=True)
    fault = Fault(f"{at} says what is no SSH ({type(error).__name__}: {reason})")
    fault.__cause__ = error
    return fault


def readable(text: bytes, most: int = 100) -> str:
    """The first line of what a server said, fit to be shown: at most so many characters of it."""
    line = text.decode(errors="replace").strip().partition("\n")[0].strip()
    return "".join(letter for letter in line[:most] if letter.isprintable())
