"""Computes the share of wall time spent on steps that count, for a whole job and for its newest hours. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftlaunch.history.goodput import Teller
from ftlaunch.history.story import UNKNOWN, USEFUL, Incident, Story
from ftlaunch.history.timeline import Moment

WHOLE_JOB = "job"
INTERVALS = {"5m": 300.0, "1h": 3600.0, "24h": 86400.0}
"""lengths of the intervals in seconds, by the name that metrics use"""


class Goodput(NamedTuple):
    """How the wall time of a job was spent."""

    seconds: Mapping[str, float]
    """seconds by class of time"""
    shares: Mapping[str, float]
    """useful share (0 to 1) of WHOLE_JOB and of each of INTERVALS, except those whose steps are unknown"""


class _Span(NamedTuple):
    """A span of time of one class, in seconds of the epoch."""

    kind: str
    begin: float
    end: float

    def within(self, since: float) -> float:
        """Return the seconds of the span that lie after the time `since`."""
        return max(self.end - max(self.begin, since), 0.0)


def goodput_of(moments: Sequence[Moment]) -> Goodput:
    """Return how the time of a journal was spent, until its last moment.

    Args:
        moments: all events of the journal, in order.
    """
    spans: list[_Span] = []
    teller = Teller(
        hooked=any(moment.event == "resumed" for moment in moments),
        spent=lambda kind, begin, end: spans.append(_Span(kind, begin, end)),
    )
    for moment in moments:
        teller.apply(moment)
    story = teller.close()
    lost = _losses(story)
    shares = {}
    for name, seconds in {WHOLE_JOB: story.end - story.begin, **INTERVALS}.items():
        share = _share(spans, lost, since=story.end - seconds)
        if share is not None:
            shares[name] = share
    return Goodput(story.seconds, shares)


def _losses(story: Story) -> list[tuple[float, float]]:
    """Return when steps were lost, and the seconds that they had taken, estimated from the mean step."""
    step_seconds = story.step_seconds
    if step_seconds is None:
        return []
    found: list[tuple[float, float]] = []
    for entry in story.entries:
        steps = entry.steps_lost if isinstance(entry, Incident) else entry.fields.get("steps_lost")
        if isinstance(entry, Incident) or entry.what == "started":
            found.append((entry.at, (steps or 0) * step_seconds))
    return found


def _share(spans: Sequence[_Span], lost: Sequence[tuple[float, float]], *, since: float) -> float | None:
    """Return the useful share of the time after `since`; None if the steps in that time are unknown.

    Lost steps count against the time at which they were lost, not the time at which they had been made.

    Args:
        spans: the whole time of the job.
        lost: the result of `_losses`.
        since: seconds of the epoch.
    """
    total = sum(span.within(since) for span in spans)
    if total <= 0 or any(span.kind == UNKNOWN and span.within(since) > 0 for span in spans):
        return None
    useful = sum(span.within(since) for span in spans if span.kind == USEFUL)
    repeated_seconds = sum(seconds for at, seconds in lost if at >= since)
    return max(useful - repeated_seconds, 0.0) / total
