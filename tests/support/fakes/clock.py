"""A clock that jumps to the next due moment, and a selector that makes the clock jump instead of waiting."""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any

BEGIN = 1000.0  # seconds: any beginning will do for a monotonic clock


class Clock:
    """A monotonic clock that only moves when a selector asks; tests plan happenings on it."""

    def __init__(self) -> None:
        self.now = BEGIN
        self._plans: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def at(self, seconds: float, happen: Callable[[], None]) -> None:
        """Call `happen` `seconds` after the beginning."""
        self._plans.append((BEGIN + seconds, len(self._plans), happen))

    def jump(self, until: float) -> None:
        """Move to `until`, or to the first planned happening before `until`, and call that."""
        self._plans.sort()
        if self._plans and self._plans[0][0] <= until:
            when, _, happen = self._plans.pop(0)
            self.now = max(self.now, when)
            happen()
            return
        self.now = max(self.now, until)


class JumpingSelector(selectors.SelectSelector):
    """A selector that lets the clock jump instead of waiting, and fails a job that goes on past `limit` seconds."""

    def __init__(self, clock: Clock, limit: float) -> None:
        super().__init__()
        self._clock = clock
        self._until = BEGIN + limit
        self.handlers: dict[Any, Any] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        """Keep the handler of a descriptor, which `World.ring` calls; no descriptor is ever readable here."""
        self.handlers[fileobj] = data

    def unregister(self, fileobj: Any) -> Any:
        """Forget the handler of a descriptor."""
        del self.handlers[fileobj]

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let `timeout` seconds of the clock pass; return no descriptor."""
        assert timeout is not None
        assert self._clock.now < self._until, "the job has not ended in time"
        self._clock.jump(self._clock.now + timeout)
        return []
