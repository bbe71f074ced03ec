"""How far training and its two layers of saves have come, between one interruption and the next. Pure.

Nothing happens between interruptions that cannot be computed, so a stretch of any length takes no time to simulate.
"""

from __future__ import annotations

import math

from ftlaunch.tools.planner.model import Intervals, PlannedJob


class Training:
    """A virtual training run. Progress is counted in snapshots; what is newer than the last one is lost."""

    def __init__(self, job: PlannedJob, intervals: Intervals) -> None:
        self.made = 0  # snapshots; the newest is where memory would resume
        self._committed = 0  # where storage would resume
        self._since = 0  # snapshots since the newest checkpoint was begun
        self._writing: tuple[int, float] | None = None  # the checkpoint being written, and when it is committed
        self._began: float | None = None  # when the stretch under way did
        self._stretch = intervals.work(job) + job.snapshot_stall
        self._every = intervals.snapshots
        self._stall, self._write = job.checkpoint_stall, max(job.write, job.checkpoint_stall)

    def resume(self, now: float, *, from_memory: bool) -> None:
        """Go on from the newest snapshot, or from the newest checkpoint."""
        self._commit(now)
        if not from_memory:
            self.made, self._since = self._committed, 0
        self._began = now

    def pause(self, now: float) -> None:
        """Count what was made since `resume`."""
        if self._began is None:
            return
        began, self._began = self._began, None
        into = self._since * self._stretch + now - began
        begun, rest = self._checkpoints(into)
        if begun == 0:
            gained = self._floor(into / self._stretch) - self._since
            self._since += gained
            self.made += gained
            self._commit(now)
            return
        newest = self.made + self._every - self._since + (begun - 1) * self._every
        if begun > 1:
            self._committed = newest - self._every
        else:
            self._commit(now - rest)
        self._writing = (newest, now - rest + self._write)
        self._since = self._floor(max(rest - self._stall, 0.0) / self._stretch)
        self.made = newest + self._since
        self._commit(now)

    def to_boundary(self, now: float) -> float:
        """Seconds until the next snapshot is made."""
        assert self._began is not None
        into = self._since * self._stretch + now - self._began
        begun, rest = self._checkpoints(into)
        into = max(rest - self._stall, 0.0) if begun else into
        wait = max(self._stall - rest, 0.0) if begun else 0.0
        return wait + self._stretch - math.fmod(into, self._stretch)

    def lose_writing(self, now: float) -> None:
        """A node is lost, and with it what it was about to write."""
        self._commit(now)
        self._writing = None

    def save_newest(self) -> None:
        """The newest snapshot is a checkpoint."""
        self._committed, self._since, self._writing = self.made, 0, None

    def _checkpoints(self, into: float) -> tuple[int, float]:
        """Checkpoints begun by then, and seconds since the begin of the newest; into: seconds into the cycle."""
        first, cycle = self._every * self._stretch, self._every * self._stretch + self._stall
        begun = self._floor((into - first) / cycle) + 1 if into >= first else 0
        return begun, max(into - first - (begun - 1) * cycle, 0.0)

    def _commit(self, now: float) -> None:
        if self._writing is not None and self._writing[1] <= now:
            self._committed, self._writing = self._writing[0], None

    @staticmethod
    def _floor(number: float) -> int:
        return math.floor(number + 1e-9)
