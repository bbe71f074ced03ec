"""The event loop, the only place where the main thread waits: for descriptors and for timers, and for nothing else.

The loop knows nothing of jobs. In each turn it handles posted events first, then ready descriptors, then due timers,
and calls `Handler.poll` last. Not thread-safe: all methods belong to the thread that calls `run`.
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
    """The object that the loop runs, such as the supervisor of a job."""

    def handle(self, event: Posted_contra) -> None:
        """Handle a posted event."""

    def poll(self) -> None:
        """Poll the state that no descriptor announces, such as shared pages. Called at the end of every turn."""

    def next_poll_at(self) -> float:
        """Return the monotonic moment at which `poll` is to be called at the latest, if nothing happens before."""

    def fail(self, error: Exception) -> None:
        """Handle an exception that a handler did not catch. Raise the exception again to end the loop with it."""

    @property
    def over(self) -> bool:
        """Whether the loop is to end."""


class EventLoop(Generic[Posted]):
    """Calls handlers for posted events, ready descriptors and due timers, until its `Handler` is over."""

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
            clock: returns monotonic seconds.
            selector: waits for descriptors; None: the best selector of the system.
            gather_seconds: the least time from one turn to the next. Where hundreds of messages arrive in a second and
                none of them is urgent, a turn for each message costs more than the messages do. A turn in which a
                descriptor was registered is followed at once by the next: more connections may be waiting.
            sleep: waits for a number of seconds.
        """
        self._clock = clock
        self._gather_seconds = gather_seconds
        self._sleep = sleep
        self._woken = clock()  # the end of the newest wait
        self._gathers = True  # whether the next turn waits for `gather_seconds` to pass
        self._selector = selectors.DefaultSelector() if selector is None else selector
        self._events: deque[Posted] = deque()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._timers: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self.turn = 0
        """number of the current turn: everything that is seen in one turn arrived together"""

    def post(self, event: Posted) -> None:
        """Queue an event for `Handler.handle`. The loop handles all queued events before it waits again."""
        self._events.append(event)

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` in every turn in which `fd` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, handler)
        self._readers[fd] = handler
        self._gathers = False

    def unregister(self, fd: int) -> None:
        """Stop waiting for `fd`, and drop its readiness of the current turn. Must precede closing `fd`."""
        self._writers.pop(fd, None)
        self._readers.pop(fd, None)
        self._selector.unregister(fd)

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Call `handler` in every turn in which the registered `fd` is writable.

        Args:
            fd: a descriptor that was given to `register`.
            handler: None: stop watching for writability.
        """
        if handler is None:
            self._writers.pop(fd, None)
        else:
            self._writers[fd] = handler
        events = selectors.EVENT_READ if handler is None else selectors.EVENT_READ | selectors.EVENT_WRITE
        self._selector.modify(fd, events, self._readers[fd])

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        """Call `handler` once, at monotonic `when`. A timer of the same name is replaced."""
        self._timers[name] = when, handler

    def post_at(self, when: float, event: Posted) -> None:
        """Post an event at monotonic `when`. Each event has one timer: a later call moves the timer of the event.

        `cancel(event)` stops the timer; `post(event)` does not.
        """
        self.call_at(when, event, lambda: self.post(event))

    def cancel(self, name: Hashable) -> None:
        """Remove a timer if there is one of this name."""
        self._timers.pop(name, None)

    def run(self, handler: Handler[Posted]) -> None:
        """Run turns until `handler.over`. Raises what `Handler.fail` raises."""
        while not handler.over:
            try:
                self._turn(handler)
            except Exception as error:  # noqa: BLE001 - the handler decides about every exception
                handler.fail(error)

    def _turn(self, handler: Handler[Posted]) -> None:
        while self._events:
            handler.handle(self._events.popleft())
        self.turn += 1
        for key, events in self._wait(handler):
            self._call_ready(key, events)
        self._call_due()
        handler.poll()

    def close(self) -> None:
        """Close the selector. No descriptor can be registered afterwards."""
        self._selector.close()

    def _wait(self, handler: Handler[Posted]) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for a descriptor, a timer or the next poll; return the descriptors that are ready, and for what."""
        patience = 0.0 if handler.over else self._patience(handler.next_poll_at())
        pause = min(self._woken + self._gather_seconds - self._clock(), patience)
        if pause > 0.0 and self._gathers:
            self._sleep(pause)
            patience -= pause
        self._gathers = True
        ready = self._selector.select(patience)
        self._woken = self._clock()
        return ready

    def _patience(self, next_poll_at: float) -> float:
        """Return the seconds until the first timer or the next poll is due; 0 if one is due already."""
        due = min((when for when, _ in self._timers.values()), default=next_poll_at)
        return max(0.0, min(next_poll_at, due) - self._clock())

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
            # A handler called before in this turn may have cancelled or moved the timer.
            if handler is not None and when <= now:
                del self._timers[name]
                handler()
