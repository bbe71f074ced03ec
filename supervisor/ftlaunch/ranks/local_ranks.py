"""Starts, observes and ends the ranks of one attempt on this machine. Runs in the event loop of a supervisor or agent.

Ranks are forked from the fork server if there is one, and are started as plain processes otherwise.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from ftlaunch.history.log_notes import Of
from ftlaunch.memory.pages import Pages
from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks import environment
from ftlaunch.ranks.activity_monitor import ActivityMonitor
from ftlaunch.ranks.cpu_affinity import CpuAffinity
from ftlaunch.ranks.fork_client import RankToFork, Warm
from ftlaunch.ranks.gpu_memory import GpuMemoryWait
from ftlaunch.ranks.group import Exited
from ftlaunch.ranks.leavings import Sought, read_leavings
from ftlaunch.ranks.log_files import length_to_append_to, log_path, open_log
from ftlaunch.ranks.log_marks import LogMarks
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.ranks.view import RankView
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.placement import Placement, on_one_node
from ftlaunch.system import processes
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch.system.loop import Loop
from ftlaunch.system.ports import free_port
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Resume

Result = TypeVar("Result")

_STORAGE_PATIENCE_SECONDS = 20.0
"""seconds that storage has to make the directory and the logs of an attempt"""


@dataclass(frozen=True)
class Surroundings:
    """What the ranks of all attempts of a job are started with."""

    spec: JobSpec
    pages: Pages
    gpus: Gpus
    gpu_memory: GpuMemoryWait
    """waits for the memory of processes that have ended"""
    affinity: CpuAffinity
    """chooses the CPUs of the ranks"""
    fork_server: Warm
    base_env: Mapping[str, str]
    """environment that the job was started with"""
    control: Path
    """path of the control socket"""
    marker: str
    """NAME=VALUE in the environment of every rank, by which leftover processes are recognised"""
    loop: Loop
    """event loop, in which the ends of ranks are waited for"""
    clock: Callable[[], float]
    """returns monotonic seconds"""
    files: FileThread
    """thread that reads and writes the directory of the logs"""


class LocalRanks:
    """The ranks of one attempt on this machine. Implements `RankGroup`, which documents the public methods."""

    def __init__(
        self, surroundings: Surroundings, attempt: int, exited: Exited, place: Placement | None = None
    ) -> None:
        """Make a group without ranks; `spawn` starts them.

        Args:
            surroundings: what the ranks of all attempts are started with.
            attempt: number of the attempt.
            exited: called with each rank whose process has ended.
            place: this node's share of the ranks; None if all ranks are on this node.
        """
        self._surroundings = surroundings
        self.attempt = attempt
        self._exited = exited
        self.started = surroundings.clock()
        self.ranks: dict[int, Rank] = {}
        self._leaders: dict[int, processes.Leader] = {}
        self._rank_by_pid: dict[int, int] = {}  # of all ranks, also of those that were started again
        self._left_behind: set[int] = set()  # pids of other processes of the attempt that have outlived their parents
        launch = surroundings.spec.launch
        self._place = place or on_one_node(launch.nproc, launch.master_addr, launch.master_port)
        self.port = self._place.port
        self._unwatched: dict[int, processes.Leader] = {}
        """processes whose end the event loop cannot report, because the kernel had no memory for it"""
        self._restarts: dict[int, int] = {}  # number of restarts, of each rank that was started again alone
        self._awaited: set[int] = set()  # ranks to be started alone for whose GPU memory a wait has begun
        self._marks: LogMarks | None = None
        self._cleaners = processes.Cleaners(surroundings.clock)
        self._activity = ActivityMonitor(
            spec=surroundings.spec, gpus=surroundings.gpus, files=surroundings.files, now=self.started
        )

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start every rank on a fresh port.

        Restarts of torchelastic share a store, in which ranks find addresses of dead ranks. Here rank 0 of each attempt
        hosts a store of its own.
        """
        spec = self._surroundings.spec
        folder = self._log_path(self._place.first).parent
        try:
            self._call_patiently(lambda: folder.mkdir(parents=True, exist_ok=True))
        except OSError as error:
            raise SpawnFailed(self._place.first, f"{folder}: {error.strerror}") from error
        try:
            self.port = self.port or free_port(spec.launch.master_addr)
        except OSError as error:
            raise SpawnFailed(self._place.first, f"no port on {spec.launch.master_addr}: {error.strerror}") from error
        self._marks = LogMarks({number: self._log_path(number) for number in self._place.ranks}, spec.log_max_size)
        self._start(self._place.ranks, self.attempt, "attempt")
        self._surroundings.gpus.ask()  # loads NVML now, so that the next attempt need not wait for that

    def replace(self, rank: int, due: float) -> None:
        """Kill one rank and its process group; `refill` starts the rank again at `due`."""
        self.ranks[rank].due = due
        self.ranks[rank].process.kill_group()

    @property
    def refilling(self) -> bool:
        """Whether some rank is about to be started again."""
        return any(rank.due is not None for rank in self.ranks.values())

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Start the replaced ranks that are due, and yield each one's number and its number of restarts.

        A rank starts once the GPU memory of its last process is free.
        """
        ended = {number: rank.due for number, rank in self.ranks.items() if rank.due is not None and not rank.alive}
        self._await_memory(ended.keys())
        if not self._surroundings.gpu_memory.is_over:
            return
        for number in [number for number, due in ended.items() if now >= due]:
            restarts = self._restarts.get(number, self.attempt) + 1
            self._restarts[number] = restarts
            self.ranks[number].due = None
            self._awaited.discard(number)
            self._surroundings.pages[number].vacate()
            self._start([number], restarts, "rank")
            yield number, restarts

    def _await_memory(self, ended: Set[int]) -> None:
        """Begin to wait for the GPU memory of ranks that are to be started alone, and of what they have left behind."""
        if ended <= self._awaited:
            return
        self._awaited = set(ended)
        pids = self._left_behind | {self.ranks[number].process.pid for number in ended}
        self._surroundings.gpu_memory.begin(self.attempt, self._rank_by_pid, pids, alone=tuple(sorted(ended)))

    def _start(self, numbers: Iterable[int], restarts: int, of: Of) -> None:
        """Fork the ranks, and start those that cannot be forked as plain processes.

        Args:
            numbers: the ranks to start.
            restarts: number of earlier restarts, which the ranks find in their environment.
            of: whether these are all ranks of this node ("attempt") or a single one ("rank").

        Raises:
            SpawnFailed: a rank cannot be started.
        """
        surroundings = self._surroundings
        spec = surroundings.spec
        now = surroundings.clock()
        place = replace(self._place, port=self.port)
        cpus = surroundings.affinity.choose(
            place.count, {**surroundings.base_env, **spec.launch.env}, surroundings.fork_server.while_waiting
        )
        to_fork = {}
        for number in numbers:
            env = environment.rank_env(
                spec,
                surroundings.base_env,
                rank=number,
                attempt=self.attempt,
                place=place,
                memory_dir=surroundings.pages.directory,
                control=surroundings.control,
                restarts=restarts,
            )
            to_fork[number] = RankToFork(env, self._log_path(number), cpus.get(number - place.first))
        with _failing_at(min(to_fork), "a rank cannot be forked"):
            log_from = self._call_patiently(lambda: self._prepare_files(to_fork))
            if self._marks is not None:
                self._marks.begin(log_from, of)
            started: dict[int, processes.Leader] = surroundings.fork_server.fork(to_fork, surroundings.marker)
        # forked ranks first: they run already, and belong to the group even if a plain process cannot be started
        for number in sorted(to_fork, key=lambda number: number not in started):
            if number not in started:
                argv = environment.rank_argv(spec)
                with _failing_at(number, argv[0]):
                    started[number] = self._start_plainly(number, argv, to_fork[number])
            self._add(number, started[number], log_from=log_from[number], now=now)
        self.ranks = dict(sorted(self.ranks.items()))

    def _prepare_files(self, to_fork: Mapping[int, RankToFork]) -> dict[int, int]:
        """Remove the error files of an earlier run, and return the length of each log in bytes. Raises OSError."""
        for number in to_fork:
            environment.error_file(self._surroundings.spec, self.attempt, number).unlink(missing_ok=True)
        return {number: length_to_append_to(rank.log) for number, rank in to_fork.items()}

    def _start_plainly(self, number: int, argv: Sequence[str], rank: RankToFork) -> processes.RankProcess:
        """Start a rank as a program. Raises OSError."""
        out = self._call_patiently(lambda: open_log(rank.log), give_back=os.close)
        try:
            return processes.RankProcess(
                number,
                argv,
                env=rank.env,
                log=rank.log,
                out=out,
                marker=self._surroundings.marker,
                cpus=rank.cpus,
            )
        finally:
            os.close(out)

    def _call_patiently(
        self, function: Callable[[], Result], give_back: Callable[[Result], None] | None = None
    ) -> Result:
        """Call a function that touches files which a start needs, and give slow storage time. Raises OSError.

        Args:
            function: called in the file thread.
            give_back: frees a result that comes too late.
        """
        surroundings = self._surroundings
        return surroundings.files.call(
            function,
            patience=_STORAGE_PATIENCE_SECONDS,
            give_back=give_back,
            while_waiting=surroundings.fork_server.while_waiting,
        )

    def _add(self, number: int, process: processes.Leader, log_from: int, now: float) -> None:
        rank = Rank(
            number,
            process,
            page=self._surroundings.pages[number],
            attempt=self.attempt,
            log_from=log_from,
            started=now,
        )
        self.ranks[number] = rank
        self._leaders[number] = process
        self._rank_by_pid[process.pid] = number
        self._await_exit(rank, process)

    def _await_exit(self, rank: Rank, process: processes.Leader) -> None:
        """Have the event loop report the end of a rank; if the loop cannot watch the process, `reap` polls it."""
        try:
            self._surroundings.loop.register(process.pidfd, lambda: self._on_exit(rank, process))
        except OSError:
            self._unwatched[rank.number] = process
        else:
            self._unwatched.pop(rank.number, None)

    def _on_exit(self, rank: Rank, process: processes.Leader) -> None:
        """Handle a readable pidfd: reap the process, or watch it again if it cannot be reaped yet."""
        self._surroundings.loop.unregister(process.pidfd)
        if process.reap():
            self._record_end(rank)
        else:
            self._await_exit(rank, process)

    def _record_end(self, rank: Rank) -> None:
        """Record when a reaped rank ended, and report the rank."""
        if rank.order < 0:
            rank.order = self._surroundings.loop.turn
        rank.ended = self._surroundings.clock()
        self._exited(rank)

    def _log_path(self, number: int) -> Path:
        return log_path(self._surroundings.spec.log_dir, self.attempt, number)

    # --- observing --------------------------------------------------------------------------------------------

    def notice(self, now: float) -> None:
        """Record phases, activity and growth of logs, which can only be seen by comparing two observations."""
        for rank in self.ranks.values():
            rank.notice_phase()
        self._activity.observe(self.ranks, now)

    def views(self) -> list[RankView]:
        """Return what is known of each rank, for decisions."""
        return [rank.view(self._activity.is_busy) for rank in self.ranks.values()]

    def pages(self) -> list[tuple[int, Page]]:
        """Return pairs of rank and page, of those pages that were written in this attempt."""
        return [(number, page) for number, rank in self.ranks.items() if (page := rank.page) is not None]

    @property
    def resuming(self) -> bool:
        """Whether some rank has restored its state, so that the others are about to do so."""
        pages = (rank.page for rank in self.ranks.values())
        return any(page is not None and page.resumed[0] != Resume.UNDECIDED for page in pages)

    @property
    def living(self) -> list[int]:
        """The ranks whose processes have not been reaped."""
        return [number for number, rank in self.ranks.items() if rank.alive]

    @property
    def empty(self) -> bool:
        """Whether all ranks' processes have been reaped."""
        return not any(rank.alive for rank in self.ranks.values())

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Record which of `ranks` a signal has begun to end, and return the signals of those newly found."""
        signals = {}
        for number in ranks:
            rank = self.ranks.get(number)
            if rank is None or rank.dying is not None or not rank.alive or rank.ended_well:
                continue
            if signum := rank.process.ended_by():
                rank.dying = now
                rank.order = order
                signals[number] = signum
        return signals

    def dying(self) -> dict[int, float]:
        """Return the ranks that a signal is ending at this moment, and since when, in monotonic seconds."""
        return {number: rank.dying for number, rank in self.ranks.items() if rank.alive and rank.dying is not None}

    def failed(self, *, must_read: bool) -> list[Evidence]:
        """Return what the failed ranks left behind, without ranks that are to be started again.

        Args:
            must_read: raise OSError if a log cannot be read; otherwise such a log counts as empty.
        """
        failed = {
            number: rank for number, rank in self.ranks.items() if not rank.alive and rank.due is None and rank.failed
        }
        sought = {
            number: Sought(
                rank.log, rank.log_from, environment.error_file(self._surroundings.spec, self.attempt, number)
            )
            for number, rank in failed.items()
        }
        left = read_leavings(self._surroundings.files, sought, must_read=must_read)
        return [rank.evidence(left[number]) for number, rank in failed.items()]

    def all_done(self) -> bool:
        """Return whether every rank has completed its work and ended with 0, and none because of a stop request."""
        return all(rank.done for rank in self.ranks.values())

    def stopped(self) -> set[int]:
        """Return the ranks whose processes are stopped (SIGSTOP)."""
        return {number for number, rank in self.ranks.items() if rank.process.state() in ("T", "t")}

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """Return what an autopsy has to know of the living ranks, which is asked for because of `why`."""
        return [
            {"rank": number, "pid": rank.process.pid, "log": str(rank.log), "why": why, "stacks": rank.shows_stacks}
            for number, rank in self.ranks.items()
            if rank.alive
        ]

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """Send SIGTERM to every rank once, and SIGCONT, so that stopped processes can handle the SIGTERM."""
        for rank in self.ranks.values():
            if not rank.asked:  # scripts may take a second SIGTERM as an order to hurry
                rank.process.signal(signal.SIGTERM)
                rank.asked = True
            rank.process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL to every rank's process group."""
        processes.kill_groups(self._leaders.values())

    def reap(self, spared: Sequence[int]) -> int:
        """Reap ended processes that ranks have left, and ranks that the event loop cannot watch.

        Args:
            spared: pids of helper processes, which are not reaped.

        Returns:
            The number of reaped orphans.
        """
        for number, process in list(self._unwatched.items()):
            if process.reap():
                del self._unwatched[number]
                self._record_end(self.ranks[number])
        reaped = processes.reap_orphans({*spared, *(leader.pid for leader in self._leaders.values())})
        self._left_behind.update(reaped)
        return len(reaped)

    def sweep(self, spared: Sequence[int]) -> bool:
        """Kill what the ranks left in other sessions, and return whether nothing is left. Called once no rank lives.

        Once nothing is left, the wait for the GPU memory of the attempt begins.
        """
        if self._marks is not None:
            self._marks.end()
        managed = [rank.process.pid for rank in self.ranks.values()]
        self._left_behind.update(set(processes.children(os.getpid())) - {*spared, *managed})
        if not processes.kill_descendants(spared, managed, self._cleaners):
            return False
        pids = self._left_behind | self._rank_by_pid.keys()
        self._surroundings.gpu_memory.begin(self.attempt, self._rank_by_pid, pids)
        return True


@contextlib.contextmanager
def _failing_at(rank: int, what: str) -> Iterator[None]:
    """Turn an OSError of the block into SpawnFailed of `rank`; `what` is named if the error names no file."""
    try:
        yield
    except OSError as error:
        raise SpawnFailed(rank, f"{error.filename or what}: {error.strerror}") from error
