"""Decides which snapshot slots are used, and which may be written to next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import PEER_SLOTS, STAGED


@dataclass(frozen=True)
class SlotPolicy:
    """What the slots of a rank hold now."""

    steps: Sequence[int]  # the step that each slot holds whole, or NONE
    exists: Sequence[bool]  # whether each slot has its files
    newest: int  # the slot with the newest step that all ranks have, or NONE
    busy: Collection[int]  # the steps that the saver reads or will read
    pinned: Collection[int] = field(default=())  # the steps of which other nodes have copies, or are being sent them

    def holding(self, step: int) -> int:
        """The slot that holds `step`; NONE when no slot holds it, and for the step NONE."""
        return self.steps.index(step) if step != NONE and step in self.steps else NONE

    def used(self, count: int) -> list[int]:
        """The slots to use where there is room for `count`: the newest first, then those for the saver."""
        if count == 0:
            return [STAGED]
        order = sorted(
            range(PEER_SLOTS),
            key=lambda n: (
                n != self.newest,
                self.steps[n] not in self.busy,
                self.steps[n] not in self.pinned,
                not self.exists[n],
            ),
        )
        return order[:count]

    def surplus(self, count: int) -> list[int]:
        """The slots whose files may be deleted."""
        used = self.used(count)
        return [
            n
            for n, exists in enumerate(self.exists)
            if exists and n not in used and n != self.newest and self.steps[n] not in self.busy
        ]

    def free(self, among: Sequence[int], keep: int) -> list[int]:
        """The slots that may be written to, the best first: none for the saver, nor the last one that all ranks have.

        keep: the step that is being saved, as rank 0 sees it. With two slots all ranks can fall back to `keep`, so
        the newest slot may be overwritten. A single slot is overwritten where it lies, but not before the saver has
        read a slot that is left from before.
        """
        found = [n for n in among if self.steps[n] not in self.busy]
        if len(among) > 1:
            kept = self.holding(keep) if len(among) == 2 else NONE
            spared = self.newest if kept == NONE else kept
            found = [n for n in found if n != spared]
        elif STAGED not in among and any(self.steps[n] in self.busy for n in range(PEER_SLOTS)):
            found = []
        # The oldest first, but those that have their files before all others. What is pinned comes last, and is never
        # waited for: a copy whose slot is written over meanwhile is given up.
        return sorted(found, key=lambda n: (self.steps[n] in self.pinned, not self.exists[n], self.steps[n]))
