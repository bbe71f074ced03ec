"""Puts the events of a journal on one time line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    held: list[Moment] = []
    first = True
    for moment in _on_one_line(events):
        if moment.event == "job_started" and not first:
            yield from held
            held = [moment]
        elif held and moment.event == "attempt_adopted":
            # a head that takes up ranks which run is no run of its own
            yield replace(held[0], event="head_replaced")
            yield from held[1:]
            held = []
            yield moment
        elif held and (moment.event == "attempt_started" or len(held) >= _MOST_HELD):
            yield from held
            held = []
            yield moment
        elif held:
            held.append(moment)
        else:
            yield moment
        first = False
    yield from held


def _on_one_line(events: Iterable[Mapping[str, Any]]) -> Iterator[Moment]:
    shift: float | None = None  # from the run's monotonic clock to the line
    newest: float | None = None
    for event in events:
        try:
            mono, attempt = float(event["mono"]), int(event["attempt"])
            anew = shift is None or event["event"] == "job_started"
            wall = epoch_seconds(str(event["t"])) if anew else 0.0  # only there it counts
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if not isfinite(mono):
            continue
        newest = wall if newest is None else newest
        if shift is None or anew:
            shift = max(wall, newest) - mono
        newest = max(mono + shift, newest)
        yield Moment(newest, str(event["event"]), attempt, event)


def epoch_seconds(stamp: str) -> float:
    """The time of an event, as its `t` says it. Raises ValueError."""
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
