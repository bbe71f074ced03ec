"""Events about the GPU memory of processes that have ended, for which the next attempt waits. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import duration
from ftlaunch.ranks.gpu_memory import Holder, MemoryWaitEnd
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority

_SHORT_SECONDS = 2.0
"""a wait that is no longer is not worth an event: drivers take this long without being in trouble"""


@dataclass(frozen=True)
class GpuMemoryFreed(JobEvent):
    """The driver took seconds to free the GPU memory of an attempt that had ended; the next attempt has waited."""

    name = "gpu_memory_freed"
    of_attempt: int
    seconds: float
    """time from the end of the attempt's last process"""
    node: str = ""
    """the node, for people; "": the job has one node"""

    def fields(self) -> dict[str, Any]:
        """Return the seconds, and the node of several."""
        return {"seconds": round(self.seconds, 3), "node": self.node or None}

    def sentence(self) -> str:
        """Return how long the driver took."""
        which = _describe_attempt(self.of_attempt, self.node)
        return f"the GPU memory of attempt {which} was free {duration(self.seconds)} after its last process"


@dataclass(frozen=True)
class GpuMemoryHeld(GpuMemoryFreed):
    """The GPU memory of an attempt that had ended is not free after the longest wait; the next attempt begins."""

    name = "gpu_memory_held"
    priority = Priority.WARNING
    holders: Sequence[Holder] = ()
    """the processes that hold the memory; empty: the driver has not answered"""

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
            for holder in self.holders
        ]
        return {**super().fields(), "holders": holders}

    def sentence(self) -> str:
        """Return who holds which memory, and that the next attempt begins nonetheless."""
        which = _describe_attempt(self.of_attempt, self.node)
        after = duration(self.seconds)
        if not self.holders:
            return (
                f"whether the GPU memory of attempt {which} is free is unknown, because NVIDIA's driver has not"
                f" answered for {after}: the next attempt begins nonetheless, and may run out of memory"
            )
        held = "; ".join(map(_describe_holder, self.holders))
        return (
            f"the GPU memory of attempt {which} is not free {after} after its last process ({held}): the next attempt"
            " begins nonetheless, and may run out of memory"
        )


def of_memory_wait(end: MemoryWaitEnd, node: str = "") -> JobEvent | None:
    """Return the event of a wait that is over; None: nothing that a user should know.

    Args:
        end: how the wait has ended.
        node: the node, for people; "": the job has one node.
    """
    if end.holders or end.is_silent:
        return GpuMemoryHeld(of_attempt=end.attempt, seconds=end.seconds, node=node, holders=end.holders)
    if end.seconds > _SHORT_SECONDS:
        return GpuMemoryFreed(of_attempt=end.attempt, seconds=end.seconds, node=node)
    return None


def _describe_attempt(attempt: int, node: str) -> str:
    return f"{attempt} on {node}" if node else str(attempt)


def _describe_holder(holder: Holder) -> str:
    """Return which process holds how much memory of which GPU: `GPU 0: 300 MiB, pid 12, rank 0`."""
    process = holder.process
    memory = "unknown size" if process.memory_bytes is None else f"{process.memory_bytes >> 20} MiB"
    rank = [] if holder.rank is None else [f"rank {holder.rank}"]
    command = [process.command] if process.command else ["which has ended"]
    user = [f"user {process.user}"] if process.user else []
    return ", ".join([f"GPU {process.gpu}: {memory}", f"pid {process.pid}", *rank, *command, *user])
