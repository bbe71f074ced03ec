"""The history of a run dir as data: incidents, other entries, and where the wall time went.

`goodput.Teller` builds a story from a journal; views and metrics read it. Times are seconds of the epoch, durations are
seconds. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# The classes of time; `report_view.LEDGER` says what each means.
USEFUL = "useful"
LOST = "lost"
DETECTING = "detecting"
RESTARTING = "restarting"
STARTING = "starting"
STOPPING = "stopping"
DOWN = "down"
UNKNOWN = "unknown"
CLASSES = (USEFUL, LOST, DETECTING, RESTARTING, STARTING, STOPPING, DOWN, UNKNOWN)


@dataclass
class HistoryEntry:
    """An event of the history other than an incident."""

    at: float  # seconds of the epoch
    what: str  # "started", "killed", or the name of the event, such as "stop_requested"
    attempt: int
    fields: dict[str, Any]  # fields of the event, and more


@dataclass
class Incident:
    """One failure and its cost. A value that the journal does not have is None."""

    at: float  # seconds of the epoch
    attempt: int
    rank: int
    kind: str
    sentence: str
    verdict: str  # "restart" or "give up"
    seen_after: float | None = None  # seconds since the last completed step, the step under way included
    resumed_after: float | None = None  # seconds from the incident until the ranks had their state
    resumed_step: int | None = None
    source: str | None = None  # source of the state at the resume
    recovered_after: float | None = None  # seconds from the incident to the first new step
    steps_lost: int | None = None
    autopsy: str | None = None  # path of the autopsy of a hang
    proof: str | None = None  # what repeated steps have shown of the resume, in a sentence


@dataclass
class Story:
    """The whole history of a run dir."""

    job_id: str = ""
    ranks: int = 0
    runs: int = 0  # of the supervisor
    heads_replaced: int = 0  # times that another head took over ranks that ran on, in a job with several nodes
    attempts: int = 0
    begin: float = 0.0  # seconds of the epoch
    end: float = 0.0  # seconds of the epoch
    ended: bool = False  # whether the last run of the supervisor has journalled its end
    entries: list[HistoryEntry | Incident] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0.0))  # by class of time
    steps_made: int = 0  # number of timed steps
    step_seconds: float | None = None  # mean over the timed steps
    steps_lost: int = 0
    checkpoints: int = 0  # number of committed checkpoints

    @property
    def incidents(self) -> list[Incident]:
        """The incidents among the entries."""
        return [entry for entry in self.entries if isinstance(entry, Incident)]

    @property
    def effective(self) -> float | None:
        """Share of the wall time (0 to 1) spent on steps that count; None if steps are unknown for some of the time."""
        total = self.end - self.begin
        return None if total <= 0 or self.seconds[UNKNOWN] > 0 else self.seconds[USEFUL] / total
