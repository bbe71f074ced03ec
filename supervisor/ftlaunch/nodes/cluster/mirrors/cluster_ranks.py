"""The ranks of one attempt on all nodes: a RankGroup whose processes belong to the agents.

`ClusterRanks` runs in the head's event loop. The engine calls the methods of RankGroup; `Reports` and `Cluster` call
the `on_...` methods with what the nodes report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.cluster.mirrors.remote_process import RemoteProcess
from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks import environment
from ftlaunch.ranks.group import Exited
from ftlaunch.ranks.leavings import Sought, read_leavings
from ftlaunch.ranks.log_files import log_path
from ftlaunch.ranks.rank import Rank
from ftlaunch.ranks.view import RankView
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThread
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Resume


class Nodes(Protocol):
    """What a group of ranks needs of the nodes. `Cluster` implements it."""

    def begin(self, group: ClusterRanks) -> int:
        """Have the nodes start the ranks of a group. Return MASTER_PORT."""

    def send_all(self, do: str) -> None:
        """Send a message without fields to every node of the attempt."""

    def is_cleared(self) -> bool:
        """Return whether no process of the attempt is left on any node, nor can be at work on a lost one."""


class ClusterRanks:
    """The ranks of one attempt of a job of several nodes. Implements RankGroup."""

    def __init__(
        self,
        spec: JobSpec,
        pages: Pages,
        nodes: Nodes,
        clock: Callable[[], float],
        files: FileThread,
        attempt: int,
        exited: Exited,
    ) -> None:
        """Begin without ranks; `spawn` or `adopt` follows.

        Args:
            spec: the job, with the ranks of all nodes.
            pages: the mirrors.
            nodes: the nodes of the job.
            clock: monotonic seconds.
            files: the thread that reads the logs.
            attempt: the number of the attempt.
            exited: called with each rank that has ended.
        """
        self._spec = spec
        self._pages = pages
        self._nodes = nodes
        self._clock = clock
        self._files = files
        self.attempt = attempt
        self._exited = exited
        self.started = clock()
        self.port = 0
        self.ranks: dict[int, Rank] = {}
        self._processes: dict[int, RemoteProcess] = {}
        self._busy: dict[int, bool] = {}
        self._ends = 0  # the number of ranks that have ended or begun to die

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Have the nodes start their ranks."""
        self._create_mirrors()
        self.port = self._nodes.begin(self)

    def _create_mirrors(self) -> None:
        """Create the mirrors of all ranks."""
        for number in range(len(self._pages)):
            process = RemoteProcess(number, log_path(self._spec.log_dir, self.attempt, number))
            self._processes[number] = process
            self.ranks[number] = Rank(number, process, self._pages[number], self.attempt, 0, self.started)

    def adopt(self, adopt: Callable[[ClusterRanks], None]) -> None:
        """Adopt ranks that run already.

        Args:
            adopt: reports the processes of the ranks to this group.
        """
        self._create_mirrors()
        adopt(self)

    def replace(self, rank: int, due: float) -> None:
        """Raise an error: `restart_scope: rank` is refused for several nodes, so that nothing calls this."""
        raise AssertionError("a rank of several nodes is not replaced alone")

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Return nothing, because no rank is replaced alone."""
        return iter(())

    @property
    def refilling(self) -> bool:
        """Always False, because no rank is replaced alone."""
        return False

    # --- what the nodes say -----------------------------------------------------------------------------------

    def on_started(self, pids: Mapping[int, int], log_from: Mapping[int, int]) -> None:
        """Note that ranks run.

        Args:
            pids: their processes by rank.
            log_from: where in their logs this attempt begins, in bytes by rank.
        """
        for number, pid in pids.items():
            self._processes[number].pid = pid
            self.ranks[number].log_from = log_from.get(number, 0)

    def on_dying(self, ending: Mapping[int, int]) -> None:
        """Note the signals that are ending ranks, by rank."""
        for number, signum in ending.items():
            self._processes[number].ending = signum

    def on_stopped(self, of_node: Iterable[int], stopped: Iterable[int]) -> None:
        """Note which ranks of a node are stopped.

        Args:
            of_node: all ranks of the node.
            stopped: those that are stopped.
        """
        now = set(stopped)
        for number in of_node:
            self._processes[number].is_stopped = number in now

    def on_noted(self, number: int, active: float, logged: float, *, busy: bool) -> None:
        """Note what its agent has seen of a rank that does not beat.

        Args:
            number: the rank.
            active: when the rank was last active, on the head's clock.
            logged: when the rank last wrote to its log, on the head's clock.
            busy: whether the rank's processes are at work.
        """
        self.ranks[number].active = active
        self.ranks[number].logged = logged
        self._busy[number] = busy

    def on_exit(self, number: int, code: int, lost: str = "") -> None:
        """Note that a rank has ended.

        Args:
            number: the rank.
            code: its exit code.
            lost: why its node counts as lost, if that is why the rank counts as ended.
        """
        process = self._processes[number]
        rank = self.ranks[number]
        if process.returncode is not None:
            return
        process.returncode = code
        process.lost = lost
        self._ends += 1
        if rank.order < 0:
            rank.order = self._ends
        rank.ended = self._clock()
        self._exited(rank)

    # --- observing --------------------------------------------------------------------------------------------

    def notice(self, now: float) -> None:
        """Do nothing: the agents look at the ranks' processes, and `views` at their phases."""

    def views(self) -> list[RankView]:
        """Return what decisions are made from. Also notice the phases, so that the mirrors are read only once."""
        found = []
        for rank in self.ranks.values():
            rank.notice_phase()
            found.append(rank.view(lambda viewed, _: self._busy.get(viewed.number, False)))
        return found

    def pages(self) -> list[tuple[int, Page]]:
        """Return the ranks whose mirrors hold words of this attempt, each with its mirror."""
        return [(number, page) for number, rank in self.ranks.items() if (page := rank.page) is not None]

    @property
    def resuming(self) -> bool:
        """Whether a rank has restored its state."""
        pages = (rank.page for rank in self.ranks.values())
        return any(page is not None and page.resumed[0] != Resume.UNDECIDED for page in pages)

    @property
    def living(self) -> list[int]:
        """The ranks that are not known to have ended."""
        return [number for number, rank in self.ranks.items() if rank.alive]

    @property
    def empty(self) -> bool:
        """Whether every rank has ended."""
        return not self.living

    def dying(self) -> dict[int, float]:
        """Return since when a signal is ending a rank, by rank."""
        return {number: rank.dying for number, rank in self.ranks.items() if rank.alive and rank.dying is not None}

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Note which ranks a signal has begun to end.

        Args:
            ranks: the ranks to check.
            order: not used here; the order of the reports counts.
            now: monotonic seconds.

        Returns:
            The signal by rank, for ranks that were not returned before.
        """
        found = {}
        for number in ranks:
            rank = self.ranks.get(number)
            if rank is None or rank.dying is not None or not rank.alive or rank.ended_well:
                continue
            if signum := rank.process.ended_by():
                self._ends += 1
                rank.dying = now
                rank.order = self._ends
                found[number] = signum
        return found

    def failed(self, *, must_read: bool) -> list[Evidence]:
        """Return what the failed ranks have left behind, or that their node is lost.

        Args:
            must_read: raise if a log cannot be read; otherwise such a log counts as empty.

        Raises:
            OSError: a log cannot be read, and `must_read` is set.
        """
        failed = {
            number: rank
            for number, rank in self.ranks.items()
            if not rank.alive and (self._processes[number].lost or rank.failed)
        }
        sought = {
            number: Sought(rank.log, rank.log_from, environment.error_file(self._spec, self.attempt, number))
            for number, rank in failed.items()
        }
        left = read_leavings(self._files, sought, must_read=must_read)
        return [
            replace(rank.evidence(left[number]), lost=self._processes[number].lost) for number, rank in failed.items()
        ]

    def all_done(self) -> bool:
        """Return whether every rank has ended by itself with 0."""
        return all(rank.done and not self._processes[number].lost for number, rank in self.ranks.items())

    def stopped(self) -> set[int]:
        """Return the ranks whose processes are stopped (SIGSTOP), as their agents have last reported."""
        return {number for number, rank in self.ranks.items() if rank.process.state() == "T"}

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """Return what an autopsy must know about the living ranks.

        Args:
            why: the reason for the autopsy, a clause.
        """
        return [
            {"rank": number, "pid": rank.process.pid, "log": str(rank.log), "why": why, "stacks": rank.shows_stacks}
            for number, rank in self.ranks.items()
            if rank.alive and rank.process.pid
        ]

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """Have the agents send SIGTERM to every rank, once, and continue stopped processes."""
        for rank in self.ranks.values():
            rank.asked = True
        self._nodes.send_all("leave")

    def kill(self) -> None:
        """Have the agents send SIGKILL to every rank's process group."""
        self._nodes.send_all("kill")

    def reap(self, spared: Sequence[int]) -> int:
        """Do nothing: the agents reap their processes."""
        return 0

    def sweep(self, spared: Sequence[int]) -> bool:
        """Return whether the agents have killed what their ranks left behind, and no lost node can be at work."""
        return self._nodes.is_cleared()
