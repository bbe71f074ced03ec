"""A job at a moment, frozen: what `ftctl status` is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.ranks.rank import Rank
from ftlaunch.ranks.view import RankView


@dataclass(frozen=True)
class RankOverview:
    """A rank at that moment."""

    rank: int
    pid: int
    alive: bool
    phase: str
    step: int
    seen: int
    """optimizer steps seen, in a script without attach()"""
    beat_age: float | None
    """seconds"""
    step_seconds: float | None


def of_rank(rank: Rank, view: RankView, now: float) -> RankOverview:
    """What is known of a rank."""
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
    """The whole job."""

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
    """empty where they were not asked for: of many they take time"""
    slow: Sequence[str]
    """a sentence for each rank that the others wait for"""
    failed_calls: Mapping[str, int]
    """how often a call has failed that the job goes on without, by what it was for"""
    resume: str = ""
    """what the steps made again have shown of the newest resume, in a sentence; empty: nothing yet"""

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready. dataclasses.asdict would copy every value: it made an answer for 256 ranks twice as slow."""
        return {
            **vars(self),
            "ranks": [vars(rank) for rank in self.ranks],
            "slow": list(self.slow),
            "failed_calls": dict(self.failed_calls),
        }
