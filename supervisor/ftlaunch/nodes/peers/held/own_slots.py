"""The snapshot slots of this node's own ranks, read under the ranks' protocol.

A rank withdraws a slot's step from its page before the slot's bytes change. The pages' word `sending` names a step
whose slots the ranks spare; what was read counts only where the slots still hold the step after it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ftlaunch.nodes.peers.held.snapshot_files import SnapshotFiles
from ftlaunch.nodes.peers.plan.tensor_layout import Layouts
from ftlaunch_contract.checkpoint import layout, tensor_file
from ftlaunch_contract.pages.page import NONE, open_pages


class NotHeldError(Exception):
    """A step is not whole in the slots; the message is a clause that follows a colon."""


class OwnSlots:
    """The slots of the ranks `first` to `first + count - 1`."""

    def __init__(self, memory_dir: Path, first: int, count: int, layouts: Layouts) -> None:
        """Raises OSError or ValueError where there is no page of a rank."""
        self._memory_dir = memory_dir
        self._layouts = layouts
        self.ranks = range(first, first + count)
        self._pages = dict(zip(self.ranks, open_pages(memory_dir, count, first), strict=True))
        self.spare(NONE)

    def steps(self) -> set[int]:
        """The steps that all ranks hold whole; empty where there are no ranks."""
        held = [set(page.slot_steps()) - {NONE} for page in self._pages.values()]
        return set.intersection(*held) if held else set()

    @property
    def step_seconds(self) -> float:
        """Of the ranks' last training step; 0 before the first."""
        return min((page.step_seconds for page in self._pages.values()), default=0.0)

    def spare(self, step: int) -> None:
        """Ask all ranks to spare the slots of a step, or with NONE those of none."""
        for page in self._pages.values():
            page.sending = step

    def slots_of(self, step: int) -> dict[int, int]:
        """rank -> the slot that holds `step`. Raises NotHeldError."""
        found = {}
        for rank, page in self._pages.items():
            steps = page.slot_steps()
            if step not in steps:
                raise NotHeldError(f"rank {rank} does not hold step {step} whole any more, or not yet")
            found[rank] = steps.index(step)
        return found

    def still(self, step: int, slots: Mapping[int, int]) -> bool:
        """Whether the slots still hold the step that they held."""
        return all(page.slot_steps()[slots[rank]] == step for rank, page in self._pages.items())

    def slot_of(self, rank: int, step: int) -> int:
        """The slot of one rank that holds `step`, or NONE."""
        page = self._pages.get(rank)
        steps = page.slot_steps() if page is not None else ()
        return steps.index(step) if step in steps else NONE

    def open(self, rank: int, slot: int) -> SnapshotFiles:
        """The files of a slot. Raises NotHeldError where they cannot be read."""
        try:
            return SnapshotFiles(layout.slot_dir(self._memory_dir, rank, slot), self._layouts)
        except (OSError, tensor_file.Damaged) as error:
            raise NotHeldError(f"the snapshot of rank {rank} cannot be read ({error})") from error
