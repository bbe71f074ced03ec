"""The ranks of a pretended node: pages in this process's memory, with what ranks with hooks would write there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ftlaunch.memory.pages import Pages
from ftlaunch.nodes.cluster.mirrors import cluster_pages
from ftlaunch.nodes.cluster.mirrors.page_words import Changes
from ftlaunch_contract.pages.page import NONE, SIZE, Page
from ftlaunch_contract.protocol import MEMORY_SLOTS, Flag, Phase, Resume

_NOWHERE = Path("/nowhere")


class MemoryPage(Page):
    """A page that no other process sees, and that needs no descriptor."""

    __slots__ = ()

    def __init__(self) -> None:
        """Make an empty page."""
        self.path = _NOWHERE
        content = bytearray(SIZE)
        self._map = content  # type: ignore[assignment]
        self._bytes = memoryview(content)
        self.q = self._bytes.cast("q")
        self.d = self._bytes.cast("d")
        self.format()


class MemoryPages(Pages):
    """Pages of a node's ranks that no other process sees."""

    def __init__(self, ranks: int, first: int) -> None:
        """Make the pages. first: the number of the first rank."""
        self.directory = _NOWHERE
        self.first = first
        self.pages: list[Page] = [MemoryPage() for _ in range(ranks)]


class PretendedRanks:
    """Ranks that make a step at regular times, and hold its snapshot in memory."""

    def __init__(self, count: int, first: int, step_seconds: float) -> None:
        """Make the ranks, which do not run yet. step_seconds: the time of a step; 0 for no steps."""
        self._pages = MemoryPages(count, first)
        self._step_seconds = step_seconds
        self._changes = {rank: Changes(self._pages[rank]) for rank in self.numbers}
        self._attempt = NONE
        self._due = 0  # the number of the next step, counted from the boot of the machine, so that all nodes agree
        self.alive: set[int] = set()

    @property
    def numbers(self) -> range:
        """The numbers of the ranks."""
        return range(self._pages.first, self._pages.first + len(self._pages))

    def start(self, attempt: int, resume: list[int]) -> dict[int, int]:
        """Start all ranks; return their made-up pids. resume: as in the message `spawn`."""
        kind, step, persist_at, _, reading = resume
        self._pages.reading(reading)
        self._pages.prepare(Resume(kind), step, persist_at)
        pids = {rank: 1 << 22 | rank for rank in self.numbers}
        for rank, page in zip(self.numbers, self._pages.pages, strict=True):
            page.begin(attempt, pids[rank], 1)
            page.raise_flag(Flag.ATTACHED)
            page.phase = Phase.TRAIN
        self._attempt = attempt
        self.alive = set(self.numbers)
        return pids

    def perform(self, verb: str, values: list[Any]) -> None:
        """Repeat a change that the head has made to the pages."""
        cluster_pages.perform(self._pages, verb, values)

    def train(self, now: float) -> None:
        """Resume once the source is decided; later make the next step once it is due."""
        if not self.alive:
            return
        first = self._pages.pages[0]
        if first.resumed[0] is Resume.UNDECIDED:
            kind, step = first.resume
            if kind is not Resume.UNDECIDED:
                self._resume(kind, step, now)
        elif self._step_seconds and now >= self._due * self._step_seconds:
            self._make_step(now)

    def _resume(self, kind: Resume, step: int, now: float) -> None:
        begun_at = max(step, 0)
        for page in self._pages.pages:
            page.set_resumed(kind, begun_at)
            page.beat(begun_at, time.monotonic_ns())
        self._plan_step(now)

    def _plan_step(self, now: float) -> None:
        """Plan the next step for a time at which all nodes of the job make a step, as ranks that train together do."""
        self._due = int(now / self._step_seconds) + 1 if self._step_seconds else 0

    def _make_step(self, now: float) -> None:
        self._plan_step(now)
        for page in self._pages.pages:
            step = page.step + 1
            slot = step % MEMORY_SLOTS
            page.set_slot(slot, NONE)
            page.loss = 1.0 / step
            page.end_step(step, int(self._step_seconds * 1e9), time.monotonic_ns())
            page.set_slot(slot, step)

    def finish(self) -> None:
        """Mark the training as done, without a snapshot that would have to be saved."""
        self._pages.withdraw_snapshots()
        for page in self._pages.pages:
            page.raise_flag(Flag.LOOP_LEFT | Flag.ENDED_WELL)

    def words(self) -> list[list[Any]]:
        """Return what has changed in the pages, as `words` of the message `beat`."""
        return [[rank, changes] for rank, found in self._changes.items() if (changes := found.collect())]

    def forget_reported(self) -> None:
        """Have the next `words` return everything, for a new head."""
        self._changes = {rank: Changes(self._pages[rank]) for rank in self.numbers}

    def slots(self) -> Mapping[int, list[int]]:
        """Return the steps in the slots of each rank."""
        return {rank: list(steps) for rank, steps in self._pages.slots().items()}

    def ordered_resume(self) -> tuple[list[int], int]:
        """Return the state from which the ranks were told to resume, and the step at which they were told to stop."""
        first = self._pages.pages[0]
        return [int(first.resume[0]), first.resume[1]], first.stop_at
