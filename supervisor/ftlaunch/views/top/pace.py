"""How many steps a second a job makes, from looks at its steps. Pure; times are monotonic seconds."""

from __future__ import annotations

from collections import deque

_SPAN = 30.0  # seconds that are looked back
_STEPS = 2  # that must have been made in that time: of fewer no rate can be told


class Pace:
    """Of one job."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._made: deque[tuple[float, int]] = deque()  # when a look has found a new step, and which

    def look(self, now: float, step: int) -> float | None:
        """Steps a second of late, when `step` is the newest that all ranks have completed; None: not known yet."""
        before, self._step = self._step, step
        if before is None or step < before:
            self._made.clear()  # another attempt makes some steps again
        elif step > before:
            self._made.append((now, step))
        while len(self._made) > _STEPS + 1 and self._made[1][0] <= now - _SPAN:
            self._made.popleft()
        if len(self._made) < 2:
            return None
        (began, first), (newest, last) = self._made[0], self._made[-1]
        mean = (newest - began) / (last - first)
        until = newest if now - newest <= _STEPS * mean else now
        return (last - first) / (until - began) if last - first >= _STEPS else None

    def forget(self) -> None:
        """Nothing trains now."""
        self._step = None
        self._made.clear()
