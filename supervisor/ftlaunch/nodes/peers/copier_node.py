"""What all threads of a copier share: the attempt, the kept copies, and the report of refused connections."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from ftlaunch.nodes.peers.held.kept_copies import KeptCopies
from ftlaunch.nodes.peers.held.own_slots import OwnSlots
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts

_REPORT_SECONDS = 10.0  # between two lines about refused connections


@dataclass(frozen=True, eq=False)
class CopierAttempt:
    """An attempt of the job, as a copier needs to know it."""

    lineage: str
    world: int
    """ranks of the job"""
    slots: OwnSlots
    """the slots of this node's ranks"""
    over: threading.Event = field(default_factory=threading.Event)
    """set when copies are frozen or the next attempt begins, after which no copy is sent or taken"""

    @property
    def stands_by(self) -> bool:
        """Whether this node has no ranks."""
        return not self.slots.ranks


class Refused:
    """Reports refused connections on stderr: the first at once, and those of the next ten seconds with a count.

    For any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._due = 0.0  # when the next line may be written

    def add(self, why: str) -> None:
        """Count a refusal. why: a clause that follows a colon."""
        with self._lock:
            self._count += 1
            if time.monotonic() < self._due:
                return
            many = f" ({self._count} since the last line)" if self._count > 1 else ""
            self._count = 0
            self._due = time.monotonic() + _REPORT_SECONDS
        sys.stderr.write(f"[ftlaunch] the copier refused a connection{many}: {why}\n")
        sys.stderr.flush()


class CopierNode:
    """The shared state of one copier.

    `attempt` is replaced as a whole, so that a thread can keep using the attempt with which it has begun.
    """

    def __init__(self, token: bytes, memory_dir: Path, bandwidth: int | None) -> None:
        """Find the copies that an earlier copier has left.

        Args:
            token: the secret that other copiers must know.
            memory_dir: the memory directory of this node.
            bandwidth: bytes a second that are sent to the buddy at most, or None.

        Raises:
            OSError: the memory directory cannot be read.
        """
        self.token = token
        self.memory_dir = memory_dir
        self.bandwidth = bandwidth
        self.layouts = Layouts()
        self.kept = KeptCopies(memory_dir)
        self.refused = Refused()
        self.attempt: CopierAttempt | None = None

    def begin(self, lineage: str, first: int, count: int, world: int, resumed: tuple[str, int] | None) -> None:
        """Begin an attempt; the earlier one is over.

        Args:
            lineage: the lineage of the attempt.
            first: the first rank of this node.
            count: the number of its ranks; 0 if it stands by.
            world: ranks of the job.
            resumed: lineage and step of copies that belong to this attempt from now on, or None.

        Raises:
            OSError: the page of a rank cannot be read, or a copy cannot be deleted.
            ValueError: the page of a rank is malformed.
        """
        if self.attempt is not None:
            self.attempt.over.set()
        slots = OwnSlots(memory_dir=self.memory_dir, first=first, count=count, layouts=self.layouts)
        self.kept.begin(lineage, resumed, slots.ranks)
        self.attempt = CopierAttempt(lineage, world, slots)

    def freeze(self, lineage: str) -> dict[int, list[int]]:
        """Stop sending and taking copies until `begin`.

        Returns:
            The steps of the kept copies of a lineage, by rank.
        """
        if self.attempt is not None:
            self.attempt.over.set()
        return self.kept.freeze(lineage)
