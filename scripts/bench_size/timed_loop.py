"""An event loop for thousands of connections in one process, whose timers are a heap."""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections.abc import Callable, Hashable

_BATCH = 1024  # descriptors whose handlers are called between two looks at the timers


class TimedLoop:
    """Waits for descriptors and timers; a `Loop` of ftlaunch.system.loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._timers: dict[Hashable, tuple[int, Callable[[], None]]] = {}  # name -> number in the heap, handler
        self._heap: list[tuple[float, int, Hashable]] = []
        self._numbers = itertools.count()
        self.over = False
        """whether `run` is to return"""

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` whenever `fd` is readable."""
        self._readers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def unregister(self, fd: int) -> None:
        """Stop waiting for `fd`."""
        del self._readers[fd]
        self._writers.pop(fd, None)
        self._epoll.unregister(fd)

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Call `handler` whenever `fd`, which is registered, can be written to; None stops that."""
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
        """Forget a timer, if there is one."""
        self._timers.pop(name, None)

    def run(self) -> None:
        """Wait and call handlers until `over` is True."""
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
            if timer is not None and timer[0] == number:  # otherwise the timer was cancelled or replaced
                del self._timers[name]
                timer[1]()
