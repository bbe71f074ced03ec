"""The state of a job at one moment, as the control socket gives it to `ftctl status`. Plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.ranks.rank import Rank
from ftlaunch.ranks.view import RankView


@dataclass(frozen=True)
class RankOverview:
    """The state of one rank."""

    rank: int
    pid: int
    alive: bool
    phase: str
    step: int
    seen: int
    """optimizer steps seen in a script that does not call attach()"""
    beat_age: float | None
    """seconds since the rank's newest beat; None: the rank does not beat"""
    step_seconds: float | None
    """duration of the newest step"""


def of_rank(rank: Rank, view: RankView, now: float) -> RankOverview:
    """Return the state of a rank at monotonic `now`."""
    page = rank.page
    return RankOverview(
        rank=view.rank,
        pid=rank.process.pid,
        alive=not view.exited,
        phase=view.phase,
        step=view.step,
        seen=page.seen_steps if page else 0,
        beat_age=round(now - view.beat, 3) if view.beating else None,
        step_seconds=round(view.step_seconds, 6) if page else None,
    )


@dataclass(frozen=True)
class Overview:
    """The state of a job."""

    job_id: str
    state: str
    attempt: int
    restarts_left: int
    max_restarts: int
    committed: int
    """newest step on storage, or -1"""
    in_memory: int
    """newest step that all ranks have in memory, or -1"""
    ranks_alive: int
    run_dir: str
    checkpoint_dir: str
    last_incident: dict[str, Any] | None
    ranks: Sequence[RankOverview]
    """the ranks; empty if the request did not ask for them, because many ranks take time"""
    slow: Sequence[str]
    """a sentence for each straggler"""
    failed_calls: Mapping[str, int]
    """purpose of a call that the job can do without -> how often this call has failed"""
    resume: str = ""
    """what the repeated steps have shown of the newest resume, as a sentence; "": nothing yet"""

    def as_dict(self) -> dict[str, Any]:
        """Return the state, JSON-ready."""
        # dataclasses.asdict copies every value, which made an answer for 256 ranks twice as slow.
        return {
            **vars(self),
            "ranks": [vars(rank) for rank in self.ranks],
            "slow": list(self.slow),
            "failed_calls": dict(self.failed_calls),
        }
