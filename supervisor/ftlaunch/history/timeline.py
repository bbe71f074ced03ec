"""Puts the events of a journal on one time line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite
from typing import Any

_MOST_HELD = 10_000  # moments after a start until what began is known


@dataclass(frozen=True)
class Moment:
    """One event, at `wall` seconds of the epoch (comparable over all runs)."""

    wall: float
    event: str
    attempt: int
    fields: Mapping[str, Any]


def moments(events: Iterable[Mapping[str, Any]]) -> list[Moment]:
    """Events on one time line, in order.

    Within a run of the supervisor the monotonic clock counts, between runs the wall clock; a wall clock that
    was set back never makes time run backwards.
    """
    return list(stream_moments(events))


def stream_moments(events: Iterable[Mapping[str, Any]]) -> Iterator[Moment]:
    """The same, one after another: what is kept meanwhile are the moments between a start and its first attempt."""
    line = TimeLine()
    for event in events:
        yield from line.take(event)
    yield from line.held


class TimeLine:
    """Puts events on the line as they come."""

    def __init__(self) -> None:
        self.held: list[Moment] = []
        """a start and what came after it, until the first attempt says whether it is a run of its own"""
        self.resumed = False
        """some moment tells of a resume"""
        self._first = True
        self._shift: float | None = None  # from the run's monotonic clock to the line
        self._newest: float | None = None

    def take(self, event: Mapping[str, Any]) -> Sequence[Moment]:
        """The moments that are known now, in order."""
        moment = self._placed(event)
        if moment is None:
            return ()
        before, first, self._first = self.held, self._first, False
        self.resumed = self.resumed or moment.event == "resumed"
        if moment.event == "job_started" and not first:
            self.held = [moment]
            return before
        if not before:
            return (moment,)
        if moment.event == "attempt_adopted":
            # a head that takes up ranks which run is no run of its own
            self.held = []
            return [replace(before[0], event="head_replaced"), *before[1:], moment]
        if moment.event == "attempt_started" or len(before) >= _MOST_HELD:
            self.held = []
            return [*before, moment]
        before.append(moment)
        return ()

    def _placed(self, event: Mapping[str, Any]) -> Moment | None:
        try:
            mono, attempt = float(event["mono"]), int(event["attempt"])
            anew = self._shift is None or event["event"] == "job_started"
            wall = epoch_seconds(str(event["t"])) if anew else 0.0  # only there it counts
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        if not isfinite(mono):
            return None
        newest = wall if self._newest is None else self._newest
        if self._shift is None or anew:
            self._shift = max(wall, newest) - mono
        self._newest = max(mono + self._shift, newest)
        return Moment(self._newest, str(event["event"]), attempt, event)


def epoch_seconds(stamp: str) -> float:
    """The time of an event, as its `t` says it. Raises ValueError."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
