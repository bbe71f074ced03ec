"""A saver whose committed steps go to a checkpoint store: the saver and the keeper, in the engine as one Saver.

A step is committed in the folder first, and goes to the store behind it, beside the training. Only where the job is to
end does the saver's answer wait until the store has the step too, because nobody may be left to bring it there. If the
saver has refused a checkpoint of the folder, or looks for a healthy one, the store is asked for a better one. Runs in
the event loop and never waits, but for `close` and `finish`.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ftlaunch.checkpoints.saver_client import Saver, SaverLink
from ftlaunch.checkpoints.stores.opening import LEAVE_SECONDS, StoreOpening
from ftlaunch.reporting.events.base import Complaint, JobEvent
from ftlaunch.reporting.events.stores import (
    CheckpointNotStored,
    CheckpointsBrought,
    CheckpointStored,
    StoreOvertaken,
)
from ftlaunch.spec.job_spec import SavingSpec

Answer = dict[str, Any]
Done = Callable[[Answer], None]
"""takes the keeper's answer to a request"""

_LAST = ("stop", "end", "incident")  # why a step is saved that may be the last one of this machine
_NO_KEEPER = "no process keeps the store any more; the next start of the job starts one"
_POLL_SECONDS = 1.0  # between two polls of the keeper


@dataclass
class CacheLimit:
    """How large the folder beside a store may get, and what the store has, as the keeper has said last."""

    max_size: int | None
    """bytes of all checkpoints in the folder; None: any"""
    stored: dict[str, str]
    """what `Index.digests` returned. It may be of a moment ago: the saver compares it with what it is to delete."""


class KeepingSaver:
    """Implements Saver. Made anew, with the same keeper if that lives, when the saver has died.

    The keeper belongs to the caller.
    """

    def __init__(
        self,
        saver: Saver,
        keeper: SaverLink | None,
        where: str,
        report: Callable[[JobEvent], None],
        stop: Callable[[str], None],
        cache: CacheLimit,
        before: KeepingSaver | None = None,
    ) -> None:
        """Take over a saver, and a keeper that has opened the store.

        Args:
            saver: commits steps in the folder. One that has brought a step to the store says so: `is_stored` in the
                answer.
            keeper: keeps what is committed there in the store; None: it has died, or keeps the store no more.
            where: the address of the store, for people.
            report: reports an event.
            stop: stops the job, with a reason.
            cache: how large the folder may get; the same for each saver of a job.
            before: the one whose saver has died. This one goes on with having the store follow the folder, so that a
                step which was committed there is stored, even if nothing is saved any more.

        Raises:
            OSError: there is no descriptor left to wait for both.
        """
        self._saver = saver
        self._keeper = keeper
        self._where = where
        self._report = report
        self._stop = stop
        self.cache = cache
        """how large the folder may get, and what the store has"""
        self._requests: deque[tuple[Answer, Done | None]] = deque()  # for the keeper, once it is free
        self._on_done: Done | None = None  # takes the answer to the request that the keeper has
        self._held: Answer | None = None  # the saver's answer that waits for the store
        self._rejected: list[Answer] | None = None  # what was refused before the saver was asked once more
        self._asked: Answer = {}  # the newest request to the saver
        self._tries = 0
        self._both = select.epoll()
        self.fd = self._both.fileno()
        self._both.register(saver.fd, select.EPOLLIN)
        if keeper is not None:
            self._both.register(keeper.fd, select.EPOLLIN)
            if before is not None:  # nobody waits any more for the answers to its other requests
                self._requests.extend(request for request in before._requests if request[1] is None)
                self._on_done = before._on_done
                self._tries = before._tries
            self._ask_next()

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
        if request["do"] == "save" and self.cache.max_size is not None:
            request = {**request, "cache": asdict(self.cache)}
        self._asked = request
        self._saver.ask(request)

    def hurry(self) -> None:
        """Let the save under way, and an upload, go on as fast as they can."""
        self._saver.hurry()
        if self._keeper is not None:
            self._keeper.hurry()

    def answers(self) -> list[Answer] | None:
        """Return the saver's answers that have arrived and need not wait for the store; None when the saver is gone."""
        found = self._saver.answers()
        if found is None and self._held is None:
            return None
        if found is None:  # its last answer first; the end is reported again after that
            return self._give_held()
        passed = [answer for answer in found if not self._follow(answer)]
        return passed + self._receive_answers()

    def _follow(self, answer: Answer) -> bool:
        """Have the store follow what the saver has done. Return whether the answer is to wait for that."""
        if "error" in answer or self._keeper is None or answer.get("is_stored"):
            return False
        if answer["did"] == "go_back":
            self._to_keeper({"do": "put_aside", "above": answer["step"]})
        elif answer["did"] == "save":
            self.publish(self._asked["keep"], self._asked["keep_every"])
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
        assert self._keeper is not None
        uploads = [entry for entry in self._requests if entry[0]["do"] == "publish"]
        first = [entry for entry in self._requests if entry[0]["do"] != "publish"]
        better: Answer = {"do": "bring_better", "than": answer["step"], "healthy_before": before}
        self._requests = deque([*first, (better, self._handle_better), *uploads])
        self._keeper.hurry()  # ranks wait for this
        self._held = answer
        self._ask_next()
        return True

    def ask_keeper(self, request: Answer, on_done: Done) -> None:
        """Ask the keeper after what it was asked for before. `on_done` takes the answer, also if there is no keeper."""
        if self._keeper is None:
            on_done({"did": request["do"], "error": _NO_KEEPER})
            return
        self._requests.append((request, on_done))
        self._ask_next()

    def publish(self, keep: int, keep_every: int | None) -> None:
        """Have the keeper bring to the store what the folder has, and let old steps go.

        Args:
            keep: how many checkpoints to keep.
            keep_every: steps; a checkpoint at a multiple is kept. 0 or None: no such steps.
        """
        self._to_keeper({"do": "publish", "keep": keep, "keep_every": keep_every})

    def _to_keeper(self, request: Answer) -> None:
        """Ask the keeper, once it is free; a second request to publish says nothing that the first does not."""
        if (request, None) not in self._requests:
            self._requests.append((request, None))
        self._ask_next()

    def _ask_next(self) -> None:
        if self._keeper is not None and self._keeper.pending is None and self._requests:
            request, self._on_done = self._requests.popleft()
            self._keeper.ask(request)

    def _receive_answers(self) -> list[Answer]:
        """Handle the answers of the keeper. Return the saver's answer that has waited for them."""
        if self._keeper is None:
            return []
        found = self._keeper.answers()
        if found is None:
            self._give_keeper_up("the process that brings them there has died")
        for answer in found or ():
            self._handle_answer(answer)
        self._ask_next()
        return [] if self._is_awaited else self._give_held()

    @property
    def _is_keeping(self) -> bool:
        """Whether the keeper has still to do what it was asked for."""
        return self._keeper is not None and bool(self._keeper.pending or self._requests)

    @property
    def _is_awaited(self) -> bool:
        """Whether the answer that is held waits for what the keeper has still to do."""
        if self._held is None or self._held["did"] != "find" or self._keeper is None:
            return self._is_keeping
        to_do = (self._keeper.pending, *(request for request, _ in self._requests))
        return any(request is not None and request["do"] == "bring_better" for request in to_do)

    def _give_held(self) -> list[Answer]:
        """Return the saver's answer that has waited for the store, if there is one."""
        saved = self._held
        self._held = None
        return [] if saved is None else [saved]

    def _handle_better(self, answer: Answer) -> None:
        """Have the saver look once more if the keeper has brought something."""
        if "error" in answer:
            self._report(Complaint(f"cannot look for a better checkpoint in {self._where}: {answer['error']}"))
            return
        if answer["brought"] or answer["refused"]:
            self._report(CheckpointsBrought(answer, self._where))
        if answer["brought"] and self._held is not None:
            self._rejected = self._held["rejected"]
            self._held = None
            self._saver.ask(self._asked)

    def _handle_answer(self, answer: Answer) -> None:
        on_done = self._on_done
        self._on_done = None
        if "stored" in answer:
            self.cache.stored = answer["stored"]
        if answer.get("overtaken"):
            self._report(StoreOvertaken(answer["error"]))
            self._stop(answer["error"])
            self._leave_keeper()
        if on_done is not None:
            on_done(answer)
        elif answer.get("overtaken"):
            return
        elif "error" in answer:
            self._tries += 1
            self._report(CheckpointNotStored(self._where, answer["error"], self._tries))
        elif answer["did"] == "publish":
            self._tries = 0
            if answer["steps"]:
                self._report(CheckpointStored(answer, self._where))

    def _give_keeper_up(self, error: str) -> None:
        self._tries += 1
        self._report(CheckpointNotStored(self._where, error, self._tries))
        waiting = [self._on_done, *(on_done for _, on_done in self._requests)]
        self._on_done = None
        self._leave_keeper()
        for on_done in filter(None, waiting):
            on_done({"error": error})

    def _leave_keeper(self) -> None:
        """Go on without the keeper: what is committed stays in the folder, and goes to the store at the next start."""
        assert self._keeper is not None
        self._both.unregister(self._keeper.fd)
        self._keeper.close(LEAVE_SECONDS)
        self._keeper = None
        self._requests.clear()

    def work(self) -> object:
        """Return something that changes whenever the saver or the keeper has done anything."""
        return self._saver.work(), None if self._keeper is None else self._keeper.work()

    def kill_if_stopped(self, now: float) -> None:
        """End a saver that was stopped over a request. now: monotonic seconds."""
        self._saver.kill_if_stopped(now)

    def close(self, timeout: float) -> int | None:
        """Let the saver finish and leave, and return its exit status, as `SaverLink.close` does."""
        status = self._saver.close(timeout)
        self._both.close()
        return status

    def finish(self, timeout: float, is_interrupted: Callable[[], bool]) -> None:
        """Wait until the keeper has done what it was asked for, and end it. Call before `close`.

        An upload may take as long as it takes. The keeper is killed once it has done nothing for `timeout` seconds, or
        the job is told to stop; what it had not brought to the store is told.
        """
        if self._keeper is None:
            return
        self._both.unregister(self._saver.fd)
        work: object = None
        idle_since = time.monotonic()
        while self._is_keeping and self._keeper is not None:
            if self._both.poll(_POLL_SECONDS):
                self._receive_answers()
            elif is_interrupted():
                self._give_keeper_up("the job was told to stop meanwhile")
            elif self._keeper.work() != work:
                work = self._keeper.work()
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > timeout:
                self._give_keeper_up("it does not answer")
        if self._keeper is not None:
            self._leave_keeper()


def keep_in_store(
    saver: Saver,
    opening: StoreOpening,
    saving: SavingSpec,
    report: Callable[[JobEvent], None],
    stop: Callable[[str], None],
    before: KeepingSaver | None,
) -> KeepingSaver:
    """Have the committed steps of a saver go to an open store. What only the folder has goes there at once.

    Args:
        saver: commits steps.
        opening: has opened the store.
        saving: the job's settings.
        report: reports an event.
        stop: stops the job, with a reason.
        before: the one whose saver has died; None: this is the first saver of the job.

    Raises:
        OSError: there is no descriptor left.
    """
    opened = opening.opened
    keeping = KeepingSaver(
        saver=saver,
        keeper=None if opening.keeper.closed else opening.keeper,
        where=str(opened["where"]),
        report=report,
        stop=stop,
        cache=CacheLimit(saving.checkpoint_cache_max_size, opened["stored"]) if before is None else before.cache,
        before=before,
    )
    if before is None and opened["is_behind"]:
        keeping.publish(saving.keep, saving.keep_every)
    return keeping
