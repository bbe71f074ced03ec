"""Keeps the incidents that a page shows in full, the newest and the costliest; counts the others by kind. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ftlaunch.history.story import USEFUL, Incident, Story
from ftlaunch.views.metrics.traces.phases import RestartPhase

NEWEST = COSTLIEST = 60
_JOURNAL_FIELDS = ("cause", "signature", "step", "delay", "action", "trace", "restarts_left", "hang_restarts_left")
_MAX_KINDS = 40
_MAX_KIND_LENGTH = 200  # characters


@dataclass(order=True)
class KeptIncident:
    """An incident with further fields of the journal; ordered by cost."""

    price: float
    """cost in seconds, as known when a newer incident replaced this one among the newest"""
    number: int
    """number of the incident in the job, from 1"""
    incident: Incident = field(compare=False)
    more: Mapping[str, Any] = field(compare=False)
    """further fields of the journal's event"""
    run: int = field(compare=False)
    """number of the supervisor's run, from 1"""
    trained: float = field(compare=False)
    """seconds of useful training before the incident, an upper bound for the time of the lost steps"""
    until: float | None = field(default=None, compare=False)
    """time of the next incident or of the journal's end; None before either"""
    phases: Sequence[RestartPhase] = field(default=(), compare=False)
    """phases of the restart that followed; empty if the restart is not over, or its supervisor was killed"""

    def cost(self, step_seconds: float) -> float:
        """Return the seconds without useful training that the incident caused.

        The time goes until the first new step, or else until the next incident or the end, and includes lost steps.

        Args:
            step_seconds: length of a step.
        """
        incident = self.incident
        away = incident.recovered_after
        if away is None:
            away = max((self.until or incident.at) - incident.at, incident.resumed_after or 0.0)
        return (incident.seen_after or 0.0) + away + min((incident.steps_lost or 0) * step_seconds, self.trained)


@dataclass
class FoldedKind:
    """Counts of incidents of one kind that are not shown in full."""

    count: int = 0
    seconds: float = 0.0
    steps: int = 0


class KeptIncidents:
    """The incidents of a job, added in their order, of which some are kept in full."""

    def __init__(self) -> None:
        self.count = 0
        self._newest: deque[KeptIncident] = deque()
        self._costliest: list[KeptIncident] = []
        self._folded: dict[str, FoldedKind] = {}

    def copied(self) -> KeptIncidents:
        """Return an independent copy."""
        other = KeptIncidents()
        other.count = self.count
        other._newest = deque(replace(kept) for kept in self._newest)
        other._costliest = [replace(kept) for kept in self._costliest]
        other._folded = {kind: replace(folded) for kind, folded in self._folded.items()}
        return other

    def add(self, incident: Incident, fields: Mapping[str, Any], story: Story, step_seconds: float) -> None:
        """Add the next incident.

        Args:
            incident: the incident.
            fields: the journal's event.
            story: the story up to now.
            step_seconds: length of a step, as known by now.
        """
        self.count += 1
        self.end(incident.at)
        more = {name: fields.get(name) for name in _JOURNAL_FIELDS}
        kept = KeptIncident(
            price=0.0,
            number=self.count,
            incident=incident,
            more=more,
            run=story.runs,
            trained=story.seconds[USEFUL],
        )
        self._newest.append(kept)
        if len(self._newest) <= NEWEST:
            return
        old = self._newest.popleft()
        old.price = old.cost(step_seconds)
        heapq.heappush(self._costliest, old)
        if len(self._costliest) > COSTLIEST:
            self._fold(heapq.heappop(self._costliest))

    def end(self, at: float) -> None:
        """End the newest incident, because the next incident came or the journal ended."""
        if self._newest and self._newest[-1].until is None:
            self._newest[-1].until = at

    def restarted(self, phases: Sequence[RestartPhase]) -> None:
        """Set the phases of the restart after the newest incident."""
        if self._newest:
            self._newest[-1].phases = phases

    def fold_one(self, step_seconds: float) -> bool:
        """Fold the cheapest kept incident into the counts. Return False if none is left."""
        rest = self.kept()
        if not rest:
            return False
        for kept in rest:
            kept.price = kept.cost(step_seconds)
        least = min(rest)
        if least in self._costliest:
            self._costliest.remove(least)
        else:
            self._newest.remove(least)
        self._fold(least)
        return True

    def _fold(self, kept: KeptIncident) -> None:
        kind = kept.incident.kind[:_MAX_KIND_LENGTH]
        if kind not in self._folded and len(self._folded) >= _MAX_KINDS:
            kind = "others"
        folded = self._folded.setdefault(kind, FoldedKind())
        folded.count += 1
        folded.seconds += kept.price
        folded.steps += kept.incident.steps_lost or 0

    def kept(self) -> list[KeptIncident]:
        """Return the incidents that are shown in full, in the order of their occurrence."""
        return sorted([*self._newest, *self._costliest], key=lambda kept: kept.number)

    def folded(self) -> list[dict[str, Any]]:
        """Return the counts of the other incidents, ready for JSON: a row for each kind, the most frequent first."""
        rows = [{"kind": kind, **asdict(folded)} for kind, folded in self._folded.items()]
        return sorted(rows, key=lambda row: -row["count"])
