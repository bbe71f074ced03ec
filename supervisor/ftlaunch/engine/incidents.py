"""Judges each failure of a job: finds its cause, asks the restart policy for a verdict, and reports both.

Used by `engine/supervisor.py` and `engine/watch.py` in the main thread. The decisions themselves are pure functions in
`policy/` (the cause, and whether to restart) and in `health/` (hangs and time-outs). This module collects what the
decisions need, and posts the event that follows from a verdict.
"""

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

_FULL_DISK_POLL_SECONDS = 2.0
"""time between two checks of a full disk"""
_SILENT_DISK_POLL_SECONDS = 0.1
"""time between two checks of a file system that does not answer"""
_MAY_START_POLL_SECONDS = 0.01
"""time between two checks for nodes that are missing"""
_UNATTACHED_NOTE = (
    "no rank has called attach(): each attempt begins anew, or where the script resumes by itself from checkpoints of"
    " its own"
)
_READING_SECONDS = 1.0
"""how long reading the error files of failed ranks is retried; afterwards the failure is judged without these files"""
_READ_RETRY_SECONDS = 0.1
"""time between two tries to read the error files of failed ranks"""
_CLOSING_SECONDS = 2.0
"""longest time between a failing rank closing its connections and the end of its process"""


def budget_of(spec: JobSpec) -> restart_policy.Budget:
    """Return the restart budget of a job, with nothing spent."""
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
    """Judges the failures of a job over all its attempts.

    Attributes:
        budget: the job's restart limits, and what the job has spent of them.
        backoff: the delays between restarts that the job asks for.
        kernel: the kernel's log, which may explain why a rank was killed. The owner starts listening.
        cause: the cause of the newest failure; None before the first.
        verdict: the decision about the newest failure; None before the first.
        last: the newest incident as `ftctl status` shows it, with the keys `sentence` and `autopsy` (the autopsy's
            directory, or None); None before the first.
    """

    def __init__(self, context: Context, progress: Progress, numbers: NumericsMonitor) -> None:
        self._context = context
        self._progress = progress
        self._numbers = numbers
        self.budget = budget_of(context.spec)
        self.backoff = restart_policy.Backoff(context.spec.restarts.backoff_first, context.spec.restarts.backoff_max)
        self.kernel = Kernel()
        self.cause: Cause | None = None
        self.verdict: restart_policy.Verdict | None = None
        self._is_wait_reported = False
        self._is_unattached_reported = False
        self._unread: tuple[RankGroup, float] | None = None
        """a group whose failed ranks' error files cannot be read, and the monotonic time of the first try"""
        self._steps_unknown = False  # whether the script trains without torch.optim
        self.last: dict[str, Any] | None = None

    def fail(self, attempt: Attempt, cause: Cause) -> None:
        """Judge a failure by the restart policy, report it, and post the event of the verdict.

        Posts RANK_RETRY (only `cause.rank` is restarted), FAILURE_RETRY (all ranks are) or FAILURE_FATAL.
        """
        context = self._context
        now = context.clock()
        views = attempt.group.views()
        can_replace = attempt.can_replace(cause.rank)
        verdict = restart_policy.judge(
            cause,
            self.budget,
            self.backoff,
            policy=context.spec.restarts.restart_policy,
            progressed=attempt.progress.made or self._lived_long(attempt, rank=cause.rank, views=views, now=now),
            random=context.random(),
            now=now,
            step=self._progress.newest(views),
            alone=can_replace,
        )
        self._conclude(attempt, cause, verdict)
        if verdict.restart and not self._is_unattached_reported and any(view.observed for view in views):
            self._is_unattached_reported = True
            context.report(Note(_UNATTACHED_NOTE))
        if not verdict.restart:
            context.loop.post(Event.FAILURE_FATAL)
        elif can_replace:
            context.loop.post(Event.RANK_RETRY)
        else:
            context.loop.post(Event.FAILURE_RETRY)

    def give_up(self, attempt: Attempt, cause: Cause, sentence: str) -> None:
        """End the job without asking the restart policy. Posts FAILURE_FATAL.

        Args:
            attempt: the attempt that ends.
            cause: why.
            sentence: the verdict, for people.
        """
        verdict = restart_policy.Verdict(
            restart=False,
            delay=0.0,
            sentence=sentence,
            budget=self.budget,
            is_permanent=cause.kind in OF_THE_NUMBERS,
        )
        self._conclude(attempt, cause, verdict)
        self._context.loop.post(Event.FAILURE_FATAL)

    def note_internal_error(self, sentence: str) -> None:
        """Note that the job ends because of a bug of ftlaunch itself. Posts and reports nothing."""
        self.cause = Cause(kind=INTERNAL, rank=-1, step=-1, sentence=sentence, signature=INTERNAL)
        self.verdict = restart_policy.Verdict(restart=False, delay=0.0, sentence=sentence, budget=self.budget)

    def arm_backoff(self) -> None:
        """Post BACKOFF_OVER after the verdict's delay, once the next attempt can begin.

        The next attempt waits for missing nodes, for GPU memory of the last one, for file systems that do not answer
        and, after a failure for want of room, for room on the disks. REGROUP is posted instead if the next attempt is
        to run on other nodes.
        """
        assert self.verdict is not None
        self._is_wait_reported = False
        self._call_backoff_over(self.verdict.delay)

    def start_at_once(self) -> None:
        """Post BACKOFF_OVER as `arm_backoff` does, but without the verdict's delay: the nodes have just changed."""
        self._call_backoff_over(0.0)

    def _call_backoff_over(self, delay_seconds: float) -> None:
        self._context.loop.call_at(self._context.clock() + delay_seconds, Event.BACKOFF_OVER, self._backoff_over)

    def _backoff_over(self) -> None:
        """Post BACKOFF_OVER or REGROUP; if the next attempt cannot begin yet, call this again later."""
        context = self._context
        if context.regroups():
            context.loop.post(Event.REGROUP)
            return
        if not context.may_start():  # a node that the attempt needs is missing, or GPU memory is not free
            self._call_backoff_over(_MAY_START_POLL_SECONDS)
            return
        if silent := self._silent_directories():
            self._wait_for_disk(
                f"{silent[0]} does not answer: the next attempt waits for it", _SILENT_DISK_POLL_SECONDS
            )
            return
        full = self._full_disks(context.files.places) if self.cause is not None and self.cause.kind == DISK else []
        if not full:
            context.loop.post(Event.BACKOFF_OVER)
            return
        names = ", ".join(map(str, full))
        self._wait_for_disk(f"no room in {names}: the next attempt waits for room", _FULL_DISK_POLL_SECONDS)

    def _wait_for_disk(self, why: str, poll_seconds: float) -> None:
        if not self._is_wait_reported:
            self._context.report(Note(f"{why}, and this wait does not use up a restart"))
            self._is_wait_reported = True
        self._call_backoff_over(poll_seconds)

    def _silent_directories(self) -> list[Path]:
        """Return the directories that an attempt needs and that do not answer."""
        spec = self._context.spec
        needed = [spec.log_dir]
        if self._context.pages.newest_common() == NONE:  # nothing to resume from in memory, so storage is read
            needed.append(spec.checkpoint_dir)
        return [directory for directory in needed if not self._answers(directory)]

    def _answers(self, directory: Path) -> bool:
        """Return whether the file system of a directory answers in time."""
        try:
            self._context.files.of(directory).call(directory.exists)
        except FileSystemSilent:
            return False
        except OSError:  # an error is an answer, too: the attempt will run into it and report it
            return True
        return True

    def _full_disks(self, directories: Iterable[Path]) -> list[Path]:
        """Return the directories without room. Directories whose file systems do not answer are left out."""
        directories_by_thread: dict[FileThread, list[Path]] = {}
        for directory in directories:
            directories_by_thread.setdefault(self._context.files.of(directory), []).append(directory)
        full = []
        for thread, directories_of_thread in directories_by_thread.items():
            with contextlib.suppress(FileSystemSilent):
                full += thread.call(partial(resources.full_disks, directories_of_thread))
        return full

    def _conclude(self, attempt: Attempt, cause: Cause, verdict: restart_policy.Verdict) -> None:
        """Take over the verdict and report the incident."""
        self.cause = cause
        self.verdict = verdict
        self.budget = verdict.budget
        autopsy = attempt.examination.pop_autopsy_dir()
        since_progress = self._progress.incident(attempt.group.views(), self._context.clock())
        self.last = {"sentence": verdict.sentence, "autopsy": autopsy}
        self._context.report(
            IncidentJudged(
                cause=cause,
                verdict=verdict,
                reached=self._progress.reached,
                since_progress=since_progress,
                autopsy=autopsy,
                followed=cause.rank in followed_ranks(self._context.spec),
                host=self._context.host_of(cause.rank),
            )
        )

    def _lived_long(self, attempt: Attempt, rank: int, views: list[RankView], now: float) -> bool:
        """Return whether a rank that reports no steps has lived so long that its end does not repeat an earlier one."""
        return not any_attached(views) and attempt.lifetime(rank, now) > failure_diagnosis.LONG_LIFE_SECONDS

    # --- kinds of failures ------------------------------------------------------------------------------------

    def judge_spawn_failure(self, attempt: Attempt, failed: SpawnFailed) -> None:
        """Judge that a rank could not be started."""
        self.fail(attempt, failure_diagnosis.spawn_failure(failed.rank, failed.reason, self._context.rules))

    def judge_failed_ranks(self, attempt: Attempt, now: float) -> bool:
        """Judge the first cause among the ranks that have failed, if there are any.

        Posts what `fail` posts. A rank that timed out waiting for another is a victim: HANG is posted instead, so that
        the living ranks are examined for the culprit. A rank whose connection was closed by another is a victim, too: a
        rank that calls sys.exit(1) closes its connections while its interpreter is still ending, so nothing is judged
        until the culprit's own exit is seen.

        Returns:
            Whether the watch must not examine the attempt any further in this turn: a failure was judged, or cannot be
            judged before the error files can be read.
        """
        failed = self.read_failed(attempt.group)
        if failed is None:
            # Nothing is judged before the error files can be read. A timer is needed, because the regular looks at a
            # large job are many seconds apart.
            self._context.loop.call_at(now + _READ_RETRY_SECONDS, "retry error files", attempt.poll_in_this_turn)
            return True
        if not failed:
            return False
        cause = self._first_cause(failed)
        if cause.kind == COMM and self._may_culprit_exit(attempt, cause.rank, now):
            return False
        if cause.kind == COMM_TIMEOUT and attempt.group.living and not attempt.can_replace(cause.rank):
            views = attempt.group.views()
            attempt.examination.suspect(hang_detection.late_by_timeout(cause.rank, views, now), views)
            self._context.loop.post(Event.HANG)
        else:
            # A rank that exits by itself writes its error; one that a signal kills cannot.
            has_no_error = not cause.trace and any(
                evidence.rank == cause.rank and evidence.returncode > 0 for evidence in failed
            )
            self.fail(attempt, self._or_full_disk(cause) if has_no_error else cause)
        return True

    def read_failed(self, group: RankGroup) -> list[Evidence] | None:
        """Return what the failed ranks of a group have left behind; None if their files cannot be read yet."""
        now = self._context.clock()
        unread_since = self._unread[1] if self._unread and self._unread[0] is group else now
        must_read = now < unread_since + _READING_SECONDS  # afterwards files that cannot be read count as empty
        evidence = self._context.bulkheads.call(
            "read what failed ranks have left", lambda: group.failed(must_read=must_read), None
        )
        self._unread = (group, unread_since) if evidence is None else None
        return evidence

    def _may_culprit_exit(self, attempt: Attempt, victim: int, now: float) -> bool:
        """Return whether the rank that has closed the connection of a victim may still be about to end."""
        has_peers = bool(attempt.group.living) and not attempt.can_replace(victim)
        return has_peers and now < attempt.group.ranks[victim].ended + _CLOSING_SECONDS

    def judge_hang(self, attempt: Attempt, cause: Cause) -> None:
        """Judge a hang whose cause an autopsy has found. Posts what `fail` posts.

        After a time-out a rank may have failed meanwhile. Its failure replaces `cause` if that rank is no victim
        itself, or if no rank lives any more.
        """
        failed = [entry for entry in self.read_failed(attempt.group) or () if entry.returncode != EXIT_STOPPED]
        if attempt.examination.of_timeout and failed:
            first = self._first_cause(failed)
            if attempt.group.empty or not failure_diagnosis.is_victim(first):
                cause = first
        self.fail(attempt, cause)

    def _first_cause(self, failed: Sequence[Evidence]) -> Cause:
        """Return the cause that came first, judged with the kernel's messages."""
        kernel_messages = self.kernel.read_news()
        # A script without torch.optim has none in any attempt, even in an attempt that ended before the first gradient.
        self._steps_unknown = self._steps_unknown or any(entry.steps_unknown for entry in failed)
        evidence = [replace(entry, kernel=kernel_messages, steps_unknown=self._steps_unknown) for entry in failed]
        return failure_diagnosis.first_cause(evidence, self._context.rules)

    def _or_full_disk(self, cause: Cause) -> Cause:
        """Return a full disk as the cause if a disk is full, because the rank had no room to write its error.

        Returns:
            `cause` itself if the disks have room.
        """
        spec = self._context.spec
        full = self._full_disks((spec.log_dir, spec.run_dir))
        if not full:
            return cause
        sentence = f"{cause.sentence}, and could write no error: No space left on device ({full[0]})"
        return replace(cause, kind=DISK, sentence=sentence, signature="disk:full", action="wait")

    def judge_numeric_fault(self, attempt: Attempt, fault: NumericFault) -> None:
        """End the attempt for a numeric fault: roll back, which costs a restart like any failure, or end the job.

        Posts what `fail` or `give_up` posts.
        """
        samples_note = self._numbers.end_attempt(fault)  # what becomes of the samples, or empty
        kind = DIVERGENCE if fault.kind == DIVERGENCE else NUMERICAL
        cause = Cause(
            kind=kind, rank=fault.rank, step=fault.step, sentence=fault.sentence, signature=f"{kind}:{fault.kind}"
        )
        if fault.act == "rollback":
            where = f"going back to a healthy checkpoint from before step {fault.before}"
            self.fail(attempt, replace(cause, sentence=f"{fault.sentence}; {where}{samples_note}"))
            return
        self.give_up(attempt, cause, f"{fault.sentence}; not restarting (on_{fault.kind}: stop)")

    def judge_inexact_resume(self, attempt: Attempt, found: ResumeDiffers) -> None:
        """End the job because a repeated step gave another result than before the resume (on_difference: stop).

        Posts FAILURE_FATAL.
        """
        deviation = found.deviation
        self._numbers.end_inexact(deviation.step)
        cause = Cause(
            kind=RESUME_DIFFERS,
            rank=deviation.rank,
            step=deviation.step,
            sentence=found.finding,
            signature=RESUME_DIFFERS,
        )
        self.give_up(attempt, cause, f"{found.finding}; not restarting (on_difference: stop)")
