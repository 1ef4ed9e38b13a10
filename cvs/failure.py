"""Who failed first: a pure function over what each node left.

torchrun blames victims: of the ranks that lose a dead peer it names the first it sees, and of a hang it names
those that waited. The evidence is weighed instead, over all nodes, strongest first:

1. a rank that a signal ended, unless torchrun or cvs sent it;
2. a launcher that a signal ended, unless cvs sent it;
3. a rank with an error that is no loss of a peer and no time-out, or that ended by itself with a code; where
   every rank has the same error, all of them;
4. where there are only time-outs: the ranks that were ended without an error of their own did not arrive;
5. where a launcher died without a word about its ranks: the ranks that left no word either;
6. the nodes that the others waited for in vain when all were to meet;
7. the node that ended first.

Nodes that cvs stopped because time was over, or the user had enough, are nobody's first failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from cvs.models import Failure

TAIL_LINES = 15

_PEER_LOSS = re.compile(
    r"connection (was )?(closed|reset|refused) by|connection reset|broken pipe|timed? ?out|DistBackendError"
    r"|DistNetworkError|DistStoreError|watchdog|remote process exited|socket (closed|error)",
    re.IGNORECASE,
)
_WAITED_TO_MEET = re.compile(
    r"waiting for clients|client socket has timed out|failed to connect|RendezvousTimeout", re.IGNORECASE
)
_ADDRESS_IN_USE = re.compile(
    r"EADDRINUSE|errno:? ?98\b|code: -?98\b|address (is )?already in use", re.IGNORECASE
)
_FAILED_RANK = re.compile(
    r"rank\s*: (?P<rank>\d{1,9}) \(local_rank: (?P<local_rank>\d{1,9})\)\s*\n"
    r"(?:.*\n)?.*?exitcode\s*: (?P<exit_code>-?\d{1,9}) \(pid: (?P<pid>\d{1,9})\)"
)
_FORCED = re.compile(r"Unable to shutdown process (?P<pid>\d{1,9}) via (?:15|Signals\.SIGTERM)")
# These read what jobs print, which may be anything: none may go back over a line more than once.
_PREFIX = re.compile(r"^\[[^\]\s]*\d\]:", re.MULTILINE)
_LABEL = re.compile(r"\[[^\]\s]*\]:\s*")
_EXCEPTION = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*")
_FAILED = "failed"
_SIGTERM = -15
_SIGABRT = -6


@dataclass(frozen=True)
class RankTrail:
    """What one rank left on its node."""

    rank: int
    local_rank: int
    error: str | None = None
    """Message of its error file, empty where that tells nothing; None where it has none."""
    stderr: str = ""
    stdout: str = ""
    log: str | None = None
    """Where its stderr lies, below the run's folder."""
    stdout_log: str | None = None


@dataclass(frozen=True)
class NodeTrail:
    """What one node left."""

    node_rank: int
    node: str
    exit_code: int | None
    seconds: float | None
    """When it ended, after the start; None: it did not end by itself."""
    stopped_by_cvs: bool = False
    output: str = ""
    """Console output, torchrun's summary in it."""
    log: str | None = None
    ranks: tuple[RankTrail, ...] = ()


@dataclass(frozen=True)
class _Verdict:
    """torchrun's own words about one rank."""

    rank: int
    exit_code: int
    pid: int


@dataclass
class _Suspect:
    node: NodeTrail
    ranks: list[int] = field(default_factory=list)
    what: str = ""


def first_failure(trails: Sequence[NodeTrail]) -> Failure | None:
    """The first that failed, and where to read about it; None where every node ended well.

    Args: trails: one per node that was started.
    """
    by_end = sorted(trails, key=lambda trail: (trail.seconds is None, trail.seconds, trail.node_rank))
    if all(trail.exit_code == 0 or trail.stopped_by_cvs for trail in by_end):
        return None
    rules: list[Callable[[Sequence[NodeTrail]], _Suspect | None]] = [
        _ended_by_signal,
        _launcher_ended_by_signal,
        _own_error,
        _own_exit,
        _did_not_arrive,
        _without_a_word,
        _did_not_join,
        _first_to_end,
    ]
    suspect = next(found for rule in rules if (found := rule(by_end)))
    return _told_of_all(suspect, by_end) or _told(suspect)


def port_taken(head: NodeTrail, port: int) -> bool:
    """Whether the head could not open the rendezvous port, because another process listens there.

    Any socket may find its address taken: a rank's own, say. This one is told by its number, or, where old
    launchers tell none, by being the launcher's, before there was a rank.
    """
    launcher = "\n".join(line for line in head.output.splitlines() if not _PREFIX.match(line))
    own = _last_exception(launcher) or ""
    theirs = [rank.error or _last_exception(rank.stderr) or "" for rank in head.ranks]
    if not head.exit_code:
        return False
    named = re.compile(rf"(?<!\d){port}(?!\d)")
    if any(_ADDRESS_IN_USE.search(text) and named.search(text) for text in (own, *theirs)):
        return True
    return bool(_ADDRESS_IN_USE.search(own)) and not head.ranks and not re.search(r"port\b|:\d{4,5}\b", own)


def _ended_by_signal(trails: Sequence[NodeTrail]) -> _Suspect | None:
    for trail in trails:
        forced = {int(found["pid"]) for found in _FORCED.finditer(trail.output)}
        for verdict in _verdicts(trail):
            if verdict.exit_code >= 0 or verdict.exit_code == _SIGTERM or verdict.pid in forced:
                continue
            if verdict.exit_code == _SIGABRT and _PEER_LOSS.search(_stderr_of(trail, verdict.rank)):
                continue  # NCCL's watchdog aborts those that wait for a lost peer.
            return _Suspect(trail, [verdict.rank], f"was ended by signal {-verdict.exit_code}")
    return None


def _launcher_ended_by_signal(trails: Sequence[NodeTrail]) -> _Suspect | None:
    for trail in trails:
        if trail.stopped_by_cvs or not trail.exit_code:
            continue
        if trail.exit_code < 0:
            return _Suspect(trail, [], f"lost its launcher to signal {-trail.exit_code}")
        if _was_stopped(trail):
            return _Suspect(trail, [], f"was stopped: {_one_line(_last_exception(trail.output) or '')}")
    return None


def _own_error(trails: Sequence[NodeTrail]) -> _Suspect | None:
    for trail in trails:
        for rank in trail.ranks:
            message = rank.error or _last_exception(rank.stderr)
            if message and not _PEER_LOSS.search(message):
                return _Suspect(trail, [rank.rank], f"{_FAILED}: {_one_line(message)}")
    return None


def _own_exit(trails: Sequence[NodeTrail]) -> _Suspect | None:
    """A rank that ended with a code and no exception, such as a trainer that refuses its options."""
    for trail in trails:
        for verdict in reversed(list(_verdicts(trail))):  # torchrun tells the root cause last
            if verdict.exit_code > 0 and not _PEER_LOSS.search(_said(trail, verdict.rank)):
                stderr = _PREFIX.sub("", _stderr_of(trail, verdict.rank))
                words = [line for line in stderr.splitlines() if line.strip()]
                said = f": {_one_line(words[-1])}" if words else ""
                return _Suspect(trail, [verdict.rank], f"ended with exit code {verdict.exit_code}{said}")
    return None


def _did_not_arrive(trails: Sequence[NodeTrail]) -> _Suspect | None:
    if not any(_speaks(rank) for trail in trails for rank in trail.ranks):
        return None
    for trail in trails:
        terminated = {verdict.rank for verdict in _verdicts(trail) if verdict.exit_code == _SIGTERM}
        silent = [rank.rank for rank in trail.ranks if rank.rank in terminated and not _speaks(rank)]
        if silent:
            return _Suspect(trail, silent, "did not arrive at a collective that the others waited in")
    return None


def _speaks(rank: RankTrail) -> bool:
    """Whether the rank had an error of any kind, a lost peer included."""
    return rank.error is not None or bool(_last_exception(rank.stderr) or _PEER_LOSS.search(rank.stderr))


def _without_a_word(trails: Sequence[NodeTrail]) -> _Suspect | None:
    """Ranks without a word under a launcher without a summary, where all others lost a peer.

    torchrun 2.13 dies of a rank's half-written error file before it tells which rank ended how.
    """
    for trail in trails:
        silent = [rank.rank for rank in trail.ranks if not _speaks(rank)]
        launcher_died = bool(trail.exit_code) and not any(_verdicts(trail)) and not _was_stopped(trail)
        others_speak = any(_speaks(rank) for other in trails for rank in other.ranks)
        if silent and launcher_died and others_speak:
            return _Suspect(trail, silent, "ended without a word, and so did the launcher about it")
    return None


def _did_not_join(trails: Sequence[NodeTrail]) -> _Suspect | None:
    """Nodes without a rank when time was up for those that had come to the rendezvous."""
    absent = [trail for trail in trails if trail.stopped_by_cvs and not trail.ranks]
    for trail in trails:
        message = _last_exception(trail.output) or ""
        if absent and not trail.stopped_by_cvs and _WAITED_TO_MEET.search(message):
            others = "".join(f", nor did {other.node}" for other in absent[1:])
            return _Suspect(absent[0], [], f"did not join{others}; {trail.node} waited: {_one_line(message)}")
    return None


def _was_stopped(trail: NodeTrail) -> bool:
    """Whether somebody stopped the launcher: cvs, or another by a signal."""
    return trail.stopped_by_cvs or "SignalException" in (_last_exception(trail.output) or "")


def _first_to_end(trails: Sequence[NodeTrail]) -> _Suspect:
    trail = next(trail for trail in trails if trail.exit_code != 0 and not trail.stopped_by_cvs)
    if trail.exit_code is None:
        return _Suspect(trail, [], "was started and did not end")
    return _Suspect(trail, [], f"ended first, with exit code {trail.exit_code}{_last_words(trail)}")


def _last_words(trail: NodeTrail) -> str:
    message = _last_exception(trail.output)
    return f": {_one_line(message)}" if message else ""


def _verdicts(trail: NodeTrail) -> Iterator[_Verdict]:
    for found in _FAILED_RANK.finditer(trail.output):
        yield _Verdict(int(found["rank"]), int(found["exit_code"]), int(found["pid"]))


def _stderr_of(trail: NodeTrail, rank: int) -> str:
    return "".join(left.stderr for left in trail.ranks if left.rank == rank)


def _said(trail: NodeTrail, rank: int) -> str:
    """Error file and stderr of a rank."""
    return "\n".join(f"{left.error or ''}\n{left.stderr}" for left in trail.ranks if left.rank == rank)


def _last_exception(text: str) -> str | None:
    """Last line that looks like the end of a traceback: `SomeError: message`."""
    for line in reversed(text.split("\n")):
        start = 0
        while label := _LABEL.match(line, start):
            start = label.end()
        if found := _EXCEPTION.match(line, start):
            return found[0]
    return None


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else line[:199] + "…"


def _told_of_all(suspect: _Suspect, trails: Sequence[NodeTrail]) -> Failure | None:
    """Where every rank says what the suspect says, as of a misspelled option, no node is to be looked at."""
    ranks = sorted(rank.rank for trail in trails for rank in trail.ranks)
    said = {rank.error or _last_exception(rank.stderr) for trail in trails for rank in trail.ranks}
    if not suspect.what.startswith(_FAILED) or len(ranks) == 1 or len(said) > 1:
        return None
    log, text = _log_of(suspect.node, suspect.ranks)
    reason = f"all {len(ranks)} ranks failed alike{suspect.what.removeprefix(_FAILED)}"
    return Failure(reason=reason, ranks=tuple(ranks), log=log, tail=tuple(_tail(text)))


def _told(suspect: _Suspect) -> Failure:
    node = suspect.node
    place = f"{node.node} (node rank {node.node_rank})"
    who = f"{_ranks(suspect.ranks)} on {place}" if suspect.ranks else place
    log, text = _log_of(node, suspect.ranks)
    return Failure(
        reason=f"{who} {suspect.what}",
        node_rank=node.node_rank,
        node=node.node,
        ranks=tuple(suspect.ranks),
        log=log,
        tail=tuple(_tail(text)),
    )


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _log_of(node: NodeTrail, ranks: Iterable[int]) -> tuple[str | None, str]:
    """The log that says most: the rank's own where it wrote anything, else the node's."""
    for rank in node.ranks:
        for log, text in ((rank.log, rank.stderr), (rank.stdout_log, rank.stdout)):
            if rank.rank in ranks and log and text.strip():
                return log, text
    return node.log, node.output


def _tail(text: str) -> list[str]:
    lines = [line.rstrip() for line in _PREFIX.sub("", text).splitlines() if line.strip()]
    return lines[-TAIL_LINES:]
