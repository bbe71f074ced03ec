"""The ranks of one attempt: started together, seen together, ended together."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ftlaunch import environment, proc
from ftlaunch.diagnosis import Evidence, waits_for_peers
from ftlaunch.health import RankView
from ftlaunch.logs import tail
from ftlaunch.pages import Pages
from ftlaunch.spec import JobSpec
from ftlaunch_hooks.page import Page
from ftlaunch_hooks.protocol import EXIT_SAVED, STACKS_SIGNAL, Flag


class SpawnFailed(Exception):
    """A rank could not be started."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank, self.reason = rank, reason


class Member:
    """A rank: its process and what was noticed about it."""

    def __init__(self, process: proc.RankProcess, started: float) -> None:
        self.process = process
        self.started = started
        self.order = -1  # of its end
        self.first_step = -1
        self.longest_step = 0.0
        self.stacks_from = 0  # where in the log its stacks begin
        self.was_stopped = False  # when the hang was seen


class Gang:
    """All ranks of an attempt."""

    def __init__(self, spec: JobSpec, pages: Pages, attempt: int, now: float) -> None:
        self.spec, self.pages, self.attempt, self.started = spec, pages, attempt, now
        self.members: dict[int, Member] = {}
        self.port = 0

    def spawn(self, base_env: Mapping[str, str], control: Path, marker: str) -> None:
        """Start every rank on a fresh port. Raises SpawnFailed; those already started stay members."""
        argv = environment.rank_argv(self.spec)
        try:
            self.log(0).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpawnFailed(0, f"{self.log(0).parent}: {error.strerror}") from error
        try:
            self.port = self.spec.master_port or proc.free_port(self.spec.master_addr)
        except OSError as error:
            raise SpawnFailed(0, f"no port on {self.spec.master_addr}: {error.strerror}") from error
        for rank in range(self.spec.nproc):
            env = environment.rank_env(
                self.spec, base_env, rank, self.attempt, self.port, self.pages.directory, control
            )
            try:
                process = proc.RankProcess(rank, argv, env, self.log(rank), marker)
            except OSError as error:
                raise SpawnFailed(rank, f"{argv[0]}: {error.strerror}") from error
            self.members[rank] = Member(process, self.started)

    def log(self, rank: int) -> Path:
        """A rank's log of this attempt."""
        return self.spec.log_dir / f"attempt_{self.attempt}" / f"rank_{rank}.log"

    @property
    def empty(self) -> bool:
        """No leader is left."""
        return all(m.process.returncode is not None for m in self.members.values())

    def page(self, rank: int) -> Page | None:
        """The rank's page, where it speaks of this attempt."""
        page = self.pages[rank]
        return page if page.attempt == self.attempt else None

    def notice_steps(self) -> None:
        """Keep the longest step each rank has reported."""
        for rank, member in self.members.items():
            page = self.page(rank)
            if page is None or not page.flags & Flag.ATTACHED:
                continue
            if member.first_step < 0:
                member.first_step = page.step
            elif page.step > member.first_step:
                member.longest_step = max(member.longest_step, page.step_seconds)

    def views(self) -> list[RankView]:
        """What health judges by."""
        return [self._view(rank, member) for rank, member in self.members.items()]

    def _view(self, rank: int, member: Member) -> RankView:
        page = self.page(rank)
        exited = member.process.returncode is not None
        if page is None:
            return RankView(rank, member.started, False, False, "startup", -1, 0.0, False, 0.0, exited)
        return RankView(
            rank=rank,
            started=member.started,
            beating=True,
            attached=bool(page.flags & Flag.ATTACHED),
            phase=page.phase.name.lower(),
            step=page.step,
            beat=page.beat_ns / 1e9,
            first_step_done=0 <= member.first_step < page.step,
            longest_step=member.longest_step,
            exited=exited,
        )

    def beating(self) -> bool:
        """Some rank has taken its page: the job uses the hooks."""
        return any(page.attempt == self.attempt for page in self.pages.pages)

    def all_attached(self) -> bool:
        """Every rank polls its page."""
        return all((p := self.page(rank)) is not None and p.flags & Flag.ATTACHED for rank in self.members)

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
        return [self.evidence(r) for r, m in self.members.items() if m.order >= 0 and self._is_failure(r, m)]

    def _is_failure(self, rank: int, member: Member) -> bool:
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
            attached=page is not None and bool(page.flags & Flag.ATTACHED),
            loop_left=page is not None and bool(page.flags & Flag.LOOP_LEFT),
            error_file=_read_json(environment.error_file(self.spec, self.attempt, rank)),
            log_tail=tail(self.log(rank)),
            order=member.order,
        )

    # --- ending ------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """SIGTERM to every leader; stopped ones are continued so that they can hear it."""
        for member in self.members.values():
            member.process.signal(signal.SIGTERM)
            member.process.signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to every rank's process group."""
        for member in self.members.values():
            member.process.kill_group()

    def sweep(self, keep: list[int]) -> bool:
        """Once all leaders are gone: kill what they left in other sessions. True when nothing is left."""
        return proc.kill_descendants(keep, [m.process.pid for m in self.members.values()])

    # --- stacks ------------------------------------------------------------------------------------------

    def take_stacks(self, why: str) -> list[int]:
        """Ask every living rank that can for its stacks, into its log; returns whom. Ends a SIGSTOP."""
        for member in self.members.values():
            member.was_stopped = member.process.state() in ("T", "t")
        asked = []
        for rank, member in self.members.items():
            page = self.page(rank)
            if member.process.returncode is not None or page is None or not page.flags & Flag.STACKS:
                continue
            _append(self.log(rank), f"\n--- ftlaunch: stacks of rank {rank}: {why}\n")
            member.stacks_from = self.log(rank).stat().st_size
            member.process.signal(STACKS_SIGNAL)
            member.process.signal(signal.SIGCONT)
            asked.append(rank)
        return asked

    def with_stacks(self, views: list[RankView]) -> list[RankView]:
        """Views taken when a hang was seen, with what the stacks have shown since."""
        return [
            replace(
                view,
                stopped=self.members[view.rank].was_stopped,
                waiting=waits_for_peers(self.stacks(view.rank)) if self.members[view.rank].stacks_from else None,
            )
            for view in views
        ]

    def stacks(self, rank: int) -> str:
        """What the rank has written since it was asked for its stacks."""
        return tail(self.log(rank), self.members[rank].stacks_from)


def _append(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read_json(path: Path) -> Mapping[str, object] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
