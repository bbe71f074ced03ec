"""Whose turn is it: which snapshot slots are used, and which may be written to next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import MEMORY_SLOTS, STAGED


@dataclass(frozen=True)
class SlotPolicy:
    """The slots of a rank as they are."""

    steps: Sequence[int]  # that each holds whole; NONE: none
    exists: Sequence[bool]  # which take room already
    newest: int  # the slot with the newest step that all ranks have; NONE: there is none
    busy: Collection[int]  # the steps that are for the saver

    def holding(self, step: int) -> int:
        """The slot that holds a step; NONE when there is none, or no step is asked for."""
        return self.steps.index(step) if step != NONE and step in self.steps else NONE

    def used(self, count: int) -> list[int]:
        """The slots to go on with where there is room for `count`: the newest and those for the saver among them."""
        if count == 0:
            return [STAGED]
        order = sorted(
            range(MEMORY_SLOTS),
            key=lambda n: (n != self.newest, self.steps[n] not in self.busy, not self.exists[n]),
        )
        return order[:count]

    def surplus(self, count: int) -> list[int]:
        """The slots whose room may be given back."""
        used = self.used(count)
        return [
            n
            for n, exists in enumerate(self.exists)
            if exists and n not in used and n != self.newest and self.steps[n] not in self.busy
        ]

    def free(self, among: Sequence[int], keep: int) -> list[int]:
        """The slots that may be written to, the best first: none for the saver, nor the last one all ranks have.

        keep: the step that is being saved, as rank 0 sees it. With two slots it is what all ranks fall back to, so
        that the other may be overwritten. A slot by itself is overwritten where it lies; where another one is left
        for the saver, there is no room before that is saved.
        """
        found = [n for n in among if self.steps[n] not in self.busy]
        if len(among) > 1:
            kept = self.holding(keep) if len(among) == 2 else NONE
            spared = self.newest if kept == NONE else kept
            found = [n for n in found if n != spared]
        elif STAGED not in among and any(self.steps[n] in self.busy for n in range(MEMORY_SLOTS)):
            found = []
        # the oldest, if possible one that has its room already
        return sorted(found, key=lambda n: (not self.exists[n], self.steps[n]))
