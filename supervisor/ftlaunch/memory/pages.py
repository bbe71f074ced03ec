"""The memory directory of a job: the ranks' pages, read and commanded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ftlaunch.memory.directory import forget_snapshots, page_files
from ftlaunch.memory.recovery_plan import NONE, newest_of_all
from ftlaunch_contract.pages import fingerprint_ring
from ftlaunch_contract.pages.page import Page, create_page, page_path
from ftlaunch_contract.protocol import Resume, sampled_names_path


class Pages:
    """The pages of all ranks of a job, or of those of a node."""

    def __init__(self, directory: Path, ranks: int, first: int = 0) -> None:
        """Map the pages, and make missing ones; pages of other ranks, or of more, are deleted. Raises OSError.

        first: the number of the first rank.
        """
        self.directory, self.first = directory, first
        self.delay_seconds = 0.0
        """how much later than usual pages say what their ranks have done"""
        paths = [page_path(directory, rank) for rank in range(first, first + ranks)]
        if page_files(directory) != paths:
            forget_snapshots(directory)
        for path in paths:
            if not _usable(path):
                path.unlink(missing_ok=True)
                create_page(path)
        self.pages = [Page(path) for path in paths]

    def __getitem__(self, rank: int) -> Page:
        return self.pages[rank - self.first]

    def __len__(self) -> int:
        return len(self.pages)

    def slots(self) -> dict[int, Sequence[int]]:
        """Rank -> the step in each of its slots."""
        return {rank: page.slot_steps() for rank, page in enumerate(self.pages, self.first)}

    def newest_common(self) -> int:
        """The newest step all ranks have whole in memory, or NONE."""
        return newest_of_all(page.slot_steps() for page in self.pages)

    def slot_of(self, rank: int, step: int) -> int:
        """The slot in which a rank holds a step. Raises ValueError."""
        return self[rank].slot_steps().index(step)

    def all_hold(self, step: int) -> bool:
        """Whether each rank has a slot that holds a step."""
        return all(step in page.slot_steps() for page in self.pages)

    def prepare(self, kind: Resume, step: int, persist_at: int) -> None:
        """Before an attempt, while no rank lives: forget old requests, say where to resume.

        UNDECIDED with a step: it may become MEMORY and that step, see `decide`.
        """
        for page in self.pages:
            page.vacate()  # a killed supervisor's ranks may have had the same attempt number
            page.clear_requests()
        self.decide(kind, step, persist_at)

    def decide(self, kind: Resume, step: int, persist_at: int) -> None:
        """Say where to resume; the ranks wait for it.

        Every snapshot but the one resumed from (and the one being saved) is withdrawn: a step of a dead
        attempt and the same step of a new one must never be mixed.
        """
        for page in self.pages:
            for slot, held in enumerate(page.slot_steps()):
                needed = (kind.in_memory or kind is Resume.UNDECIDED) and held == step
                if held not in (NONE, page.reading) and not needed:
                    page.set_slot(slot, NONE)
            page.persist_at = persist_at
            page.decide_resume(kind, step)

    def withdraw_snapshots(self) -> None:
        """Withdraw every snapshot in memory: none of them may be resumed from. The saver must be reading none."""
        for page in self.pages:
            for slot in range(len(page.slot_steps())):
                page.set_slot(slot, NONE)

    def ask_stop(self, step: int, deadline_ns: int) -> None:
        """Announce the step to stop at, and by when (monotonic nanoseconds)."""
        for page in self.pages:
            page.deadline_ns = deadline_ns
            page.stop_at = step

    def ask_leave(self) -> None:
        """Tell every rank that the attempt is over."""
        for page in self.pages:
            page.leave = True

    def hold_at(self, step: int) -> None:
        """Announce the step whose snapshots are to be held for the saver."""
        for page in self.pages:
            page.persist_at = step

    def announce_interval(self, every: int, first: int) -> None:
        """Announce the steps between snapshots from the step `first` on."""
        for page in self.pages:
            page.announce_interval(every, first)

    def copy_every(self, steps: int) -> None:
        """Announce the steps between copies to other nodes; 0: there are none."""
        for page in self.pages:
            page.peer_every = steps

    def reading(self, step: int) -> None:
        """Note which step the saver reads now (NONE: none): ranks keep off its slots."""
        for page in self.pages:
            page.reading = step

    def release(self, step: int) -> None:
        """The saver is done with held snapshots up to `step`."""
        for page in self.pages:
            page.saved = max(page.saved, step)

    def went_back(self, step: int) -> None:
        """Checkpoints after `step` are put aside (NONE: all are)."""
        for page in self.pages:
            page.saved = step

    def newest_life(self) -> tuple[int, float]:
        """From the pages: the step that all ranks had completed (NONE: not known), time of the newest beat."""
        steps = [page.step if page.attempt != NONE else NONE for page in self.pages]
        return min(steps), max(page.beat_ns for page in self.pages) / 1e9

    def evidence(self) -> dict[int, int]:
        """Return rank -> the newest step of which the rank has left a fingerprint; NONE where it has left none."""
        ranks = range(self.first, self.first + len(self.pages))
        return {rank: fingerprint_ring.newest_step(self.directory, rank) for rank in ranks}

    def newest_held(self) -> int:
        """Return the newest step that a rank has held for the saver, or that the saver reads now; NONE without any."""
        return max((max(page.save_step, page.reading) for page in self.pages), default=NONE)

    def step_seconds(self) -> float:
        """Return how long the newest step of the slowest rank took; 0 where no rank says."""
        return max((page.step_seconds for page in self.pages), default=0.0)

    def sampled_name(self, rank: int, index: int) -> str:
        """Return the name of what a proof has found on a rank, by its index; empty where the list cannot be read.

        The list of a rank on another node lies in that node's memory.
        """
        try:
            names = json.loads(sampled_names_path(self.directory, rank).read_text())
            return str(names[index]) if index >= 0 else ""
        except (OSError, ValueError, LookupError, TypeError):
            return ""

    def close(self) -> None:
        """Unmap the pages."""
        for page in self.pages:
            page.close()
        self.pages = []


def _usable(path: Path) -> bool:
    """Whether there is a page of this version. Raises OSError where that cannot be seen: it may say what is held."""
    try:
        page = Page(path)
    except (FileNotFoundError, ValueError):
        return False
    valid = page.valid
    page.close()
    return valid
