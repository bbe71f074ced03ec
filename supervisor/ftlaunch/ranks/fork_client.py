"""The supervisor's end of the warm parent (the fork server): starts it, has it fork ranks, notices its death.

A rank that it cannot fork is started as a plain process: nothing here may keep a job from running.
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
from ftlaunch.system.processes import Leader
from ftlaunch.system.programs import program
from ftlaunch_contract.files import atomic
from ftlaunch_contract.files.kernel_files import memory_file

PROGRAM = program("fork_server")
_IMPORT_PATIENCE = 120.0  # seconds: a rank that imports torch so slowly by itself is watched by health
_FORK_PATIENCE = 4.0  # seconds without a forked rank in which the parent has not computed either: it is stopped
_WAITING_SLICE = 0.2  # seconds between calls of `while_waiting`
_IMPORTING_PATIENCE = 20.0  # seconds without a forked rank, though the parent computes: on a loaded machine it imports
_DYING = 2.0  # seconds from the end of its socket to its exit status: Python frees torch meanwhile
_MOST_LIVES = 20
# torch's optimizers and DistributedDataParallel import the first
_MOST_ROOM = 64 << 10  # bytes: the kernel takes no argument of 128 KiB
_LATER = ("torch._dynamo", "ftlaunch_hooks.job.attaching", "ftlaunch_hooks.observe.forward_passes")
_AUTO = "auto"  # among the modules of `preload`: what the script imports at its top
# With jemalloc's thread, which pyarrow starts when it is imported, no rank could be forked.
_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}
_HELPERS = 2  # so many orders wait for nothing, see ftlaunch_hooks/programs/fork_server.py
_BATCH = 16  # ranks of one order: the first need not wait for the last of a thousand


def is_for(spec: JobSpec) -> bool:
    """Whether the ranks are such as can be forked: Python sources, not programs, folders or archives."""
    return spec.launch.kind == "module" or (spec.launch.kind == "script" and spec.launch.target.endswith(".py"))


@dataclass(frozen=True)
class ForkOrder:
    """A rank to be forked."""

    env: Mapping[str, str]
    log: Path


def _room_for(shown: Sequence[str], known: Sequence[str]) -> list[str]:
    """An argument of spaces by which the fork server's command line has room for that of a rank; none if it has room.

    shown: the rank's. known: what is on the fork server's in any case.
    """
    wanted, there = (sum(len(os.fsencode(word)) + 1 for word in words) for words in (shown, known))
    return [" " * min(wanted - there, _MOST_ROOM)] if wanted > there else []


def _batches(ranks: Sequence[int]) -> Iterator[Sequence[int]]:
    """Rank 0 alone, then batches. Rank 0 hosts the store; a rank that asks too early tries again 0.3 to 0.7 s later."""
    yield ranks[:1]
    for start in range(1, len(ranks), _BATCH):
        yield ranks[start : start + _BATCH]


class WarmLink:
    """One warm parent. `fd` becomes readable when it has something to say, or is gone."""

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
        """Start it. Main thread only. Raises OSError.

        out: takes what it and torch's import print; stays the caller's.
        without: modules that are not preloaded. begun: ranks are running.
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
        self.pid, self.fd = self._process.pid, ours.fileno()

    def hear(self) -> dict[str, object] | None:
        """What the warm parent says; empty when it says nothing, None when it is gone."""
        try:
            message = self._socket.recv(1 << 16)
        except BlockingIOError:
            return {}
        except ConnectionResetError:
            return None
        return dict(json.loads(message)) if message else None

    def fork(
        self, orders: Mapping[int, ForkOrder], marker: str, more: bool, while_waiting: Callable[[], None]
    ) -> dict[int, Leader]:
        """Have ranks forked; returns those that were.

        Waits for them, as starting a process waits for its exec. No ranks are there to be watched meanwhile: an attempt
        begins with none of its ranks alive.

        Args:
            orders: rank -> what it is started with.
            marker: NAME=VALUE in the ranks' environment.
            more: more orders follow than the parent has helpers.
            while_waiting: called every fifth of a second.
        """
        gate, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with gate:
            with theirs:
                if not self._order(list(orders.values()), theirs, more):
                    return {}
            return self._admit(gate, orders, marker, while_waiting)

    def _order(self, orders: list[ForkOrder], gate: socket.socket, more: bool) -> bool:
        shared = orders[0].env
        ranks = [
            {"log": str(order.log), "env": {k: v for k, v in order.env.items() if shared.get(k) != v}}
            for order in orders
        ]
        order = {"supervisor": os.getpid(), "args": self._args, "env": dict(shared), "ranks": ranks, "more": more}
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
        self, gate: socket.socket, orders: Mapping[int, ForkOrder], marker: str, while_waiting: Callable[[], None]
    ) -> dict[int, Leader]:
        """Each rank tells its number and pid, and goes on once we hold a pidfd of it."""
        found: dict[int, Leader] = {}
        by_number = list(orders)
        while len(found) < len(orders):
            said = self._heard_at(gate, while_waiting)
            if said is None:
                self.kill()
                break
            if not said:
                break
            number, pid = map(int, said.split())
            rank = by_number[number]
            found[rank] = Leader(rank, pid, orders[rank].log, marker)
            found[rank].signal(signal.SIGCONT)
        return found

    def _heard_at(self, gate: socket.socket, while_waiting: Callable[[], None]) -> bytes | None:
        """What is said at the gate; empty where nobody is left to say anything, None when patience is at its end.

        A parent that computes imports modules between two attempts: a rank that is started as a plain process would
        import them, too, and more slowly for the company.
        """
        gate.settimeout(min(_WAITING_SLICE, _FORK_PATIENCE))
        looked = time.monotonic()
        until = looked + _IMPORTING_PATIENCE
        computed = self._computed()
        while True:
            try:
                return gate.recv(64)
            except TimeoutError:
                while_waiting()
                now = time.monotonic()
                if now < looked + _FORK_PATIENCE:
                    continue
                before, computed, looked = computed, self._computed(), now
                if computed == before or now >= until:
                    return None
            except OSError:
                return None

    def _computed(self) -> float:
        """Seconds of processor that the warm parent has had."""
        try:
            times = psutil.Process(self.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)

    def kill(self) -> None:
        """Kill the warm parent, without waiting: `fd` tells when it is gone."""
        self._process.kill()

    def close(self, patience: float = 0.0) -> int | None:
        """Kill the warm parent, unless it ends by itself in `patience` seconds; returns its exit status."""
        self._socket.close()
        return self._process.end(patience)


class Warm:
    """The warm parent of a job, started again when it dies; and whether there is one."""

    def __init__(
        self,
        helpers: HelperProcesses,
        spec: JobSpec,
        env: Mapping[str, str],
        log: Path,
        files: FileThread,
        tell: Callable[..., None],
    ) -> None:
        """env, log: of the warm parent. files: touches the directory of the log. tell: journals an event."""
        self._helpers, self._spec, self._env, self._tell = helpers, spec, env, tell
        self._log, self._files = log, files
        self.while_waiting: Callable[[], None] = lambda: None
        """called every fifth of a second while ranks are forked: an agent's node must not count as lost"""
        self.link: WarmLink | None = None
        self._ready = False
        self._lives, self._started = 0, 0.0
        self.news = ""  # why there is no warm parent, where the user is to be told
        self.left_out: dict[str, str] = {}  # modules that are not preloaded: why not
        if spec.launch.warm is False:
            return
        if is_for(spec):
            self._start()
        elif spec.launch.warm is True:
            self.news = "a rank is forked from a warm process only where it is a .py file or a module"

    def _start(self) -> None:
        self._lives, self._started, self._ready = self._lives + 1, time.monotonic(), False
        try:
            out = self._files.call(self._open_log, give_back=os.close)
            try:
                told = self._helpers, self._spec, self._env, out
                self.link = WarmLink(*told, without=self.left_out, begun=self._lives > 1)
            finally:
                os.close(out)
        except OSError as error:
            self._without(f"{error.strerror}: {error.filename or self._spec.launch.python}")

    def _open_log(self) -> int:
        """Raises OSError."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        length_to_append_to(self._log)
        return open_log(self._log)

    def _without(self, reason: str, *, quiet: bool = False) -> None:
        self._tell("warm_parent", state="none", why=reason)
        if not quiet or self._spec.launch.warm is True:
            self.news = reason
        if self.link is not None:
            self.link.close()
        self.link, self._ready = None, False

    @property
    def starting(self) -> bool:
        """Whether the warm parent still imports. The first attempt waits for that: its ranks would import no faster."""
        return self.link is not None and not self._ready

    def late(self, now: float) -> bool:
        """Whether its import takes so long that nobody waits for it any longer."""
        return self.starting and now - self._started > _IMPORT_PATIENCE

    def give_up(self) -> None:
        """Do without a warm parent."""
        self._without(f"the warm parent has not imported its modules in {_IMPORT_PATIENCE:.0f} s")

    def hear(self) -> None:
        """Act on what the warm parent says, or replace one that died; `link` is another afterwards, or None."""
        assert self.link is not None
        said = self.link.hear()
        if said is None:
            self._died()
        elif said.get("cannot"):
            self._without(str(said["cannot"]), quiet=bool(said.get("quiet")))
        elif said.get("without"):
            self.left_out[str(said["without"])] = str(said["why"])
            self._tell("warm_parent", state="without", pid=self.link.pid, why=said["why"])
        elif said.get("ready"):
            self._ready = True
            self._tell("warm_parent", state="ready", pid=self.link.pid)
        elif said.get("complete"):
            self._tell("warm_parent", state="complete", pid=self.link.pid)

    def _died(self) -> None:
        assert self.link is not None
        was_ready, status = self._ready, self.link.close(_DYING)
        self._tell("warm_parent", state="ended", pid=self.link.pid, status=status)
        self.link = None
        if was_ready and self._lives < _MOST_LIVES:
            self._start()
        else:
            try:
                words = self._files.call(lambda: tail(self._log)).strip().rpartition("\n")[2]
            except OSError:
                words = ""
            self._without(f"the warm parent ended with {status}{words and f': {words}'} (see {self._log})")

    def fork(self, orders: Mapping[int, ForkOrder], marker: str) -> dict[int, Leader]:
        """Fork ranks; returns those that were forked. The caller starts the others as plain processes."""
        found: dict[int, Leader] = {}
        batches, asked = list(_batches(list(orders))), self.link
        for number, batch in enumerate(batches, 1):
            if self.link is None or not self._ready:
                break
            asked_for = {rank: orders[rank] for rank in batch}
            more = number < len(batches) > _HELPERS
            found |= self.link.fork(asked_for, marker, more, self.while_waiting)
            if batch[-1] not in found:
                break
        if asked is not None and (plain := sorted(orders.keys() - found.keys())):
            self._tell("warm_parent", state="plain", pid=asked.pid, ranks=plain)
        return found

    def dismiss(self) -> None:
        """Kill the warm parent at the end of the job, without waiting: the kernel needs long to free so much memory."""
        if self.link is not None:
            self.link.kill()

    def close(self) -> None:
        """Kill the warm parent, and wait for its end."""
        if self.link is not None:
            self.link.close()
            self.link = None
