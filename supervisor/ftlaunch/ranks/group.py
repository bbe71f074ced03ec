"""The ranks of one attempt: started together, seen together, ended together."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ftlaunch.memory.pages import Pages
from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks import environment
from ftlaunch.ranks.activity_monitor import Signs
from ftlaunch.ranks.fork_client import ForkOrder, Warm
from ftlaunch.ranks.log_files import tail
from ftlaunch.ranks.view import RankView
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import process_activity, processes
from ftlaunch.system.gpu_activity import Gpus
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import EXIT_SAVED, Flag, Phase, Resume


class SpawnFailed(Exception):
    """A rank could not be started."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank, self.reason = rank, reason


class Rank:
    """A rank: its process and what was noticed about it."""

    def __init__(self, process: processes.Leader, started: float) -> None:
        self.process = process
        self.started = started
        self.order = -1  # of its end
        self.dying: float | None = None  # since when its end is under way
        self.asked = False  # to leave
        self.phase, self.left = Phase.STARTUP, started  # when it last came back from another phase to training
        self.active = started  # when it last did anything, as far as one can see from outside
        self.usage, self.looked = process_activity.Usage(), started  # what it had used then
        self.logged, self.log_size = started, 0  # when its log last grew
        self.ended = 0.0  # when its end was seen
        self.log_from = 0  # where in the log this attempt begins: an earlier run of the job may have had its number
        self.due: float | None = None  # when it is started again, alone


class RankGroup:
    """All ranks of an attempt."""

    def __init__(self, spec: JobSpec, pages: Pages, gpus: Gpus, warm: Warm, attempt: int, now: float) -> None:
        self.spec, self.pages, self.attempt, self.started = spec, pages, attempt, now
        self._warm = warm
        self.members: dict[int, Rank] = {}
        self.port = 0
        self._signs = Signs(spec, gpus, now)

    def spawn(self, base_env: Mapping[str, str], control: Path, marker: str) -> None:
        """Start every rank on a fresh port. Raises SpawnFailed; those already started stay members."""
        try:
            self.log(0).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpawnFailed(0, f"{self.log(0).parent}: {error.strerror}") from error
        try:
            self.port = self.spec.launch.master_port or processes.free_port(self.spec.launch.master_addr)
        except OSError as error:
            raise SpawnFailed(0, f"no port on {self.spec.launch.master_addr}: {error.strerror}") from error
        self._start(range(self.spec.launch.nproc), self.attempt, self.started, base_env, control, marker)

    def _start(
        self, ranks: Iterable[int], restarts: int, now: float, base_env: Mapping[str, str], control: Path, marker: str
    ) -> None:
        """restarts: how many there were before, as the ranks are told. Raises SpawnFailed."""
        places = self.pages.directory, control
        orders = {}
        for rank in ranks:
            env = environment.rank_env(self.spec, base_env, rank, self.attempt, self.port, *places, restarts=restarts)
            orders[rank] = ForkOrder(env, self.log(rank))
        log_from = {rank: _size(order.log) for rank, order in orders.items()}
        with _failing_at(min(orders), "a rank cannot be forked"):
            for rank in orders:
                environment.error_file(self.spec, self.attempt, rank).unlink(missing_ok=True)  # of an earlier run
            started: dict[int, processes.Leader] = self._warm.fork(orders, marker)
        for rank in sorted(orders, key=lambda rank: rank not in started):  # those that live are members at once
            if rank not in started:
                argv = environment.rank_argv(self.spec)
                with _failing_at(rank, argv[0]):
                    started[rank] = processes.RankProcess(rank, argv, orders[rank].env, orders[rank].log, marker)
            self.members[rank] = Rank(started[rank], now)
            self.members[rank].log_from = log_from[rank]
        self.members = dict(sorted(self.members.items()))

    # --- one rank alone ----------------------------------------------------------------------------------

    def dismiss(self, rank: int, due: float) -> None:
        """End one rank and its process group; its place is filled again at `due`."""
        self.members[rank].due = due
        self.members[rank].process.kill_group()

    @property
    def refilling(self) -> bool:
        """Some rank is about to be started again."""
        return any(member.due is not None for member in self.members.values())

    def due(self, now: float) -> list[int]:
        """The ranks to be started again now."""
        return [
            rank
            for rank, member in self.members.items()
            if member.due is not None and now >= member.due and member.process.returncode is not None
        ]

    def refill(
        self, rank: int, restarts: int, now: float, base_env: Mapping[str, str], control: Path, marker: str
    ) -> None:
        """Start one rank again. Raises SpawnFailed."""
        self.members[rank].due = None
        self.pages[rank].vacate()
        self._start([rank], restarts, now, base_env, control, marker)

    def log(self, rank: int) -> Path:
        """A rank's log of this attempt."""
        return self.spec.log_dir / f"attempt_{self.attempt}" / f"rank_{rank}.log"

    @property
    def empty(self) -> bool:
        """No leader is left."""
        return all(m.process.returncode is not None for m in self.members.values())

    @property
    def living(self) -> list[int]:
        """The ranks whose leaders are left."""
        return [rank for rank, member in self.members.items() if member.process.returncode is None]

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Of these ranks those that a signal is ending, with the signal; each is told of once."""
        found = {}
        for rank in ranks:
            member = self.members.get(rank)
            if member is None or member.dying is not None or member.process.returncode is not None:
                continue
            if signum := member.process.ended_by():
                member.dying, member.order, found[rank] = now, order, signum
        return found

    def dying(self) -> dict[int, float]:
        """The ranks whose end has begun and is not over, with the time of its beginning."""
        members = {rank: member for rank, member in self.members.items() if member.process.returncode is None}
        return {rank: member.dying for rank, member in members.items() if member.dying is not None}

    def page(self, rank: int) -> Page | None:
        """The rank's page, where it speaks of this attempt."""
        page = self.pages[rank]
        return page if page.attempt == self.attempt else None

    def notice_phases(self) -> None:
        """Keep when each rank came back to training from something else."""
        for rank, member in self.members.items():
            page = self.page(rank)
            if page is None:
                continue
            before, member.phase = member.phase, page.phase
            if before != Phase.TRAIN and member.phase == Phase.TRAIN:
                member.left = page.beat_ns / 1e9

    def notice_signs(self, now: float) -> None:
        """Look now and then whether ranks are doing anything, and are writing logs, where that may be judged."""
        self._signs.look(self, now)

    def _attached(self, rank: int) -> bool:
        page = self.page(rank)
        return page is not None and bool(page.flags & Flag.ATTACHED)

    def views(self) -> list[RankView]:
        """What health judges by."""
        return [self._view(rank, member) for rank, member in self.members.items()]

    def _view(self, rank: int, member: Rank) -> RankView:
        page = self.page(rank)
        exited = member.process.returncode is not None
        if page is None:
            return RankView(
                rank, member.started, False, False, "startup", -1, 0.0, False, exited, member.ended,
                active=member.active, logged=member.logged,
            )  # fmt: skip
        attached = bool(page.flags & Flag.ATTACHED)
        return RankView(
            rank=rank,
            started=member.started,
            beating=True,
            attached=attached,
            observed=bool(page.flags & Flag.OBSERVED) and not attached,
            seen=0 if attached else page.seen_steps,
            active=member.active,
            busy=self._signs.is_busy(member, page.beat_ns / 1e9),
            phase=page.phase.name.lower(),
            step=page.step,
            beat=page.beat_ns / 1e9,
            first_step_done=page.step > page.resumed[1] if attached else page.seen_steps > 1,
            exited=exited,
            ended=member.ended,
            left=member.left,
            logged=member.logged,
        )

    def own_times(self) -> dict[int, tuple[int, float]]:
        """Of each living rank: steps measured, and seconds of them that were its own doing."""
        pages = {r: self.page(r) for r, member in self.members.items() if member.process.returncode is None}
        return {rank: page.own if page is not None else (0, 0.0) for rank, page in pages.items()}

    def resuming(self) -> bool:
        """Some rank has restored its state: the others are about to."""
        return any((p := self.page(rank)) is not None and p.resumed[0] != Resume.UNDECIDED for rank in self.members)

    def any_attached(self) -> bool:
        """Some rank says its steps: the job uses the hooks."""
        return any(map(self._attached, self.members))

    def all_attached(self) -> bool:
        """Every rank polls its page."""
        return all(map(self._attached, self.members))

    def least_step(self) -> int:
        """The newest step all ranks have completed, -1 while one does not know."""
        return min((p.step if (p := self.page(rank)) is not None else -1 for rank in self.members), default=-1)

    def completed_at(self, step: int) -> float:
        """When the last rank completed `step`, which is the least: the newest beat of those at it."""
        pages = [p for rank in self.members if (p := self.page(rank)) is not None]
        return max((p.beat_ns / 1e9 for p in pages if p.step == step), default=0.0)

    def front(self) -> tuple[int, float]:
        """The newest step any rank has completed, and the shortest step time there is, seconds."""
        pages = [p for rank in self.members if (p := self.page(rank)) is not None]
        newest = max((p.step for p in pages), default=0)
        times = [p.step_seconds for p in pages if p.step_seconds > 0]
        return max(newest, 0), min(times, default=0.0)

    def failed(self) -> list[Evidence]:
        """Ranks whose end is a failure: a code that is not 0, or 0 before the loop was over."""
        ended = [(rank, m) for rank, m in self.members.items() if m.process.returncode is not None and m.due is None]
        return [self.evidence(rank) for rank, member in ended if self._is_failure(rank, member)]

    def _is_failure(self, rank: int, member: Rank) -> bool:
        code = member.process.returncode
        page = self.page(rank)
        flags = page.flags if page is not None else Flag(0)
        if code == EXIT_SAVED and flags & Flag.STOPPED:
            return False
        return code != 0 or bool(flags & Flag.ATTACHED and not flags & Flag.LOOP_LEFT)

    def all_done(self) -> bool:
        """Every rank has ended honestly with 0, and none because it was told to stop."""
        for rank, member in self.members.items():
            page = self.page(rank)
            if member.process.returncode != 0 or self._is_failure(rank, member):
                return False
            if page is not None and page.flags & Flag.STOPPED:
                return False
        return True

    def evidence(self, rank: int) -> Evidence:
        """What a dead rank left behind."""
        member, page = self.members[rank], self.page(rank)
        code = member.process.returncode
        assert code is not None
        return Evidence(
            rank=rank,
            returncode=code,
            step=page.step if page is not None else -1,
            seen=page.seen_steps if page is not None else 0,
            error_file=_read_json(environment.error_file(self.spec, self.attempt, rank)),
            log_tail=tail(self.log(rank), member.log_from),
            order=member.order,
            pid=member.process.pid,
            lived=member.ended - member.started,
        )

    # --- ending ------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """SIGTERM to every leader; stopped ones are continued so that they can hear it."""
        for member in self.members.values():
            if not member.asked:  # a script may take a second SIGTERM for impatience
                member.process.signal(signal.SIGTERM)
                member.asked = True
            member.process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every rank's process group."""
        for member in self.members.values():
            member.process.kill_group()

    def sweep(self, keep: list[int]) -> bool:
        """Once all leaders are gone: kill what they left in other sessions. True when nothing is left."""
        return processes.kill_descendants(keep, [m.process.pid for m in self.members.values()])

    # --- a hang ------------------------------------------------------------------------------------------

    def stopped(self) -> set[int]:
        """The ranks whose processes are stopped (SIGSTOP)."""
        return {rank for rank, member in self.members.items() if member.process.state() in ("T", "t")}

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """What an autopsy has to know of the ranks alive."""
        return [
            {
                "rank": rank,
                "pid": member.process.pid,
                "log": str(self.log(rank)),
                "why": why,
                "stacks": (page := self.page(rank)) is not None and bool(page.flags & Flag.STACKS),
            }
            for rank, member in self.members.items()
            if member.process.returncode is None
        ]


@contextlib.contextmanager
def _failing_at(rank: int, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpawnFailed(rank, f"{what}: {error.strerror}") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _read_json(path: Path) -> Mapping[str, object] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
