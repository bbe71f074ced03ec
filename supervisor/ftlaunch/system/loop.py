"""The interface of the event loop for code that waits for descriptors and timers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

Clock = Callable[[], float]
"""a function that returns monotonic seconds"""


class Loop(Protocol):
    """Waits for descriptors and timers, and calls their handlers. The engine's EventLoop is one.

    Everything that is called in the loop takes it as this, also what needs a part of it only.
    """

    turn: int
    """number of the current turn; what is seen in one turn came together"""

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` in every turn in which `fd` is readable."""

    def unregister(self, fd: int) -> None:
        """Stop watching `fd`."""

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Call `handler` in every turn in which the registered `fd` can be written to; None stops that."""

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        """Call `handler` once, at `when` in monotonic seconds. A timer with the same name is replaced."""

    def cancel(self, name: Hashable) -> None:
        """Cancel the timer with this name, if there is one."""
