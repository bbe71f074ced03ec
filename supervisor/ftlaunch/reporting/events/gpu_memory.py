"""Events about the GPU memory of processes that have ended, for which ranks wait before they start again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import duration, stretches
from ftlaunch.ranks.gpu_memory import EARLIER_RUN, Holder, MemoryWaitEnd
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority

_SHORT_SECONDS = 2.0
"""a wait that is no longer is not worth an event: drivers take this long without being in trouble"""


@dataclass(frozen=True)
class GpuMemoryFreed(JobEvent):
    """The driver took seconds to free the GPU memory of ranks that had ended; those that start again have waited."""

    name = "gpu_memory_freed"
    end: MemoryWaitEnd
    node: str = ""
    """the node, for people; "": the job has one node"""

    def fields(self) -> dict[str, Any]:
        """Return the seconds since the last process ended, the node of several, and the ranks if not all ended."""
        end = self.end
        return {"seconds": round(end.seconds, 3), "node": self.node or None, "alone": list(end.alone) or None}

    def sentence(self) -> str:
        """Return how long the driver took."""
        return f"the GPU memory of {self._whose} was free {self._after}"

    @property
    def _whose(self) -> str:
        """The ranks whose memory it is."""
        on_node = f" on {self.node}" if self.node else ""
        if self.end.attempt == EARLIER_RUN:
            return f"the run that was killed{on_node}"
        return f"{_name_ranks(self.end.alone)}{on_node}" if self.end.alone else f"attempt {self.end.attempt}{on_node}"

    @property
    def _after(self) -> str:
        took = duration(self.end.seconds)
        return f"{took} after this start" if self.end.attempt == EARLIER_RUN else f"{took} after its last process"


@dataclass(frozen=True)
class GpuMemoryHeld(GpuMemoryFreed):
    """The GPU memory of ranks that had ended is not free after the longest wait; those that start again do so."""

    name = "gpu_memory_held"
    priority = Priority.WARNING

    def fields(self) -> dict[str, Any]:
        """Return in addition the processes: GPU, pid, bytes, command, user and, for one that was a rank, the rank."""
        holders = [
            {
                "gpu": holder.process.gpu,
                "pid": holder.process.pid,
                "bytes": holder.process.memory_bytes,
                "command": holder.process.command or None,
                "user": holder.process.user or None,
                "rank": holder.rank,
            }
            for holder in self.end.holders
        ]
        return {**super().fields(), "holders": holders}

    def sentence(self) -> str:
        """Return who holds which memory, and what starts nonetheless."""
        starts = f"{self._starting} nonetheless, and may run out of memory"
        if not self.end.holders:
            return (
                f"whether the GPU memory of {self._whose} is free is unknown, because NVIDIA's driver has not"
                f" answered for {duration(self.end.seconds)}: {starts}"
            )
        held = "; ".join(map(_describe_holder, self.end.holders))
        return f"the GPU memory of {self._whose} is not free {self._after} ({held}): {starts}"

    @property
    def _starting(self) -> str:
        if self.end.alone:
            return "it starts" if len(self.end.alone) == 1 else "they start"
        return "the first attempt begins" if self.end.attempt == EARLIER_RUN else "the next attempt begins"


def of_memory_wait(end: MemoryWaitEnd, node: str = "") -> JobEvent | None:
    """Return the event of a wait that is over; None: nothing that a user should know.

    Args:
        end: how the wait has ended.
        node: the node, for people; "": the job has one node.
    """
    if end.holders or end.is_silent:
        return GpuMemoryHeld(end, node)
    return GpuMemoryFreed(end, node) if end.seconds > _SHORT_SECONDS else None


def _name_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {stretches(ranks)}"


def _describe_holder(holder: Holder) -> str:
    """Return which process holds how much memory of which GPU: `GPU 0: 300 MiB, pid 12, rank 0`."""
    process = holder.process
    memory = "unknown size" if process.memory_bytes is None else f"{process.memory_bytes >> 20} MiB"
    rank = [] if holder.rank is None else [f"rank {holder.rank}"]
    command = [process.command] if process.command else ["which has ended"]
    user = [f"user {process.user}"] if process.user else []
    return ", ".join([f"GPU {process.gpu}: {memory}", f"pid {process.pid}", *rank, *command, *user])
