"""Estimates the steps per second of a job from readings of its newest step. Pure; times are monotonic seconds."""

from __future__ import annotations

from collections import deque

_SPAN_SECONDS = 30.0  # of the past that the estimate covers
_STEPS = 2  # least number of steps for an estimate


class Pace:
    """The pace of one job."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._made: deque[tuple[float, int]] = deque()  # time of a reading that found a new step, and the step

    def update(self, now: float, step: int) -> float | None:
        """Record a reading of the step, and return the recent steps per second.

        Args:
            now: time of the reading.
            step: the newest step that all ranks have completed.

        Returns:
            Steps per second; None if unknown yet.
        """
        before = self._step
        self._step = step
        if before is None or step < before:
            self._made.clear()  # another attempt repeats some steps
        elif step > before:
            self._made.append((now, step))
        while len(self._made) > _STEPS + 1 and self._made[1][0] <= now - _SPAN_SECONDS:
            self._made.popleft()
        if len(self._made) < 2:
            return None
        began, first = self._made[0]
        newest, last = self._made[-1]
        mean = (newest - began) / (last - first)
        until = newest if now - newest <= _STEPS * mean else now
        return (last - first) / (until - began) if last - first >= _STEPS else None

    def forget(self) -> None:
        """Forget all readings, because nothing trains now."""
        self._step = None
        self._made.clear()
