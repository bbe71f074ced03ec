"""Turns the ranks' agreement about their snapshots in memory into events, if the agreement has changed.

Used by `engine/watch.py`. Keeps what was reported last, and has no other effects.
"""

from __future__ import annotations

from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import MemoryIntervalChanged, MemoryReduced, MemoryRestored
from ftlaunch_contract.pages.memory_state import Memory
from ftlaunch_contract.protocol import MEMORY_SLOTS

_SHOWN_FACTOR = 4
"""how many times longer than the interval shown last an interval must be, to be shown on the terminal again"""
_LEAST_LOSS_SECONDS = 10.0
"""training time that a crash must cost for the interval to be shown on the terminal"""


class MemoryNews:
    """Compares what rank 0's page says about snapshots with what was reported last."""

    def __init__(self, interval: int) -> None:
        """Begin with the job's settings.

        Args:
            interval: steps between snapshots with which the ranks begin.
        """
        self._slots = MEMORY_SLOTS
        self._interval = interval
        self._shown_interval = interval

    def observe(self, memory: Memory, step_seconds: float) -> JobEvent | None:
        """Return the event of a change, or None if nothing has changed.

        Args:
            memory: from the page of rank 0.
            step_seconds: how long a step takes.
        """
        if not memory.needed:  # the ranks have not agreed on anything yet
            return None
        slots_before = self._slots
        interval_before = self._interval
        self._slots = memory.slots if memory.reduced else MEMORY_SLOTS
        self._interval = memory.interval
        if self._slots != slots_before:
            return MemoryReduced(memory) if self._slots < slots_before else MemoryRestored(memory)
        if self._interval == interval_before:
            return None
        is_shown = (
            self._interval >= _SHOWN_FACTOR * self._shown_interval
            and self._interval * step_seconds >= _LEAST_LOSS_SECONDS
        )
        if is_shown:
            self._shown_interval = self._interval
        return MemoryIntervalChanged(
            interval=self._interval, before=interval_before, step_seconds=step_seconds, says=is_shown
        )
