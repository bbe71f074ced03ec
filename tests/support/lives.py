"""Lives of jobs on a clock of their own: what their pages would say when, looked at as the supervisor does.

The views are made here, all that is decided is decided by the real limits, gaps and health.
"""

from __future__ import annotations

from bisect import bisect_right

from ftlaunch.health.hang_detection import Late, late_ranks, waits
from ftlaunch.health.healthy_waits import HealthyWaits
from ftlaunch.health.time_limits import TimeLimits
from ftlaunch.ranks.view import RankView

LOOK = 5.0  # seconds between looks, as at activity


class Life:
    """What each rank does, one after the other; `step` and `attach` are where they wait for each other."""

    def __init__(self, ranks: int = 2, mode: str = "attached") -> None:
        """mode: attached, observed (optimizer steps are seen) or mute (a program without torch)."""
        self.mode, self.now = mode, [0.0] * ranks
        self.works: list[list[tuple[float, float]]] = [[] for _ in self.now]
        bare = RankView(0, 0.0, mode != "mute", False, "startup", -1, 0.0, False, False)
        self.told = [[bare._replace(rank=rank)] for rank in range(ranks)]
        self.times = [[0.0] for _ in self.now]
        self.everybody = range(ranks)

    def _say(self, rank: int, **changes: object) -> None:
        self.told[rank].append(self.told[rank][-1]._replace(**changes))  # type: ignore[arg-type]
        self.times[rank].append(self.now[rank])

    def passes(self, rank: int, seconds: float, *, works: bool = False) -> None:
        """A rank says nothing for a while; whether its processes work meanwhile."""
        if works:
            self.works[rank].append((self.now[rank], self.now[rank] + seconds))
        self.now[rank] += seconds

    def attach(self) -> None:
        """All ranks attach, as soon as the last is there."""
        at = max(self.now)
        for rank in self.everybody:
            self.now[rank] = at
            if self.mode == "attached":
                self._say(rank, attached=True, beat=at, step=0, phase="train", left=at)

    def step(self, *seconds: float, works: bool = False) -> None:
        """A step that takes each rank so long, and all as long as the slowest."""
        for rank, own in zip(self.everybody, seconds * len(self.now), strict=False):
            self.passes(rank, own, works=works)
        at = max(self.now)
        for rank in self.everybody:
            self.now[rank], last = at, self.told[rank][-1]
            if self.mode == "attached":
                self._say(rank, beat=at, step=last.step + 1, first_step_done=True)
            elif self.mode == "observed":
                self._say(
                    rank, beat=at, observed=True, phase="train", seen=last.seen + 1, first_step_done=last.observed
                )

    def phase(self, name: str, rank: int, seconds: float) -> None:
        """A rank is in a phase for so long."""
        self._say(rank, phase=name, beat=self.now[rank])
        self.passes(rank, seconds)
        self._say(rank, phase="train", beat=self.now[rank], left=self.now[rank])

    def end(self, rank: int, seconds: float, *, works: bool = False) -> None:
        """A rank leaves the loop, and ends so much later."""
        if self.mode == "attached":
            self._say(rank, phase="teardown", beat=self.now[rank])
        self.passes(rank, seconds, works=works)
        self._say(rank, exited=True, ended=self.now[rank])

    # --- as it is seen ------------------------------------------------------------------------------------

    def views(self, at: float) -> list[RankView]:
        """What the supervisor knows then."""
        return [self._view(rank, at) for rank in self.everybody]

    def _view(self, rank: int, at: float) -> RankView:
        told = self.told[rank][bisect_right(self.times[rank], at) - 1]
        active = max((min(end, at) // LOOK * LOOK for begin, end in self.works[rank] if begin <= at), default=0.0)
        busy = active - told.beat > 1.5 * LOOK and at - active < 3 * LOOK
        return told._replace(active=active, busy=busy)

    def alarms(self, longest: dict[str, float] | None = None, goes_on: float = 0.0) -> list[Late]:
        """The first alarm under `auto`, if any. goes_on: so long after the last sign of life nothing happens."""
        gaps = HealthyWaits({} if longest is None else longest)
        at = 0.0
        while at <= max(self.now) + goes_on:
            views = self.views(at)
            gaps.look(waits(views), 0.0)
            if all(view.exited for view in views):
                return []
            late = late_ranks(waits(views), at, 0.0, TimeLimits({}, gaps.longest))
            if late:
                return late
            at += LOOK
        return []
