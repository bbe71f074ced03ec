"""Reduces one journal to numbers. The journal is read as a stream, and is never in memory as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ftlaunch.history.goodput import Teller
from ftlaunch.history.story import CLASSES, LOST, USEFUL
from ftlaunch.history.timeline import Moment, stream_moments
from ftlaunch.views.digest.hosts import HostTime, HostWatch

_STATES = {"job_finished": "done", "job_stopped": "stopped", "job_failed": "failed"}
OPEN = "open"
"""state of a job whose journal has no end: the job runs, or its supervisor was killed"""
Read = Callable[[], Iterable[Mapping[str, Any]]]
"""Reads the events of a journal from its beginning."""


@dataclass
class JobDigest:
    """What one job did in the time of the digest."""

    name: str
    """name of the run dir"""
    job_id: str = ""
    ranks: int = 0
    state: str = OPEN
    begin: float = 0.0
    """begin of the job's part of that time, in seconds since the epoch"""
    end: float = 0.0
    """time of the last event, in seconds since the epoch"""
    attempts: int = 0
    steps_lost: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """number of incidents by class"""
    hosts: dict[str, HostTime] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))
    torn: int = 0
    """number of lines of the journal that are no whole event"""

    @property
    def incidents(self) -> int:
        """Number of incidents of all classes."""
        return sum(self.causes.values())


def digest_of(name: str, read: Read, since: float) -> JobDigest | None:
    """Reduce a journal to a digest.

    The journal is read twice, because whether the ranks report their steps must be known from the beginning.

    Args:
        name: name of the run dir.
        read: reads the journal; called twice.
        since: seconds since the epoch before which nothing counts.

    Returns:
        The digest; None if the journal has no event since then.

    Raises:
        OSError: the journal cannot be read.
        ValueError, TypeError, AttributeError, KeyError, OverflowError: the journal holds nonsense.
    """
    walk = _Walk(name, hooked=any(event["event"] == "resumed" for event in read()), since=since)
    for moment in stream_moments(read()):
        walk.apply(moment)
    return walk.close()


class _Walk:
    """Builds a digest from the moments of one journal, in their order."""

    def __init__(self, name: str, *, hooked: bool, since: float) -> None:
        self._since = since
        self._inside = False  # whether a moment since then has come
        self._lost_before = 0  # steps lost before
        self._digest = JobDigest(name)
        self._hosts = HostWatch(since)
        self._teller = Teller(hooked, self._spent)

    def _spent(self, kind: str, begin: float, end: float) -> None:
        self._digest.seconds[kind] += max(end - max(begin, self._since), 0.0)

    def apply(self, moment: Moment) -> None:
        """Process the next moment."""
        digest = self._digest
        story = self._teller.story
        if not self._inside and moment.wall >= self._since:
            self._inside = True
            self._lost_before = story.steps_lost
            digest.begin = self._since if story.runs else moment.wall
        self._teller.apply(moment)
        self._hosts.apply(moment)
        story.entries.clear()  # unused: this class counts moments, and entries would grow without bound
        digest.end = moment.wall
        if moment.event in ("job_started", "head_replaced"):
            digest.state = OPEN
        digest.state = _STATES.get(moment.event, digest.state)
        if self._inside and moment.event == "attempt_started":
            digest.attempts += 1
        if self._inside and moment.event == "incident":
            digest.causes[str(moment.fields.get("kind") or "unknown")[:40]] += 1

    def close(self) -> JobDigest | None:
        """Finish the digest; return None if no moment was in the time of the digest."""
        digest = self._digest
        story = self._teller.close()
        if not self._inside:
            return None
        digest.job_id = story.job_id or digest.name
        digest.ranks = story.ranks
        digest.hosts = self._hosts.hosts
        digest.steps_lost = story.steps_lost - self._lost_before
        made = digest.seconds[USEFUL]
        digest.seconds[LOST] = min(digest.steps_lost * (story.step_seconds or 0.0), made)
        digest.seconds[USEFUL] = made - digest.seconds[LOST]
        if not isfinite(sum(digest.seconds.values()) + digest.steps_lost):
            raise ValueError("its numbers add up to none")
        return digest
