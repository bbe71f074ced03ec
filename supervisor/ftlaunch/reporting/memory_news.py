"""What the ranks have agreed on about their snapshots in memory, and whether that is news. Pure."""

from __future__ import annotations

from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import MemoryIntervalChanged, MemoryReduced, MemoryRestored
from ftlaunch_contract.pages.memory_state import Memory
from ftlaunch_contract.protocol import MEMORY_SLOTS

_AGAIN = 4  # times as many steps between snapshots as people were told of
_LEAST = 10.0  # seconds of training that a crash must cost to be worth a line


class MemoryNews:
    """Compares what rank 0's page tells with what was told last."""

    def __init__(self, interval: int) -> None:
        """interval: steps, with which the ranks begin."""
        self._slots, self._interval = MEMORY_SLOTS, interval
        self._said = interval

    def look(self, memory: Memory, step_seconds: float) -> JobEvent | None:
        """What is new in an attempt's page. step_seconds: how long a step takes."""
        if not memory.needed:  # nothing is agreed on yet
            return None
        before = self._slots, self._interval
        self._slots = memory.slots if memory.reduced else MEMORY_SLOTS
        self._interval = memory.interval
        if self._slots != before[0]:
            return MemoryReduced(memory) if self._slots < before[0] else MemoryRestored(memory)
        if self._interval != before[1]:
            says = self._interval >= _AGAIN * self._said and self._interval * step_seconds >= _LEAST
            self._said = self._interval if says else self._said
            return MemoryIntervalChanged(self._interval, before[1], step_seconds, says)
        return None
