"""Failures are judged here: the cause, the budget, the verdict; and every one is told."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ftlaunch.engine.attempt import Attempt
from ftlaunch.engine.context import Context
from ftlaunch.health import hang_detection
from ftlaunch.health.numerics import NumericFault
from ftlaunch.health.numerics_monitor import NumericsMonitor
from ftlaunch.health.progress import Progress
from ftlaunch.policy import failure_diagnosis, restart_policy
from ftlaunch.policy.cause_kinds import (
    COMM,
    COMM_TIMEOUT,
    DISK,
    DIVERGENCE,
    INTERNAL,
    NUMERICAL,
    OF_THE_NUMBERS,
    RESUME_DIFFERS,
)
from ftlaunch.policy.failure_diagnosis import Cause, Evidence
from ftlaunch.policy.states import Event
from ftlaunch.ranks.group import RankGroup
from ftlaunch.ranks.rank import SpawnFailed
from ftlaunch.ranks.view import RankView, any_attached
from ftlaunch.reporting.events.base import Note
from ftlaunch.reporting.events.incidents import IncidentJudged
from ftlaunch.reporting.events.proofs import ResumeDiffers
from ftlaunch.reporting.sinks import followed_ranks
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system import resources
from ftlaunch.system.file_thread import FileSystemSilent, FileThread
from ftlaunch.system.kernel_log import Kernel
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import EXIT_STOPPED

_LOOK_FOR_ROOM = 2.0  # seconds between looks at a full disk
_LOOK_FOR_ANSWER = 0.1  # the same at one that does not answer
_LOOK_FOR_NODES = 0.01  # the same at the nodes, where some are missing
_BEGINS_ANEW = (
    "no rank has called attach(): each attempt begins anew, or where the script resumes by itself from checkpoints of"
    " its own"
)
_READING_SECONDS = 1.0  # in which what a failed rank has left may not be readable: then it is judged without that
_READ_AGAIN = 0.1  # seconds after which it is tried again
_CAUSE_TO_COME = 2.0  # seconds that a rank may close its connections before its process ends


def budget_of(spec: JobSpec) -> restart_policy.Budget:
    """What a job may spend on restarts, nothing of it spent."""
    asked = spec.restarts
    return restart_policy.Budget(
        restart_policy.RestartLimits(
            restarts=asked.max_restarts,
            hang_restarts=asked.max_hang_restarts,
            window=asked.restart_window,
            refill_after=asked.refill_after,
            same_error=asked.max_same_error,
            without_progress=asked.max_without_progress,
        )
    )


class Incidents:
    """Judges the failures of a job, over all its attempts: cause, verdict, and what is left of the budget."""

    def __init__(self, context: Context, progress: Progress, numbers: NumericsMonitor) -> None:
        self._context, self._progress, self._numbers = context, progress, numbers
        self.budget = budget_of(context.spec)
        self.backoff = restart_policy.Backoff(context.spec.restarts.backoff_first, context.spec.restarts.backoff_max)
        self.kernel = Kernel()
        self.cause: Cause | None = None
        self.verdict: restart_policy.Verdict | None = None
        self._told_waiting = self._told_anew = False
        self._unread: tuple[RankGroup, float] | None = None
        """since when what failed ranks of a group have left cannot be read"""
        self._steps_unknown = False  # the script trains without torch.optim
        self.last: dict[str, Any] | None = None
        """what `ftctl status` is told of the newest incident"""

    def fail(self, attempt: Attempt, cause: Cause) -> None:
        """Judge a failure, and post the verdict."""
        context, now = self._context, self._context.clock()
        views = attempt.group.views()
        alone = attempt.can_replace(cause.rank)
        verdict = restart_policy.judge(
            cause,
            self.budget,
            self.backoff,
            policy=context.spec.restarts.restart_policy,
            progressed=attempt.progress.made or self._lived_long(attempt, cause.rank, views, now),
            random=context.random(),
            now=now,
            step=self._progress.newest(views),
            alone=alone,
        )
        self._conclude(attempt, cause, verdict)
        if verdict.restart and not self._told_anew and any(view.observed for view in views):
            self._told_anew = True
            context.tell(Note(_BEGINS_ANEW))
        retry = Event.RANK_RETRY if alone else Event.FAILURE_RETRY
        context.loop.post(retry if verdict.restart else Event.FAILURE_FATAL)

    def give_up(self, attempt: Attempt, cause: Cause, sentence: str) -> None:
        """End the job for a cause that no policy is asked about."""
        comes_again = cause.kind in OF_THE_NUMBERS
        self._conclude(attempt, cause, restart_policy.Verdict(False, 0.0, sentence, self.budget, comes_again))
        self._context.loop.post(Event.FAILURE_FATAL)

    def note_internal_error(self, sentence: str) -> None:
        """Note that the job ends because of an error of the supervisor's own."""
        self.cause = Cause(INTERNAL, -1, -1, sentence, INTERNAL)
        self.verdict = restart_policy.Verdict(False, 0.0, sentence, self.budget)

    def arm_backoff(self) -> None:
        """Post BACKOFF_OVER after the verdict's delay; after a failure for want of room not before there is room."""
        assert self.verdict is not None
        self._told_waiting = False
        self._context.loop.call_at(self._context.clock() + self.verdict.delay, Event.BACKOFF_OVER, self._backoff_over)

    def go_on(self) -> None:
        """Post BACKOFF_OVER as soon as the nodes are there: nothing has failed, or the delay is over already."""
        self._context.loop.call_at(self._context.clock(), Event.BACKOFF_OVER, self._backoff_over)

    def _backoff_over(self) -> None:
        context = self._context
        if context.regroups():
            context.loop.post(Event.REGROUP)
            return
        if not context.may_start():
            context.loop.call_at(context.clock() + _LOOK_FOR_NODES, Event.BACKOFF_OVER, self._backoff_over)
            return
        if silent := self._silent_places():
            self._wait_for_disk(f"{silent[0]} does not answer: the next attempt waits for it", _LOOK_FOR_ANSWER)
            return
        full = self._full_disks(context.files.places) if self.cause is not None and self.cause.kind == DISK else []
        if not full:
            context.loop.post(Event.BACKOFF_OVER)
            return
        names = ", ".join(map(str, full))
        self._wait_for_disk(f"no room in {names}: the next attempt waits for room", _LOOK_FOR_ROOM)

    def _wait_for_disk(self, why: str, pause: float) -> None:
        context = self._context
        if not self._told_waiting:
            context.tell(Note(f"{why}, and costs no restart more"))
            self._told_waiting = True
        context.loop.call_at(context.clock() + pause, Event.BACKOFF_OVER, self._backoff_over)

    def _silent_places(self) -> list[Path]:
        """Return the directories that an attempt cannot begin without, and that do not answer."""
        spec = self._context.spec
        needed = [spec.log_dir]
        if self._context.pages.newest_common() == NONE:
            needed.append(spec.checkpoint_dir)
        return [place for place in needed if not self._answers(place)]

    def _answers(self, place: Path) -> bool:
        try:
            self._context.files.of(place).call(place.exists)
        except FileSystemSilent:
            return False
        except OSError:  # it answers with an error: the attempt will show it
            return True
        return True

    def _full_disks(self, places: Iterable[Path]) -> list[Path]:
        """Return the disks without room; a directory that has gone meanwhile, or does not answer, is left out."""
        asked: dict[FileThread, list[Path]] = {}
        for place in places:
            asked.setdefault(self._context.files.of(place), []).append(place)
        full = []
        for thread, of_thread in asked.items():
            with contextlib.suppress(FileSystemSilent):
                full += thread.call(partial(resources.full_disks, of_thread))
        return full

    def _conclude(self, attempt: Attempt, cause: Cause, verdict: restart_policy.Verdict) -> None:
        self.cause, self.verdict, self.budget = cause, verdict, verdict.budget
        autopsy = attempt.examination.forget()
        since_progress = self._progress.incident(attempt.group.views(), self._context.clock())
        self.last = {"sentence": verdict.sentence, "autopsy": autopsy}
        followed = cause.rank in followed_ranks(self._context.spec)
        told = self._progress.reached, since_progress, autopsy, followed, self._context.host_of(cause.rank)
        self._context.tell(IncidentJudged(cause, verdict, *told))

    def _lived_long(self, attempt: Attempt, rank: int, views: list[RankView], now: float) -> bool:
        """Whether a rank that reports no steps has lived so long that its end is a new story."""
        return not any_attached(views) and attempt.lifetime(rank, now) > failure_diagnosis.LONG_LIFE

    # --- kinds of failures ------------------------------------------------------------------------------------

    def spawn_failed(self, attempt: Attempt, failed: SpawnFailed) -> None:
        """A rank could not be started."""
        self.fail(attempt, failure_diagnosis.spawn_failure(failed.rank, failed.reason, self._context.rules))

    def ranks_failed(self, attempt: Attempt, now: float) -> bool:
        """Whether ranks have failed; then the first cause among them is judged.

        A rank that has timed out waiting is not to blame: which one is, is seen from those that live. Nor is one whose
        connection was closed: a rank that calls sys.exit(1) closes its own while its interpreter ends.
        """
        failed = self.read_failed(attempt.group)
        if failed is None:
            # nothing is judged before it can be read; the looks of a large job are many seconds apart
            self._context.loop.call_at(now + _READ_AGAIN, "read again", attempt.look_at_once)
            return True
        if not failed:
            return False
        cause = self._first_cause(failed)
        if cause.kind == COMM and self._cause_may_come(attempt, cause.rank, now):
            return False
        if cause.kind == COMM_TIMEOUT and attempt.group.living and not attempt.can_replace(cause.rank):
            views = attempt.group.views()
            attempt.examination.suspect(hang_detection.timed_out(cause.rank, views, now), views)
            self._context.loop.post(Event.HANG)
        else:
            wordless = not cause.trace and any(left.rank == cause.rank and left.returncode > 0 for left in failed)
            self.fail(attempt, self._or_full_disk(cause) if wordless else cause)
        return True

    def read_failed(self, group: RankGroup) -> list[Evidence] | None:
        """Return what the failed ranks have left behind; None where it cannot be read at this moment."""
        now = self._context.clock()
        unread_since = self._unread[1] if self._unread and self._unread[0] is group else now
        must_read = now < unread_since + _READING_SECONDS
        found = self._context.bulkheads.call(
            "read what failed ranks have left", lambda: group.failed(must_read=must_read), None
        )
        self._unread = (group, unread_since) if found is None else None
        return found

    def _cause_may_come(self, attempt: Attempt, victim: int, now: float) -> bool:
        """Whether the rank that has closed the connection of a victim may be about to end."""
        alone = not attempt.group.living or attempt.can_replace(victim)
        return not alone and now < attempt.group.ranks[victim].ended + _CAUSE_TO_COME

    def examined(self, attempt: Attempt, cause: Cause) -> None:
        """An autopsy has found the cause of a hang.

        After a time-out: where another rank has failed by itself meanwhile, or none lives any more, that is the cause.
        """
        failed = [left for left in self.read_failed(attempt.group) or () if left.returncode != EXIT_STOPPED]
        if attempt.examination.of_timeout and failed:
            first = self._first_cause(failed)
            if attempt.group.empty or not failure_diagnosis.is_victim(first):
                cause = first
        self.fail(attempt, cause)

    def _first_cause(self, failed: Sequence[Evidence]) -> Cause:
        heard = self.kernel.heard()
        # a script without torch.optim is one in every attempt, also where no gradient was seen
        self._steps_unknown = self._steps_unknown or any(left.steps_unknown for left in failed)
        known = [replace(left, kernel=heard, steps_unknown=self._steps_unknown) for left in failed]
        return failure_diagnosis.first_cause(known, self._context.rules)

    def _or_full_disk(self, cause: Cause) -> Cause:
        """The cause of a rank that has left no error: the full disk, where there was no room to write one."""
        spec = self._context.spec
        full = self._full_disks((spec.log_dir, spec.run_dir))
        if not full:
            return cause
        sentence = f"{cause.sentence}, and could write no error: No space left on device ({full[0]})"
        return replace(cause, kind=DISK, sentence=sentence, signature="disk:full", action="wait")

    def numbers_wrong(self, attempt: Attempt, fault: NumericFault) -> None:
        """Stop, or go back: going back is judged as any failure, and costs a restart."""
        skipping = self._numbers.end_attempt(fault)
        kind = DIVERGENCE if fault.kind == DIVERGENCE else NUMERICAL
        cause = Cause(kind, fault.rank, fault.step, fault.sentence, f"{kind}:{fault.kind}")
        if fault.act == "rollback":
            where = f"going back to a healthy checkpoint from before step {fault.before}"
            self.fail(attempt, replace(cause, sentence=f"{fault.sentence}; {where}{skipping}"))
            return
        self.give_up(attempt, cause, f"{fault.sentence}; not restarting (on_{fault.kind}: stop)")

    def resume_differs(self, attempt: Attempt, found: ResumeDiffers) -> None:
        """End the job, because a step that was made again is another one (on_difference: stop)."""
        deviation, sentence = found.deviation, found.finding
        self._numbers.end_inexact(deviation.step)
        cause = Cause(RESUME_DIFFERS, deviation.rank, deviation.step, sentence, RESUME_DIFFERS)
        self.give_up(attempt, cause, f"{sentence}; not restarting (on_difference: stop)")
