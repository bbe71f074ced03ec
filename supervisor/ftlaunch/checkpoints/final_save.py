"""The last commit of a job: the newest step that all ranks have in memory, before the supervisor leaves."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.checkpoints.save_scheduler import Answer, SaveScheduler
from ftlaunch.health.numerics_monitor import NumericsMonitor
from ftlaunch.memory.pages import Pages
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.policy.states import Event
from ftlaunch_contract.protocol import Why


class FinalSave:
    """Goes on until storage has that step, or it cannot be saved. Never waits."""

    def __init__(
        self, saving: SaveScheduler, pages: Pages, numbers: NumericsMonitor, post: Callable[[Event], None]
    ) -> None:
        """post: told SAVED or SAVE_FAILED, once."""
        self.error = ""
        self._saving, self._pages, self._numbers, self._post = saving, pages, numbers, post
        self._why: Why | None = None  # none: it is not under way

    def begin(self, why: Why) -> None:
        """Commit it, unless storage has it."""
        self._why = why
        self._go_on(why)

    def heed(self, answer: Answer) -> None:
        """The saver has answered, or died."""
        if self._why is None:
            return
        if answer["did"] == "save" and "error" in answer and answer["step"] == self._pages.newest_common():
            self.abandon(answer["error"])
        else:
            self._go_on(self._why)

    def abandon(self, error: str) -> None:
        """It cannot be saved, should it be under way."""
        if self._why is not None:
            self.error = error
            self._over(Event.SAVE_FAILED)

    def _go_on(self, why: Why) -> None:
        if self._saving.busy:
            self._saving.hurry()
            return  # its answer leads here again
        step = self._pages.newest_common()
        rotten = self._numbers.rotten
        bad = rotten is not None and step >= rotten
        if bad or step <= self._saving.committed or (step == 0 and self._saving.committed == NONE):
            self._over(Event.SAVED)
        else:
            self._saving.save(step, why)

    def _over(self, event: Event) -> None:
        self._why = None
        self._post(event)
