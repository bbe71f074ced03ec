"""Decides which snapshot slots are used, and which may be written to next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import PEER_SLOTS, STAGED


@dataclass(frozen=True)
class SlotPolicy:
    """What the slots of a rank hold now, and what may be done with them."""

    steps: Sequence[int]  # the step that each slot holds whole, or NONE
    exists: Sequence[bool]  # whether each slot has its files
    newest: int  # the slot with the newest step that all ranks have, or NONE
    busy: Collection[int]  # the steps that the saver reads or will read
    pinned: Collection[int] = field(default=())  # the steps whose copies other nodes have, or are being sent

    def holding(self, step: int) -> int:
        """Return the slot that holds `step`; NONE when no slot holds the step, and for the step NONE."""
        return self.steps.index(step) if step != NONE and step in self.steps else NONE

    def used(self, count: int) -> list[int]:
        """Return the slots to use where there is room for `count`: the newest first, then those for the saver."""
        if count == 0:
            return [STAGED]
        order = sorted(
            range(PEER_SLOTS),
            key=lambda slot: (
                slot != self.newest,
                self.steps[slot] not in self.busy,
                self.steps[slot] not in self.pinned,
                not self.exists[slot],
            ),
        )
        return order[:count]

    def surplus(self, count: int) -> list[int]:
        """Return the slots whose files may be deleted, where there is room for `count`."""
        used = self.used(count)
        return [
            slot
            for slot, exists in enumerate(self.exists)
            if exists and slot not in used and slot != self.newest and self.steps[slot] not in self.busy
        ]

    def free(self, among: Sequence[int], keep: int) -> list[int]:
        """Return the slots that may be written to, the best first.

        Slots for the saver are never among them, nor is the last one that all ranks have. With two slots all ranks can
        fall back to `keep`, so the newest slot may be overwritten. A single slot is overwritten in place, but not
        before the saver has read a slot that is left from before.

        Args:
            among: the slots in question.
            keep: the step that is being saved, as rank 0 sees it, or NONE.
        """
        found = [slot for slot in among if self.steps[slot] not in self.busy]
        if len(among) > 1:
            kept = self.holding(keep) if len(among) == 2 else NONE
            spared = self.newest if kept == NONE else kept
            found = [slot for slot in found if slot != spared]
        elif STAGED not in among and any(self.steps[slot] in self.busy for slot in range(PEER_SLOTS)):
            found = []
        # Slots that have their files come before others, and older steps before newer ones. A pinned slot comes last,
        # but is never waited for: a copy to another node is given up if its slot is overwritten meanwhile.
        return sorted(
            found, key=lambda slot: (self.steps[slot] in self.pinned, not self.exists[slot], self.steps[slot])
        )
