"""The engine without processes: a group of ranks that does what a test says, and a clock that jumps.

Supervisor, event loop, watch, incidents, attempt, state table, policy and health are the real ones. Faked is what
`Edges` names: ranks, saver, fork server, notices, the kernel's word of a death; and the clock.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.resume import Inherited
from ftlaunch.engine.context import Context
from ftlaunch.engine.event_loop import EventLoop
from ftlaunch.engine.supervisor import Edges, Supervisor
from ftlaunch.memory.pages import Pages
from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.policy.states import Event
from ftlaunch.ranks.group import Exited
from ftlaunch.ranks.rank import Rank, SpawnFailed
from ftlaunch.ranks.view import RankView
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.spec import rule_parser
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.resolve import resolve
from ftlaunch.system.helper_process import HelperProcesses
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Flag, Phase, Resume

BEGIN = 1000.0  # seconds: any beginning will do for a monotonic clock


class Clock:
    """A clock that jumps to the next thing that is due; tests put things on it."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._plans: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have something happen so many seconds after the beginning."""
        self._plans.append((BEGIN + seconds, len(self._plans), happen))

    def jump(self, until: float) -> None:
        """Go to `until`, or to the first thing that happens before."""
        self._plans.sort()
        if self._plans and self._plans[0][0] <= until:
            when, _, happen = self._plans.pop(0)
            self.now = max(self.now, when)
            happen()
            return
        self.now = max(self.now, until)


class JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: the clock jumps instead. A job that goes on for ever is ended by the test's limit."""

    def __init__(self, clock: Clock, limit: float) -> None:
        super().__init__()
        self._clock, self._until = clock, BEGIN + limit
        self.handlers: dict[Any, Any] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        """No descriptor is ever readable here: `World.ring` calls its handler."""
        self.handlers[fileobj] = data

    def unregister(self, fileobj: Any) -> Any:
        """See register."""
        del self.handlers[fileobj]

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let the time pass."""
        assert timeout is not None
        assert self._clock.now < self._until, "the job has not ended in time"
        self._clock.jump(self._clock.now + timeout)
        return []


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

    def failed(self) -> list[Evidence]:
        """The real rank judges; the error file is what the test gave."""
        ended = [rank for rank in self.ranks.values() if not rank.alive and rank.due is None and rank.failed]
        nowhere = Path("/nowhere")
        return [replace(rank.evidence(nowhere), error_file=self.errors.get(rank.number)) for rank in ended]

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

    def sweep(self, spared: Sequence[int]) -> bool:
        """Nothing is ever left behind."""
        self.calls.append("sweep")
        return True


class FakeSaver:
    """The saver's link: it says half a second later that it has saved, unless the test has it say something else."""

    def __init__(self, world: World, number: int) -> None:
        self._world, self.fd, self.pid = world, -10 - number, 5000 + number
        self.pending: dict[str, Any] | None = None
        self.closed = False
        self.asked: list[dict[str, Any]] = []
        self.hurried = 0
        self.moved = 0
        self._said: list[dict[str, Any]] | None = []

    def ask(self, request: dict[str, Any]) -> None:
        """Take a request, and answer it in a while."""
        self.pending = request
        self.asked.append(request)
        if not self._world.storage_answers:
            return
        self._world.clock.at(self._world.clock() - BEGIN + 0.5, lambda: self.say(self._world.answer(request)))

    def say(self, answer: dict[str, Any]) -> None:
        """Answer, unless it has died meanwhile."""
        if self._said is not None:
            self._said.append(answer)
            self.pending = None
            self._world.ring(self.fd)

    def die(self) -> None:
        """Its end is heard at once."""
        self._said = None
        self._world.ring(self.fd)

    def answers(self) -> list[dict[str, Any]] | None:
        """What it has said; None: it is gone."""
        said = self._said
        if said is not None:
            self._said = []
        return said

    def work(self) -> tuple[float, int]:
        """What it has done; a test counts that up."""
        return 0.0, self.moved

    def close(self, timeout: float) -> int:
        """Nothing is left to wait for."""
        self.closed = True
        return -9

    def hurry(self) -> None:
        """Count it."""
        self.hurried += 1


class FakeDeaths:
    """The kernel's word that a rank begins to die."""

    fd = -2

    def __init__(self) -> None:
        self.ranks: list[int] = []

    def forget(self) -> None:
        """A new attempt."""
        self.ranks = []

    def heard(self) -> list[int]:
        """What the test has said."""
        return self.ranks


def saved(request: dict[str, Any]) -> dict[str, Any]:
    """The answer of a saver that has saved."""
    told = {"bytes": 1000, "seconds": 0.1, "path": "/nowhere", "deleted": [], "notes": []}
    return {
        "did": request["do"],
        "step": request["step"],
        "why": request["why"],
        **told,
        "health": {"status": "normal"},
    }


class World:
    """One job in memory: what a test looks at and steers."""

    def __init__(self, home: Path, *, ranks: int = 2, limit: float = 10_000.0, **asked: str) -> None:
        """home: an empty directory. limit: seconds on the jumping clock after which the job must be over."""
        (home / "train.py").touch()
        flags = {"nproc_per_node": str(ranks), "run_dir": str(home / "run"), "job_id": "fake", **asked}
        self.spec: JobSpec = resolve(str(home / "train.py"), [], flags, {})
        self.spec.run_dir.mkdir()
        memory = home / "memory"
        memory.mkdir()
        self.clock = Clock()
        self._selector = JumpingSelector(self.clock, limit)
        self.loop = EventLoop[Event](self.clock, self._selector)
        self.answer: Callable[[dict[str, Any]], dict[str, Any]] = saved
        self.may_start_saver = self.storage_answers = True
        self.pages = Pages(memory, ranks)
        self.events: list[JobEvent] = []
        self.groups: list[FakeGroup] = []
        self.savers: list[FakeSaver] = []
        self.deaths = FakeDeaths()
        self.may_begin = True
        self.cannot_start = -1
        self.on_spawn: Callable[[FakeGroup], None] = lambda group: None
        rules = rule_parser.builtin()
        context = Context(
            self.spec, self.pages, self.events.append, self.loop, self.clock, lambda: 0.5, HelperProcesses(), rules
        )
        edges = Edges(
            make_group=self._make_group,
            start_saver=self._start_saver,
            may_begin=lambda _: self.may_begin,
            deaths=self.deaths,
            tell_outcomes=lambda: None,
            processor_time=lambda: 0.0,
            inherited=Inherited(None, ()),
            reached=-1,
        )
        self.supervisor = Supervisor(context, edges)

    def _make_group(self, number: int, exited: Exited) -> FakeGroup:
        self.groups.append(FakeGroup(self, number, exited))
        return self.groups[-1]

    def _start_saver(self) -> Any:
        if not self.may_start_saver:
            raise OSError(11, "Resource temporarily unavailable")
        self.savers.append(FakeSaver(self, len(self.savers)))
        return self.savers[-1]

    def ring(self, fd: int) -> None:
        """A descriptor is readable."""
        self._selector.handlers[fd]()

    @property
    def group(self) -> FakeGroup:
        """The ranks of the newest attempt."""
        return self.groups[-1]

    def run(self) -> None:
        """Run the job to its end."""
        self.loop.run(self.supervisor)

    def told(self, name: str) -> list[dict[str, Any]]:
        """The fields of the journal's events of one name."""
        return [event.fields() for event in self.events if event.name == name]

    def said(self) -> list[str]:
        """The sentences for the terminal."""
        return [sentence for event in self.events if (sentence := event.sentence())]

    # --- scripts of whole lives -------------------------------------------------------------------------------

    def train(self, group: FakeGroup, steps: int, every: float = 1.0, first: int = 1) -> None:
        """All ranks attach now and make a step every so many seconds."""
        begin = self.clock() - BEGIN
        for rank in group.ranks.values():
            rank.attach(first - 1)
        for step in range(first, first + steps):
            self.clock.at(begin + (step - first + 1) * every, lambda step=step: self.beat(group, step))  # type: ignore[misc]

    def beat(self, group: FakeGroup, step: int) -> None:
        """All living ranks of a group complete a step."""
        for rank in group.ranks.values():
            if rank.alive:
                rank.beat(step)

    def finish(self, group: FakeGroup) -> None:
        """All living ranks leave their loops and end well."""
        for number in group.living:
            group.ranks[number].leave_loop()
            group.exit(number, 0)
