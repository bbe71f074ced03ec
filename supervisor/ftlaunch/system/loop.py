"""The event loop, as those see it that wait in it for descriptors and timers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

Clock = Callable[[], float]
"""Monotonic seconds."""


class Loop(Protocol):
    """Waits for descriptors and timers, and calls their handlers. The engine's EventLoop is one."""

    def register(self, fd: int, handler: Callable[[], None]) -> None:
        """Call `handler` in every turn in which `fd` is readable."""

    def unregister(self, fd: int) -> None:
        """Wait for `fd` no longer."""

    def watch_writes(self, fd: int, handler: Callable[[], None] | None) -> None:
        """Call `handler` in every turn in which `fd`, which is registered, can be written to; None: no longer."""

    def call_at(self, when: float, name: Hashable, handler: Callable[[], None]) -> None:
        """Call `handler` once, at monotonic `when`; a timer of the same name is replaced."""

    def cancel(self, name: Hashable) -> None:
        """Forget a timer, where there is one."""
