"""Waits, before ranks start again, until the driver has freed the GPU memory of the processes that have ended.

A process that was killed is gone before its GPU memory is: the driver frees the memory afterwards, and a GPU that is in
trouble takes seconds. Ranks that start meanwhile run out of memory. The wait is bounded, and on a machine without
GPUs, or whose NVML does not work, there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ftlaunch.system.gpu_activity import GpuProcess, Gpus
from ftlaunch.system.loop import Clock, Loop

_LONGEST_SECONDS = 10.0
"""how long a start waits: drivers free memory within about a second, and one that hangs may never do so"""
_INTERVAL_SECONDS = 0.02
"""time between two looks at the answer of NVML"""
EARLIER_RUN = -1
"""in place of the number of an attempt: the last attempt of a supervisor or an agent that was itself killed"""


@dataclass(frozen=True)
class Holder:
    """A process of an ended attempt whose GPU memory is not freed."""

    process: GpuProcess
    rank: int | None
    """the rank that the process was; None: a process that a rank has started"""


@dataclass(frozen=True)
class MemoryWaitEnd:
    """How a wait for GPU memory has ended."""

    attempt: int
    """number of the attempt whose processes held the memory, or EARLIER_RUN"""
    seconds: float
    """time since the last of these processes has ended, or since an earlier run's were looked for"""
    holders: tuple[Holder, ...]
    """what is held still, after the longest wait; nothing if all memory is free"""
    is_silent: bool
    """whether NVML has not answered within the longest wait; then `holders` is empty, and nothing is known"""
    alone: tuple[int, ...] = ()
    """the ranks of the attempt that have ended and start again alone; none: the whole attempt has ended"""

    def to_fields(self) -> dict[str, Any]:
        """Return the end of the wait for a whole attempt as JSON: ranks of several nodes never start alone."""
        return {
            "attempt": self.attempt,
            "seconds": self.seconds,
            "holders": [{**asdict(holder.process), "rank": holder.rank} for holder in self.holders],
            "silent": int(self.is_silent),
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> MemoryWaitEnd:
        """Make the end of a wait from what `to_fields` has returned. Raises KeyError, TypeError or ValueError."""
        return cls(
            attempt=int(fields["attempt"]),
            seconds=float(fields["seconds"]),
            holders=tuple(map(_read_holder, fields["holders"])),
            is_silent=bool(fields["silent"]),
        )


def _read_holder(fields: Mapping[str, Any]) -> Holder:
    memory_bytes = fields["memory_bytes"]
    process = GpuProcess(
        pid=int(fields["pid"]),
        gpu=int(fields["gpu"]),
        memory_bytes=None if memory_bytes is None else int(memory_bytes),
        command=str(fields["command"]),
        user=str(fields["user"]),
    )
    return Holder(process, None if fields["rank"] is None else int(fields["rank"]))


class GpuMemoryWait:
    """The waits before ranks of a job start again, on one machine. Runs in the event loop, and never blocks."""

    def __init__(self, gpus: Gpus, loop: Loop, clock: Clock, on_end: Callable[[MemoryWaitEnd], None]) -> None:
        """Begin without a wait.

        Args:
            gpus: asks NVML.
            loop: calls this at the times at which NVML's answer is looked at.
            clock: returns monotonic seconds.
            on_end: called once at the end of each wait.
        """
        self._gpus = gpus
        self._loop = loop
        self._clock = clock
        self._on_end = on_end
        self._attempt = -1
        self._ranks: Mapping[int, int] = {}
        self._pids: Collection[int] = ()
        self._alone: tuple[int, ...] = ()
        self._began = 0.0
        self._request: int | None = None  # number of the newest request to NVML; None: there is nothing to wait for

    @property
    def is_over(self) -> bool:
        """Whether ranks may start as far as GPU memory is concerned."""
        return self._request is None

    def begin(self, attempt: int, ranks: Mapping[int, int], pids: Collection[int], alone: tuple[int, ...] = ()) -> None:
        """Begin to wait for the memory of processes that have ended. Ends an earlier wait.

        Args:
            attempt: number of their attempt, or EARLIER_RUN.
            ranks: the rank of each pid that was a rank's.
            pids: the processes.
            alone: the ranks that have ended, if others of the attempt run on.
        """
        self._attempt = attempt
        self._ranks = ranks
        self._pids = pids
        self._alone = alone
        self._began = self._clock()
        self._request = self._gpus.ask() if pids else None
        if self._request is not None:
            self._look_again()

    def _look_again(self) -> None:
        self._loop.call_at(self._clock() + _INTERVAL_SECONDS, self, self._look)

    def _look(self) -> None:
        """End the wait if the memory is free or the bound is over; otherwise ask NVML anew."""
        if self._request is None:
            return
        seconds = self._clock() - self._began
        answer = self._gpus.answer
        is_current = answer.number >= self._request
        left = [process for process in answer.processes if process.pid in self._pids] if is_current else []
        if self._gpus.can_answer and (left or not is_current) and seconds < _LONGEST_SECONDS:
            if is_current:
                self._request = self._gpus.ask() or self._request
            self._look_again()
            return
        self._request = None
        self._on_end(
            MemoryWaitEnd(
                attempt=self._attempt,
                seconds=seconds,
                holders=tuple(Holder(process, self._ranks.get(process.pid)) for process in left),
                is_silent=not is_current and self._gpus.can_answer,
                alone=self._alone,
            )
        )
