"""A saver whose committed steps go to a checkpoint store: the saver and the keeper, in the engine as one Saver.

A step is committed in the folder first, and goes to the store behind it, beside the training. Only where the job is to
end does the saver's answer wait until the store has the step too, because nobody may be left to bring it there. If the
saver has refused a checkpoint of the folder, or looks for a healthy one, the store is asked for a better one. Runs in
the event loop and never waits, but for `close`.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any

from ftlaunch.checkpoints.saver_client import Saver
from ftlaunch.checkpoints.stores.keeper_link import KeeperLink
from ftlaunch.reporting.events.base import Complaint, JobEvent
from ftlaunch.reporting.events.stores import CheckpointsBrought

Answer = dict[str, Any]

_LAST = ("stop", "end", "incident")  # why a step is saved that may be the last one of this machine


class KeepingSaver:
    """Implements Saver. Made anew, with the same keeper, when the saver has died."""

    def __init__(
        self, saver: Saver, keeper: KeeperLink, cache_max_size: int | None, report: Callable[[JobEvent], None]
    ) -> None:
        """Take over a saver. The keeper belongs to the caller, and forgets what an earlier saver has asked for.

        Args:
            saver: commits steps in the folder. One that has brought a step to the store says so: `is_stored` in the
                answer.
            keeper: keeps what is committed there in the store.
            cache_max_size: bytes of all checkpoints in the folder beside the store; None: any.
            report: reports an event.

        Raises:
            OSError: there is no descriptor left to wait for both.
        """
        self._saver = saver
        self._keeper = keeper
        self._cache_max_size = cache_max_size
        self._report = report
        self._held: Answer | None = None  # the saver's answer that waits for the store
        self._rejected: list[Answer] | None = None  # what was refused before the saver was asked once more
        self._asked: Answer = {}  # the newest request to the saver
        self._both = select.epoll()
        self.fd = self._both.fileno()
        self._both.register(saver.fd, select.EPOLLIN)
        self._both.register(keeper.fd, select.EPOLLIN)
        keeper.forget_asked()

    @property
    def stored(self) -> int:
        """The newest step that only the store has, as the saver knows."""
        return self._saver.stored

    @property
    def pid(self) -> int:
        """The saver's pid."""
        return self._saver.pid

    @property
    def pending(self) -> Answer | None:
        """The request to the saver under way; a save that waits for the store is one."""
        return self._asked if self._held is not None else self._saver.pending

    @property
    def closed(self) -> bool:
        """Whether `close` has been called."""
        return self._saver.closed

    def ask(self, request: Answer) -> None:
        """Send a request to the saver: `pending` until its answer is there."""
        if request["do"] == "save" and self._cache_max_size is not None:
            # What the store has may be of a moment ago: the saver compares it with what it is to delete.
            request = {**request, "cache": {"max_size": self._cache_max_size, "stored": self._keeper.stored}}
        self._asked = request
        self._saver.ask(request)

    def hurry(self) -> None:
        """Let the save under way, and an upload, go on as fast as they can."""
        self._saver.hurry()
        self._keeper.hurry()

    def answers(self) -> list[Answer] | None:
        """Return the saver's answers that have arrived and need not wait for the store; None when the saver is gone."""
        found = self._saver.answers()
        if found is None and self._held is None:
            return None
        if found is None:  # its last answer first; the end is reported again after that
            return self._give_held()
        passed = [answer for answer in found if not self._follow(answer)]
        self._keeper.receive()
        return passed if self._is_awaited else passed + self._give_held()

    def _follow(self, answer: Answer) -> bool:
        """Have the store follow what the saver has done. Return whether the answer is to wait for that."""
        if "error" in answer or self._keeper.is_over or answer.get("is_stored"):
            return False
        if answer["did"] == "go_back":
            self._keeper.put_aside(answer["step"])
        elif answer["did"] == "save":
            asked = self._asked
            self._keeper.publish(asked["keep"], asked["keep_every"], asked["bandwidth"])
            if answer.get("why") in _LAST:
                self._held = answer
                return True
        elif answer["did"] == "find" and "load" not in answer:
            return self._look_for_better(answer)
        return False

    def _look_for_better(self, answer: Answer) -> bool:
        """Ask the keeper for a better checkpoint than the saver has found. Return whether the answer is to wait."""
        before = answer.get("healthy_before")
        if self._rejected is not None:
            answer["rejected"] = [*self._rejected, *answer["rejected"]]
            self._rejected = None
            return False
        if before is None and not answer["rejected"]:
            return False
        self._held = answer
        better = {"do": "bring_better", "than": answer["step"], "healthy_before": before}
        self._keeper.ask_urgently(better, self._handle_better)
        return True

    @property
    def _is_awaited(self) -> bool:
        """Whether the answer that is held waits for what the keeper has still to do."""
        if self._held is not None and self._held["did"] == "find":
            return self._keeper.is_asked("bring_better")
        return self._keeper.is_busy

    def _give_held(self) -> list[Answer]:
        """Return the saver's answer that has waited for the store, if there is one."""
        saved = self._held
        self._held = None
        return [] if saved is None else [saved]

    def _handle_better(self, answer: Answer) -> None:
        """Have the saver look once more if the keeper has brought something."""
        if "error" in answer:
            self._report(Complaint(f"cannot look for a better checkpoint in {self._keeper.where}: {answer['error']}"))
            return
        if answer["brought"] or answer["refused"]:
            self._report(CheckpointsBrought(answer, self._keeper.where))
        if answer["brought"] and self._held is not None:
            self._rejected = self._held["rejected"]
            self._held = None
            self._saver.ask(self._asked)

    def work(self) -> object:
        """Return something that changes whenever the saver or the keeper has done anything."""
        return self._saver.work(), self._keeper.work()

    def kill_if_stopped(self, now: float) -> None:
        """End a saver that was stopped over a request. now: monotonic seconds."""
        self._saver.kill_if_stopped(now)

    def close(self, timeout: float) -> int | None:
        """Let the saver finish and leave, and return its exit status, as `SaverLink.close` does."""
        status = self._saver.close(timeout)
        self._both.close()
        return status
