"""Which incidents a page opens in full: the newest and the most costly. The others are counted by their kind. Pure."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ftlaunch.history.story import USEFUL, Incident, Story
from ftlaunch.views.metrics.traces.phases import RestartPhase

NEWEST = COSTLIEST = 60
_OF_THE_JOURNAL = ("cause", "signature", "step", "delay", "action", "trace", "restarts_left", "hang_restarts_left")
_MOST_KINDS, _LONGEST_KIND = 40, 200


@dataclass(order=True)
class KeptIncident:
    """An incident with what the journal says of it besides."""

    price: float
    """seconds that it has cost, as far as that was known when it was no longer the newest"""
    number: int
    """1 is the job's first"""
    incident: Incident = field(compare=False)
    more: Mapping[str, Any] = field(compare=False)
    run: int = field(compare=False)
    """in which run of the supervisor; 1 is the first"""
    trained: float = field(compare=False)
    """seconds of training before it: the steps that it lost cannot have taken more"""
    until: float | None = field(default=None, compare=False)
    """when the next incident came, or the journal ended; None: not yet"""
    phases: Sequence[RestartPhase] = field(default=(), compare=False)
    """of the restart that followed; empty: it is not over, or its supervisor was killed"""

    def cost(self, step_seconds: float) -> float:
        """Seconds that did not train because of it: until the first new step, and the steps that were made again.

        Where there was no new step, until the next incident or the end.
        """
        incident = self.incident
        away = incident.recovered_after
        if away is None:
            away = max((self.until or incident.at) - incident.at, incident.resumed_after or 0.0)
        return (incident.seen_after or 0.0) + away + min((incident.steps_lost or 0) * step_seconds, self.trained)


@dataclass
class FoldedKind:
    """Incidents of one kind that are only counted."""

    count: int = 0
    seconds: float = 0.0
    steps: int = 0


class KeptIncidents:
    """Takes the incidents of a job in their order, and keeps some."""

    def __init__(self) -> None:
        self.count = 0
        self._newest: deque[KeptIncident] = deque()
        self._costliest: list[KeptIncident] = []
        self._folded: dict[str, FoldedKind] = {}

    def copied(self) -> KeptIncidents:
        """The same, to be ended and folded while these go on."""
        other = KeptIncidents()
        other.count = self.count
        other._newest = deque(replace(kept) for kept in self._newest)
        other._costliest = [replace(kept) for kept in self._costliest]
        other._folded = {kind: replace(folded) for kind, folded in self._folded.items()}
        return other

    def add(self, incident: Incident, fields: Mapping[str, Any], story: Story, step_seconds: float) -> None:
        """One more. story: as far as it is known by now. step_seconds: what a step takes, by what is known by now."""
        self.count += 1
        self.end(incident.at)
        more = {name: fields.get(name) for name in _OF_THE_JOURNAL}
        self._newest.append(KeptIncident(0.0, self.count, incident, more, story.runs, story.seconds[USEFUL]))
        if len(self._newest) <= NEWEST:
            return
        old = self._newest.popleft()
        old.price = old.cost(step_seconds)
        heapq.heappush(self._costliest, old)
        if len(self._costliest) > COSTLIEST:
            self._fold(heapq.heappop(self._costliest))

    def end(self, at: float) -> None:
        """The next incident came, or the journal ended, at that time."""
        if self._newest and self._newest[-1].until is None:
            self._newest[-1].until = at

    def restarted(self, phases: Sequence[RestartPhase]) -> None:
        """What the restart after the newest incident consisted of."""
        if self._newest:
            self._newest[-1].phases = phases

    def fold_one(self, step_seconds: float) -> bool:
        """Keep one fewer: the one that has cost least; False where none is left."""
        rest = self.kept()
        if not rest:
            return False
        for one in rest:
            one.price = one.cost(step_seconds)
        least = min(rest)
        if least in self._costliest:
            self._costliest.remove(least)
        else:
            self._newest.remove(least)
        self._fold(least)
        return True

    def _fold(self, kept: KeptIncident) -> None:
        kind = kept.incident.kind[:_LONGEST_KIND]
        if kind not in self._folded and len(self._folded) >= _MOST_KINDS:
            kind = "others"
        folded = self._folded.setdefault(kind, FoldedKind())
        folded.count += 1
        folded.seconds += kept.price
        folded.steps += kept.incident.steps_lost or 0

    def kept(self) -> list[KeptIncident]:
        """Those that are shown in full, in the order in which they happened."""
        return sorted([*self._newest, *self._costliest], key=lambda kept: kept.number)

    def folded(self) -> list[dict[str, Any]]:
        """The others, JSON-ready: a row for each kind, the most frequent first."""
        rows = [{"kind": kind, **asdict(folded)} for kind, folded in self._folded.items()]
        return sorted(rows, key=lambda row: -row["count"])
