"""The pages of all ranks, mirrored at the head: what is asked of the ranks goes to the pages of every node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftlaunch.memory.pages import Pages
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

Send = Callable[[str, list[Any]], None]
"""Sends a verb of `perform`, and its values, to all nodes of the attempt."""


class ClusterPages(Pages):
    """See Pages. A mirror's first half is written by what the nodes say, its second half by what is asked here."""

    def __init__(self, directory: Path, ranks: int) -> None:
        """ranks: the most that the job can have."""
        super().__init__(directory, ranks)
        self._all = self.pages
        self.send: Send = lambda verb, values: None
        self.on_decided: Callable[[Resume], None] = lambda kind: None
        """told with what the ranks begin"""
        self.prepared: tuple[Resume, int, int] = (Resume.UNDECIDED, NONE, NONE)
        """what the next attempt is told of where it resumes: kind, step, first step to be held"""
        self.evidence_told: dict[int, int] = {}
        """rank -> the newest step of which it has left a fingerprint, as its node said when its ranks had gone"""
        self.every = 0
        """the steps between snapshots that were announced; 0: none were"""
        self.copied_every = 0
        """the steps between copies to other nodes that were announced; 0: none were"""

    def resize(self, ranks: int) -> None:
        """The job has so many ranks from now on; snapshots of another number of them are of no use."""
        if ranks != len(self.pages):
            self.pages = self._all[:ranks]
            for page in self._all:
                page.format()

    def close(self) -> None:
        """See Pages."""
        self.pages = self._all
        super().close()

    def forget(self, first: int, count: int) -> None:
        """The memory of these ranks is lost."""
        for page in self.pages[first : first + count]:
            page.format()

    def prepare(self, kind: Resume, step: int, persist_at: int) -> None:
        """See Pages; the nodes do it when they are told to start the ranks."""
        send = self.send
        self.send = lambda verb, values: None
        super().prepare(kind, step, persist_at)
        self.send = send

    def evidence(self) -> dict[int, int]:
        """Return what the nodes have said of their ranks' fingerprints; a rank that nobody has spoken of has none."""
        return {rank: self.evidence_told.get(rank, NONE) for rank in range(len(self.pages))}

    def decide(self, kind: Resume, step: int, persist_at: int) -> None:
        """See Pages."""
        self.evidence_told = {}
        self.prepared = kind, step, persist_at
        self.on_decided(kind)
        super().decide(kind, step, persist_at)
        self.send("decide", [int(kind), step, persist_at])

    def ask_stop(self, step: int, deadline_ns: int) -> None:
        """See Pages."""
        super().ask_stop(step, deadline_ns)
        self.send("stop", [step, deadline_ns - time.monotonic_ns()])

    def ask_leave(self) -> None:
        """See Pages."""
        super().ask_leave()
        self.send("leave", [])

    def hold_at(self, step: int) -> None:
        """See Pages."""
        super().hold_at(step)
        self.send("hold", [step])

    def announce_interval(self, every: int, first: int) -> None:
        """See Pages."""
        self.every = every
        super().announce_interval(every, first)
        self.send("every", [every, first])

    def copy_every(self, steps: int) -> None:
        """See Pages."""
        self.copied_every = steps
        super().copy_every(steps)
        self.send("copy_every", [steps])

    def reading(self, step: int) -> None:
        """See Pages."""
        super().reading(step)
        self.send("reading", [step])

    def release(self, step: int) -> None:
        """See Pages."""
        super().release(step)
        self.send("release", [step])

    def went_back(self, step: int) -> None:
        """See Pages."""
        super().went_back(step)
        self.send("went_back", [step])


def perform(pages: Pages, verb: str, values: list[Any]) -> None:
    """On a node: do to its pages what the head has done to the mirrors. Raises ValueError for anything else."""
    if not all(isinstance(value, int) and abs(value) < 1 << 62 for value in values):
        raise ValueError(f"a request `{verb}` with {values!r}")
    if verb == "decide" and len(values) == 3:
        pages.decide(Resume(values[0]), values[1], values[2])
    elif verb == "stop" and len(values) == 2:
        pages.ask_stop(values[0], time.monotonic_ns() + values[1])
    elif verb == "every" and len(values) == 2:
        pages.announce_interval(values[0], values[1])
    elif verb == "leave" and not values:
        pages.ask_leave()
    elif verb in ("hold", "reading", "release", "went_back", "copy_every") and len(values) == 1:
        getattr(pages, "hold_at" if verb == "hold" else verb)(values[0])
    else:
        raise ValueError(f"a request `{verb}` with {values!r}")
