"""The pages of a job's ranks in shared memory: what the ranks report in them, and requests to the ranks.

A supervisor or agent maps the pages of its ranks and uses them in its event loop. Ranks read requests at their step
boundaries. NONE (-1) stands for "no step".
"""

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
    """The pages of all ranks of a job, or of the ranks of one node."""

    def __init__(self, directory: Path, ranks: int, first: int = 0) -> None:
        """Map the pages, and create missing ones. If there are pages of other ranks, all pages and snapshots go first.

        Args:
            directory: memory directory.
            ranks: number of ranks.
            first: number of the first rank.

        Raises:
            OSError: a page cannot be read, created or deleted.
        """
        self.directory = directory
        self.first = first
        self.delay_seconds = 0.0
        """seconds by which pages currently show progress later than usual"""
        paths = [page_path(directory, rank) for rank in range(first, first + ranks)]
        if page_files(directory) != paths:
            forget_snapshots(directory)
        for path in paths:
            if not _is_usable(path):
                path.unlink(missing_ok=True)
                create_page(path)
        self.pages = [Page(path) for path in paths]

    def __getitem__(self, rank: int) -> Page:
        return self.pages[rank - self.first]

    def __len__(self) -> int:
        return len(self.pages)

    def slots(self) -> dict[int, Sequence[int]]:
        """Return the steps that each rank holds, slot by slot; NONE for a slot that holds no whole snapshot."""
        return {rank: page.slot_steps() for rank, page in enumerate(self.pages, self.first)}

    def newest_common(self) -> int:
        """Return the newest step that all ranks have whole in memory, or NONE."""
        return newest_of_all(page.slot_steps() for page in self.pages)

    def slot_of(self, rank: int, step: int) -> int:
        """Return the slot in which a rank holds a step. Raises ValueError if the rank does not hold the step."""
        return self[rank].slot_steps().index(step)

    def all_hold(self, step: int) -> bool:
        """Return whether each rank has a slot that holds the step."""
        return all(step in page.slot_steps() for page in self.pages)

    def prepare(self, kind: Resume, step: int, persist_at: int) -> None:
        """Clear old requests, and announce where to resume. Call before an attempt, while no rank lives.

        Args:
            kind: source of the state. UNDECIDED with a step keeps that step's snapshots, so that `decide` may still
                choose MEMORY and the step.
            step: step to resume from.
            persist_at: step whose snapshots are to be held for the saver.
        """
        for page in self.pages:
            page.vacate()  # a killed supervisor's ranks may have had the same attempt number
            page.clear_requests()
        self.decide(kind, step, persist_at)

    def decide(self, kind: Resume, step: int, persist_at: int) -> None:
        """Announce where to resume, which the ranks wait for.

        All snapshots are withdrawn except the step that is resumed from and the step that the saver reads: a step of a
        dead attempt must never be mixed with the same step of a new attempt.

        Args:
            kind: source of the state.
            step: step to resume from.
            persist_at: step whose snapshots are to be held for the saver.
        """
        may_use_memory = kind.in_memory or kind is Resume.UNDECIDED
        for page in self.pages:
            for slot, held in enumerate(page.slot_steps()):
                is_needed = may_use_memory and held == step
                if held not in (NONE, page.reading) and not is_needed:
                    page.set_slot(slot, NONE)
            page.persist_at = persist_at
            page.decide_resume(kind, step)

    def withdraw_snapshots(self) -> None:
        """Withdraw all snapshots in memory, so that no attempt resumes from them. The saver must not be reading any."""
        for page in self.pages:
            for slot in range(len(page.slot_steps())):
                page.set_slot(slot, NONE)

    def ask_stop(self, step: int, deadline_ns: int) -> None:
        """Announce the step to stop at, and the time by which to stop, in monotonic nanoseconds."""
        for page in self.pages:
            page.deadline_ns = deadline_ns
            page.stop_at = step

    def ask_leave(self) -> None:
        """Announce to every rank that the attempt is over."""
        for page in self.pages:
            page.leave = True

    def hold_at(self, step: int) -> None:
        """Announce the step whose snapshots are to be held for the saver."""
        for page in self.pages:
            page.persist_at = step

    def announce_interval(self, every: int, first: int) -> None:
        """Announce that snapshots are taken every `every` steps, from the step `first` on."""
        for page in self.pages:
            page.announce_interval(every, first)

    def copy_every(self, steps: int) -> None:
        """Announce the number of steps between copies to other nodes; 0 for no copies."""
        for page in self.pages:
            page.peer_every = steps

    def reading(self, step: int) -> None:
        """Announce the step that the saver reads now, so that ranks do not overwrite its slots; NONE for no step."""
        for page in self.pages:
            page.reading = step

    def release(self, step: int) -> None:
        """Announce that the saver no longer needs held snapshots up to `step`."""
        for page in self.pages:
            page.saved = max(page.saved, step)

    def went_back(self, step: int) -> None:
        """Announce that checkpoints after `step` have been put aside; NONE for all checkpoints."""
        for page in self.pages:
            page.saved = step

    def newest_life(self) -> tuple[int, float]:
        """Return the last step that all ranks had completed, or NONE, and the newest beat in monotonic seconds."""
        steps = [page.step if page.attempt != NONE else NONE for page in self.pages]
        return min(steps), max(page.beat_ns for page in self.pages) / 1e9

    def evidence(self) -> dict[int, int]:
        """Return for each rank the newest step of which the rank has left a fingerprint, or NONE."""
        ranks = range(self.first, self.first + len(self.pages))
        return {rank: fingerprint_ring.newest_step(self.directory, rank) for rank in ranks}

    def newest_held(self) -> int:
        """Return the newest step that a rank has held for the saver or that the saver reads now, or NONE."""
        return max((max(page.save_step, page.reading) for page in self.pages), default=NONE)

    def step_seconds(self) -> float:
        """Return the seconds of the slowest rank's newest step; 0 if no rank reports any."""
        return max((page.step_seconds for page in self.pages), default=0.0)

    def sampled_name(self, rank: int, index: int) -> str:
        """Return the name of the value that the proof of a step has sampled on a rank.

        Args:
            rank: number of the rank.
            index: index into the rank's list of sampled names; negative for no name.

        Returns:
            The name; empty if the list cannot be read, as that of a rank on another node.
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


def _is_usable(path: Path) -> bool:
    """Return whether the file is a page of this version.

    Raises:
        OSError: the file cannot be read. Such a page must not be replaced, as it may say which snapshots are held.
    """
    try:
        page = Page(path)
    except (FileNotFoundError, ValueError):
        return False
    valid = page.valid
    page.close()
    return valid
