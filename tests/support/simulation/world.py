"""The simulated world: a heap of planned happenings, one source of chance, and the clocks of the machines.

Everything in a simulation runs in the one thread that calls `World.run`. A seed determines the whole course of events.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any

Happening = Callable[[], None]


class World:
    """Time and chance of a simulation; equal seeds give equal courses of events."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.story: list[str] = []
        """what happened so far, for readers of a failing story"""

    @property
    def events(self) -> int:
        """The number of happenings that were planned so far."""
        return self._sequence

    def after(self, seconds: float, happen: Callable[..., None], *args: Any) -> None:
        """Plan a call of `happen` with `args`, `seconds` from now."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + seconds, self._sequence, happen, args))

    def record(self, what: str) -> None:
        """Add a sentence to the story."""
        self.story.append(f"{self.now:8.3f} {what}")

    def run(self, until: float, over: Callable[[], bool]) -> None:
        """Let planned things happen in their order, until `over` returns True or the time `until` is reached."""
        heap = self._heap
        while heap and self.now < until and not over():
            self.now, _, happen, args = heapq.heappop(heap)
            happen(*args)


class MachineClock:
    """The monotonic clock of a machine, which runs at its own rate."""

    def __init__(self, world: World, rate: float) -> None:
        """Start the clock. rate: seconds of this clock in a second of the world."""
        self._world = world
        self.rate = rate
        self._begin = world.random.uniform(0.0, 1e6)

    def __call__(self) -> float:
        return self._begin + self._world.now * self.rate

    def until(self, moment: float) -> float:
        """Return the seconds of the world until a moment of this clock."""
        return max(0.0, (moment - self()) / self.rate)


class StepLoop:
    """An event loop, in place of `EventLoop`, that the world steps, and that never waits."""

    def __init__(self, clock: Callable[[], float], wake: Happening) -> None:
        """Make the loop. wake: called when an event is posted."""
        self._clock = clock
        self._wake = wake
        self._events: list[object] = []
        self._timers: dict[object, tuple[float, Happening]] = {}
        self.handlers: dict[int, Happening] = {}
        self.turn = 0

    def post(self, event: object) -> None:
        """Keep an event for the next step, and ask for one."""
        self._events.append(event)
        self._wake()

    def post_at(self, when: float, event: object) -> None:
        """Post an event at a moment of the clock; an equal event replaces its own timer."""
        self.call_at(when, event, lambda: self.post(event))

    def call_at(self, when: float, name: object, handler: Happening) -> None:
        """Call `handler` once at a moment of the clock; a timer of the same name is replaced."""
        self._timers[name] = when, handler

    def cancel(self, name: object) -> None:
        """Forget a timer, if there is one."""
        self._timers.pop(name, None)

    def register(self, fd: int, handler: Happening) -> None:
        """Keep the handler of a descriptor, which a simulated saver calls; no descriptor is ever readable here."""
        self.handlers[fd] = handler

    def unregister(self, fd: int) -> None:
        """Forget the handler of a descriptor."""
        self.handlers.pop(fd, None)

    def next_due(self, next_poll_at: float) -> float:
        """Return when the next step is due at the latest."""
        return min([when for when, _ in self._timers.values()], default=next_poll_at)

    def step(self, take: Callable[[object], None]) -> None:
        """Take the posted events, then call the timers that are due, then take what these have posted."""
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
