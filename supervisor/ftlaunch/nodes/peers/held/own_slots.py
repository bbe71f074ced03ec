"""The snapshot slots of this node's own ranks, read under the ranks' protocol.

A rank withdraws a slot's step from its page before the slot's bytes change. The pages' word `sending` names a step
whose slots the ranks do not overwrite if they can avoid it. What was read counts only if the slots still hold the step
after the read. For any thread of a copier.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.nodes.peers.held.snapshot_files import SnapshotFiles
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts
from ftlaunch_contract.checkpoint import layout, tensor_file
from ftlaunch_contract.pages.page import NONE, open_pages


class NotHeldError(Exception):
    """A step is not held whole. The message is a clause that follows a colon."""


class OwnSlots:
    """The slots of the ranks `first` to `first + count - 1`."""

    def __init__(self, memory_dir: Path, first: int, count: int, layouts: Layouts) -> None:
        """Open the ranks' pages. Raises OSError or ValueError if a rank has no page."""
        self._memory_dir = memory_dir
        self._layouts = layouts
        self.ranks = range(first, first + count)
        self._pages = dict(zip(self.ranks, open_pages(memory_dir, count, first), strict=True))
        self.spare(NONE)

    def list_steps(self) -> set[int]:
        """Return the steps that all ranks hold whole; none if there are no ranks."""
        held = [set(page.slot_steps()) - {NONE} for page in self._pages.values()]
        return set.intersection(*held) if held else set()

    @property
    def step_seconds(self) -> float:
        """The seconds of the shortest last training step of a rank; 0 before the first."""
        return min((page.step_seconds for page in self._pages.values()), default=0.0)

    def spare(self, step: int) -> None:
        """Ask all ranks not to overwrite the slots of a step; NONE for no step."""
        for page in self._pages.values():
            page.sending = step

    def slots_of(self, step: int) -> dict[int, int]:
        """Return the slot that holds a step, by rank. Raises NotHeldError if a rank does not hold the step whole."""
        found = {}
        for rank, page in self._pages.items():
            steps = page.slot_steps()
            if step not in steps:
                raise NotHeldError(f"rank {rank} does not hold step {step} whole any more, or not yet")
            found[rank] = steps.index(step)
        return found

    def is_held(self, step: int, slots: Mapping[int, int]) -> bool:
        """Return whether all slots, given by rank, still hold a step."""
        return all(page.slot_steps()[slots[rank]] == step for rank, page in self._pages.items())

    def slot_of(self, rank: int, step: int) -> int:
        """Return the slot of one rank that holds a step, or NONE."""
        page = self._pages.get(rank)
        steps = page.slot_steps() if page is not None else ()
        return steps.index(step) if step in steps else NONE

    def open(self, rank: int, slot: int) -> SnapshotFiles:
        """Open the files of a slot. Raises NotHeldError if they cannot be read."""
        try:
            return SnapshotFiles(layout.slot_dir(self._memory_dir, rank, slot), self._layouts)
        except (OSError, tensor_file.Damaged) as error:
            raise NotHeldError(f"the snapshot of rank {rank} cannot be read ({error})") from error
