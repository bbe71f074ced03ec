"""Commits the newest step that all ranks have in memory, before the supervisor leaves or the nodes change.

A saver that works is waited for, however long the save takes. A saver that hangs in a system call is not waited for:
the step stays in memory then, and the same command goes on from there. `engine/supervisor.py` makes one FinalSave for a
job and calls it in the main thread.
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
    """Asks the saver until storage has the newest step, or the step cannot be saved. No method waits.

    Attributes:
        error: why the step could not be saved, as words after a colon; "": nothing has failed.
    """

    def __init__(
        self,
        saving: SaveScheduler,
        pages: Pages,
        numbers: NumericsMonitor,
        post: Callable[[Event], None],
        peers: PeerMemory | None,
    ) -> None:
        """Make the final save of a job; nothing is asked of the saver until `begin`.

        Args:
            saving: asks the saver.
            pages: the pages of all ranks.
            numbers: knows which steps are numerically unhealthy.
            post: called with SAVED or SAVE_FAILED, once for each `begin`.
            peers: the snapshots that other nodes keep; None on one node.
        """
        self.error = ""
        self._saving = saving
        self._pages = pages
        self._numbers = numbers
        self._post = post
        self._peers = peers
        self._is_whole = False  # whether memory has all that other nodes keep of lost ranks, or this cannot be had
        self._why: Why | None = None  # None: no final save is under way
        self._work: object = None  # what the saver had done at the last `note_work`

    def begin(self, why: Why) -> None:
        """Commit the newest step, unless storage has it. The result is posted.

        Args:
            why: the reason that is noted in the checkpoint.
        """
        self._why = why
        self.error = ""
        self._is_whole = self._peers is None
        if self._peers is None:
            self._ask_or_finish(why)
        else:
            self._peers.save_lost(self._saving.committed, self._on_whole)

    def _on_whole(self) -> None:
        self._is_whole = True
        if self._why is not None:
            self._ask_or_finish(self._why)

    def handle_answer(self, answer: Answer) -> None:
        """Handle an answer of the saver, or the news of its death. Does nothing while no final save is under way."""
        if self._why is None or not self._is_whole:
            return
        if answer["did"] == "save" and "error" in answer and answer["step"] == self._pages.newest_common():
            self.abandon(answer["error"])
        else:
            self._ask_or_finish(self._why)

    def abandon(self, error: str) -> None:
        """Give up the final save that may be under way, and post SAVE_FAILED.

        Args:
            error: why the step cannot be saved.
        """
        if self._why is not None:
            self.error = error
            self._finish(Event.SAVE_FAILED)

    def note_work(self) -> None:
        """Note what the saver has done up to now, for the next `judge`."""
        self._work = self._saving.work()

    def judge(self, silent: float) -> bool:
        """Decide whether to wait on for the saver; if not, end the final save and post its result.

        Args:
            silent: seconds since the last `note_work`.

        Returns:
            True if a final save is under way and the saver has worked since the last `note_work`.
        """
        before = self._work
        self.note_work()
        if self._why is None or before != self._work:
            return self._why is not None
        if self.is_saved():
            self._finish(Event.SAVED)  # the request under way is not needed any more
        else:
            self.abandon(f"storage has not answered for {duration(silent)} ({self._saving.spec.checkpoint_dir})")
        return False

    def is_saved(self) -> bool:
        """Return whether storage has the newest step, or the step must not be saved because its numbers are wrong."""
        step = self._pages.newest_common()
        rotten = self._numbers.rotten
        is_rotten = rotten is not None and step >= rotten
        return is_rotten or step <= self._saving.committed or (step == 0 and self._saving.committed == NONE)

    def _ask_or_finish(self, why: Why) -> None:
        """Ask the saver for the newest step, or finish if storage has it; wait if the saver is busy."""
        if self._saving.busy:
            self._saving.hurry()
            return  # the answer to the request under way leads here again
        if self.is_saved():
            self._finish(Event.SAVED)
        else:
            self._saving.save(self._pages.newest_common(), why)

    def _finish(self, event: Event) -> None:
        self._why = None
        self._post(event)
