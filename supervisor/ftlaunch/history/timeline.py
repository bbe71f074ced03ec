"""Puts the events of a journal on one time line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Moment:
    """One event, at `wall` seconds of the epoch (comparable over all runs)."""

    wall: float
    event: str
    attempt: int
    fields: Mapping[str, Any]


def moments(events: Sequence[Mapping[str, Any]]) -> list[Moment]:
    """Events on one time line, in order.

    Within a run of the supervisor the monotonic clock counts, between runs the wall clock; a wall clock that
    was set back never makes time run backwards.
    """
    line: list[Moment] = []
    shift: float | None = None  # from the run's monotonic clock to the line
    for event in events:
        try:
            wall, mono = _epoch(str(event["t"])), float(event["mono"])
            attempt = int(event["attempt"])
        except (KeyError, TypeError, ValueError):
            continue
        newest = line[-1].wall if line else wall
        if shift is None or event["event"] == "job_started":
            shift = max(wall, newest) - mono
        line.append(Moment(max(mono + shift, newest), str(event["event"]), attempt, event))
    return _with_takeovers(line)


def _with_takeovers(line: list[Moment]) -> list[Moment]:
    """A head that takes up ranks which run is no run of its own: its `job_started` becomes a `head_replaced`."""
    found, begun = list(line), None
    for number, moment in enumerate(line):
        if moment.event == "job_started":
            begun = number
        elif moment.event == "attempt_adopted" and begun:
            found[begun] = replace(line[begun], event="head_replaced")
        if moment.event in ("attempt_started", "attempt_adopted"):
            begun = None
    return found


def _epoch(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
