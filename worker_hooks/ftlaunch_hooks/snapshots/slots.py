"""The snapshot slots of one rank: which slot is written next, and what the page says of the slots.

A slot's step is withdrawn from the page before the slot's bytes change, and written to the page after them. So a slot
whose step the page names holds all of that step. Used by RankSnapshots, in the training thread and its own thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, TypeVar

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import STAGED
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.slot_directory import SlotDirectory
from ftlaunch_hooks.snapshots.slot_policy import SlotPolicy

SlotT = TypeVar("SlotT", bound=SlotDirectory)
"""A framework's class of slots."""


class Slots(Generic[SlotT]):
    """The slots in memory, followed by the slot on storage (STAGED)."""

    def __init__(self, page: Page, budget: MemoryBudget, slots: Sequence[SlotT]) -> None:
        """Take the slots, by their numbers."""
        self._page = page
        self._budget = budget
        self._slots = slots
        self.newest = NONE  # the newest step that a slot of this rank holds, also one on storage; NONE: none
        self._newest_slot = NONE  # the slot that holds `newest`
        self._has_warned_of_leaving = False

    def __getitem__(self, number: int) -> SlotT:
        return self._slots[number]

    @property
    def memory(self) -> int:
        """Return the bytes of memory that all slots take."""
        return sum(slot.memory for slot in self._slots)

    def holding(self, step: int) -> SlotT:
        """Return the slot that holds `step`. Raises LookupError when there is none."""
        steps = self._page.slot_steps()
        if step not in steps:
            raise LookupError(f"cannot read the snapshot of step {step}: no slot holds it")
        return self._slots[steps.index(step)]

    def begin_from(self, base: int) -> None:
        """Make `base` the newest step, which all ranks have; withdraw every other step unless it is for the saver."""
        steps = self._page.slot_steps()
        for number, step in enumerate(steps):
            if step not in self._busy() | {base}:
                self._page.set_slot(number, NONE)
        self.newest = base
        self._newest_slot = steps.index(base) if base != NONE and base in steps else NONE
        self._budget.progress.took(base)

    def left_behind(self, step: int) -> bool:
        """Whether a rank has left its loop before `step`, so that `step` can never be resumed from and is not kept.

        What all ranks have from before stays: taking this snapshot would overwrite it.
        """
        leaver = self._budget.progress.left_before(step)
        if leaver is None:
            return False
        if not self._has_warned_of_leaving:
            self._has_warned_of_leaving = True
            say(
                f"rank {leaver} has left its loop before step {step}: from here on no step is kept, a restart goes back"
            )
        return True

    def wait_for_peers(self, step: int) -> bool:
        """Wait until all ranks have the newest snapshot, so that the one before may be overwritten: with two slots.

        A rank that is told to leave does not wait. It takes the snapshot only if all have the newest one already. With
        fewer slots nothing is waited for, and a rank that is told to leave takes none.

        Returns:
            Whether a snapshot of `step` is to be taken; not if a rank has given up a snapshot.
        """
        progress = self._budget.progress

        def ready() -> bool:
            if self._budget.slots < 2:  # the only slot is about to be overwritten
                return not self._page.leave
            return self.newest == NONE or progress.all_have(self.newest)

        def is_hopeless() -> bool:
            return self._page.leave or progress.any_gave_up() or progress.left_before(step) is not None

        wait_until(lambda: ready() or is_hopeless(), math.inf)
        return ready() and not progress.any_gave_up()

    def vacate(self, keep: int) -> int | None:
        """Wait for a slot in memory that may be overwritten, and withdraw its step.

        Args:
            keep: the step that the saver may be reading, or NONE; where there are two slots, its slot stays.

        Returns:
            The slot's number; None if this rank is told to leave while no slot is free.
        """
        self.discard_surplus()
        return self._vacate(keep, self._policy().used(self._budget.slots))

    def vacate_staged(self, keep: int) -> int | None:
        """Wait until the slot on storage may be overwritten, and withdraw its step. Returns as `vacate` does."""
        self.discard_surplus()
        return self._vacate(keep, [STAGED])

    def _vacate(self, keep: int, among: list[int]) -> int | None:
        page = self._page
        policy = self._policy()
        free = [NONE]

        def ready() -> bool:
            nonlocal policy, free
            policy = self._policy()
            free = policy.free(among, keep)
            return page.leave or bool(free)

        while wait_until(ready, math.inf) and free:
            number = free[0]
            page.set_slot(number, NONE)
            if page.reading == policy.steps[number] != NONE:
                page.set_slot(number, policy.steps[number])  # the saver has just chosen this slot
                continue
            if number == self._newest_slot:
                self._newest_slot = policy.holding(keep)
                self.newest = keep if self._newest_slot != NONE else NONE
            return number
        return None

    def next_to_write(self) -> int | None:
        """Return the slot in memory that `vacate` chooses if it is called now; None if it waits, or there is none."""
        page = self._page
        policy = self._policy()
        if not self._budget.slots:
            return None
        keep = page.save_step if page.save_step > page.saved else page.reading
        free = policy.free(policy.used(self._budget.slots), keep)
        return free[0] if free else None

    def in_memory(self) -> Sequence[SlotT]:
        """Return the slots in memory, by their numbers."""
        return self._slots[:STAGED]

    def commit(self, number: int, step: int) -> None:
        """Publish that the slot holds all of `step`."""
        self._page.set_slot(number, step)
        self.newest = step
        self._newest_slot = number
        self._budget.progress.took(step)

    def discard_surplus(self) -> None:
        """Delete the files of slots that are no longer used."""
        for number in self._policy().surplus(self._budget.slots):
            self._page.set_slot(number, NONE)
            self._slots[number].discard()

    def close(self) -> None:
        """Unmap all slots. Their files stay, for the saver or the next attempt."""
        for slot in self._slots:
            slot.close()

    def _busy(self) -> set[int]:
        """Return the steps that are for the saver."""
        page = self._page
        busy = {page.reading}  # perhaps a step of an earlier attempt
        if page.save_step > page.saved and not self._budget.progress.any_missed(page.save_step):
            busy.add(page.save_step)
        return busy - {NONE}

    def _policy(self) -> SlotPolicy:
        steps = self._page.slot_steps()
        return SlotPolicy(
            steps=steps,
            exists=[slot.exists for slot in self._slots],
            newest=self._newest_slot,
            busy=self._busy(),
            pinned=self._pinned(steps),
        )

    def _pinned(self, steps: Sequence[int]) -> set[int]:
        """Return the steps whose copies other nodes keep or are being sent.

        The newest of them may not be on all nodes yet: until a newer one is, all nodes can go back to the one before.
        """
        page = self._page
        every = page.peer_every
        copied = sorted(step for step in steps if every and step > 0 and step % every == 0)
        return {*copied[-2:], page.sending} - {NONE}
