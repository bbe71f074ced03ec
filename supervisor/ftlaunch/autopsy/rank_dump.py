"""What an autopsy has collected of one rank, read from its files. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ftlaunch.autopsy import flight_recorder as flight
from ftlaunch.autopsy import stacks
from ftlaunch.autopsy.flight_recorder import Collective, FlightRecord
from ftlaunch.autopsy.stacks import Stack

BUSY = 0.5  # of a processor: a thread that uses more does not wait
_FUTEX = re.compile(r"futex")
_TAKES_LOCK = re.compile(r"\bwith\b.*(?:lock|mutex|cond|sem)|\.acquire\(", re.IGNORECASE)


@dataclass(frozen=True)
class Child:
    """A process that a rank has started."""

    pid: int
    name: str
    state: str
    stack: str = ""


@dataclass(frozen=True)
class RankDump:
    """What was collected of one rank."""

    rank: int
    stack: str = ""
    state: str = ""  # of its main thread: R, S, D, T, as in /proc
    system_call: str = ""  # that its main thread is in
    file: str = ""  # that the system call is about
    channel: str = ""  # where in the kernel it waits
    in_sleep: bool = False  # the system call only lets time pass
    busy: float = 0.0  # processors that its main thread uses, or would use on an idle machine
    stopped: bool = False
    lock_held: bool | None = None  # some thread keeps the interpreter's lock; None: not known
    children: tuple[Child, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)  # path:line -> its text
    flight: FlightRecord | None = None

    @property
    def main(self) -> Stack | None:
        """Its main thread's stack."""
        return stacks.main_thread(self.stack)

    @property
    def waiting(self) -> bool | None:
        """Whether its main thread waits for other ranks; None: not known, it did not answer."""
        main = self.main
        if main is None:
            return False if self.stack.strip() else None
        return main.wait in stacks.PEERS or (not main.wait and self._in_collective)

    @property
    def pending(self) -> Collective | None:
        """The oldest collective that it has entered and that is not over, as far as that is known."""
        return None if self.flight is None else self.flight.pending

    @property
    def sleeps(self) -> bool:
        """Whether its main thread waits for a time to pass."""
        return self.in_sleep or "nanosleep" in self.system_call + self.channel

    @property
    def _in_collective(self) -> bool:
        """Whether its main thread waits in C for a collective: in a handle's wait(), or for the device."""
        if self.pending is None or self.lock_held or self.wants_lock or self.stopped:
            return False
        others = stacks.threads(self.stack)[:-1]
        idle = not self.sleeps and not self.file
        return idle and self.busy < BUSY and not any(thread.wait == "collective" for thread in others)

    @property
    def wants_lock(self) -> bool:
        """Whether its main thread waits in a line of the job's own code that takes a lock."""
        main = self.main
        if main is None or main.own != main.frames[0] or not _FUTEX.search(self.system_call + self.channel):
            return False
        return bool(_TAKES_LOCK.search(self.sources.get(f"{main.own.path}:{main.own.line}", "")))


def read(rank: int, stack: str, facts: Mapping[str, Any], recorder: Mapping[str, Any] | None) -> RankDump:
    """The dump of a rank from the texts of its files; what is missing stays unknown."""
    main: Mapping[str, Any] = next((t for t in facts.get("threads", ()) if t.get("tid") == facts.get("pid")), {})
    children = tuple(
        Child(c.get("pid", 0), c.get("comm", ""), c.get("state", ""), c.get("stack", ""))
        for c in facts.get("children", ())
    )
    return RankDump(
        rank=rank,
        stack=stack,
        state=main.get("state", ""),
        system_call=main.get("syscall", ""),
        file=main.get("file", ""),
        channel=main.get("wchan", ""),
        in_sleep=main.get("sleeps", False),
        busy=main.get("busy", 0.0),
        stopped=main.get("state", "") in ("T", "t"),
        lock_held=facts.get("lock_held"),
        children=children,
        sources=facts.get("sources", {}),
        flight=None if recorder is None else flight.read(recorder),
    )
