"""What happens when: a heap of (time, sequence, happening), and clocks of machines that run at rates of their own."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

Happening = Callable[[], None]


class World:
    """Time, and chance. One seed, one course of events."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.story: list[str] = []
        """what happened, for whoever reads a failing story"""

    @property
    def events(self) -> int:
        """How many happenings were planned so far."""
        return self._sequence

    def after(self, seconds: float, happen: Callable[..., None], *told: Any) -> None:
        """Have something happen. told: what it is called with."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, happen, told))

    def tell(self, what: str) -> None:
        """Note what happens."""
        self.story.append(f"{self.now:8.3f} {what}")

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Let things happen until it is over, or late."""
        heap, pop = self._heap, heapq.heappop
        while heap and self.now < until and not over():
            self.now, _, happen, told = pop(heap)
            happen(*told)


class MachineClock:
    """Monotonic seconds of a machine."""

    def __init__(self, world: World, rate: float) -> None:
        """rate: seconds of it in a second."""
        self._world, self.rate, self._begin = world, rate, world.random.uniform(0.0, 1e6)

    def __call__(self) -> float:
        return self._begin + self._world.now * self.rate

    def until(self, moment: float) -> float:
        """Seconds of the world until a moment of this clock."""
        return max(0.0, (moment - self()) / self.rate)


class StepLoop:
    """An event loop that is stepped by the world instead of waiting."""

    def __init__(self, clock: Callable[[], float], wake: Happening) -> None:
        """wake: told when something is posted."""
        self._clock, self._wake = clock, wake
        self._events: list[object] = []
        self._timers: dict[object, tuple[float, Happening]] = {}
        self.handlers: dict[int, Happening] = {}
        self.turn = 0

    def post(self, event: object) -> None:
        """See EventLoop."""
        self._events.append(event)
        self._wake()

    def post_at(self, when: float, event: object) -> None:
        """See EventLoop."""
        self.call_at(when, event, lambda: self.post(event))

    def call_at(self, when: float, name: object, handler: Happening) -> None:
        """See EventLoop."""
        self._timers[name] = when, handler

    def cancel(self, name: object) -> None:
        """See EventLoop."""
        self._timers.pop(name, None)

    def register(self, fd: int, handler: Happening) -> None:
        """No descriptor is readable here; a simulated saver calls its handler."""
        self.handlers[fd] = handler

    def unregister(self, fd: int) -> None:
        """See EventLoop."""
        self.handlers.pop(fd, None)

    def next_due(self, next_look: float) -> float:
        """When to step again at the latest."""
        return min([when for when, _ in self._timers.values()], default=next_look)

    def step(self, take: Callable[[object], None]) -> None:
        """One turn: events, then timers."""
        self.turn += 1
        while self._events:
            take(self._events.pop(0))
        now = self._clock()
        for name in [name for name, (when, _) in self._timers.items() if now >= when]:
            found = self._timers.pop(name, None)
            if found is not None:
                found[1]()
        while self._events:
            take(self._events.pop(0))
