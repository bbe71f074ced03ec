"""The keeper of a job, as its supervisor asks it: one request after another, and another keeper where one has died.

What a keeper was asked when it died is asked of the next one: every request may be carried out twice. Runs in the event
loop and never waits, but for `finish`.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ftlaunch.checkpoints.saver_client import SaverLink
from ftlaunch.checkpoints.stores.opening import LEAVE_SECONDS, StoreOpening
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.stores import CheckpointNotStored, CheckpointStored, KeeperDied, StoreOvertaken
from ftlaunch.spec.job_spec import SavingSpec

Answer = dict[str, Any]
Done = Callable[[Answer], None]
"""takes the keeper's answer to a request"""

_NO_KEEPER = "no process keeps the store any more; the next start of the job starts one"
_MOST_DEATHS = 3  # in a row, until what was asked is given up; the next request starts a keeper again
_POLL_SECONDS = 1.0  # between two polls of the keeper


@dataclass(frozen=True)
class _Asked:
    """A request to the keeper."""

    request: Answer
    on_done: Done | None
    """takes the answer; None: a request to have the store follow the folder, whose answer only becomes an event"""

    def hurried(self) -> _Asked:
        """Return the same request, which need not keep to a bandwidth."""
        return replace(self, request={**self.request, "bandwidth": None}) if "bandwidth" in self.request else self


class KeeperLink:
    """The keeper of an open store, and what it has still to do."""

    def __init__(
        self,
        opening: StoreOpening,
        saving: SavingSpec,
        report: Callable[[JobEvent], None],
        overtaken: Callable[[str], None],
    ) -> None:
        """Take over the keeper that has opened the store. What only the folder has goes to the store at once.

        Args:
            opening: has opened the store.
            saving: the job's settings.
            report: reports an event.
            overtaken: stops the job, with a reason: another process keeps the store now.

        Raises:
            OSError: there is no descriptor left.
        """
        self._opening = opening
        self._report = report
        self._overtaken = overtaken
        self.where = str(opening.opened["where"])
        """the address of the store, for people"""
        self.stored: dict[str, str] = opening.opened["stored"]
        """what the store has, as the keeper has said last: what `Index.digests` returns"""
        self.is_over = False
        """whether nothing can be asked any more: another process keeps the store, or the job has ended"""
        self._waiting: deque[_Asked] = deque()
        self._under_way: _Asked | None = None
        self._deaths = 0  # in a row
        self._tries = 0  # to have the store follow the folder, that have failed in a row
        self._keepers = select.epoll()
        self.fd = self._keepers.fileno()
        """readable when the keeper has answered, or has died; the same for all keepers of the job"""
        self._link: SaverLink | None = None
        self._use(opening.keeper)
        if opening.opened["is_behind"]:
            self.publish(saving.keep, saving.keep_every, saving.storage_bandwidth)

    def _use(self, link: SaverLink) -> None:
        self._keepers.register(link.fd, select.EPOLLIN)
        self._link = link

    @property
    def is_busy(self) -> bool:
        """Whether the keeper has still to do what it was asked for."""
        return bool(self._under_way or self._waiting)

    def is_asked(self, verb: str) -> bool:
        """Return whether the keeper has still to do such a request, a name such as "publish"."""
        asked = (*self._waiting, *([self._under_way] if self._under_way else ()))
        return any(one.request["do"] == verb for one in asked)

    def ask(self, request: Answer, on_done: Done) -> None:
        """Ask the keeper after what it was asked for before. `on_done` takes the answer, also if there is no keeper."""
        if self.is_over:
            on_done({"did": request["do"], "error": _NO_KEEPER})
            return
        self._waiting.append(_Asked(request, on_done))
        self._ask_next()

    def ask_urgently(self, request: Answer, on_done: Done) -> None:
        """Ask the keeper before steps are uploaded that wait for that, and hurry an upload under way: ranks wait."""
        uploads = [one for one in self._waiting if one.request["do"] == "publish"]
        self._waiting = deque(one for one in self._waiting if one.request["do"] != "publish")
        self.hurry()
        self.ask(request, on_done)
        self._waiting.extend(uploads)
        self._ask_next()

    def forget_asked(self) -> None:
        """Forget the requests that wait, and whose answers nobody waits for any more: the saver behind them has died.

        The next saver may be writing into the same directory of a step by then. A request that the keeper has already
        goes on, and so does what the store is to follow.
        """
        self._waiting = deque(one for one in self._waiting if one.on_done is None)

    def publish(self, keep: int, keep_every: int | None, bandwidth: float | None) -> None:
        """Have the keeper bring to the store what the folder has, and let old steps go.

        Args:
            keep: how many checkpoints to keep.
            keep_every: steps; a checkpoint at a multiple is kept. 0 or None: no such steps.
            bandwidth: bytes a second at most; None: the job waits for this, and for what the keeper does before.
        """
        if bandwidth is None:
            self.hurry()
        self._follow({"do": "publish", "keep": keep, "keep_every": keep_every, "bandwidth": bandwidth})

    def put_aside(self, above: int) -> None:
        """Have the keeper put the steps of the store after `above` aside, as the folder has done."""
        self._follow({"do": "put_aside", "above": above})

    def _follow(self, request: Answer) -> None:
        """Have the store follow the folder; a second request to publish says nothing that the first does not."""
        asked = _Asked(request, None)
        if asked not in self._waiting and not self.is_over:
            self._waiting.append(asked)
        self._ask_next()

    def _ask_next(self) -> None:
        if self._waiting and self._link is None:
            self._start_another()
        if self._waiting and self._link is not None and self._link.pending is None:
            self._under_way = self._waiting.popleft()
            self._link.ask(self._under_way.request)

    def hurry(self) -> None:
        """Let uploads that were asked for go on as fast as they can, also where another keeper has to repeat them."""
        self._waiting = deque(one.hurried() for one in self._waiting)
        if self._under_way is not None:
            self._under_way = self._under_way.hurried()
            if self._link is not None:
                self._link.hurry()

    def work(self) -> object:
        """Return something that changes whenever the keeper has done anything."""
        return None if self._link is None else self._link.work()

    # --- answers, and the end of a keeper -----------------------------------------------------------------------

    def receive(self) -> None:
        """Take the answers that have arrived, and ask the next request."""
        if self._link is None:
            return
        answers = self._link.answers()
        if answers is None:
            self._start_in_its_place()
        for answer in answers or ():
            self._take(answer)
        self._ask_next()

    def _take(self, answer: Answer) -> None:
        is_asked = answer["did"] not in ("heartbeat", "go_on")  # neither is the answer to the request under way
        asked = self._under_way if is_asked else None
        if is_asked:
            self._under_way = None
        if is_asked or not self._waiting:
            self._deaths = 0
        self.stored = answer.get("stored", self.stored)
        if answer.get("overtaken"):
            self._report(StoreOvertaken(answer["error"]))
            self._overtaken(answer["error"])
            self._leave()
        if asked is not None and asked.on_done is not None:
            asked.on_done(answer)
        else:
            self._report_outcome(answer)

    def _report_outcome(self, answer: Answer) -> None:
        """Report how well the store follows the folder. Who has taken the store over is reported elsewhere."""
        if answer.get("overtaken"):
            return
        if "error" in answer:
            self._tries += 1
            self._report(CheckpointNotStored(self.where, answer["error"], self._tries))
        elif answer["did"] == "publish":
            self._tries = 0
            if answer["steps"]:
                self._report(CheckpointStored(answer, self.where))

    def _start_in_its_place(self) -> None:
        """Start another keeper in the place of one that has died, unless too many have died over the same request."""
        status = self._drop(0.0)
        self._deaths += 1
        if self._under_way is not None:
            self._waiting.appendleft(self._under_way)
            self._under_way = None
        if self._deaths >= _MOST_DEATHS:
            self._give_up(f"the process that brings them there has died (exit status {status})")
            return
        self._report(KeeperDied(self.where, status))
        self._start_another()

    def _start_another(self) -> None:
        try:
            self._use(self._opening.start_another())
        except OSError as error:
            self._give_up(f"no process can be started that brings them there: {error.strerror}")

    def _give_up(self, error: str) -> None:
        """Give up what the keeper was asked for. The next request starts a keeper, if there is none."""
        self._tries += 1
        self._report(CheckpointNotStored(self.where, error, self._tries))
        self._answer_all(error)

    def _answer_all(self, error: str) -> None:
        """Answer everything that the keeper was asked for with an error."""
        asked = [*([self._under_way] if self._under_way else ()), *self._waiting]
        self._under_way = None
        self._waiting.clear()
        for one in asked:
            if one.on_done is not None:
                one.on_done({"did": one.request["do"], "error": error})

    def _drop(self, timeout: float) -> int | None:
        """Let the keeper end within `timeout` seconds. Return its exit status; None: it is in a system call."""
        assert self._link is not None
        self._keepers.unregister(self._link.fd)
        status = self._link.close(timeout)
        self._link = None
        return status

    def _leave(self) -> None:
        """Ask no keeper any more: what is committed stays in the folder, and goes to the store at the next start."""
        self.is_over = True
        if self._link is not None:
            self._drop(LEAVE_SECONDS)
        self._answer_all(_NO_KEEPER)

    def finish(self, timeout: float, is_interrupted: Callable[[], bool]) -> None:
        """Wait until the keeper has done what it was asked for, and end it.

        An upload may take as long as it takes. The keeper is killed once it has done nothing for `timeout` seconds, or
        the job is told to stop; what it had not brought to the store is told.
        """
        work: object = None
        idle_since = time.monotonic()
        while self.is_busy:
            if self._keepers.poll(_POLL_SECONDS):
                self.receive()
            elif is_interrupted():
                self._give_up("the job was told to stop meanwhile")
            elif self.work() != work:
                work = self.work()
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since > timeout:
                self._give_up("it does not answer")
        self._leave()
        self._keepers.close()
