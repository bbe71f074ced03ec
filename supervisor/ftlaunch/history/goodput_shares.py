"""The share of the wall time that made steps which count: of a whole job, and of its newest hours. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ftlaunch.history.goodput import Teller
from ftlaunch.history.story import UNKNOWN, USEFUL, Incident, Story
from ftlaunch.history.timeline import Moment

WHOLE_JOB = "job"
INTERVALS = {"5m": 300.0, "1h": 3600.0, "24h": 86400.0}
"""seconds, by the name that a metric gives them"""


class Goodput(NamedTuple):
    """What the wall time of a job went into."""

    seconds: Mapping[str, float]
    """by class"""
    shares: Mapping[str, float]
    """of the whole job and of each of INTERVALS; without those of which the steps are not known"""


class _Span(NamedTuple):
    kind: str
    begin: float
    end: float

    def within(self, since: float) -> float:
        """Seconds of the span that lie behind a moment."""
        return max(self.end - max(self.begin, since), 0.0)


def goodput_of(moments: Sequence[Moment]) -> Goodput:
    """Return what the time of a journal went into, until its last moment. moments: in order."""
    spans: list[_Span] = []
    teller = Teller(
        hooked=any(moment.event == "resumed" for moment in moments),
        spent=lambda kind, begin, end: spans.append(_Span(kind, begin, end)),
    )
    for moment in moments:
        teller.hear(moment)
    story = teller.close()
    lost = _losses(story)
    shares = {}
    for name, seconds in {WHOLE_JOB: story.end - story.begin, **INTERVALS}.items():
        share = _share(spans, lost, since=story.end - seconds)
        if share is not None:
            shares[name] = share
    return Goodput(story.seconds, shares)


def _losses(story: Story) -> list[tuple[float, float]]:
    """When steps were lost, and the seconds that they had taken. Their time is that of steps in the mean."""
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
    """Return the share of the time behind a moment; None where nothing is known of it.

    Steps that were lost count against the time at which they were lost, not at which they had been made.
    """
    total = sum(span.within(since) for span in spans)
    if total <= 0 or any(span.kind == UNKNOWN and span.within(since) > 0 for span in spans):
        return None
    useful = sum(span.within(since) for span in spans if span.kind == USEFUL)
    made_again = sum(seconds for at, seconds in lost if at >= since)
    return max(useful - made_again, 0.0) / total
