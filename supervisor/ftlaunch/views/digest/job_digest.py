"""One journal, read as it comes and reduced to numbers: what it holds is never in memory as a whole."""

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
"""the state of a job whose journal has no end: it runs, or its supervisor was killed"""
Read = Callable[[], Iterable[Mapping[str, Any]]]
"""reads the events of a journal from its beginning"""


@dataclass
class JobDigest:
    """What one job did in the time that is asked for."""

    name: str
    """of its run dir"""
    job_id: str = ""
    ranks: int = 0
    state: str = OPEN
    begin: float = 0.0
    end: float = 0.0
    """seconds of the epoch, of that time's first and last event"""
    attempts: int = 0
    steps_lost: int = 0
    causes: Counter[str] = field(default_factory=Counter)
    """classes of incidents"""
    hosts: dict[str, HostTime] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))
    torn: int = 0
    """lines of the journal that are no whole event"""

    @property
    def incidents(self) -> int:
        """How many there were."""
        return sum(self.causes.values())


def digest_of(name: str, read: Read, since: float) -> JobDigest | None:
    """What a job did from `since` (seconds of the epoch) on; None where its journal has no event of that time.

    The journal is read twice: only then is it known from the beginning whether the ranks tell their steps. Raises
    OSError, and for nonsense in a journal ValueError, TypeError, AttributeError, KeyError or OverflowError.
    """
    walk = _Walk(name, hooked=any(event["event"] == "resumed" for event in read()), since=since)
    for moment in stream_moments(read()):
        walk.hear(moment)
    return walk.close()


class _Walk:
    """Along the moments of one journal."""

    def __init__(self, name: str, *, hooked: bool, since: float) -> None:
        self._since, self._inside, self._lost_before = since, False, 0
        self._digest = JobDigest(name)
        self._hosts = HostWatch(since)
        self._teller = Teller(hooked, self._spent)

    def _spent(self, kind: str, begin: float, end: float) -> None:
        self._digest.seconds[kind] += max(end - max(begin, self._since), 0.0)

    def hear(self, moment: Moment) -> None:
        """Take one moment in."""
        digest, story = self._digest, self._teller.story
        if not self._inside and moment.wall >= self._since:
            self._inside, self._lost_before = True, story.steps_lost
            digest.begin = self._since if story.runs else moment.wall
        self._teller.hear(moment)
        self._hosts.hear(moment)
        story.entries.clear()  # what is counted here is read from the moments
        digest.end = moment.wall
        if moment.event in ("job_started", "head_replaced"):
            digest.state = OPEN
        digest.state = _STATES.get(moment.event, digest.state)
        if self._inside and moment.event == "attempt_started":
            digest.attempts += 1
        if self._inside and moment.event == "incident":
            digest.causes[str(moment.fields.get("kind") or "unknown")[:40]] += 1

    def close(self) -> JobDigest | None:
        """The digest; None where nothing was in the time that is asked for."""
        digest, story = self._digest, self._teller.close()
        if not self._inside:
            return None
        digest.job_id, digest.ranks, digest.hosts = story.job_id or digest.name, story.ranks, self._hosts.hosts
        digest.steps_lost = story.steps_lost - self._lost_before
        made = digest.seconds[USEFUL]
        digest.seconds[LOST] = min(digest.steps_lost * (story.step_seconds or 0.0), made)
        digest.seconds[USEFUL] = made - digest.seconds[LOST]
        if not isfinite(sum(digest.seconds.values()) + digest.steps_lost):
            raise ValueError("its numbers add up to none")
        return digest
