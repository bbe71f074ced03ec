"""The history of a run dir, told from its journal: incidents, other entries, and where the wall time went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

USEFUL, LOST, DETECTING, RESTARTING = "useful", "lost", "detecting", "restarting"
STARTING, STOPPING, DOWN, UNKNOWN = "starting", "stopping", "down", "unknown"
CLASSES = (USEFUL, LOST, DETECTING, RESTARTING, STARTING, STOPPING, DOWN, UNKNOWN)


@dataclass
class HistoryEntry:
    """Something to tell besides incidents: `what` is started, killed, stop_requested, saved, ..."""

    at: float
    what: str
    attempt: int
    fields: dict[str, Any]


@dataclass
class Incident:
    """One failure and its cost; times are seconds, None where the journal does not say."""

    at: float
    attempt: int
    rank: int
    kind: str
    sentence: str
    verdict: str  # "restart" or "give up"
    seen_after: float | None = None  # since the last completed step, the step under way included
    resumed_after: float | None = None
    resumed_step: int | None = None
    source: str | None = None
    recovered_after: float | None = None
    steps_lost: int | None = None
    autopsy: str | None = None  # where that of a hang lies
    proof: str | None = None  # what the steps made again have shown of the resume, in a sentence


@dataclass
class Story:
    """A run dir's whole history."""

    job_id: str = ""
    ranks: int = 0
    runs: int = 0
    heads_replaced: int = 0  # of several nodes: another head has taken up ranks that ran on
    attempts: int = 0
    begin: float = 0.0
    end: float = 0.0
    ended: bool = False  # the last run of the supervisor has journalled its end
    entries: list[HistoryEntry | Incident] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))
    steps_made: int = 0  # steps whose time is known
    step_seconds: float | None = None  # mean over the steps timed
    steps_lost: int = 0
    checkpoints: int = 0

    @property
    def incidents(self) -> list[Incident]:
        """The incidents among the entries."""
        return [entry for entry in self.entries if isinstance(entry, Incident)]

    @property
    def effective(self) -> float | None:
        """Share of the wall time that made steps which count; None where no steps are known."""
        total = self.end - self.begin
        return None if total <= 0 or self.seconds[UNKNOWN] > 0 else self.seconds[USEFUL] / total
