"""A clock that jumps, and a selector that has it jump."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

BEGIN = 1000.0  # seconds: any beginning will do for a monotonic clock


class Clock:
    """A clock that jumps to the next thing that is due; tests put things on it."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._plans: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, happen: Callable[[], None]) -> None:
        """Have something happen so many seconds after the beginning."""
        self._plans.append((BEGIN + seconds, len(self._plans), happen))

    def jump(self, until: float) -> None:
        """Go to `until`, or to the first thing that happens before."""
        self._plans.sort()
        if self._plans and self._plans[0][0] <= until:
            when, _, happen = self._plans.pop(0)
            self.now = max(self.now, when)
            happen()
            return
        self.now = max(self.now, until)


class JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: the clock jumps instead. A job that goes on for ever is ended by the test's limit."""

    def __init__(self, clock: Clock, limit: float) -> None:
        super().__init__()
        self._clock, self._until = clock, BEGIN + limit
        self.handlers: dict[Any, Any] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        """No descriptor is ever readable here: `World.ring` calls its handler."""
        self.handlers[fileobj] = data

    def unregister(self, fileobj: Any) -> Any:
        """See register."""
        del self.handlers[fileobj]

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let the time pass."""
        assert timeout is not None
        assert self._clock.now < self._until, "the job has not ended in time"
        self._clock.jump(self._clock.now + timeout)
        return []
