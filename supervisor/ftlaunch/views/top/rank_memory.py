"""Reads the resident memory of the ranks on this machine, with psutil."""

from __future__ import annotations

from collections.abc import Mapping

import psutil


class ResidentMemory:
    """Reads memory, and keeps a handle for each process, because creating a handle costs more than reading."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def look(self, pids: Mapping[int, int]) -> dict[int, int]:
        """Return the resident bytes by rank, without ranks whose process is gone.

        Args:
            pids: pid by rank.
        """
        before = self._processes
        self._processes = {}
        found: dict[int, int] = {}
        for rank, pid in pids.items():
            try:
                process = before.get(pid) or psutil.Process(pid)
                found[rank] = process.memory_info().rss
            except psutil.Error:  # the process has ended, or belongs to another user
                continue
            self._processes[pid] = process
        return found

    @staticmethod
    def free() -> int:
        """Return the bytes of available memory of this machine."""
        return int(psutil.virtual_memory().available)
