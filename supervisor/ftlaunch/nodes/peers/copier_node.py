"""What all threads of a copier share: the attempt, the copies that are kept, and how to say what was refused."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.nodes.peers.held.kept_copies import KeptCopies
from ftlaunch.nodes.peers.held.own_slots import OwnSlots
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts

_EVERY = 10.0  # seconds between two lines of refusals


@dataclass(frozen=True, eq=False)
class CopierAttempt:
    """An attempt of the job, as far as a copier goes."""

    lineage: str
    world: int
    slots: OwnSlots
    over: threading.Event = field(default_factory=threading.Event)
    """set when copies are frozen, or the next attempt begins: no copy is sent or taken any more"""

    @property
    def stands_by(self) -> bool:
        """Whether this node has no ranks."""
        return not self.slots.ranks


class Refused:
    """Says on stderr what was refused: the first at once, what follows within ten seconds with a count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._due = 0.0

    def add(self, why: str) -> None:
        """Count one. why: a clause that follows a colon."""
        with self._lock:
            self._count += 1
            if time.monotonic() < self._due:
                return
            many = f" ({self._count} since the last line)" if self._count > 1 else ""
            self._count = 0
            self._due = time.monotonic() + _EVERY
        sys.stderr.write(f"[ftlaunch] the copier refused a connection{many}: {why}\n")
        sys.stderr.flush()


class CopierNode:
    """One node's copier. `attempt` is replaced as a whole, so each thread keeps the one that it began with."""

    def __init__(self, token: bytes, memory_dir: Path, bandwidth: int | None) -> None:
        """Raises OSError."""
        self.token = token
        self.memory_dir = memory_dir
        self.bandwidth = bandwidth
        self.layouts = Layouts()
        self.kept = KeptCopies(memory_dir)
        self.refused = Refused()
        self.attempt: CopierAttempt | None = None

    def begin(self, lineage: str, first: int, count: int, world: int, resumed: tuple[str, int] | None) -> None:
        """A new attempt. Raises OSError or ValueError where there is no page of a rank."""
        if self.attempt is not None:
            self.attempt.over.set()
        slots = OwnSlots(self.memory_dir, first, count, self.layouts)
        self.kept.begin(lineage, resumed, slots.ranks)
        self.attempt = CopierAttempt(lineage, world, slots)

    def freeze(self, lineage: str) -> dict[int, list[int]]:
        """Send and take no copies until `begin`: rank -> the steps of its copies of this lineage."""
        if self.attempt is not None:
            self.attempt.over.set()
        return self.kept.freeze(lineage)
