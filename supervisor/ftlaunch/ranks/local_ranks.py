"""The ranks of one attempt on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ftlaunch.history.logs.notes import Of
from ftlaunch.memory.pages import Pages
from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks import environment
from ftlaunch.ranks.activity_monitor import ActivityMonitor
from ftlaunch.ranks.fork_client import ForkOrder, Warm
from ftlaunch.ranks.group import Exited
from ftlaunch.ranks.leavings import Sought, read_leavings
from ftlaunch.ranks.log_files import length_to_append_to, log_path, open_log
from ftlaunch.ranks.logs.log_marks import LogMarks
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.ranks.view import RankView
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.nodes.placement import Placement, on_one_node
from ftlaunch.system import processes
from ftlaunch.system.file_thread import FileThread
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Resume

Result = TypeVar("Result")

_STARTING = 20.0
"""seconds that storage has to make the directory and the logs of an attempt"""


class Exits(Protocol):
    """Where exits of processes are waited for: the event loop."""

    turn: int
    """number of the current turn: ends that are seen in one turn came together"""

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""

    def unregister(self, fd: int) -> None:
        """No longer."""


@dataclass(frozen=True)
class Surroundings:
    """What the ranks of all attempts of a job are started with."""

    spec: JobSpec
    pages: Pages
    gpus: Gpus
    fork_server: Warm
    base_env: Mapping[str, str]
    control: Path
    """the control socket"""
    marker: str
    """NAME=VALUE in the environment of a rank, by which its leftovers are recognised"""
    exits: Exits
    clock: Callable[[], float]
    files: FileThread
    """touches the directory of the logs"""


class LocalRanks:
    """See RankGroup."""

    def __init__(self, around: Surroundings, attempt: int, exited: Exited, place: Placement | None = None) -> None:
        """exited: is told of each rank whose process has ended. place: None where all ranks are on this node."""
        self._around, self.attempt, self._exited = around, attempt, exited
        self.started = around.clock()
        self.ranks: dict[int, Rank] = {}
        self._leaders: dict[int, processes.Leader] = {}
        launch = around.spec.launch
        self._place = place or on_one_node(launch.nproc, launch.master_addr, launch.master_port)
        self.port = self._place.port
        self._unheard: dict[int, processes.Leader] = {}
        """ranks of whose end the loop cannot tell: there was no memory for it"""
        self._restarts: dict[int, int] = {}  # of each rank that was started again alone
        self._marks: LogMarks | None = None
        self._cleaners = processes.Cleaners(around.clock)
        self._activity = ActivityMonitor(around.spec, around.gpus, around.files, self.started)

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start every rank on a fresh port."""
        spec = self._around.spec
        folder = self._log(self._place.first).parent
        try:
            self._call(lambda: folder.mkdir(parents=True, exist_ok=True))
        except OSError as error:
            raise SpawnFailed(self._place.first, f"{folder}: {error.strerror}") from error
        try:
            self.port = self.port or processes.free_port(spec.launch.master_addr)
        except OSError as error:
            raise SpawnFailed(self._place.first, f"no port on {spec.launch.master_addr}: {error.strerror}") from error
        self._marks = LogMarks({number: self._log(number) for number in self._place.ranks}, spec.log_max_size)
        self._start(self._place.ranks, self.attempt, "attempt")

    def replace(self, rank: int, due: float) -> None:
        """End one rank and its process group; `refill` starts it again at `due`."""
        self.ranks[rank].due = due
        self.ranks[rank].process.kill_group()

    @property
    def refilling(self) -> bool:
        """Whether some rank is about to be started again."""
        return any(rank.due is not None for rank in self.ranks.values())

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Start the ranks that are due; yields (rank, how often it was started again) as each of them runs."""
        due = [n for n, rank in self.ranks.items() if rank.due is not None and now >= rank.due and not rank.alive]
        for number in due:
            restarts = self._restarts[number] = self._restarts.get(number, self.attempt) + 1
            self.ranks[number].due = None
            self._around.pages[number].vacate()
            self._start([number], restarts, "rank")
            yield number, restarts

    def _start(self, numbers: Iterable[int], restarts: int, of: Of) -> None:
        """restarts: how many there were before, as the ranks are told. of: whether they are all ranks here, or one."""
        around, spec, now = self._around, self._around.spec, self._around.clock()
        places = replace(self._place, port=self.port), around.pages.directory, around.control
        orders = {}
        for number in numbers:
            env = environment.rank_env(spec, around.base_env, number, self.attempt, *places, restarts=restarts)
            orders[number] = ForkOrder(env, self._log(number))
        with _failing_at(min(orders), "a rank cannot be forked"):
            log_from = self._call(lambda: self._prepare_files(orders))
            if self._marks is not None:
                self._marks.begin(log_from, of)
            started: dict[int, processes.Leader] = around.fork_server.fork(orders, around.marker)
        for number in sorted(orders, key=lambda number: number not in started):  # what lives belongs to us at once
            if number not in started:
                argv = environment.rank_argv(spec)
                with _failing_at(number, argv[0]):
                    started[number] = self._start_plainly(number, argv, orders[number])
            self._add(number, started[number], log_from[number], now)
        self.ranks = dict(sorted(self.ranks.items()))

    def _prepare_files(self, orders: Mapping[int, ForkOrder]) -> dict[int, int]:
        """Remove what an earlier run has left of errors; return how long each log is. Raises OSError."""
        for number in orders:
            environment.error_file(self._around.spec, self.attempt, number).unlink(missing_ok=True)
        return {number: length_to_append_to(order.log) for number, order in orders.items()}

    def _start_plainly(self, number: int, argv: Sequence[str], order: ForkOrder) -> processes.RankProcess:
        """Start a rank as a program. Raises OSError."""
        out = self._call(lambda: open_log(order.log), give_back=os.close)
        try:
            return processes.RankProcess(number, argv, order.env, order.log, out, self._around.marker)
        finally:
            os.close(out)

    def _call(self, function: Callable[[], Result], give_back: Callable[[Result], None] | None = None) -> Result:
        """Touch files on the way to a start, which has no use without them: slow storage is given time."""
        around = self._around
        return around.files.call(
            function, patience=_STARTING, give_back=give_back, while_waiting=around.fork_server.while_waiting
        )

    def _add(self, number: int, process: processes.Leader, log_from: int, now: float) -> None:
        page = self._around.pages[number]
        self.ranks[number] = rank = Rank(number, process, page, self.attempt, log_from, now)
        self._leaders[number] = process
        self._await_exit(rank, process)

    def _await_exit(self, rank: Rank, process: processes.Leader) -> None:
        """Have the loop tell of the end of a rank; where it cannot wait for that, `reap` looks for it."""
        try:
            self._around.exits.register(process.pidfd, lambda: self._on_exit(rank, process))
        except OSError:
            self._unheard[rank.number] = process
        else:
            self._unheard.pop(rank.number, None)

    def _on_exit(self, rank: Rank, process: processes.Leader) -> None:
        self._around.exits.unregister(process.pidfd)
        if process.reap():
            self._has_ended(rank)
        else:
            self._await_exit(rank, process)

    def _has_ended(self, rank: Rank) -> None:
        rank.order = self._around.exits.turn if rank.order < 0 else rank.order
        rank.ended = self._around.clock()
        self._exited(rank)

    def _log(self, number: int) -> Path:
        return log_path(self._around.spec.log_dir, self.attempt, number)

    # --- looking ----------------------------------------------------------------------------------------------

    def notice(self, now: float) -> None:
        """Look at what can only be seen by comparing two looks: phases, activity, logs."""
        for rank in self.ranks.values():
            rank.notice_phase()
        self._activity.look(self.ranks, now)

    def views(self) -> list[RankView]:
        """What decisions are made from."""
        return [rank.view(self._activity.is_busy) for rank in self.ranks.values()]

    def pages(self) -> list[tuple[int, Page]]:
        """The pages that speak of this attempt, with their ranks."""
        return [(number, page) for number, rank in self.ranks.items() if (page := rank.page) is not None]

    @property
    def resuming(self) -> bool:
        """Whether some rank has restored its state: the others are about to."""
        pages = (rank.page for rank in self.ranks.values())
        return any(page is not None and page.resumed[0] != Resume.UNDECIDED for page in pages)

    @property
    def living(self) -> list[int]:
        """The ranks whose processes are left."""
        return [number for number, rank in self.ranks.items() if rank.alive]

    @property
    def empty(self) -> bool:
        """Whether no rank's process is left."""
        return not any(rank.alive for rank in self.ranks.values())

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Of these ranks those that a signal has begun to end, with the signal; each rank is returned once."""
        found = {}
        for number in ranks:
            rank = self.ranks.get(number)
            if rank is None or rank.dying is not None or not rank.alive or rank.ended_well:
                continue
            if signum := rank.process.ended_by():
                rank.dying, rank.order, found[number] = now, order, signum
        return found

    def dying(self) -> dict[int, float]:
        """The ranks that a signal is ending at this moment, with the time of the beginning."""
        return {n: rank.dying for n, rank in self.ranks.items() if rank.alive and rank.dying is not None}

    def failed(self, *, must_read: bool) -> list[Evidence]:
        """See RankGroup."""
        failed = {
            number: rank for number, rank in self.ranks.items() if not rank.alive and rank.due is None and rank.failed
        }
        sought = {
            number: Sought(rank.log, rank.log_from, environment.error_file(self._around.spec, self.attempt, number))
            for number, rank in failed.items()
        }
        left = read_leavings(self._around.files, sought, must_read=must_read)
        return [rank.evidence(left[number]) for number, rank in failed.items()]

    def all_done(self) -> bool:
        """Whether every rank has ended honestly with 0, and none because it was told to stop."""
        return all(rank.done for rank in self.ranks.values())

    def stopped(self) -> set[int]:
        """The ranks whose processes are stopped (SIGSTOP)."""
        return {number for number, rank in self.ranks.items() if rank.process.state() in ("T", "t")}

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """What an autopsy has to know of the living ranks. why: what each of them is asked for."""
        return [
            {"rank": n, "pid": rank.process.pid, "log": str(rank.log), "why": why, "stacks": rank.shows_stacks}
            for n, rank in self.ranks.items()
            if rank.alive
        ]

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """SIGTERM to every rank, once; stopped processes are continued so that they can hear it."""
        for rank in self.ranks.values():
            if not rank.asked:  # a script may take a second SIGTERM for impatience
                rank.process.signal(signal.SIGTERM)
                rank.asked = True
            rank.process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every rank's process group."""
        processes.kill_groups(self._leaders.values())

    def reap(self, spared: Sequence[int]) -> int:
        """See RankGroup."""
        for number, process in list(self._unheard.items()):
            if process.reap():
                del self._unheard[number]
                self._has_ended(self.ranks[number])
        return processes.reap_orphans({*spared, *(leader.pid for leader in self._leaders.values())})

    def sweep(self, spared: Sequence[int]) -> bool:
        """Once no rank is left: kill what the ranks left in other sessions. True when nothing is left."""
        if self._marks is not None:
            self._marks.end()
        managed = [rank.process.pid for rank in self.ranks.values()]
        return processes.kill_descendants(spared, managed, self._cleaners)


@contextlib.contextmanager
def _failing_at(rank: int, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpawnFailed(rank, f"{error.filename or what}: {error.strerror}") from error
