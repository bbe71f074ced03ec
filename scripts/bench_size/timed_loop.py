"""A loop for thousands of connections in one process: like the engine's, but its timers are a heap."""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable, Hashable

_BATCH = 1024  # descriptors whose handlers are called between two looks at the timers


class TimedLoop:
    """Waits for descriptors and timers. It is a `Loop` of ftlaunch.system.loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._timers: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # by name: its number in the heap
        self._heap: list[tuple[float, int, Hashable]] = []
        self._numbers = itertools.count()
        self.over = False
        """whether `run` is to return"""

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""
        self._readers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def unregister(self, fd: int) -> None:
        """Wait for `fd` no longer."""
        del self._readers[fd]
        self._writers.pop(fd, None)
        self._epoll.unregister(fd)

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Call `handler` whenever `fd`, which is registered, can be written to; None: no longer."""
        if handler is None:
            self._writers.pop(fd, None)
            self._epoll.modify(fd, select.EPOLLIN)
        else:
            self._writers[fd] = handler
            self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        """Call `handler` once, at monotonic `when`; a timer of the same name is replaced."""
        number = next(self._numbers)
        self._timers[name] = number, handler
        heapq.heappush(self._heap, (when, number, name))

    def cancel(self, name: Hashable) -> None:
        """Forget a timer, where there is one."""
        self._timers.pop(name, None)

    def run(self) -> None:
        """Go on until `over`."""
        while not self.over:
            until = self._heap[0][0] - time.monotonic() if self._heap else 1.0
            for fd, events in self._epoll.poll(max(until, 0.0), _BATCH):
                if events & ~select.EPOLLOUT and (reader := self._readers.get(fd)) is not None:
                    reader()
                if events & select.EPOLLOUT and (writer := self._writers.get(fd)) is not None:
                    writer()
            self._call_due()

    def _call_due(self) -> None:
        now = time.monotonic()
        while self._heap and self._heap[0][0] <= now:
            _, number, name = heapq.heappop(self._heap)
            timer = self._timers.get(name)
            if timer is not None and timer[0] == number:  # else it was cancelled, or replaced by another one
                del self._timers[name]
                timer[1]()
