"""The one place that waits: for descriptors, for timers, and for nothing else.

It knows nothing of jobs. What is due is called in the same turn: posted events first, then what is readable, then
timers, then a look at what shows only by looking.
"""

from __future__ import annotations

import selectors
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from ftlaunch.system.loop import Clock

Posted = TypeVar("Posted")
Posted_contra = TypeVar("Posted_contra", contravariant=True)


class Handler(Protocol[Posted_contra]):
    """What the loop works for."""

    def take(self, event: Posted_contra) -> None:
        """Take a posted event."""

    def look(self) -> None:
        """Look at what shows only by looking; called at the end of every turn."""

    def next_look(self) -> float:
        """When to look again at the latest, if nothing happens before."""

    def fail(self, error: Exception) -> None:
        """Take an exception that a handler has let through. Raises it again where the loop is to end with it."""

    @property
    def over(self) -> bool:
        """Whether the loop is to end."""


class EventLoop(Generic[Posted]):
    """Events, descriptors and timers."""

    def __init__(
        self,
        clock: Clock,
        selector: selectors.BaseSelector | None = None,
        *,
        gather_seconds: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Make the loop.

        Args:
            clock: tells the time.
            selector: None is the system's best one.
            gather_seconds: that pass at least from one turn to the next. Where hundreds of messages come in a second,
                and none of them is urgent, a turn for each costs more than the messages do. A turn in which something
                was registered is followed at once by the next: while connections come, others wait for theirs.
            sleep: waits for so many seconds.
        """
        self._clock, self._gather_seconds, self._sleep = clock, gather_seconds, sleep
        self._woken = clock()  # when the newest turn had waited for what it handles
        self._gathers = True  # whether the next turn does
        self._selector = selectors.DefaultSelector() if selector is None else selector
        self._events: deque[Posted] = deque()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._timers: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self.turn = 0
        """number of the current turn: what is seen in one turn came together"""

    def post(self, event: Posted) -> None:
        """Have an event taken before anything is waited for."""
        self._events.append(event)

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` in every turn in which `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, handler)
        self._readers[fd] = handler
        self._gathers = False

    def unregister(self, fd: int) -> None:
        """Wait for `fd` no longer; what is seen of it in the current turn is dropped."""
        self._writers.pop(fd, None)
        self._readers.pop(fd, None)
        self._selector.unregister(fd)

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Call `handler` in every turn in which `fd`, which is registered, can be written to; None: no longer."""
        if handler is None:
            self._writers.pop(fd, None)
        else:
            self._writers[fd] = handler
        events = selectors.EVENT_READ if handler is None else selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(fd, events, self._readers[fd])

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        """Call `handler` once, at monotonic `when`; a timer of the same name is replaced."""
        self._timers[name] = when, handler

    def post_at(self, when: float, event: Posted) -> None:
        """Post an event at monotonic `when`, unless it is posted otherwise before: one timer an event."""
        self.call_at(when, event, lambda: self.post(event))

    def cancel(self, name: Hashable) -> None:
        """Forget a timer, where there is one."""
        self._timers.pop(name, None)

    def run(self, handler: Handler[Posted]) -> None:
        """Go on until the handler says that it is over. Raises what `Handler.fail` raises."""
        while not handler.over:
            try:
                self._turn(handler)
            except Exception as error:  # noqa: BLE001 - any: the handler decides what becomes of it
                handler.fail(error)

    def _turn(self, handler: Handler[Posted]) -> None:
        while self._events:
            handler.take(self._events.popleft())
        self.turn += 1
        for key, events in self._wait(handler):
            self._call_ready(key, events)
        self._call_due()
        handler.look()

    def close(self) -> None:
        """Give the selector back; nothing can be registered any more."""
        self._selector.close()

    def _wait(self, handler: Handler[Posted]) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for something to happen; return which descriptors are ready."""
        patience = 0.0 if handler.over else self._patience(handler.next_look())
        pause = min(self._woken + self._gather_seconds - self._clock(), patience)
        if pause > 0.0 and self._gathers:
            self._sleep(pause)
            patience -= pause
        self._gathers = True
        ready = self._selector.select(patience)
        self._woken = self._clock()
        return ready

    def _patience(self, next_look: float) -> float:
        """Seconds to wait for something to happen."""
        due = min((when for when, _ in self._timers.values()), default=next_look)
        return max(0.0, min(next_look, due) - self._clock())

    def _call_ready(self, key: selectors.SelectorKey, events: int) -> None:
        # A handler called before in this turn may have closed the descriptor, and another may have its number by now.
        reader = self._readers.get(key.fd)
        if events & selectors.EVENT_READ and reader is not None and reader is key.data:
            reader()
        if events & selectors.EVENT_WRITE and self._readers.get(key.fd) is key.data:
            writer = self._writers.get(key.fd)
            if writer is not None:
                writer()

    def _call_due(self) -> None:
        now = self._clock()
        for name in [name for name, (when, _) in self._timers.items() if now >= when]:
            when, handler = self._timers.get(name, (now, None))
            if handler is not None and when <= now:  # a handler before this one may have cancelled or moved the timer
                del self._timers[name]
                handler()
