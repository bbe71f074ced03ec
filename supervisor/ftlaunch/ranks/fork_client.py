"""The supervisor's end of the fork server (the warm parent): starts the server, has it fork ranks, replaces a dead one.

The fork server has imported the job's modules, so that a forked rank need not. Ranks that cannot be forked are started
as plain processes by the caller: nothing here may keep a job from running. Everything runs in the event loop's thread,
which is the main thread: the kernel kills the fork server once the thread that has started it ends.

Order: one message to the fork server, by which a child of the server (a helper) forks one rank or a batch of ranks.
Gate: a socket that goes with an order. Each forked rank reports its pid there, and waits for SIGCONT.
Marker: NAME=VALUE in the environment of the job's processes, by which leftovers of the job are recognised.

The server's messages are one JSON object each (ftlaunch_hooks/programs/fork_server.py):

    {"ready": true}                        it takes orders
    {"complete": true}                     the modules that wait for an attempt are imported, too
    {"without": module, "why": reason}     the module hinders forking or its import fails; restart without it
    {"cannot": reason, "quiet": boolean}   it cannot fork at all, and ends; quiet: the reason is not for the user

If a module that the user has named cannot be imported, the server just ends, with a traceback in its log.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from ftlaunch.ranks.environment import rank_argv
from ftlaunch.ranks.log_files import length_to_append_to, open_log, tail
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.script_imports import imported_by
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch.system.processes import Leader, bind_to
from ftlaunch.system.programs import program
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.kernel_files import memory_file

PROGRAM = program("fork_server")
# Seconds in which a server must be ready. After that the ranks are plain processes, whose slow imports health watches.
_IMPORT_PATIENCE_SECONDS = 120.0
FORK_PATIENCE_SECONDS = 4.0
"""seconds without a forked rank after which the server counts as stopped if it has not computed in them either"""
_WAITING_SLICE_SECONDS = 0.2  # between calls of `while_waiting`
IMPORTING_PATIENCE_SECONDS = 20.0
"""seconds without a forked rank after which the server counts as stopped even if it computes; long, because a loaded
machine imports slowly"""
_EXIT_PATIENCE_SECONDS = 2.0  # from the end of the server's socket to a kill, in which Python frees torch and exits
_MOST_LIVES = 20  # fork servers of one job
_MOST_ROOM = 64 << 10  # bytes; the kernel takes no argument of 128 KiB
# Modules to import once ranks run. The first is imported by torch's optimizers and DistributedDataParallel.
_LATER = ("torch._dynamo", "ftlaunch_hooks.job.attaching", "ftlaunch_hooks.observe.forward_passes")
_AUTO = "auto"  # an entry of `preload` that stands for the modules which the script imports at its top
# With jemalloc's thread, which pyarrow starts when it is imported, no rank could be forked.
_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
_HELPERS = 2  # orders that the server takes without waiting; defined by ftlaunch_hooks/programs/fork_server.py
_BATCH = 16  # most ranks of one order; the first rank need not wait for the last of a thousand


def is_for(spec: JobSpec) -> bool:
    """Return whether the ranks can be forked: they run a module or a .py file, no program, folder or archive."""
    return spec.launch.kind == "module" or (spec.launch.kind == "script" and spec.launch.target.endswith(".py"))


@dataclass(frozen=True)
class RankToFork:
    """A rank that is to be forked, or started as a plain process if it cannot be."""

    env: Mapping[str, str]
    """the rank's whole environment"""
    log: Path
    """file that takes the rank's output"""
    cpus: frozenset[int] | None = None
    """CPUs that the rank is bound to; None: to none"""


def _room_for(shown: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return padding that makes the fork server's command line as long as a rank's, as a list of at most one argument.

    A forked rank overwrites the command line with its own, which must not be longer.

    Args:
        shown: the command line of a rank.
        known: the fork server's command line without padding.
    """
    wanted = sum(len(os.fsencode(word)) + 1 for word in shown)
    available = sum(len(os.fsencode(word)) + 1 for word in known)
    return [" " * min(wanted - available, _MOST_ROOM)] if wanted > available else []


def _batches(ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the first rank alone, then the others in batches.

    Rank 0 hosts the store. A rank that connects before the store exists would try again only after 0.3 to 0.7 s.
    """
    yield ranks[:1]
    for start in range(1, len(ranks), _BATCH):
        yield ranks[start : start + _BATCH]


class WarmLink:
    """One fork server process. `fd` becomes readable when the server has sent a message, or is gone."""

    def __init__(
        self,
        helpers: HelperProcesses,
        spec: JobSpec,
        env: Mapping[str, str],
        out: int,
        *,
        without: Collection[str],
        begun: bool,
    ) -> None:
        """Start the fork server. Call in the main thread only: the server dies with the thread that starts it.

        Args:
            helpers: starts and reaps the process.
            spec: the job.
            env: environment of the fork server.
            out: descriptor that takes the output of the server and of its imports. The caller closes it.
            without: modules that are not preloaded.
            begun: whether ranks are already running.

        Raises:
            OSError: the process cannot be started.
        """
        preload = [name for name in spec.launch.preload if name not in without and name != _AUTO]
        found = imported_by(spec.launch.kind, spec.launch.target) if _AUTO in spec.launch.preload else ()
        later = [name for name in (*_LATER, *found) if name not in without]
        env = {**_WITHOUT_THREADS, **env} if spec.launch.preload else env
        self._args = list(spec.launch.args)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            argv = [spec.launch.python, "-u", str(PROGRAM), str(theirs.fileno()), spec.launch.kind, spec.launch.target]
            room = _room_for(rank_argv(spec), argv)
            argv += [",".join(preload), "begun" if begun else "first", ",".join(later), *room]
            try:
                self._process = helpers.start(argv, stdout=out, stderr=out, env=env, pass_fds=(theirs.fileno(),))
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours
        self.pid = self._process.pid
        self.fd = ours.fileno()

    def receive(self) -> dict[str, object] | None:
        """Return the next message of the fork server; empty if there is none, None if the server is gone."""
        try:
            message = self._socket.recv(1 << 16)
        except BlockingIOError:
            return {}
        except ConnectionResetError:
            return None
        return dict(json.loads(message)) if message else None

    def fork(
        self, ranks: Mapping[int, RankToFork], marker: str, more: bool, while_waiting: Callable[[], None]
    ) -> dict[int, Leader]:
        """Have ranks forked, and return the processes of those that were, by rank.

        The call waits for the ranks, as starting a process waits for its exec. No ranks are left unwatched meanwhile,
        because none of an attempt's ranks is alive when the attempt begins.

        Args:
            ranks: the ranks to fork, by number; at least one. All go into one order.
            marker: NAME=VALUE in the ranks' environment.
            more: whether another order follows, of so many that the server's helpers may run out. The server then
                replaces the helper of this order at once; otherwise that waits until the ranks have had time to start.
            while_waiting: called every fifth of a second.
        """
        gate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with gate:
            with theirs:
                if not self._send_order(list(ranks.values()), theirs, more):
                    return {}
            return self._admit(gate, ranks, marker=marker, while_waiting=while_waiting)

    def _send_order(self, ranks: list[RankToFork], gate: socket.socket, more: bool) -> bool:
        """Send one order to the fork server, and return whether that succeeded.

        The order travels in a memory file, because a message on the socket cannot hold so many variables.
        """
        shared = ranks[0].env  # variables that differ from the first rank's are sent for each rank
        entries = [
            {"log": str(rank.log), "env": {k: v for k, v in rank.env.items() if shared.get(k) != v}} for rank in ranks
        ]
        order = {"supervisor": os.getpid(), "args": self._args, "env": dict(shared), "ranks": entries, "more": more}
        file = memory_file("order")
        try:
            atomic.write_all(file, json.dumps(order).encode())
            os.lseek(file, 0, os.SEEK_SET)
            socket.send_fds(self._socket, [b"fork"], [file, gate.fileno()])
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def _admit(
        self, gate: socket.socket, ranks: Mapping[int, RankToFork], *, marker: str, while_waiting: Callable[[], None]
    ) -> dict[int, Leader]:
        """Wait for the forked ranks, and return their processes.

        Each rank sends its place in the order and its pid, and stops until this process holds a pidfd of the rank, and
        has bound it to its CPUs.
        """
        found: dict[int, Leader] = {}
        by_place = list(ranks)
        while len(found) < len(ranks):
            message = self._receive_at(gate, while_waiting)
            if message is None:
                self.kill()
                break
            if not message:
                break
            place, pid = map(int, message.split())
            rank = by_place[place]
            found[rank] = Leader(rank, pid, log=ranks[rank].log, marker=marker)
            bind_to(pid, ranks[rank].cpus)
            found[rank].signal(signal.SIGCONT)
        return found

    def _receive_at(self, gate: socket.socket, while_waiting: Callable[[], None]) -> bytes | None:
        """Wait for the next message of a forked rank.

        A server that computes is importing modules between two attempts. Waiting is right then: a rank that is started
        as a plain process would import them as well, and more slowly, because both compete for the processors.

        Returns:
            The message; empty if the server and all its children have closed the gate; None if patience is at its end.
        """
        gate.settimeout(min(_WAITING_SLICE_SECONDS, FORK_PATIENCE_SECONDS))
        checked = time.monotonic()
        until = checked + IMPORTING_PATIENCE_SECONDS
        computed = self._processor_seconds()
        while True:
            try:
                return gate.recv(64)
            except TimeoutError:
                while_waiting()
                now = time.monotonic()
                if now < checked + FORK_PATIENCE_SECONDS:
                    continue
                before = computed
                computed = self._processor_seconds()
                checked = now
                if computed == before or now >= until:
                    return None
            except OSError:
                return None

    def _processor_seconds(self) -> float:
        """Return the processor time that the fork server has used, in seconds; 0 if the server is gone."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)

    def kill(self) -> None:
        """Kill the fork server without waiting; `fd` becomes readable when the server is gone."""
        self._process.kill()

    def close(self, patience: float = 0.0) -> int | None:
        """End the fork server, and return its exit status.

        Args:
            patience: seconds in which the server may end by itself before it is killed.
        """
        self._socket.close()
        return self._process.end(patience)


class Warm:
    """Has the ranks of a job forked, by one fork server at a time.

    A server that dies after it was ready is replaced, up to 20 in all. One that fails before is not, and the job then
    has none: `link` is None, and `fork` forks nothing. Whoever holds this object watches `link.fd`, calls
    `handle_message` when that is readable, and reads `link` again after each call.
    """

    def __init__(
        self,
        helpers: HelperProcesses,
        spec: JobSpec,
        env: Mapping[str, str],
        log: Path,
        files: FileThread,
        report: Callable[..., None],
    ) -> None:
        """Start the fork server, if the job can have one and wants one. Call in the main thread only.

        Args:
            helpers: starts and reaps the process.
            spec: the job.
            env: environment of the fork server.
            log: file that takes the fork server's output.
            files: thread that reads and writes the directory of the log.
            report: journals an event, given as name and fields.
        """
        self._helpers = helpers
        self._spec = spec
        self._env = env
        self._log = log
        self._files = files
        self._report = report
        self.while_waiting: Callable[[], None] = lambda: None
        """called every fifth of a second while ranks are forked, so that an agent's node does not count as lost"""
        self.link: WarmLink | None = None
        """the present fork server; None if there is none"""
        self._ready = False
        self._lives = 0  # fork servers that were started
        self._started = 0.0  # when the present one was started
        self.news = ""
        """why there is no fork server, as long as the user is to be told; else empty"""
        self.left_out: dict[str, str] = {}
        """the modules that are not preloaded, and why not"""
        if spec.launch.warm is False:
            return
        if is_for(spec):
            self._start()
        elif spec.launch.warm is True:
            self.news = "a rank is forked from a warm process only where it is a .py file or a module"

    def _start(self) -> None:
        """Start a fork server, or record why there cannot be one."""
        self._lives += 1
        self._started = time.monotonic()
        self._ready = False
        try:
            out = self._files.call(self._open_log, give_back=os.close)
            try:
                self.link = WarmLink(
                    helpers=self._helpers,
                    spec=self._spec,
                    env=self._env,
                    out=out,
                    without=self.left_out,
                    begun=self._lives > 1,
                )
            finally:
                os.close(out)
        except OSError as error:
            self._do_without(f"{error.strerror}: {error.filename or self._spec.launch.python}")

    def _open_log(self) -> int:
        """Open the fork server's log for appending. Raises OSError. Runs in the file thread."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        length_to_append_to(self._log)
        return open_log(self._log)

    def _do_without(self, reason: str, *, quiet: bool = False) -> None:
        """Go on without a fork server.

        Args:
            reason: why there is none.
            quiet: tell the user only if a fork server was demanded.
        """
        self._report("warm_parent", state="none", why=reason)
        if not quiet or self._spec.launch.warm is True:
            self.news = reason
        if self.link is not None:
            self.link.close()
        self.link = None
        self._ready = False

    @property
    def starting(self) -> bool:
        """Whether the fork server still imports. The first attempt waits, as its ranks would import no faster."""
        return self.link is not None and not self._ready

    def late(self, now: float) -> bool:
        """Return whether the fork server's import takes longer than anybody waits. now: monotonic seconds."""
        return self.starting and now - self._started > _IMPORT_PATIENCE_SECONDS

    def give_up(self) -> None:
        """Go on without a fork server, because its import takes too long."""
        self._do_without(f"the warm parent has not imported its modules in {_IMPORT_PATIENCE_SECONDS:.0f} s")

    def handle_message(self) -> None:
        """Act on a message of the fork server, or replace a server that died. Call where `link` is not None.

        Afterwards `link` may be another server, or None.
        """
        assert self.link is not None
        message = self.link.receive()
        if message is None:
            self._replace_dead()
        elif message.get("cannot"):
            self._do_without(str(message["cannot"]), quiet=bool(message.get("quiet")))
        elif message.get("without"):
            self.left_out[str(message["without"])] = str(message["why"])
            self._report("warm_parent", state="without", pid=self.link.pid, why=message["why"])
        elif message.get("ready"):
            self._ready = True
            self._report("warm_parent", state="ready", pid=self.link.pid)
        elif message.get("complete"):
            self._report("warm_parent", state="complete", pid=self.link.pid)

    def _replace_dead(self) -> None:
        """Start another fork server in the place of the dead one, unless the dead one never became ready."""
        assert self.link is not None
        was_ready = self._ready
        status = self.link.close(_EXIT_PATIENCE_SECONDS)
        self._report("warm_parent", state="ended", pid=self.link.pid, status=status)
        self.link = None
        if was_ready and self._lives < _MOST_LIVES:
            self._start()
        else:
            try:
                last_line = self._files.call(lambda: tail(self._log)).strip().rpartition("\n")[2]
            except OSError:
                last_line = ""
            self._do_without(f"the warm parent ended with {status}{last_line and f': {last_line}'} (see {self._log})")

    def fork(self, ranks: Mapping[int, RankToFork], marker: str) -> dict[int, Leader]:
        """Fork ranks, and return the processes of those that were forked, by rank.

        The caller starts the other ranks as plain processes; without a server that is ready, these are all.

        Args:
            ranks: the ranks to fork, by number; at least one.
            marker: NAME=VALUE in the ranks' environment.
        """
        found: dict[int, Leader] = {}
        batches = list(_batches(list(ranks)))
        link = self.link
        for number, batch in enumerate(batches, 1):
            if self.link is None or not self._ready:
                break
            found |= self.link.fork(
                {rank: ranks[rank] for rank in batch},
                marker,
                more=number < len(batches) > _HELPERS,
                while_waiting=self.while_waiting,
            )
            if batch[-1] not in found:
                break
        if link is not None and (plain := sorted(ranks.keys() - found.keys())):
            self._report("warm_parent", state="plain", pid=link.pid, ranks=plain)
        return found

    def dismiss(self) -> None:
        """Kill the fork server at the end of the job, without waiting: the kernel needs long to free its memory."""
        if self.link is not None:
            self.link.kill()

    def close(self) -> None:
        """Kill the fork server, and wait for its end."""
        if self.link is not None:
            self.link.close()
            self.link = None
