"""The progress of simulated training, and of its snapshots and checkpoints, from one interruption to the next. Pure.

Progress between interruptions is computed, not stepped through, so a stretch of any length takes no time to simulate.
Times are seconds of the virtual clock.
"""

from __future__ import annotations

import math

from ftlaunch.tools.planner.model import Intervals, PlannedJob


class Training:
    """A virtual training run. Progress is counted in snapshots; an interruption loses work after the last snapshot."""

    def __init__(self, job: PlannedJob, intervals: Intervals) -> None:
        self.made = 0  # number of the newest snapshot, from which memory would resume
        self._committed = 0  # number of the snapshot from which storage would resume
        self._since = 0  # snapshots since the begin of the newest checkpoint
        self._writing: tuple[int, float] | None = None  # snapshot of the checkpoint being written, time of its commit
        self._began: float | None = None  # time of the last `resume`; None while training is interrupted
        self._stretch = intervals.work(job) + job.snapshot_stall
        self._every = intervals.snapshots
        self._stall = job.checkpoint_stall
        self._write = max(job.write, job.checkpoint_stall)

    def resume(self, now: float, *, from_memory: bool) -> None:
        """Go on from the newest snapshot, or from the newest checkpoint."""
        self._commit(now)
        if not from_memory:
            self.made = self._committed
            self._since = 0
        self._began = now

    def pause(self, now: float) -> None:
        """Interrupt training: count the snapshots and checkpoints since `resume`."""
        if self._began is None:
            return
        began = self._began
        self._began = None
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
        """Return the seconds until the next snapshot."""
        assert self._began is not None
        into = self._since * self._stretch + now - self._began
        begun, rest = self._checkpoints(into)
        into = max(rest - self._stall, 0.0) if begun else into
        wait = max(self._stall - rest, 0.0) if begun else 0.0
        return wait + self._stretch - math.fmod(into, self._stretch)

    def lose_writing(self, now: float) -> None:
        """Lose the checkpoint that is being written, together with a node."""
        self._commit(now)
        self._writing = None

    def save_newest(self) -> None:
        """Turn the newest snapshot into a committed checkpoint."""
        self._committed = self.made
        self._since = 0
        self._writing = None

    def _checkpoints(self, into: float) -> tuple[int, float]:
        """Count the checkpoints that a stretch of training begins.

        Args:
            into: seconds since the begin of the current cycle.

        Returns:
            The number of checkpoints begun, and the seconds since the begin of the newest.
        """
        first = self._every * self._stretch
        cycle = first + self._stall
        begun = self._floor((into - first) / cycle) + 1 if into >= first else 0
        return begun, max(into - first - (begun - 1) * cycle, 0.0)

    def _commit(self, now: float) -> None:
        if self._writing is not None and self._writing[1] <= now:
            self._committed = self._writing[0]
            self._writing = None

    @staticmethod
    def _floor(number: float) -> int:
        return math.floor(number + 1e-9)
