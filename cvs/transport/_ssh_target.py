"""How a node is reached and logged in at: what `ssh` makes of its configuration, the cluster file over it.

`ssh -G` reads the configuration (Include, Match, patterns), so that a node is here what it is on the command
line. No connection is opened.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import socket
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import SecretStr

from cvs.config import ClusterConfig
from cvs.config.account import home_folder
from cvs.errors import ConfigError, EnvironmentFault, TransportError
from cvs.transport.local import LocalTransport

_ASK_SECONDS = 20
_NO_PROXY = ["-o", "ProxyCommand=none"]
"""For a host that is reached in a way of its own; it takes the place of ProxyJump, too."""
_HOP = re.compile(
    r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^:@]+|[0-9A-Fa-f:.]+))(?::(?P<port>\d+))?"
)
_TOKEN = re.compile(r"%(.)|\$\{(\w+)\}")


@dataclass(frozen=True)
class SshTarget:
    """One host to log in at."""

    node: str
    """What the user calls it, or the node that it is a hop to."""
    host: str
    port: int
    user: str
    keys: tuple[str, ...] = ()
    """Private keys, in the order in which they are offered; not all need exist."""
    certificates: tuple[str, ...] = ()
    """Besides those that lie beside the keys."""
    agent: str | None = None
    """Socket of the agent that is asked for keys."""
    only_keys: bool = False
    """Offer those of the agent's keys alone that are among `keys`."""
    password: SecretStr | None = None
    passphrase: SecretStr | None = None
    jumps: tuple[SshTarget, ...] = ()
    """The hops on the way, the first one first."""
    known_hosts: tuple[str, ...] = ()
    """Files of known hosts; the first is the one that new keys are written to."""
    host_key_alias: str | None = None
    host_key_policy: Literal["strict", "accept-new"] = "strict"

    @property
    def address(self) -> str:
        """Host and port, as one writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def login(self) -> str:
        """User, host and port."""
        return f"{self.user}@{self.address}"


def resolve(node: str, cluster: ClusterConfig) -> SshTarget:
    """How `node` is reached: the ssh configuration, and over it what the cluster file says.

    Raises: ConfigError: the configuration cannot be used; EnvironmentFault: there is no `ssh` to read it.
    """
    options = ["-l", cluster.username]
    if cluster.ssh_port:
        options += ["-p", str(cluster.ssh_port)]
    if cluster.jump_host:
        options += _NO_PROXY
    resolver = _Resolver(node, cluster)
    settings = resolver.ask(node, options)
    jumps = resolver.jumps(cluster.jump_host or settings.first("proxyjump"), (node,))
    return resolver.node(settings, jumps)


def describe(target: SshTarget) -> str:
    """Everything about the way to a node, in one line."""
    parts = [target.login, *_credentials(target)]
    parts += [f"via {' and '.join(hop.login for hop in target.jumps)}"] if target.jumps else []
    parts += [f"host key of {target.host_key_alias}"] if target.host_key_alias else []
    parts += [f"known_hosts {' '.join(target.known_hosts) or 'none'}", target.host_key_policy]
    return ", ".join(parts)


def _credentials(target: SshTarget) -> Iterator[str]:
    there = [key for key in target.keys if Path(key).exists()]
    # One that was named is told of even if it is not there; of a list of usual places it says nothing.
    yield from (f"key {key}" for key in there)
    if not there and len(target.keys) == 1:
        yield f"key {target.keys[0]} (missing)"
    if target.agent:
        yield f"agent {target.agent}" + (" (only these keys)" if target.only_keys else "")
    if target.password:
        yield "password"
    if target.passphrase:
        yield "passphrase"


def warnings(target: SshTarget) -> list[str]:
    """What works, and yet should be mended: a line each."""
    keys = {key: None for host in (*target.jumps, target) for key in host.keys}
    return [f"{key}: others can read this private key; chmod 600 {key}" for key in keys if _is_open(key)]


def _is_open(file: str) -> bool:
    try:
        mode = Path(file).stat().st_mode
    except OSError:
        return False
    return bool(stat.S_IMODE(mode) & 0o077)


class _Settings:
    """What `ssh -G` says about one host."""

    def __init__(self, asked: str, text: str) -> None:
        self._values: dict[str, list[str]] = {}
        for line in text.split("\n"):
            key, _, value = line.partition(" ")
            self._values.setdefault(key, []).append(value)
        self.host = self.first("hostname") or asked
        self.port = int(self.first("port") or 22)
        self.user = self.first("user") or ""
        self.alias = self.first("hostkeyalias")
        self._tokens = _tokens(asked, self)

    def first(self, key: str) -> str | None:
        """The value of a key; None where there is none, or `none`."""
        value = self._values.get(key, ["none"])[0]
        return None if value == "none" else value

    def files(self, key: str) -> tuple[str, ...]:
        """Files of a key that may be given several times; `ssh -G` leaves `~` and `%h` in them."""
        names = [name for name in self._values.get(key, []) if name != "none"]
        return tuple(_unfolded(name, self._tokens) for name in names)

    @property
    def agent(self) -> str | None:
        """Socket of the agent."""
        name = self._values.get("identityagent", ["SSH_AUTH_SOCK"])[0]
        if name == "none":
            return None
        if name == "SSH_AUTH_SOCK" or (name.startswith("$") and not name.startswith("${")):
            return os.environ.get(name.removeprefix("$")) or None
        return _unfolded(name, self._tokens)

    @property
    def known_hosts(self) -> tuple[str, ...]:
        """Files of known hosts, the user's own first."""
        lines = [self.first("userknownhostsfile"), self.first("globalknownhostsfile")]
        names = [name for line in lines if line for name in _split(line)]
        return tuple(_unfolded(name, self._tokens) for name in names)


@dataclass(frozen=True)
class _Resolver:
    """Asks `ssh` about a node and the hops to it."""

    name: str
    cluster: ClusterConfig

    def ask(self, host: str, options: list[str]) -> _Settings:
        """What the ssh configuration says about one host."""
        file = self.cluster.ssh_config
        argv = ["ssh", "-G", "-T", *(["-F", _at_home(file)] if file else []), *options, "--", host]
        if shutil.which("ssh") is None:
            hint = "install openssh-client (openssh-clients on RHEL)"
            raise EnvironmentFault(f"ssh is missing, which reads the ssh configuration; {hint}")
        try:
            done = LocalTransport(self.name).run(argv, timeout=_ASK_SECONDS)
        except TransportError as error:
            raise ConfigError(
                [f"{error}; does a `Match exec` in the ssh configuration of {host} hang?"]
            ) from None
        if done.exit_code:
            said = done.stderr.strip().partition("\n")[0].strip() or f"ssh ended with {done.exit_code}"
            raise self._misfit(f"the ssh configuration cannot be used for {host}: {said}")
        settings = _Settings(host, done.stdout)
        if settings.first("proxycommand"):
            hint = "use ProxyJump there, or jump_host in the cluster file"
            raise self._misfit(
                f"the ssh configuration gives {host} a ProxyCommand, which cvs cannot use; {hint}"
            )
        return settings

    def node(self, settings: _Settings, jumps: tuple[SshTarget, ...]) -> SshTarget:
        """The node itself: with a key in the cluster file that key alone, with a password that alone."""
        cluster = self.cluster
        key = self._own_key()
        as_configured = not key and not cluster.password
        return self._target(
            settings,
            keys=settings.files("identityfile") if as_configured else key,
            agent=settings.agent if as_configured else None,
            password=cluster.password,
            known_hosts=self._own_known_hosts() or settings.known_hosts,
            jumps=jumps,
        )

    def jumps(self, chain: str | None, on_the_way: tuple[str, ...]) -> tuple[SshTarget, ...]:
        """The hops that ProxyJump or `jump_host` names, and before them those to the first one."""
        hops: tuple[SshTarget, ...] = ()
        for word in chain.split(",") if chain and chain != "none" else ():
            found = _HOP.fullmatch(word.strip())
            if not found:
                raise self._misfit(f"{word!r} is no host to jump over; user@host:port is one")
            host = found["ipv6"] or found["host"]
            if host == self.name and self._from_file(on_the_way):
                break  # a node may be the hop to the others
            if host in on_the_way:
                raise self._misfit(f"the way to {host} leads over {host} itself; mend ProxyJump or jump_host")
            hops += self._hop(host, found["user"], found["port"], hops, on_the_way)
        return hops

    def _from_file(self, on_the_way: tuple[str, ...]) -> bool:
        """Whether these hops are those of the cluster file, not those that ssh has for one of them."""
        return bool(self.cluster.jump_host) and len(on_the_way) == 1

    def _hop(
        self,
        host: str,
        user: str | None,
        port: str | None,
        before: tuple[SshTarget, ...],
        on_the_way: tuple[str, ...],
    ) -> tuple[SshTarget, ...]:
        """One hop, and if it is the first of a chain those that lead to it: it leads to the others."""
        from_file = self._from_file(on_the_way)
        user = user or (self.cluster.username if from_file else None)
        options = [*(["-l", user] if user else []), *(["-p", port] if port else [])]
        settings = self.ask(host, [*options, *(_NO_PROXY if before else [])])
        leading = () if before else self.jumps(settings.first("proxyjump"), (*on_the_way, host))
        hop = self._target(
            settings,
            keys=tuple(dict.fromkeys((*self._own_key(), *settings.files("identityfile")))),
            agent=settings.agent,
            # To hosts alone that the file with the password names.
            password=self.cluster.password if from_file else None,
            known_hosts=(*self._own_known_hosts(), *settings.known_hosts),
            jumps=before or leading,
        )
        return (*leading, hop)

    def _target(
        self,
        settings: _Settings,
        *,
        keys: tuple[str, ...],
        agent: str | None,
        password: SecretStr | None,
        known_hosts: tuple[str, ...],
        jumps: tuple[SshTarget, ...],
    ) -> SshTarget:
        return SshTarget(
            node=self.name,
            host=settings.host,
            port=settings.port,
            user=settings.user,
            keys=keys,
            certificates=settings.files("certificatefile"),
            agent=agent,
            only_keys=settings.first("identitiesonly") == "yes",
            password=password,
            passphrase=self.cluster.priv_key_passphrase,
            jumps=jumps,
            known_hosts=known_hosts,
            host_key_alias=settings.alias,
            host_key_policy=self.cluster.host_key_policy,
        )

    def _own_key(self) -> tuple[str, ...]:
        file = self.cluster.priv_key_file
        return (_at_home(file),) if file else ()

    def _own_known_hosts(self) -> tuple[str, ...]:
        file = self.cluster.known_hosts
        return (_at_home(file),) if file else ()

    def _misfit(self, text: str) -> ConfigError:
        return ConfigError([f"{self.name}: {text}"])


def _at_home(file: str) -> str:
    """A file that the cluster file names; `~` is the home of whoever runs cvs."""
    home = home_folder()
    return str(home / file[2:]) if home and file.startswith("~/") else file


def _tokens(asked: str, settings: _Settings) -> dict[str, str]:
    """What `%h` and the like stand for, as in ssh_config(5)."""
    me = pwd.getpwuid(os.getuid())
    machine = socket.gethostname()
    return {
        "%": "%",
        "d": me.pw_dir,
        "h": settings.host,
        "i": str(me.pw_uid),
        "k": settings.alias or asked,
        "L": machine.partition(".")[0],
        "l": machine,
        "n": asked,
        "p": str(settings.port),
        "r": settings.user,
        "u": me.pw_name,
    }


def _unfolded(name: str, tokens: Mapping[str, str]) -> str:
    """A file name, its tokens, `${VARIABLE}` and `~` written out; ssh knows the home by the user alone."""

    def value(found: re.Match[str]) -> str:
        known = os.environ.get(found[2]) if found[2] else tokens.get(found[1])
        return found[0] if known is None else known

    if name == "~" or name.startswith("~/"):
        name = tokens["d"].replace("%", "%%") + name[1:]
    return _TOKEN.sub(value, name)


def _split(line: str) -> Iterator[str]:
    """Names of files: `ssh -G` writes blanks between and within them, so one that exists is taken whole."""
    words = line.split(" ")
    while words:
        ends = [end for end in range(len(words), 1, -1) if Path(" ".join(words[:end])).exists()]
        end = ends[0] if ends else 1
        yield " ".join(words[:end])
        del words[:end]
