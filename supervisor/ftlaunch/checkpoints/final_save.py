"""The last commit of a job: the newest step that all ranks have in memory, before the supervisor leaves.

It waits for a saver that works, however long that takes, and not for one that is in a system call that does not come
back: the step stays in memory then, and the same command goes on from it.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.checkpoints.resume import PeerMemory
from ftlaunch.checkpoints.save_scheduler import Answer, SaveScheduler
from ftlaunch.common.formatting import duration
from ftlaunch.health.numerics_monitor import NumericsMonitor
from ftlaunch.memory.pages import Pages
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.policy.states import Event
from ftlaunch_contract.protocol import Why


class FinalSave:
    """Goes on until storage has that step, or it cannot be saved. Never waits."""

    def __init__(
        self,
        saving: SaveScheduler,
        pages: Pages,
        numbers: NumericsMonitor,
        post: Callable[[Event], None],
        peers: PeerMemory | None,
    ) -> None:
        """post: told SAVED or SAVE_FAILED, once. peers: None on one node."""
        self.error = ""
        self._saving, self._pages, self._numbers, self._post, self._peers = saving, pages, numbers, post, peers
        self._made_whole = False  # all that other nodes keep of lost ranks is in memory, or cannot be had
        self._why: Why | None = None  # none: it is not under way
        self._work: object = None  # of the saver, when it was last looked at

    def begin(self, why: Why) -> None:
        """Commit it, unless storage has it."""
        self._why, self.error, self._made_whole = why, "", self._peers is None
        if self._peers is None:
            self._go_on(why)
        else:
            self._peers.save_lost(self._saving.committed, self._on_made_whole)

    def _on_made_whole(self) -> None:
        self._made_whole = True
        if self._why is not None:
            self._go_on(self._why)

    def heed(self, answer: Answer) -> None:
        """The saver has answered, or died."""
        if self._why is None or not self._made_whole:
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

    def look(self) -> None:
        """Note what the saver has done up to now, for `judge`."""
        self._work = self._saving.work()

    def judge(self, silent: float) -> bool:
        """Whether to wait for longer: the saver has worked since the last look. If not, it is waited for no longer.

        silent: seconds since that look.
        """
        before = self._work
        self.look()
        if self._why is None or before != self._work:
            return self._why is not None
        if self._is_saved():
            self._over(Event.SAVED)  # what the saver was asked for is not needed any more
        else:
            self.abandon(f"storage has not answered for {duration(silent)} ({self._saving.spec.checkpoint_dir})")
        return False

    def _is_saved(self) -> bool:
        """Whether storage has all that is to be saved."""
        step, rotten = self._pages.newest_common(), self._numbers.rotten
        bad = rotten is not None and step >= rotten
        return bad or step <= self._saving.committed or (step == 0 and self._saving.committed == NONE)

    def _go_on(self, why: Why) -> None:
        if self._saving.busy:
            self._saving.hurry()
            return  # its answer leads here again
        if self._is_saved():
            self._over(Event.SAVED)
        else:
            self._saving.save(self._pages.newest_common(), why)

    def _over(self, event: Event) -> None:
        self._why = None
        self._post(event)
