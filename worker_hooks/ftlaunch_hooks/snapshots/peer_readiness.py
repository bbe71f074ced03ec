"""Whether a rank may take its next snapshot: a step that not all ranks of the node have is no step to resume from."""

from __future__ import annotations

import math

from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_hooks.process.say import say
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget


class PeerReadiness:
    """What one rank waits for before it writes over a snapshot."""

    def __init__(self, page: Page, budget: MemoryBudget) -> None:
        """page: of this rank."""
        self._page, self._budget, self._progress = page, budget, budget.progress
        self._told_of_leaving = False

    def left_behind(self, step: int) -> bool:
        """Whether a rank has left its loop before `step`: the step can never be resumed from, and is not kept.

        What all ranks have from before stays: taking this snapshot would overwrite it.
        """
        gone = self._progress.left_before(step)
        if gone is None:
            return False
        if not self._told_of_leaving:
            self._told_of_leaving = True
            say(f"rank {gone} has left its loop before step {step}: from here on no step is kept, a restart goes back")
        return True

    def wait(self, step: int, newest: int) -> bool:
        """Wait until the snapshot before `newest` is not needed any more; False when none of `step` is to be taken.

        newest: the newest step that this rank has in memory, or NONE. A rank that is told to leave waits for no other
        rank. What it can take at once, it takes: its step is done.
        """

        def ready() -> bool:
            if self._budget.slots < 2:  # the only slot is about to be written over
                return not self._page.leave
            return newest == NONE or self._progress.all_have(newest)

        def over() -> bool:
            return self._page.leave or self._progress.any_failed() or self._progress.left_before(step) is not None

        wait_until(lambda: ready() or over(), math.inf)
        return ready() and not self._progress.any_failed()
