"""One node of a run: its plan, the way to it, what runs there, and what it left."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from cvs.errors import CvsError, NodeInUse, RunError, TransportError
from cvs.failure import NodeTrail, RankTrail, port_taken
from cvs.hang import RankStack
from cvs.launch import ROCM_DEVICES, LaunchPlan, NodePlan
from cvs.models import Holder, NodeResult, TraceFile
from cvs.preflight import JobLook, NodeLook
from cvs.rank_paths import rank_folder, rank_in_name
from cvs.run_folder import RunFolder
from cvs.runners._collect import Listing, bring_home, listing, output_folders
from cvs.runners._node_log import NodeLog, end_of, gap
from cvs.runners._watch import Watched
from cvs.runtime._look import look_at
from cvs.runtime.base import Runtime
from cvs.terminal import printable
from cvs.transport.base import Process, Sink, Transport

_WAIT_SECONDS = 20
"""For work on a node that is under way when the run is over."""
_CHECK_SECONDS = 60
"""For one look at the node."""
_KEPT_OUTPUT = 256 * 1024
"""Bytes of a log that are looked into for the reason of a failure; the end says most."""
_LOCAL_RANK = re.compile(rb"^\[[A-Za-z_]\w{0,99}?(\d{1,9})\]:")
"""What torchrun puts before each line of a worker; bounded, since the line may be anything."""

RANK_LOG_BYTES = 16 * 1024 * 1024
"""Of one log that torchrun keeps of a rank; of a longer one half of it from either end."""
_CUT = (
    'head -c "$2" "$1" > "$1.cut" && printf "\\n%s" "$3" >> "$1.cut"'
    ' && tail -c "$2" "$1" >> "$1.cut" && mv "$1.cut" "$1"'
)

_REMOVE = 'rm -rf -- "$1" && { rmdir -- "${1%/*}" 2> /dev/null; :; }'
"""The run's folder of this node, and the run's, if no other node has one in it."""

Console = Callable[[str], None]
"""Takes one line for the user; called from several threads."""


class RunNode:
    """State of one node from set-up to teardown; the runner drives it."""

    def __init__(
        self, plan: NodePlan, job: LaunchPlan, transport: Transport, runtime: Runtime, folder: RunFolder
    ) -> None:
        self.plan = plan
        self.job = job
        self.transport = transport
        self.runtime = runtime
        self.folder = folder
        self.watched: Watched | None = None
        self.facts: dict[str, str] = {}
        self.files: list[TraceFile] = []
        self.errors: list[str] = []
        self.is_in_use = False
        """Whether another run has it."""
        self.left_running: list[int] = []
        self.heard: float | None = None
        """When the job was last heard of here, on the monotonic clock; None: not yet."""
        self.trouble: str | None = None
        """Why the job's output cannot be kept here."""
        self._lock = threading.Lock()
        self._is_over = False
        self.sharing = {plan.node}
        """Nodes that have one `aorta_path` on a file system that they share; most have their own."""
        self._is_touched = False
        """Whether anything was made there."""
        self._before: Listing | None = None
        self._log: NodeLog | None = None
        self._log_start = 0
        self._is_shown = True
        self._last_lines: dict[int, str] = {}
        """Of each rank that said anything."""

    @property
    def name(self) -> str:
        """The node, as the user knows it."""
        return self.plan.node

    def rebind(self, job: LaunchPlan) -> None:
        """Take this node's part of a plan made anew, with the port that was free on the head."""
        self.job = job
        self.plan = self.runtime.plan = next(plan for plan in job.nodes if plan.node == self.name)

    def hold(self, holder: Holder) -> str | None:
        """Take the node for this run; what an unfinished one had left there, in words."""
        return self.runtime.hold(holder)

    def look(self) -> NodeLook:
        """What the node says of itself, before anything is prepared."""
        return look_at(self.transport, self.plan, self.job.accelerator, timeout=_CHECK_SECONDS)

    def check_workload(self) -> None:
        """Have the workload's files on the node."""
        self.runtime.check_workload(timeout=_CHECK_SECONDS)

    def lacks(self) -> str | None:
        """What a run would fetch first, in words."""
        return self.runtime.lacks()

    def probe(self) -> JobLook:
        """What is seen where the job will run."""
        devices = ROCM_DEVICES if self.job.accelerator == "rocm" else ()
        look = self.runtime.probe(self.job.rendezvous.address, devices, timeout=_CHECK_SECONDS)
        return look.model_copy(update={"image": self.facts.get("image")})

    def listen(self, word: str, seconds: float, count: int) -> str:
        """Answer `count` callers at the rendezvous port; why nobody can be answered, or nothing."""
        return self.runtime.meet("listen", self._port, word, seconds, str(count))

    def call(self, word: str, seconds: float) -> str:
        """Why the head is not reached at the rendezvous port; empty if it is."""
        return self.runtime.meet("call", self._port, word, seconds, self.job.rendezvous.address)

    @property
    def _port(self) -> int:
        assert self.job.rendezvous.port is not None
        return self.job.rendezvous.port

    def prepare(self) -> None:
        """Make the node ready, and note what lies there already."""
        limits = self.job.limits
        with self._in_time():
            self._is_touched = True
            self.facts = self.runtime.prepare(timeout=limits.total)
            self._before = listing(self.transport, self.plan.aorta_path, timeout=limits.transfer)

    def find_sharing(self) -> None:
        """See which nodes have one `aorta_path` with this one: each has made its own folder in it."""
        out_dir = PurePosixPath(self.plan.out_dir_on_node)
        found = self.transport.run(["ls", "-1", str(out_dir.parent)], timeout=_CHECK_SECONDS)
        names = {PurePosixPath(plan.out_dir).name: plan.node for plan in self.job.nodes}
        self.sharing = {names[name] for name in found.stdout.splitlines() if name in names} | {self.name}

    @property
    def is_first(self) -> bool:
        """Whether what is done once for a folder is done by this node, of those that share it."""
        return self.name == next(plan.node for plan in self.job.nodes if plan.node in self.sharing)

    def build(self, deadline: float) -> None:
        """Build what the job needs besides, before a `deadline` on the monotonic clock."""
        with self._in_time(), self._logged("rccl_build", self.runtime.say) as log:
            self.facts |= self.runtime.build(log, timeout=deadline - time.monotonic())

    @contextmanager
    def _logged(self, name: str, console: Console | None = None) -> Iterator[Sink]:
        """A log for what runs besides the job, named where that fails; none is left if nothing was said."""
        path = self.folder.node_logs(self.plan.node_rank) / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        log = NodeLog(path)

        def take(piece: bytes) -> None:
            try:
                is_shown = log.write(piece)
            except OSError as error:
                is_shown = True
                self._complain(error)
            if is_shown and console:
                console(f"{self.name} | {_line(piece)}")

        try:
            yield take
        except CvsError as error:
            where = f"; log: {self.folder.relative(path)}" if path.stat().st_size else ""
            raise RunError(f"{error}{where}") from None
        finally:
            self._close(log)
            if not path.stat().st_size:
                path.unlink()

    def analyse(self) -> list[str]:
        """Run the plan's analyses on what the job has left here; what went wrong, in words."""
        limits, told = self.job.limits, []
        if not self.is_first:
            return []
        deadline = time.monotonic() + limits.analysis
        with self._in_time():
            assert self._before is not None
            now = listing(self.transport, self.plan.aorta_path, timeout=limits.transfer)
            outputs = output_folders(now, self._before)
            if not outputs:
                told.append(f"{self.name}: nothing to analyse: the job left no new traces")
            for step in self.plan.analyses:
                for folder, has_workbooks in outputs.items():
                    if step.skip_if_exists and has_workbooks:
                        continue
                    try:
                        with self._logged(step.name) as log:
                            left = max(deadline - time.monotonic(), 0)
                            self.runtime.analyse(step, folder, log, timeout=left)
                    except CvsError as error:
                        told.append(str(error))
        return told

    @contextmanager
    def _in_time(self) -> Iterator[None]:
        """Work that may come too late: then it is undone here, since nobody waits for it any more."""
        try:
            with self._lock:
                if self._is_over:
                    raise TransportError(f"{self.name}: the run is over")
                yield
        finally:
            if self._is_over:
                self.runtime.kill_leftovers()
                self._clear()

    def _clear(self) -> None:
        try:
            self.runtime.teardown()
        finally:
            self.transport.close()

    def read(self, path: str) -> str:
        """Text of a file below the node's `aorta_path`.

        Raises: TransportError: it cannot be read.
        """
        file = f"{self.plan.aorta_path}/{path}"
        found = self.transport.run(["cat", "--", file], timeout=30)
        if found.exit_code:
            raise TransportError(f"{self.name}: cannot read {file}: {found.stderr.strip()}")
        return found.stdout

    def start(self, console: Console) -> None:
        """Start the job; every line goes to the node's log and, with the node before it, to the console."""
        log = self.folder.node_log(self.plan.node_rank)
        with self._in_time():
            self._log_start = log.stat().st_size if log.exists() else 0
            self._log = NodeLog(log)
            self.watched = Watched(self.runtime.start(lambda piece: self._take(piece, console)))

    def _take(self, piece: bytes, console: Console) -> None:
        self.heard = time.monotonic()
        is_shown = self._keep(piece)
        line = self._shown(piece)
        if is_shown:
            console(line)
        elif self._is_shown:
            console(f"{self.name} | cvs: too much output to show; the log keeps its beginning and its end")
        self._is_shown = is_shown

    def _keep(self, piece: bytes) -> bool:
        """Whether it belongs to the beginning of the output, which is shown, too."""
        try:
            return self.trouble is not None or (self._log is not None and self._log.write(piece))
        except OSError as error:
            self._complain(error)
            return True

    def _complain(self, error: OSError) -> None:
        self.trouble = f"{self.name}: its log cannot be written: {error.strerror}: {self.folder.path}"
        self.note(TransportError(self.trouble))

    def _shown(self, piece: bytes) -> str:
        """The piece with the node before it and, where a rank said it, the rank."""
        found = _LOCAL_RANK.match(piece)
        if not found:
            return f"{self.name} | {_line(piece)}"
        rank = self.plan.node_rank * self.job.local_world_size + int(found[1])
        line = _line(piece[found.end() :])
        self._last_lines[rank] = line
        return f"{self.name} rank {rank} | {line}"

    def found_port_taken(self) -> bool:
        """Whether the job ended here because another process has the rendezvous port."""
        port = self.job.rendezvous.port
        if port is None or self.watched is None:
            return False
        self.watched.process.drain(1)
        return port_taken(self.trail(), port)

    @property
    def doubt(self) -> str | None:
        """Why what the job said here may not be whole."""
        found = self.watched.process.doubt if self.watched else None
        return f"{self.name}: {found}" if found else None

    @property
    def alarm(self) -> str | None:
        """Why the job must not go on, as far as this node tells."""
        return self.trouble or (self.watched.process.lost if self.watched else None)

    def makes_steps(self, seconds: float) -> bool:
        """Whether a rank has noted a step, or written anything, within the last `seconds` by its clock.

        Of what ranks write, torchrun hands on whole lines, which a progress bar has none of.
        """
        signs = ["(", "-name", "rank_*_metrics.jsonl", "-o", "-name", "std*.log", ")"]
        find = ["find", "-L", self.plan.aorta_path, *signs, "-mmin", f"-{seconds / 60}"]
        return bool(self.transport.run(find, timeout=30).stdout)

    def stacks(self) -> list[RankStack]:
        """Where each rank stands; kept with the node's logs, and with the last line of each."""
        first = self.plan.node_rank * self.job.local_world_size
        ours = range(first, first + self.job.local_world_size)  # on one machine the others are seen, too
        stacks = [stack for stack in self.runtime.stacks(timeout=20) if stack.rank in ours]
        log = self.folder.path / self.stacks_log
        said = (f"{stack}    last line: {self._last_lines.get(stack.rank, '–')}\n" for stack in stacks)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(said), encoding="utf-8")
        except OSError as error:
            self._complain(error)
        return stacks

    @property
    def stacks_log(self) -> str:
        """Where the stacks are kept, below the run's folder."""
        return self.folder.relative(self.folder.node_logs(self.plan.node_rank) / "stacks.txt")

    def end(self) -> None:
        """Make sure that nothing of the job runs on the node any more."""
        was_busy = self._lock.locked()
        if was_busy:
            with suppress(CvsError):  # what cannot be told so is told below
                self.runtime.break_off()
        if self._lock.acquire(timeout=_WAIT_SECONDS):  # a start that is under way
            self._lock.release()
        process: Process | None = self.watched.process if self.watched else None
        # A job that was broken off while it was started may have ended of that.
        runs = process is not None and process.lost is None and (was_busy or process.poll() is None)
        if self.watched and process is not None and runs:
            self.watched.stopped = True
            with suppress(CvsError):  # what the signal does not reach, the next line does
                process.signal(signal.SIGKILL)
        try:
            self.left_running = self.runtime.kill_leftovers()
        finally:
            if process is not None and self._log is not None:
                process.drain(5)
                self._close(self._log)
        if self.left_running:
            raise TransportError(f"{self.name}: processes {self.left_running} cannot be ended")

    def _close(self, log: NodeLog) -> None:
        try:
            log.close()
        except OSError as error:
            if self.trouble is None:
                self._complain(error)

    def collect(self) -> None:
        """Bring home what the job left: torchrun's logs, and, where wanted, this run's files."""
        try:
            _once_more(self._collect_logs)
        finally:
            before = self._before
            if self.job.collect_traces and before is not None:
                _once_more(lambda: self._collect_files(before))

    def _collect_logs(self) -> None:
        out_dir, limit = self.plan.out_dir_on_node, self.job.limits.transfer
        paths = self._logs_to_fetch(out_dir, limit) if self.watched else []
        logs = self.folder.node_logs(self.plan.node_rank)
        fetched = self.transport.fetch(out_dir, paths, logs, timeout=limit)
        if fetched.problem:
            raise TransportError(fetched.problem)
        removed = self.transport.run(["sh", "-c", _REMOVE, "sh", out_dir], timeout=limit)
        if removed.exit_code:
            raise TransportError(f"{self.name}: {_first_line(removed.stderr)}")

    def _logs_to_fetch(self, out_dir: str, limit: float) -> list[str]:
        """What torchrun left; of a log that is too long its beginning and its end, cut on the node."""
        found = self.transport.run(["find", out_dir, "-type", "f", "-printf", "%s\\t%P\\0"], timeout=limit)
        if found.exit_code:
            self.note(TransportError(f"{self.name}: {_first_line(found.stderr)}"))
        sizes = [entry.split("\t", 1) for entry in found.stdout.split("\0") if entry]
        for size, path in sizes:
            if int(size) > RANK_LOG_BYTES:
                half, left_out = RANK_LOG_BYTES // 2, gap(int(size) - 2 * (RANK_LOG_BYTES // 2))
                cut = ["sh", "-c", _CUT, "sh", f"{out_dir}/{path}", str(half), left_out.decode()]
                self.transport.run(cut, timeout=limit)
        return [path for _, path in sizes]

    def _collect_files(self, before: Listing) -> None:
        limit, root = self.job.limits.transfer, self.plan.aorta_path
        now = listing(self.transport, root, timeout=limit)
        for told in now.problems_since(before):
            self.note(TransportError(told))
        into = self.folder.node_traces(self.plan.node_rank)
        paths = [path for path in now.new_since(before) if self._is_to_fetch(path)]
        self._check_room(sum(int(now.files[path][0]) for path in paths))
        self.files, problems = bring_home(
            self.transport, root, paths, into, self.plan.node_rank, timeout=limit
        )
        for problem in problems:
            self.note(TransportError(problem))

    def _is_to_fetch(self, path: str) -> bool:
        """Whether this node brings the file home, of those that share it: the one whose rank's it is."""
        folder = rank_folder(path)
        rank = folder[1] if folder else rank_in_name(path)
        plans = self.job.nodes
        if rank is not None and rank // self.job.local_world_size < len(plans):
            owner = plans[rank // self.job.local_world_size].node
            if owner in self.sharing:
                return owner == self.name
        return self.is_first

    def _check_room(self, needed: int) -> None:
        free = self.folder.free_bytes
        if needed > free:
            raise TransportError(
                f"{self.name}: its {needed >> 20} MiB of traces do not fit: {free >> 20} MiB are free at"
                f" {self.folder.path}; they stay on the node, below {self.plan.aorta_path}"
            )

    def teardown(self) -> None:
        """Take away what was made, and let go of the node; what comes after that clears up after itself."""
        self._is_over = True
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            raise TransportError(f"{self.name}: still busy; it is cleared up when that ends")
        try:
            self._clear()
        finally:
            self._lock.release()

    def leave(self) -> None:
        """Take away what was made on a node that no job starts on."""
        try:
            if self._is_touched:
                self.end()
                remove = ["sh", "-c", _REMOVE, "sh", self.plan.out_dir_on_node]
                self.transport.run(remove, timeout=_CHECK_SECONDS)
        finally:
            self.teardown()

    def note(self, error: CvsError) -> None:
        """Keep an error of this node for the record."""
        self.is_in_use = self.is_in_use or isinstance(error, NodeInUse)
        self.errors.append(str(error))

    def result(self) -> NodeResult:
        """How it went here."""
        log = self.folder.node_log(self.plan.node_rank)
        watched = self.watched
        return NodeResult(
            node_rank=self.plan.node_rank,
            node=self.name,
            exit_code=watched.exit_code if watched else None,
            seconds=watched.ended_after if watched else None,
            stopped_by_cvs=watched.stopped if watched else False,
            left_running=tuple(self.left_running),
            log=self.folder.relative(log) if log.exists() else None,
            facts=self.facts,
            error="; ".join(self.errors) or None,
        )

    def trail(self) -> NodeTrail:
        """What it left, for the question who failed first."""
        log = self.folder.node_log(self.plan.node_rank)
        watched = self.watched
        return NodeTrail(
            node_rank=self.plan.node_rank,
            node=self.name,
            exit_code=watched.exit_code if watched else None,
            seconds=watched.ended_after if watched else None,
            stopped_by_cvs=watched.stopped if watched else False,
            output=end_of(log, _KEPT_OUTPUT, start=self._log_start),
            log=self.folder.relative(log),
            ranks=tuple(self._rank_trail(path) for path in self._attempts()),
        )

    def _attempts(self) -> list[Path]:
        logs = self.folder.node_logs(self.plan.node_rank)
        folders = logs.glob("torchrun/*/attempt_0/*")
        return sorted((path for path in folders if path.name.isdigit()), key=lambda path: int(path.name))

    def _rank_trail(self, path: Path) -> RankTrail:
        local_rank = int(path.name)
        return RankTrail(
            rank=self.plan.node_rank * self.job.local_world_size + local_rank,
            local_rank=local_rank,
            error=_error_message(path / "error.json"),
            stderr=end_of(path / "stderr.log", _KEPT_OUTPUT),
            stdout=end_of(path / "stdout.log", _KEPT_OUTPUT),
            log=self.folder.relative(path / "stderr.log"),
            stdout_log=self.folder.relative(path / "stdout.log"),
        )


def _once_more(work: Callable[[], None]) -> None:
    """Do it a second time where the first failed: the connection may have been lost meanwhile."""
    try:
        work()
    except TransportError:
        work()


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[0]


def _line(piece: bytes) -> str:
    return printable(piece.decode(errors="replace").rstrip("\r\n"))


def _error_message(path: Path) -> str | None:
    """Message of torch's error file, empty where it holds none; None where there is no such file."""
    try:
        message = json.loads(path.read_bytes())["message"]
    except OSError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    text = message.get("message") if isinstance(message, dict) else message
    return str(text or "")
