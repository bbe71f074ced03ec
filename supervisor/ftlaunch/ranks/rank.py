"""One rank of an attempt: its process, its page, its log, and what the supervisor has observed of it.

Ranks are made and used in the event loop of the supervisor or of an agent. Times are monotonic seconds.
"""

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

# `Rank.view` is called for thousands of ranks many times a second. Exact ints and words of the page are used there,
# because an operation on Flag makes an object, and an attribute of the page is a call.
_ATTACHED = int(Flag.ATTACHED)
_OBSERVED = int(Flag.OBSERVED)
_ATTEMPT = int(words.ATTEMPT)
_FLAGS = int(words.FLAGS)
_STEP = int(words.STEP)
_SEEN_STEPS = int(words.SEEN_STEPS)
_BEAT = int(words.BEAT)
_PHASES = {phase: phase.name.lower() for phase in Phase}


class SpawnFailed(Exception):
    """A rank could not be started."""

    def __init__(self, rank: int, reason: str) -> None:
        """Name the rank, and the reason in words that complete a sentence."""
        super().__init__(reason)
        self.rank = rank
        self.reason = reason


class ProcessOfRank(Protocol):
    """A rank's process: a child process (`Leader`), or a process on another machine."""

    pid: int
    log: Path
    """file that takes the process's output"""
    returncode: int | None
    """exit status, negative after a signal; None until the process has been reaped"""

    def ended_by(self) -> int:
        """Return the signal that is ending the process at this moment; 0 if there is none."""

    def signal(self, signum: int) -> None:
        """Send a signal to the process alone."""

    def kill_group(self) -> None:
        """Send SIGKILL to the process's group."""

    def state(self) -> str:
        """Return the state letter of /proc (R, S, D, T, Z); empty when the process is gone."""


class Rank:
    """A rank as the supervisor sees it."""

    def __init__(
        self, number: int, process: ProcessOfRank, page: Page, attempt: int, log_from: int, started: float
    ) -> None:
        """Take over a process that has been started.

        Args:
            number: the global rank.
            process: the rank's process.
            page: the rank's page, which an earlier attempt may have written.
            attempt: number of the attempt.
            log_from: where in the log this attempt begins, in bytes; an earlier run may have used the same file.
            started: when the process was started.
        """
        self.number = number
        self.process = process
        self.started = started
        self.log_from = log_from
        self._page = page
        self._attempt = attempt
        self.order = -1  # place of the end among the ends of all ranks; -1 before
        self.dying: float | None = None  # since when a signal has been ending the process
        self.asked = False  # whether SIGTERM was sent
        self.phase = Phase.STARTUP  # the last phase that was seen
        self.left = started  # when the rank last came back to training from another phase
        self.active = started  # when the processes last did anything, as far as can be seen from outside
        self.usage = Usage()  # resources that the processes had used at `measured_at`
        self.measured_at = started  # when activity was last measured
        self.logged = started  # when the log last grew
        self.log_size = 0  # bytes of the log at the last observation
        self.ended = 0.0  # when the end was seen
        self.due: float | None = None  # when the rank is to be started again, without the others

    @property
    def alive(self) -> bool:
        """Whether the process has not been reaped."""
        return self.process.returncode is None

    @property
    def log(self) -> Path:
        """The file that takes the process's output."""
        return self.process.log

    @property
    def page(self) -> Page | None:
        """The rank's page; None if the page was not written in this attempt."""
        return self._page if self._page.q[_ATTEMPT] == self._attempt else None

    @property
    def attached(self) -> bool:
        """Whether the worker polls its page at every step boundary."""
        page = self.page
        return page is not None and bool(page.flags & Flag.ATTACHED)

    @property
    def shows_stacks(self) -> bool:
        """Whether the worker writes its stacks on request."""
        page = self.page
        return page is not None and bool(page.flags & Flag.STACKS)

    def notice_phase(self) -> None:
        """Record the phase, and when the rank came back to training from another phase."""
        page = self.page
        if page is None:
            return
        before = self.phase
        self.phase = page.phase
        if before != Phase.TRAIN and self.phase == Phase.TRAIN:
            self.left = page.beat_ns / 1e9

    def view(self, is_busy: Callable[[Rank, float], bool]) -> RankView:
        """Return what is known of the rank, for decisions.

        Args:
            is_busy: tells from a rank and the time of a beat whether the rank's processes were active after that beat.
        """
        page = self.page
        if page is None:
            return RankView(
                rank=self.number,
                started=self.started,
                beating=False,
                attached=False,
                phase="startup",
                step=-1,
                beat=0.0,
                first_step_done=False,
                exited=not self.alive,
                ended=self.ended,
                active=self.active,
                logged=self.logged,
            )
        page_words = page.q
        flags = page_words[_FLAGS]
        step = page_words[_STEP]
        seen = page_words[_SEEN_STEPS]
        beat = page_words[_BEAT] / 1e9
        resumed = page.resumed
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

    # --- the end of the rank ----------------------------------------------------------------------------------

    @property
    def ended_well(self) -> bool:
        """Whether the script is over with exit code 0; whatever ends the process after that is no failure."""
        page = self.page
        return page is not None and bool(page.flags & Flag.ENDED_WELL)

    @property
    def code(self) -> int | None:
        """The exit status as it is judged: 0 if a signal ended the process after the script had ended well."""
        code = self.process.returncode
        return 0 if code is not None and code < 0 and self.ended_well else code

    @property
    def failed(self) -> bool:
        """Whether the end is a failure: the code is not 0, or is 0 before the training loop was over."""
        page = self.page
        code = self.code
        flags = page.flags if page is not None else Flag(0)
        if code == EXIT_SAVED and flags & Flag.STOPPED:
            return False
        return code != 0 or bool(flags & Flag.ATTACHED and not flags & Flag.LOOP_LEFT)

    @property
    def done(self) -> bool:
        """Whether the rank has completed its work and ended with 0, and not because of a stop request."""
        page = self.page
        has_stopped = page is not None and bool(page.flags & Flag.STOPPED)
        return self.code == 0 and not self.failed and not has_stopped

    def evidence(self, left: Leavings) -> Evidence:
        """Return what is known of the end of a reaped rank.

        Args:
            left: what the rank has left in files.
        """
        page = self.page
        code = self.code
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
