"""A group of ranks that does what a test says: pages, exits and stops, and no process."""

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
    """Looks like the process of a rank; `marks` is what was done to it."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode, self.log = pid, None, Path("/nowhere")
        self.marks: list[str] = []


class FakeRank(Rank):
    """A rank whose process is a fake; its page is a real one, written by `beat` as a rank does."""

    def __init__(self, number: int, page: Page, attempt: int, clock: Clock) -> None:
        process: Any = FakeProcess(pid=4000 + number)
        super().__init__(number, process, page, attempt, 0, clock())
        self._clock = clock
        self.fake = process

    def attach(self, step: int = 0) -> None:
        """Attach, and train from `step` on."""
        page = self._page
        page.begin(self._attempt, self.process.pid, 1)
        page.set_resumed(Resume.FRESH, step)
        page.raise_flag(Flag.ATTACHED)
        page.phase = Phase.TRAIN
        self.beat(step)

    def beat(self, step: int) -> None:
        """Complete a step now."""
        self._page.beat(step, int(self._clock() * 1e9))

    def leave_loop(self) -> None:
        """The training loop has run to its end."""
        self._page.raise_flag(Flag.LOOP_LEFT)

    def stop(self) -> None:
        """Leave the loop because of having been told to stop."""
        self._page.raise_flag(Flag.STOPPED | Flag.LOOP_LEFT)


class FakeGroup:
    """RankGroup without processes. A rank that is killed ends at once, one that is asked to leave when it obeys."""

    def __init__(self, world: World, attempt: int, exited: Exited) -> None:
        self.world, self.attempt, self._exited = world, attempt, exited
        self.started = world.clock()
        self.port = 29500 + attempt
        self.ranks: dict[int, FakeRank] = {}
        self.obeys = True
        self.calls: list[str] = []
        self.errors: dict[int, Mapping[str, object]] = {}
        self._stopped: set[int] = set()
        self._restarts: dict[int, int] = {}

    # --- what a test does -------------------------------------------------------------------------------------

    def exit(self, rank: int, code: int = 1, error: str = "", *, final: bool = False) -> None:
        """A rank's process ends. final: it says that its error would come again."""
        found = self.ranks[rank]
        if found.process.returncode is not None:
            return
        if final:
            found.page.raise_flag(Flag.FINAL)
        found.process.returncode = code
        found.order, found.ended = self.world.loop.turn, self.world.clock()
        if error:
            self.errors[rank] = {"message": {"message": error, "extraInfo": {"py_callstack": error}}}
        self._exited(found)

    def freeze(self, rank: int) -> None:
        """SIGSTOP."""
        self._stopped.add(rank)

    # --- RankGroup --------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start the ranks, unless the test says that they cannot be."""
        self.calls.append("spawn")
        for number in range(self.world.spec.launch.nproc):
            if number == self.world.cannot_start:
                raise SpawnFailed(number, "python: No such file or directory")
            self.ranks[number] = FakeRank(number, self.world.pages[number], self.attempt, self.world.clock)
        self.world.on_spawn(self)

    def replace(self, rank: int, due: float) -> None:
        """End one rank; it is started again at `due`."""
        self.calls.append(f"replace {rank}")
        self.ranks[rank].due = due

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Start the ranks that are due, unless the test says that they cannot be."""
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
        """Phases only."""
        for rank in self.ranks.values():
            rank.notice_phase()

    def views(self) -> list[RankView]:
        """What decisions are made from."""
        return [rank.view(lambda *_: False) for rank in self.ranks.values()]

    def pages(self) -> list[tuple[int, Page]]:
        """The pages that speak of this attempt."""
        return [(number, page) for number, rank in self.ranks.items() if (page := rank.page) is not None]

    @property
    def resuming(self) -> bool:
        """Whether some rank has restored its state."""
        return any(page.resumed[0] != Resume.UNDECIDED for _, page in self.pages())

    @property
    def living(self) -> list[int]:
        """The ranks that are left."""
        return [number for number, rank in self.ranks.items() if rank.alive]

    @property
    def empty(self) -> bool:
        """Whether none is left."""
        return not self.living

    def dying(self) -> dict[int, float]:
        """The ranks that a signal is ending."""
        return {n: rank.dying for n, rank in self.ranks.items() if rank.alive and rank.dying is not None}

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """All of them are ended by SIGKILL."""
        found = {}
        for number in ranks:
            rank = self.ranks[number]
            if rank.alive and rank.dying is None:
                rank.dying, rank.order, found[number] = now, order, 9
        return found

    def failed(self, *, must_read: bool) -> list[Evidence]:
        """The real rank judges; the error file is what the test gave."""
        ended = [rank for rank in self.ranks.values() if not rank.alive and rank.due is None and rank.failed]
        return [rank.evidence(Leavings(error=self.errors.get(rank.number))) for rank in ended]

    def all_done(self) -> bool:
        """Whether all have ended well."""
        return all(rank.done for rank in self.ranks.values())

    def stopped(self) -> set[int]:
        """Those that the test has frozen."""
        return self._stopped

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """None: an autopsy is a process."""
        return []

    def ask_to_leave(self) -> None:
        """They end, where they obey."""
        self.calls.append("ask to leave")
        if self.obeys:
            for rank in self.living:
                self.exit(rank, -15)

    def kill(self) -> None:
        """They end."""
        self.calls.append("kill")
        for rank in self.living:
            self.exit(rank, -9)

    def reap(self, spared: Sequence[int]) -> int:
        """Nothing is ever left behind."""
        return 0

    def sweep(self, spared: Sequence[int]) -> bool:
        """Nothing is ever left behind."""
        self.calls.append("sweep")
        return True
