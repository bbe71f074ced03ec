"""What the ranks have agreed on about their snapshots in memory, and whether that is news. Pure."""

from __future__ import annotations

from typing import Any

from ftlaunch_contract.pages.memory_state import Memory, reduced_memory
from ftlaunch_contract.protocol import MEMORY_SLOTS

News = tuple[str, dict[str, Any], str]  # event, its fields, a sentence for the terminal or ""


class MemoryNews:
    """Compares what rank 0's page says with what was said last."""

    def __init__(self, interval: int) -> None:
        """interval: steps, with which the ranks begin."""
        self._slots, self._interval = MEMORY_SLOTS, interval

    def look(self, memory: Memory) -> list[News]:
        """What is new in an attempt's page."""
        if not memory.needed:  # nothing is agreed on yet
            return []
        news: list[News] = []
        slots = memory.slots if memory.reduced else MEMORY_SLOTS
        if slots != self._slots:
            reduced = slots < self._slots  # more again: another attempt found more room
            event = "memory_reduced" if reduced else "memory_restored"
            fields = {"slots": memory.slots, "interval": memory.interval, "needed": memory.needed, "room": memory.room}
            news.append((event, fields, reduced_memory(memory) if reduced else ""))
        elif memory.interval != self._interval:
            fields = {"interval": memory.interval, "before": self._interval}
            news.append(("memory_interval", fields, ""))
        self._slots, self._interval = slots, memory.interval
        return news
