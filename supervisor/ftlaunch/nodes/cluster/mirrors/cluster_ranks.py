"""The ranks of one attempt on all nodes: a RankGroup whose processes are the agents' business."""

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
    """What a group of ranks needs of the nodes."""

    def begin(self, group: ClusterRanks) -> int:
        """Have the ranks of a group started; returns MASTER_PORT."""

    def tell_all(self, do: str) -> None:
        """Send a message without fields to every node of the attempt."""

    def cleared(self) -> bool:
        """Whether no process of the attempt is left on any node, and none on a lost one can be at work any more."""


class ClusterRanks:
    """See RankGroup."""

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
        """spec: its number of ranks is that of the job. pages: the mirrors. files: touches the logs."""
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
        self._ends = 0

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Have the nodes start their ranks."""
        self._know_ranks()
        self.port = self._nodes.begin(self)

    def _know_ranks(self) -> None:
        for number in range(len(self._pages)):
            process = RemoteProcess(number, log_path(self._spec.log_dir, self.attempt, number))
            self._processes[number] = process
            self.ranks[number] = Rank(number, process, self._pages[number], self.attempt, 0, self.started)

    def adopt(self, adopt: Callable[[ClusterRanks], None]) -> None:
        """Take up ranks that run already. adopt: tells which."""
        self._know_ranks()
        adopt(self)

    def replace(self, rank: int, due: float) -> None:
        """Never called: `restart_scope: rank` is refused where there are several nodes."""
        raise AssertionError("a rank of several nodes is not replaced alone")

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Nothing: see `replace`."""
        return iter(())

    @property
    def refilling(self) -> bool:
        """No: see `replace`."""
        return False

    # --- what the nodes say -----------------------------------------------------------------------------------

    def on_started(self, pids: Mapping[int, int], log_from: Mapping[int, int]) -> None:
        """Ranks run. log_from: where in their logs this attempt begins."""
        for number, pid in pids.items():
            self._processes[number].pid = pid
            self.ranks[number].log_from = log_from.get(number, 0)

    def on_dying(self, ending: Mapping[int, int]) -> None:
        """Signals are ending ranks."""
        for number, signum in ending.items():
            self._processes[number].ending = signum

    def on_stopped(self, of_node: Iterable[int], stopped: Iterable[int]) -> None:
        """Which of a node's ranks are stopped."""
        now = set(stopped)
        for number in of_node:
            self._processes[number].is_stopped = number in now

    def on_noted(self, number: int, active: float, logged: float, *, busy: bool) -> None:
        """What was seen from outside of a rank that does not beat: on the head's clock."""
        self.ranks[number].active = active
        self.ranks[number].logged = logged
        self._busy[number] = busy

    def on_exit(self, number: int, code: int, lost: str = "") -> None:
        """A rank has ended. lost: why its node counts as lost, if that is how its end is known."""
        process = self._processes[number]
        rank = self.ranks[number]
        if process.returncode is not None:
            return
        process.returncode = code
        process.lost = lost
        self._ends += 1
        rank.order = self._ends if rank.order < 0 else rank.order
        rank.ended = self._clock()
        self._exited(rank)

    # --- looking ----------------------------------------------------------------------------------------------

    def notice(self, now: float) -> None:
        """Nothing: the nodes look at what the ranks' processes do, and `views` at their phases."""

    def views(self) -> list[RankView]:
        """What decisions are made from. Phases are noticed in the same pass: each one touches all mirrors."""
        found = []
        for rank in self.ranks.values():
            rank.notice_phase()
            found.append(rank.view(lambda one, _: self._busy.get(one.number, False)))
        return found

    def pages(self) -> list[tuple[int, Page]]:
        """The mirrors that speak of this attempt, with their ranks."""
        return [(number, page) for number, rank in self.ranks.items() if (page := rank.page) is not None]

    @property
    def resuming(self) -> bool:
        """Whether some rank has restored its state."""
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
        """The ranks that a signal is ending at this moment, with the time of the beginning."""
        return {n: rank.dying for n, rank in self.ranks.items() if rank.alive and rank.dying is not None}

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Of these ranks those that a signal has begun to end, with the signal; each rank is returned once."""
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
        """What the failed ranks left behind; of a lost node, that it is lost."""
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
        """Whether every rank has ended honestly with 0, and none because it was told to stop."""
        return all(rank.done and not self._processes[number].lost for number, rank in self.ranks.items())

    def stopped(self) -> set[int]:
        """The ranks whose processes are stopped (SIGSTOP), as their agents have last said."""
        return {number for number, rank in self.ranks.items() if rank.process.state() == "T"}

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """What an autopsy has to know of the living ranks. why: what each of them is asked for."""
        return [
            {"rank": n, "pid": rank.process.pid, "log": str(rank.log), "why": why, "stacks": rank.shows_stacks}
            for n, rank in self.ranks.items()
            if rank.alive and rank.process.pid
        ]

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """SIGTERM to every rank, once; stopped processes are continued."""
        for rank in self.ranks.values():
            rank.asked = True
        self._nodes.tell_all("leave")

    def kill(self) -> None:
        """SIGKILL to every rank's process group."""
        self._nodes.tell_all("kill")

    def reap(self, spared: Sequence[int]) -> int:
        """The nodes' agents do."""
        return 0

    def sweep(self, spared: Sequence[int]) -> bool:
        """Whether the nodes have killed what their ranks left behind, and no lost node can be at work any more."""
        return self._nodes.cleared()
