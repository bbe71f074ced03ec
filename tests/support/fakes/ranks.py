"""A group of ranks without processes, whose pages, exits and stops are what a test says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.fakes.clock import Clock

if TYPE_CHECKING:
    from tests.support.engine import World


from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks.group import Exited
from ftlaunch.ranks.leavings import Leavings
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.ranks.view import RankView
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Flag, Phase, Resume


class FakeProcess:
    """The process of a rank; `marks` holds what was done to the process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode = None
        self.log = Path("/nowhere")
        self.marks: list[str] = []


class FakeRank(Rank):
    """A rank with a fake process and a real page, which `beat` writes as a rank does."""

    def __init__(self, number: int, page: Page, attempt: int, clock: Clock) -> None:
        process: Any = FakeProcess(pid=4000 + number)
        super().__init__(
            number=number,
            process=process,
            page=page,
            attempt=attempt,
            log_from=0,
            started=clock(),
        )
        self._clock = clock
        self._own_page = page
        self._own_attempt = attempt
        self.fake = process

    def attach(self, step: int = 0) -> None:
        """Attach the hooks, and train from `step` on."""
        page = self._own_page
        page.begin(self._own_attempt, self.process.pid, 1)
        page.set_resumed(Resume.FRESH, step)
        page.raise_flag(Flag.ATTACHED)
        page.phase = Phase.TRAIN
        self.beat(step)

    def beat(self, step: int) -> None:
        """Complete a step at this moment."""
        self._own_page.beat(step, int(self._clock() * 1e9))

    def leave_loop(self) -> None:
        """End the training loop."""
        self._own_page.raise_flag(Flag.LOOP_LEFT)

    def stop(self) -> None:
        """Leave the training loop because of an order to stop."""
        self._own_page.raise_flag(Flag.STOPPED | Flag.LOOP_LEFT)


class FakeGroup:
    """A `RankGroup` without processes.

    A rank that is killed ends at once. A rank that is asked to leave ends at once if `obeys` is True.
    """

    def __init__(self, world: World, attempt: int, exited: Exited) -> None:
        self.world = world
        self.attempt = attempt
        self._exited = exited
        self.started = world.clock()
        self.port = 29500 + attempt
        self.ranks: dict[int, FakeRank] = {}
        self.obeys = True
        self.calls: list[str] = []
        self.asked_at = self.killed_at = -1.0
        self.errors: dict[int, Mapping[str, object]] = {}
        self._stopped: set[int] = set()
        self._restarts: dict[int, int] = {}

    # --- what a test does -------------------------------------------------------------------------------------

    def exit(self, rank: int, code: int = 1, error: str = "", *, final: bool = False) -> None:
        """End a rank's process.

        Args:
            rank: the rank.
            code: the exit code.
            error: the text of the rank's error file; empty for none.
            final: whether the rank says that a restart would repeat the error.
        """
        found = self.ranks[rank]
        if found.process.returncode is not None:
            return
        if final:
            found.page.raise_flag(Flag.FINAL)
        found.process.returncode = code
        found.order = self.world.loop.turn
        found.ended = self.world.clock()
        if error:
            self.errors[rank] = {"message": {"message": error, "extraInfo": {"py_callstack": error}}}
        self._exited(found)

    def freeze(self, rank: int) -> None:
        """Stop a rank, as by SIGSTOP."""
        self._stopped.add(rank)

    # --- RankGroup --------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the ranks. Raises SpawnFailed if the test says that a rank cannot be started."""
        self.calls.append("spawn")
        for number in range(self.world.spec.launch.nproc):
            if number == self.world.cannot_start:
                raise SpawnFailed(number, "python: No such file or directory")
            self.ranks[number] = FakeRank(number, self.world.pages[number], self.attempt, self.world.clock)
        self.world.on_spawn(self)

    def replace(self, rank: int, due: float) -> None:
        """End one rank, to be started again at `due`."""
        self.calls.append(f"replace {rank}")
        self.ranks[rank].due = due

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Start the ranks that are due; yield each with its number of restarts.

        Raises:
            SpawnFailed: the test says that the rank cannot be started.
        """
        for number, rank in list(self.ranks.items()):
            if rank.due is not None and now >= rank.due:
                if number == self.world.cannot_start:
                    raise SpawnFailed(number, "python: No such file or directory")
                self._restarts[number] = self._restarts.get(number, self.attempt) + 1
                self.ranks[number] = FakeRank(number, self.world.pages[number], self.attempt, self.world.clock)
                yield number, self._restarts[number]

    @property
    def refilling(self) -> bool:
        """Whether some rank is about to be started again."""
        return any(rank.due is not None for rank in self.ranks.values())

    def notice(self, now: float) -> None:
        """Notice the phases of the ranks."""
        for rank in self.ranks.values():
            rank.notice_phase()

    def views(self) -> list[RankView]:
        """Return what decisions about the ranks are made from."""
        return [rank.view(lambda *_: False) for rank in self.ranks.values()]

    def pages(self) -> list[tuple[int, Page]]:
        """Return the pages that belong to this attempt."""
        return [(number, page) for number, rank in self.ranks.items() if (page := rank.page) is not None]

    @property
    def resuming(self) -> bool:
        """Whether some rank has restored its state."""
        return any(page.resumed[0] != Resume.UNDECIDED for _, page in self.pages())

    @property
    def living(self) -> list[int]:
        """The ranks that live."""
        return [number for number, rank in self.ranks.items() if rank.alive]

    @property
    def empty(self) -> bool:
        """Whether no rank lives."""
        return not self.living

    def dying(self) -> dict[int, float]:
        """Return the ranks that a signal is about to end, each with the moment of the signal."""
        return {n: rank.dying for n, rank in self.ranks.items() if rank.alive and rank.dying is not None}

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Note that SIGKILL is about to end some ranks; return the signal of each."""
        found = {}
        for number in ranks:
            rank = self.ranks[number]
            if rank.alive and rank.dying is None:
                rank.dying = now
                rank.order = order
                found[number] = 9
        return found

    def failed(self, *, must_read: bool) -> list[Evidence]:
        """Return the evidence of the real `Rank` for each failed rank, with the error file that the test gave."""
        ended = [rank for rank in self.ranks.values() if not rank.alive and rank.due is None and rank.failed]
        return [rank.evidence(Leavings(error=self.errors.get(rank.number))) for rank in ended]

    def all_done(self) -> bool:
        """Return whether all ranks have ended well."""
        return all(rank.done for rank in self.ranks.values())

    def stopped(self) -> set[int]:
        """Return the ranks that the test has frozen."""
        return self._stopped

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """Return no subjects, because an autopsy would need a process."""
        return []

    def ask_to_leave(self) -> None:
        """End all ranks that are not stopped, if they obey."""
        self.calls.append("ask to leave")
        self.asked_at = self.world.clock()
        if self.obeys:
            for rank in self.living:
                if rank not in self._stopped:
                    self.exit(rank, -15)

    def kill(self) -> None:
        """End all ranks."""
        self.calls.append("kill")
        self.killed_at = self.world.clock()
        for rank in self.living:
            self.exit(rank, -9)

    def reap(self, spared: Sequence[int]) -> int:
        """Return 0: no process is ever left behind."""
        return 0

    def sweep(self, spared: Sequence[int]) -> bool:
        """Return True: no process is ever left behind."""
        self.calls.append("sweep")
        return True
