"""Lives of jobs on an artificial clock: what the supervisor would see of the ranks at each moment.

The views are made here. The real limits, healthy waits and hang detection decide from them.
"""

from __future__ import annotations

from bisect import bisect_right

from ftlaunch.health.hang_detection import Late, late_ranks, waits
from ftlaunch.health.healthy_waits import HealthyWaits
from ftlaunch.health.time_limits import TimeLimits
from ftlaunch.ranks.view import RankView

POLL_SECONDS = 5.0  # between two readings by the supervisor of the ranks' activity


class Life:
    """What each rank does, one thing after another; ranks wait for each other in `step` and `attach`."""

    def __init__(self, ranks: int = 2, mode: str = "attached") -> None:
        """Begin a life.

        Args:
            ranks: the number of ranks.
            mode: `attached`; `observed`, where only optimizer steps are seen; or `mute`, a program without torch.
        """
        self.mode = mode
        self.now = [0.0] * ranks  # the time of each rank, in seconds
        self.works: list[list[tuple[float, float]]] = [[] for _ in self.now]
        bare = RankView(
            rank=0,
            started=0.0,
            beating=mode != "mute",
            attached=False,
            phase="startup",
            step=-1,
            beat=0.0,
            first_step_done=False,
            exited=False,
        )
        self.reports = [[bare._replace(rank=rank)] for rank in range(ranks)]
        self.times = [[0.0] for _ in self.now]
        self.everybody = range(ranks)

    def _say(self, rank: int, **changes: object) -> None:
        self.reports[rank].append(self.reports[rank][-1]._replace(**changes))  # type: ignore[arg-type]
        self.times[rank].append(self.now[rank])

    def passes(self, rank: int, seconds: float, *, works: bool = False) -> None:
        """Let a rank report nothing for some seconds. works: whether its processes are active meanwhile."""
        if works:
            self.works[rank].append((self.now[rank], self.now[rank] + seconds))
        self.now[rank] += seconds

    def attach(self) -> None:
        """Attach all ranks once the last one is there."""
        at = max(self.now)
        for rank in self.everybody:
            self.now[rank] = at
            if self.mode == "attached":
                self._say(rank, attached=True, beat=at, step=0, phase="train", left=at)

    def step(self, *seconds: float, works: bool = False) -> None:
        """Make a step that ends for all ranks when the slowest has ended.

        Args:
            seconds: the duration of the step for each rank, or one duration for all.
            works: whether the processes are active meanwhile.
        """
        for rank, own in zip(self.everybody, seconds * len(self.now), strict=False):
            self.passes(rank, own, works=works)
        at = max(self.now)
        for rank in self.everybody:
            self.now[rank] = at
            last = self.reports[rank][-1]
            if self.mode == "attached":
                self._say(rank, beat=at, step=last.step + 1, first_step_done=True)
            elif self.mode == "observed":
                self._say(
                    rank, beat=at, observed=True, phase="train", seen=last.seen + 1, first_step_done=last.observed
                )

    def phase(self, name: str, rank: int, seconds: float) -> None:
        """Let a rank be in a phase for some seconds."""
        self._say(rank, phase=name, beat=self.now[rank])
        self.passes(rank, seconds)
        self._say(rank, phase="train", beat=self.now[rank], left=self.now[rank])

    def end(self, rank: int, seconds: float, *, works: bool = False) -> None:
        """Have a rank leave its loop, and end `seconds` later. works: whether its processes are active meanwhile."""
        if self.mode == "attached":
            self._say(rank, phase="teardown", beat=self.now[rank])
        self.passes(rank, seconds, works=works)
        self._say(rank, exited=True, ended=self.now[rank])

    # --- as it is seen ------------------------------------------------------------------------------------

    def views(self, at: float) -> list[RankView]:
        """Return what the supervisor knows of all ranks at a moment."""
        return [self._view(rank, at) for rank in self.everybody]

    def _view(self, rank: int, at: float) -> RankView:
        reported = self.reports[rank][bisect_right(self.times[rank], at) - 1]
        active = max(
            (min(end, at) // POLL_SECONDS * POLL_SECONDS for begin, end in self.works[rank] if begin <= at), default=0.0
        )
        busy = active - reported.beat > 1.5 * POLL_SECONDS and at - active < 3 * POLL_SECONDS
        return reported._replace(active=active, busy=busy)

    def alarms(self, longest: dict[str, float] | None = None, goes_on: float = 0.0) -> list[Late]:
        """Return the late ranks at the first alarm under `auto`; empty if there is no alarm.

        Args:
            longest: the longest healthy waits known so far, in seconds.
            goes_on: seconds of silence after the last sign of life.
        """
        gaps = HealthyWaits({} if longest is None else longest)
        at = 0.0
        while at <= max(self.now) + goes_on:
            views = self.views(at)
            gaps.learn(waits(views), 0.0)
            if all(view.exited for view in views):
                return []
            late = late_ranks(waits(views), at, 0.0, TimeLimits({}, gaps.longest))
            if late:
                return late
            at += POLL_SECONDS
        return []
