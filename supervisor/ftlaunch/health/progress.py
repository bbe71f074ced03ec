"""What a job has reached: its newest step, resumes, recoveries, and what a failure has lost. Pure; monotonic seconds.

The engine asks `AttemptProgress` in each turn of the event loop, passes on to the policy whether there was progress
since the last restart, and makes the events for people from the news.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch.ranks.view import RankView, completed_at, least_step
from ftlaunch_contract.protocol import Resume

_LONGEST_INTERVAL_SECONDS = 60.0  # between notes of a new step, which a killed supervisor's journal misses at most
_SHORTEST_INTERVAL_SECONDS = 1.0
_NOTES_AT_FIRST = 50  # notes while intervals grow, so that a job that has run for a minute has some notes, too


@dataclass(frozen=True)
class Resumption:
    """News: all ranks have restored their state."""

    kind: Resume  # the source of the state
    step: int  # the step of the state
    lost: int | None  # number of steps that are made again; None if unknown
    seconds: float | None  # since the incident; None without an incident


@dataclass(frozen=True)
class Recovery:
    """News: the first new step after an incident is complete."""

    step: int
    seconds: float  # since the incident


@dataclass(frozen=True)
class Milestone:
    """News: a new step, noted now and then."""

    step: int


News = Resumption | Recovery | Milestone


class Progress:
    """The progress of a job over all its attempts."""

    def __init__(self, reached: int, now: float) -> None:
        """Begin with a run of the job.

        Args:
            reached: newest step that all ranks of a killed supervisor had completed; -1 if unknown.
            now: monotonic seconds.
        """
        self.reached = reached
        """newest step that all ranks have completed, in this attempt or, before the resume, in the attempt before"""
        self.last = now
        """time at which the step was completed"""
        self.incident_at: float | None = None
        """time of the incident from which the job has not recovered yet; None without such an incident"""
        self.noted = now
        """time of the last note of a new step"""
        self._begun = now

    def is_due(self, now: float) -> bool:
        """Return whether a new step is to be noted. Intervals grow with the age of the run."""
        grown = (now - self._begun) / _NOTES_AT_FIRST
        interval = min(max(grown, _SHORTEST_INTERVAL_SECONDS), _LONGEST_INTERVAL_SECONDS)
        return now - self.noted > interval

    def newest(self, views: Sequence[RankView]) -> int:
        """Return the newest step that all ranks have completed, in this attempt or an earlier one."""
        return max(self.reached, least_step(views))

    def incident(self, views: Sequence[RankView], now: float) -> float:
        """Record that an attempt has failed.

        Args:
            views: the ranks at the time of the failure.
            now: monotonic seconds.

        Returns:
            Seconds since the last progress.
        """
        step = least_step(views)
        if step > self.reached:
            self.reached = step
            self.last = completed_at(views, step)
        if self.incident_at is None:
            self.incident_at = now
        return now - self.last


class AttemptProgress:
    """Follows the steps of the ranks in one attempt, and records in `Progress` what was reached."""

    def __init__(self, job: Progress, ranks: int, *, first: bool) -> None:
        """Begin with an attempt.

        Args:
            job: progress of the job.
            ranks: number of ranks of the job.
            first: whether the attempt is the job's first.
        """
        self._job = job
        self._ranks = ranks
        self.resume_awaited = True
        """not all ranks have restored their state yet"""
        self.made = first
        """a new step was made since the last restart; true from the beginning of the first attempt, which is none"""
        self._resumed_step = -1
        self._resumed_from = Resume.UNDECIDED

    @property
    def nothing_left(self) -> int | None:
        """The step at which the ranks have resumed, if they have made no new step since; else None."""
        has_resumed = self._resumed_from in (Resume.MEMORY, Resume.PEER, Resume.STORAGE)
        return self._resumed_step if has_resumed and self._job.reached == self._resumed_step else None

    def adopted(self, views: Sequence[RankView]) -> None:
        """Take over an attempt that was running before this supervisor, and whose resume was reported.

        Ranks of a node that has not arrived do not report their steps. All ranks step together, so that those ranks are
        assumed to have completed what all the others have.
        """
        self.resume_awaited = False
        self.made = True
        self._resumed_step = 0
        self._job.reached = max(self._job.reached, least_step([view for view in views if view.beating]))

    def rank_restarted(self) -> None:
        """Record that one rank was started again while the others go on."""
        self.made = False

    def observe(self, views: Sequence[RankView], now: float) -> list[News]:
        """Return what is new since the last call: a finished resume, a recovery, a step worth a note.

        Args:
            views: all ranks.
            now: monotonic seconds.
        """
        news: list[News] = []
        if self.resume_awaited and (resumption := self._resumption(views, now)):
            news.append(resumption)
        step = least_step(views)
        if step <= self._resumed_step or self._resumed_step < 0:
            return news
        job = self._job
        self.made = True
        if job.incident_at is not None:
            news.append(Recovery(step, now - job.incident_at))
            job.incident_at = None
        if step > job.reached:
            job.reached = step
            job.last = completed_at(views, step)
            if job.is_due(now):
                news.append(Milestone(step))
                job.noted = now
        return news

    def _resumption(self, views: Sequence[RankView], now: float) -> Resumption | None:
        """Return the resume, once every rank has one that is decided, and record the resume; else None."""
        answers = [view.resumed for view in views if view.resumed is not None]
        if len(answers) < self._ranks or any(kind == Resume.UNDECIDED for kind, _ in answers):
            return None
        job = self._job
        kind, step = answers[0]
        self.resume_awaited = False
        self._resumed_step = step
        self._resumed_from = kind
        lost = max(job.reached - step, 0) if job.reached >= 0 else None
        job.reached = step  # steps made again are progress too
        job.last = now
        seconds = None if job.incident_at is None else now - job.incident_at
        return Resumption(kind=kind, step=step, lost=lost, seconds=seconds)
