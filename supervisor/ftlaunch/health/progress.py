"""What a job has reached: its newest step, resumes, recoveries, and what a failure has lost. Pure; monotonic seconds.

Policy asks here whether there was progress since the last restart; the events for people are made from what is
returned here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftlaunch.ranks.view import RankView, completed_at, least_step
from ftlaunch_contract.protocol import Resume

_NOTE_EVERY = 60.0  # seconds between notes of a new step: what a killed supervisor's journal misses at most
_NOTE_OFTEN, _NOTES_AT_FIRST = 1.0, 50  # a job that has run for a minute has some notes, too


@dataclass(frozen=True)
class Resumption:
    """All ranks have their state."""

    kind: Resume
    step: int
    lost: int | None  # steps that are made again; None where it is not known
    seconds: float | None  # since the incident; None where there was none


@dataclass(frozen=True)
class Recovery:
    """The first new step after an incident is made."""

    step: int
    seconds: float  # since the incident


@dataclass(frozen=True)
class Milestone:
    """A new step, noted now and then."""

    step: int


News = Resumption | Recovery | Milestone


class Progress:
    """Of a job over all its attempts."""

    def __init__(self, reached: int, now: float) -> None:
        """reached: the newest step that the ranks of a killed supervisor had all completed; -1: not known."""
        self.reached = reached
        """the newest step all ranks had completed, in this attempt or, before its resume, in the one before"""
        self.last = now
        """when that step was completed"""
        self.incident_at: float | None = None
        """when the incident was seen from which the job has not recovered yet"""
        self.noted = self._begun = now

    def is_due(self, now: float) -> bool:
        """Whether a new step is to be noted: the more seldom the longer the job runs."""
        every = min(max((now - self._begun) / _NOTES_AT_FIRST, _NOTE_OFTEN), _NOTE_EVERY)
        return now - self.noted > every

    def newest(self, views: Sequence[RankView]) -> int:
        """The newest step all ranks had completed, in this attempt or the one before."""
        return max(self.reached, least_step(views))

    def incident(self, views: Sequence[RankView], now: float) -> float:
        """An attempt has failed: seconds since the last progress."""
        step = least_step(views)
        if step > self.reached:
            self.reached, self.last = step, completed_at(views, step)
        if self.incident_at is None:
            self.incident_at = now
        return now - self.last


class AttemptProgress:
    """Follows the steps of the ranks in one attempt, and tells `Progress` what was reached."""

    def __init__(self, job: Progress, ranks: int, *, first: bool) -> None:
        """ranks: how many there are. first: the attempt is the job's first one."""
        self._job, self._ranks = job, ranks
        self.resume_awaited = True
        self.made = first
        """a new step was made since the last restart; the first attempt is no restart"""
        self._resumed_step = -1
        self._resumed_from = Resume.UNDECIDED

    @property
    def nothing_left(self) -> int | None:
        """The step at which the ranks have resumed and beyond which they have not gone; None: there is no such step."""
        own = self._resumed_from in (Resume.MEMORY, Resume.PEER, Resume.STORAGE)
        return self._resumed_step if own and self._job.reached == self._resumed_step else None

    def adopted(self, views: Sequence[RankView]) -> None:
        """The attempt was running already: its resume was told of.

        Ranks of a node that has not come say nothing of their steps. They step together with the others, so they are
        taken to have completed what all the others have.
        """
        self.resume_awaited, self.made = False, True
        self._resumed_step = 0
        self._job.reached = max(self._job.reached, least_step([view for view in views if view.beating]))

    def rank_restarted(self) -> None:
        """One rank was started again, the others go on."""
        self.made = False

    def look(self, views: Sequence[RankView], now: float) -> list[News]:
        """What is new: a finished resume, a recovery, a step worth a note."""
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
            job.reached, job.last = step, completed_at(views, step)
            if job.is_due(now):
                news.append(Milestone(step))
                job.noted = now
        return news

    def _resumption(self, views: Sequence[RankView], now: float) -> Resumption | None:
        answers = [view.resumed for view in views if view.resumed is not None]
        if len(answers) < self._ranks or any(kind == Resume.UNDECIDED for kind, _ in answers):
            return None
        job, (kind, step) = self._job, answers[0]
        self.resume_awaited = False
        self._resumed_step, self._resumed_from = step, kind
        lost = max(job.reached - step, 0) if job.reached >= 0 else None
        job.reached, job.last = step, now  # steps made again are progress too
        return Resumption(kind, step, lost, None if job.incident_at is None else now - job.incident_at)
