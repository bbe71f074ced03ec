"""Schedules commits to storage: decides when which step is saved, and sends the saver its requests one at a time.

`engine/supervisor.py` makes one scheduler for a job and calls it in the main thread; the ranks learn from their pages
which step they are to hold. Nothing here waits for the saver, a process of its own (`checkpoints/saver.py`). A job of
several nodes has one saver process on each node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ftlaunch.checkpoints.saver_client import Saver
from ftlaunch.memory.pages import Pages
from ftlaunch.memory.recovery_plan import NONE
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.spec.parsers import StorageInterval
from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Why, announce_step
from ftlaunch_contract.saving_request import SavingRequest

Answer = dict[str, Any]
"""a request to the saver or an answer of the saver; the keys are listed in `checkpoints/saver.py`"""

_MOST_TRIES = {"save": 2, "find": 5, "go_back": 5}
"""how often the saver is asked the same before the request has failed: a failed save is followed by a save of a newer
step, but the job cannot go on without an answer about what storage has"""


class SaveScheduler:
    """Holds the saver and decides what to ask.

    One request is under way at a time. A save that falls due meanwhile is made afterwards, from newer snapshots.

    Attributes:
        spec: the job.
        pages: the pages of all ranks.
        link: the running saver; another one after a saver has died.
        committed: the newest step on storage, or NONE.
    """

    def __init__(self, spec: JobSpec, pages: Pages, start: Callable[[], Saver], abnormal: Callable[[int], str]) -> None:
        """Start the saver.

        Args:
            spec: the job.
            pages: the pages of all ranks.
            start: starts a saver, now and after each death of one.
            abnormal: returns what is wrong with the numbers of a step, as a sentence; "": nothing.

        Raises:
            OSError: the saver cannot be started, or the checkpoint directory cannot be read.
        """
        self._abnormal = abnormal
        self.spec = spec
        self.pages = pages
        self._start = start
        self.link = start()
        listed = max((step for step, _ in layout.list_iterations(spec.checkpoint_dir)), default=NONE)
        self.committed = max(listed, self.link.stored)
        self._tried = self.committed  # the newest step whose save was attempted
        self._waiting: deque[Answer] = deque()
        self._deaths = 0  # of savers over the request under way
        self._newest_wish = NONE, NONE  # attempt and step of the newest `job.save()` that was noticed
        self._requested = False  # whether a rank or a person has asked for a checkpoint and none was begun since
        self._asked = self._asked_by(self.pages[0])  # by the script; until then by the run before
        self._next_time: float | None = None  # monotonic; when the next save is due by time
        self._committed_at: float | None = None  # monotonic; None: an earlier run has committed `committed`

    @property
    def busy(self) -> bool:
        """Whether a request is under way, or there is no saver to ask."""
        return self.link.closed or self.link.pending is not None

    @property
    def finding(self) -> bool:
        """Whether ranks may wait for the saver, which is to find a checkpoint or to go back to one."""
        pending = self.link.pending
        return bool(self._waiting) or (pending is not None and pending["do"] in ("find", "go_back"))

    def work(self) -> object:
        """Return a value that changes whenever the saver has done something; None while no request is under way."""
        if self.link.pending is None or self.link.closed:
            return None
        return self.link.pid, self.link.work()

    def age(self, now: float) -> float | None:
        """Return the seconds since `committed` was committed; None if an earlier run did so."""
        return None if self._committed_at is None else now - self._committed_at

    # --- what the script asks for ---------------------------------------------------------------------------

    @property
    def keep(self) -> int:
        """The number of checkpoints to keep."""
        return self._asked.keep or self.spec.saving.keep

    @property
    def _interval(self) -> StorageInterval:
        if self._asked.steps is not None or self._asked.seconds is not None:
            return StorageInterval(self._asked.steps, self._asked.seconds)
        return self.spec.saving.storage_interval

    def _asked_by(self, page: Page) -> SavingRequest:
        """Return what rank 0's script asks for, without anything that the settings of the job forbid to change."""
        return (page.asked_saves or SavingRequest()).against(self.spec.saving.given)[0]

    def _update_asked(self, pages: Sequence[Page], now: float) -> None:
        """Take over what rank 0's script asks for, once the script trains; until then the earlier request holds."""
        leader = next((page for page in pages if page is self.pages[0]), None)
        if leader is None or (leader.saves_asked == NONE and leader.step <= leader.resumed[1]):
            return
        asked = self._asked_by(leader)
        if asked != self._asked:
            self._asked = asked
            self._next_time = None if self._interval.seconds is None else now + self._interval.seconds

    # --- choosing steps -----------------------------------------------------------------------------------

    @property
    def _announced_every(self) -> int | None:
        """Steps between the checkpoints that are announced to the ranks; None: none are announced by steps.

        An interval that the script asks for is not announced: the ranks hold such steps by themselves
        (step_schedule.py in the hooks).
        """
        return None if self._asked.steps is not None else self._interval.steps

    def first_due(self, resume_step: int) -> int:
        """Return the first step to hold after a resume at `resume_step`; NONE if no step is due by steps."""
        every = self._announced_every
        return NONE if every is None else (resume_step // every + 1) * every

    def start_clock(self, now: float) -> None:
        """Start the storage interval, if it is a duration. Later calls do nothing, so the first attempt counts."""
        if self._interval.seconds is not None and self._next_time is None:
            self._next_time = now + self._interval.seconds

    def tick(self, pages: Sequence[Page], front: tuple[int, float], now: float) -> None:
        """Save the step that all ranks hold, or announce the next step to hold if one is due.

        Args:
            pages: the pages that the ranks of the running attempt have written to.
            front: the newest step of any rank, and the shortest step time in seconds.
            now: monotonic seconds.
        """
        self._update_asked(pages, now)
        if self.busy:
            return
        held = {page.save_step for page in pages}
        step = held.pop() if len(held) == 1 and len(pages) == len(self.pages) else NONE
        # A page is written by its rank and may be wrong: a step that no slot holds cannot be saved.
        if step > max(self.pages[0].saved, self.committed) and self.pages.all_hold(step):
            why = Why(self.pages[0].save_why)
            self.save(step, Why.REQUEST if self._requested and why is Why.INTERVAL else why)
            return
        missed = max((page.missed_step for page in pages), default=NONE)
        if missed > self.pages[0].saved:
            self.pages.release(missed)  # a rank has no snapshot of this step, so that no rank may wait for its save
        self._notice_wishes(pages)
        newest, step_seconds = front
        soon = announce_step(newest, step_seconds, self.pages.delay_seconds)
        if self._due(newest, soon, now):
            self.pages.hold_at(soon)

    def request(self) -> None:
        """Have one of the next steps saved, because a rank or a person asks for a checkpoint."""
        self._requested = True

    def _notice_wishes(self, pages: Sequence[Page]) -> None:
        """Take each new `job.save()` of a rank as a request."""
        wish = max(((page.attempt, page.want_save) for page in pages if page.want_save != NONE), default=(NONE, NONE))
        if wish > self._newest_wish:
            self._newest_wish = wish
            self.request()

    def _due(self, front: int, soon: int, now: float) -> bool:
        """Return whether the step `soon` is to be announced. Announces a later step by itself if only that is due.

        Args:
            front: the newest step of any rank.
            soon: the first step that all ranks can still learn about in time.
            now: monotonic seconds.
        """
        announced = self.pages[0].persist_at
        if announced != NONE and front <= announced:  # still ahead, or just being held
            return self._requested and announced > soon
        if self._requested:
            return True
        every = self._announced_every
        if every is not None:
            following = (max(self._tried, 0) // every + 1) * every
            if front < following:
                if announced != following:
                    self.pages.hold_at(following)
                return False
            return True
        return self._next_time is not None and now >= self._next_time

    # --- the saver ----------------------------------------------------------------------------------------

    def save(self, step: int, why: Why) -> None:
        """Ask the saver, which must not be busy, to commit a step that all ranks have in memory.

        Args:
            step: the step.
            why: the reason that is noted in the checkpoint.

        Raises:
            ValueError: a rank has no snapshot of the step.
        """
        self._requested = False
        self.pages.reading(step)  # from now on the ranks do not overwrite the slots of this step
        slots = [
            str(layout.slot_dir(self.pages.directory, rank, self.pages.slot_of(rank, step)))
            for rank in range(len(self.pages))
        ]
        self.link.ask(
            {
                "do": "save",
                "step": step,
                "why": why.name.lower(),
                "checkpoint_dir": str(self.spec.checkpoint_dir),
                "prefix": self.spec.job_id,
                "ranks": slots,
                "keep": self.keep,
                "keep_every": self.spec.saving.keep_every,
                "abnormal": self._abnormal(step),
                "bandwidth": self.spec.saving.storage_bandwidth if why in (Why.INTERVAL, Why.REQUEST) else None,
            }
        )

    def hurry(self) -> None:
        """Lift the bandwidth limit of the save under way, because the job waits for the save."""
        if self.link.pending is not None and not self.link.closed:
            self.link.hurry()

    def find(self, load: Path | None = None, healthy_before: int | None = None) -> None:
        """Ask for the newest checkpoint that verifies, as soon as the saver is free.

        Args:
            load: a checkpoint, or a folder of checkpoints, of another job; None: the job's own checkpoints.
            healthy_before: only checkpoints before this step that are marked healthy count; None: all count.
        """
        request: Answer = {"do": "find", "checkpoint_dir": str(self.spec.checkpoint_dir)}
        if load is not None:
            request = {"do": "find", "load": str(load)}
        elif healthy_before is not None:
            request["healthy_before"] = healthy_before
        self._ask(request)

    def go_back(self, step: int, skip: tuple[int, int] | None) -> None:
        """Have later checkpoints put aside and samples left out, as soon as the saver is free.

        Args:
            step: checkpoints after this step are put aside; NONE: all are.
            skip: the first sample to leave out and the sample after the last one; None: no sample.
        """
        self._ask({"do": "go_back", "checkpoint_dir": str(self.spec.checkpoint_dir), "step": step, "skip": skip})

    def _ask(self, request: Answer) -> None:
        if self.busy:
            self._waiting.append(request)
        else:
            self.link.ask(request)

    def answers(self, now: float) -> list[Answer] | None:
        """Return the answers that have arrived, and send the next waiting request; None if the saver is gone."""
        answers = self.link.answers()
        for answer in answers or ():
            self._deaths = 0
            if answer["did"] == "save":
                self._saved(answer, now)
        self._ask_waiting()
        return answers

    def _ask_waiting(self) -> None:
        if not self.busy and self._waiting:
            self.link.ask(self._waiting.popleft())

    def revive(self) -> list[Answer]:
        """Start a saver in the place of one that is gone, and repeat the request under way, up to `_MOST_TRIES` times.

        Returns:
            The news of the death (`did` is "die"), and a failed answer to the request if it was tried too often.

        Raises:
            OSError: no saver can be started. Nothing is lost; call `revive` again later.
        """
        pending = self.link.pending
        status = self.link.close(1.0)
        self.link = self._start()
        self._deaths += pending is not None
        is_repeated = pending is not None and self._deaths < _MOST_TRIES[pending["do"]]
        died: Answer = {"did": "die", "status": status, "request": pending, "again": is_repeated}
        if pending is None:
            self._ask_waiting()
            return [died]
        if is_repeated:
            self.link.ask(pending)
            return [died]
        failed = {**pending, "did": pending["do"], "error": f"the saver died {self._deaths} times over it ({status})"}
        self._deaths = 0
        self._ask_waiting()
        if failed["did"] == "save":
            self._saved(failed, 0.0)
        elif failed["did"] == "find":
            failed |= {"step": NONE, "rejected": []}
        return [died, failed]

    def went_back(self, step: int) -> None:
        """Note that the checkpoints after `step` (NONE: all) are put aside, so that later steps are saved again."""
        self.committed = self._tried = step
        self.pages.went_back(step)

    def _saved(self, answer: Answer, now: float) -> None:
        """Note the end of a save, also of a failed one, and give its slots back to the ranks."""
        self.pages.reading(NONE)
        self.pages.release(answer["step"])
        self._tried = max(self._tried, answer["step"])
        if "error" not in answer:
            self.committed = max(self.committed, answer["step"])
            self._committed_at = now
        if self._interval.seconds is not None:
            self._next_time = now + self._interval.seconds
