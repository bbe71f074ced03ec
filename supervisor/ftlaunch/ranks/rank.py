"""One rank of an attempt: its process, its page, its log, and what was noticed about it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks.leavings import Leavings
from ftlaunch.ranks.view import RankView
from ftlaunch.system.process_activity import Usage
from ftlaunch_contract.pages import words
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import EXIT_SAVED, Flag, Phase

# exact ints, and words of the page itself, as thousands of ranks are looked at again and again: an operation on Flag
# makes an object, and an attribute of the page is a call
_ATTACHED, _OBSERVED = int(Flag.ATTACHED), int(Flag.OBSERVED)
_ATTEMPT, _FLAGS, _STEP = int(words.ATTEMPT), int(words.FLAGS), int(words.STEP)
_SEEN_STEPS, _BEAT = int(words.SEEN_STEPS), int(words.BEAT)
_PHASES = {phase: phase.name.lower() for phase in Phase}


class SpawnFailed(Exception):
    """A rank could not be started."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank, self.reason = rank, reason


class ProcessOfRank(Protocol):
    """A rank's process: a child of ours (`Leader`), or one on another machine."""

    pid: int
    log: Path
    returncode: int | None

    def ended_by(self) -> int:
        """The signal that is ending the process at this moment; 0 otherwise."""

    def signal(self, signum: int) -> None:
        """Signal the process alone."""

    def kill_group(self) -> None:
        """SIGKILL the process's group."""

    def state(self) -> str:
        """The process state letter of /proc (R, S, D, T, Z); empty when it is gone."""


class Rank:
    """A rank as the supervisor sees it."""

    def __init__(
        self, number: int, process: ProcessOfRank, page: Page, attempt: int, log_from: int, started: float
    ) -> None:
        """log_from: where in the log this attempt begins, in bytes: an earlier run may have used the same file."""
        self.number, self.process, self.started = number, process, started
        self._page, self._attempt, self.log_from = page, attempt, log_from
        self.order = -1  # of its end among the ends of all ranks; -1 before
        self.dying: float | None = None  # since when a signal has been ending it
        self.asked = False  # to leave
        self.phase, self.left = Phase.STARTUP, started  # when it last came back from another phase to training
        self.active = started  # when it last did anything, as far as one can see from outside
        self.usage, self.looked = Usage(), started  # what it had used at that look
        self.logged, self.log_size = started, 0  # when its log last grew
        self.ended = 0.0  # when its end was seen
        self.due: float | None = None  # when it is started again, alone

    @property
    def alive(self) -> bool:
        """Whether its process has not been reaped."""
        return self.process.returncode is None

    @property
    def log(self) -> Path:
        """The file that holds what it prints."""
        return self.process.log

    @property
    def page(self) -> Page | None:
        """Its page, where the page speaks of this attempt."""
        return self._page if self._page.q[_ATTEMPT] == self._attempt else None

    @property
    def attached(self) -> bool:
        """Whether it polls its page at every step boundary."""
        page = self.page
        return page is not None and bool(page.flags & Flag.ATTACHED)

    @property
    def shows_stacks(self) -> bool:
        """Whether it leaves its stacks when it is asked for them."""
        page = self.page
        return page is not None and bool(page.flags & Flag.STACKS)

    def notice_phase(self) -> None:
        """Keep when it came back to training from something else."""
        page = self.page
        if page is None:
            return
        before, self.phase = self.phase, page.phase
        if before != Phase.TRAIN and self.phase == Phase.TRAIN:
            self.left = page.beat_ns / 1e9

    def view(self, is_busy: Callable[[Rank, float], bool]) -> RankView:
        """What decisions are made from. is_busy: whether its processes have been doing something since a beat."""
        page = self.page
        if page is None:
            return RankView(
                self.number, self.started, False, False, "startup", -1, 0.0, False, not self.alive, self.ended,
                active=self.active, logged=self.logged,
            )  # fmt: skip
        q, resumed = page.q, page.resumed
        flags, step, seen, beat = q[_FLAGS], q[_STEP], q[_SEEN_STEPS], q[_BEAT] / 1e9
        attached = bool(flags & _ATTACHED)
        return RankView(
            rank=self.number,
            started=self.started,
            beating=True,
            attached=attached,
            observed=bool(flags & _OBSERVED) and not attached,
            seen=0 if attached else seen,
            active=self.active,
            busy=is_busy(self, beat),
            phase=_PHASES[page.phase],
            step=step,
            beat=beat,
            first_step_done=step > resumed[1] if attached else seen > 1,
            exited=not self.alive,
            ended=self.ended,
            left=self.left,
            logged=self.logged,
            step_seconds=page.step_seconds,
            resumed=resumed,
            own=page.own,
        )

    # --- its end ----------------------------------------------------------------------------------------------

    @property
    def ended_well(self) -> bool:
        """Whether its script is over, with exit code 0: what ends the process from then on is no failure."""
        page = self.page
        return page is not None and bool(page.flags & Flag.ENDED_WELL)

    @property
    def code(self) -> int | None:
        """Its exit status as it is judged: 0 where a signal has ended it after its script had ended well."""
        code = self.process.returncode
        return 0 if code is not None and code < 0 and self.ended_well else code

    @property
    def failed(self) -> bool:
        """Whether its end is a failure: a code that is not 0, or 0 before its training loop was over."""
        page, code = self.page, self.code
        flags = page.flags if page is not None else Flag(0)
        if code == EXIT_SAVED and flags & Flag.STOPPED:
            return False
        return code != 0 or bool(flags & Flag.ATTACHED and not flags & Flag.LOOP_LEFT)

    @property
    def done(self) -> bool:
        """Whether it has ended honestly with 0, and not because it was told to stop."""
        page = self.page
        told_to_stop = page is not None and bool(page.flags & Flag.STOPPED)
        return self.code == 0 and not self.failed and not told_to_stop

    def evidence(self, left: Leavings) -> Evidence:
        """Return what is known of its end. left: what it has left in files."""
        page, code = self.page, self.code
        assert code is not None
        return Evidence(
            rank=self.number,
            returncode=code,
            step=page.step if page is not None else -1,
            seen=page.seen_steps if page is not None else 0,
            error_file=left.error,
            log_tail=left.log_tail,
            order=self.order,
            pid=self.process.pid,
            lived=self.ended - self.started,
            final=page is not None and bool(page.flags & Flag.FINAL),
            steps_unknown=page is not None and bool(page.flags & Flag.STEPS_UNKNOWN),
        )
