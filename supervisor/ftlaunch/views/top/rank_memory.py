"""Memory of the processes of ranks on this machine, as psutil tells it."""

from __future__ import annotations

from collections.abc import Mapping

import psutil


class ResidentMemory:
    """Keeps a handle for each process: making one costs more than reading it."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def look(self, pids: Mapping[int, int]) -> dict[int, int]:
        """rank -> resident bytes, of those whose processes (rank -> pid) are there."""
        before, self._processes, found = self._processes, {}, {}
        for rank, pid in pids.items():
            try:
                process = before.get(pid) or psutil.Process(pid)
                found[rank] = process.memory_info().rss
            except psutil.Error:  # it has ended, or is not ours
                continue
            self._processes[pid] = process
        return found

    @staticmethod
    def free() -> int:
        """Bytes that this machine has left."""
        return int(psutil.virtual_memory().available)
