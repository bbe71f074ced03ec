"""Puts the events of a journal on one time line. Pure.

Within a run of the supervisor the monotonic clock counts, between runs the wall clock. Time never runs backwards, even
if a wall clock was set back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import isfinite
from typing import Any

_MOST_HELD = 10_000  # moments held back after a start while the kind of the start is unknown


@dataclass(frozen=True)
class Moment:
    """One event on the time line."""

    wall: float
    """seconds of the epoch, comparable over all runs"""
    event: str
    """name of the event, or head_replaced for a start that only took over running ranks"""
    attempt: int
    fields: Mapping[str, Any]
    """the event with all its fields"""


def moments(events: Iterable[Mapping[str, Any]]) -> list[Moment]:
    """Return all events on one time line, in order. Events without sound times are left out."""
    return list(stream_moments(events))


def stream_moments(events: Iterable[Mapping[str, Any]]) -> Iterator[Moment]:
    """Yield the events on one time line, in order. Events without sound times are left out.

    In memory are only the moments between a start and its first attempt.
    """
    line = TimeLine()
    for event in events:
        yield from line.add(event)
    yield from line.held


class TimeLine:
    """Puts events on the time line as they come.

    A start of a supervisor may be a run of its own, or a new head that takes over running ranks. The first attempt
    after the start tells which, so moments are held back until then.
    """

    def __init__(self) -> None:
        """Start with an empty line."""
        self.held: list[Moment] = []
        """moments held back: a start, and what came after the start"""
        self.resumed = False
        """whether some moment is a resume"""
        self._is_first = True  # whether no event has been placed
        self._shift: float | None = None  # seconds from the run's monotonic clock to the line
        self._newest: float | None = None  # time of the newest moment

    def add(self, event: Mapping[str, Any]) -> Sequence[Moment]:
        """Add the next event, and return the moments that are not held back any more, in order, in order."""
        moment = self._placed(event)
        if moment is None:
            return ()
        held = self.held
        is_first = self._is_first
        self._is_first = False
        self.resumed = self.resumed or moment.event == "resumed"
        if moment.event == "job_started" and not is_first:
            self.held = [moment]
            return held
        if not held:
            return (moment,)
        if moment.event == "attempt_adopted":
            self.held = []
            return [replace(held[0], event="head_replaced"), *held[1:], moment]
        if moment.event == "attempt_started" or len(held) >= _MOST_HELD:
            self.held = []
            return [*held, moment]
        held.append(moment)
        return ()

    def _placed(self, event: Mapping[str, Any]) -> Moment | None:
        """Return the moment of an event; None if the event has no sound times."""
        try:
            mono = float(event["mono"])
            attempt = int(event["attempt"])
            begins_run = self._shift is None or event["event"] == "job_started"
            wall = epoch_seconds(event["t"]) if begins_run else 0.0  # within a run, the wall clock does not count
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        if not isfinite(mono):
            return None
        newest = wall if self._newest is None else self._newest
        if self._shift is None or begins_run:
            self._shift = max(wall, newest) - mono
        self._newest = max(mono + self._shift, newest)
        return Moment(wall=self._newest, event=str(event["event"]), attempt=attempt, fields=event)


def epoch_seconds(stamp: object) -> float:
    """Convert the `t` of an event to seconds of the epoch. Raises ValueError if it is no such time, or no text."""
    if not isinstance(stamp, str):
        raise ValueError(f"{stamp!r} is no time")
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
