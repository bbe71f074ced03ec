"""The snapshot slots of one rank: which of them is written next, and what the page says of them.

A slot's step is withdrawn from the page before the slot's bytes change, and written after them: a slot whose step
the page says holds all of that step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.protocol import STAGED
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.slot_policy import SlotPolicy


class AnySlot(Protocol):
    """What holds the bytes of one snapshot."""

    exists: bool  # it has its files

    @property
    def memory(self) -> int:
        """Bytes of memory it takes."""

    def discard(self) -> None:
        """Delete the files, so that their memory is free."""

    def close(self) -> None:
        """Let go of the files; they stay."""


SlotT = TypeVar("SlotT", bound=AnySlot)


class Slots(Generic[SlotT]):
    """The slots in memory, and behind them the one on storage (STAGED)."""

    def __init__(self, page: Page, budget: MemoryBudget, slots: Sequence[SlotT]) -> None:
        """slots: by their number."""
        self._page, self._budget, self._slots = page, budget, slots
        self.newest = NONE  # the newest step that this rank has in memory
        self._newest_slot = NONE  # that holds it
        self._told_of_leaving = False

    def __getitem__(self, number: int) -> SlotT:
        return self._slots[number]

    @property
    def memory(self) -> int:
        """Bytes of memory that all slots take."""
        return sum(slot.memory for slot in self._slots)

    def holding(self, step: int) -> SlotT:
        """The slot that holds `step`. Raises LookupError when there is none."""
        steps = self._page.slot_steps()
        if step not in steps:
            raise LookupError(f"cannot read the snapshot of step {step}: no slot holds it")
        return self._slots[steps.index(step)]

    def begin_from(self, base: int) -> None:
        """`base` is the newest step that all ranks have; every other step is withdrawn, unless it is for the saver."""
        steps = self._page.slot_steps()
        for number, step in enumerate(steps):
            if step not in self._busy() | {base}:
                self._page.set_slot(number, NONE)
        self.newest = base
        self._newest_slot = steps.index(base) if base != NONE and base in steps else NONE
        self._budget.progress.took(base)

    def left_behind(self, step: int) -> bool:
        """Whether a rank has left its loop before `step`: the step can never be resumed from, and is not kept.

        What all ranks have from before stays: taking this snapshot would overwrite it.
        """
        gone = self._budget.progress.left_before(step)
        if gone is None:
            return False
        if not self._told_of_leaving:
            self._told_of_leaving = True
            say(f"rank {gone} has left its loop before step {step}: from here on no step is kept, a restart goes back")
        return True

    def wait_for_peers(self, step: int) -> bool:
        """Wait until the snapshot before the newest is not needed any more; False when none of `step` is to be taken.

        A rank that is told to leave waits for no other rank. What it can take at once, it takes: its step is done.
        """
        progress = self._budget.progress

        def ready() -> bool:
            if self._budget.slots < 2:  # the only slot is about to be written over
                return not self._page.leave
            return self.newest == NONE or progress.all_have(self.newest)

        def over() -> bool:
            return self._page.leave or progress.any_failed() or progress.left_before(step) is not None

        wait_until(lambda: ready() or over(), math.inf)
        return ready() and not progress.any_failed()

    def vacate(self, keep: int) -> int | None:
        """Wait for a slot in memory that may be overwritten, and withdraw its step: the slot's number.

        keep: see `Snapshotter.take`. None when this rank is told to leave meanwhile.
        """
        self.discard_surplus()
        return self._vacate(keep, self._policy().used(self._budget.slots))

    def vacate_staged(self, keep: int) -> int | None:
        """The same for the slot on storage."""
        self.discard_surplus()
        return self._vacate(keep, [STAGED])

    def _vacate(self, keep: int, among: list[int]) -> int | None:
        page = self._page
        policy, free = self._policy(), [NONE]

        def ready() -> bool:
            nonlocal policy, free
            policy = self._policy()
            free = policy.free(among, keep)
            return page.leave or bool(free)

        while wait_until(ready, math.inf) and free:
            number = free[0]
            page.set_slot(number, NONE)
            if page.reading == policy.steps[number] != NONE:
                page.set_slot(number, policy.steps[number])  # the saver has just chosen it
                continue
            if number == self._newest_slot:
                self._newest_slot = policy.holding(keep)
                self.newest = keep if self._newest_slot != NONE else NONE
            return number
        return None

    def commit(self, number: int, step: int) -> None:
        """The slot holds `step` whole."""
        self._page.set_slot(number, step)
        self.newest, self._newest_slot = step, number
        self._budget.progress.took(step)

    def discard_surplus(self) -> None:
        """Give back the memory of slots that are no longer used."""
        for number in self._policy().surplus(self._budget.slots):
            self._page.set_slot(number, NONE)
            self._slots[number].discard()

    def close(self) -> None:
        """Unmap; the files stay, for the saver or the next attempt."""
        for slot in self._slots:
            slot.close()

    def _busy(self) -> set[int]:
        """The steps that are for the saver."""
        page = self._page
        busy = {page.reading}  # perhaps a step of an earlier attempt
        if page.save_step > page.saved and not self._budget.progress.any_missed(page.save_step):
            busy.add(page.save_step)
        return busy - {NONE}

    def _policy(self) -> SlotPolicy:
        steps, exists = self._page.slot_steps(), [slot.exists for slot in self._slots]
        return SlotPolicy(steps, exists, self._newest_slot, self._busy(), self._pinned(steps))

    def _pinned(self, steps: Sequence[int]) -> set[int]:
        """The steps that another node keeps a copy of, or is being sent one.

        The newest of them may not be everywhere yet: until a newer one is, all nodes can go back to the one before.
        """
        page = self._page
        every = page.peer_every
        copied = sorted(step for step in steps if every and step > 0 and step % every == 0)
        return {*copied[-2:], page.sending} - {NONE}
