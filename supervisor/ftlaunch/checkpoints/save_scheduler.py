"""When which step is committed to storage, and the talk with the saver about it."""

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

_TRIES = {"save": 2, "find": 5, "go_back": 5}
"""times that the saver is asked the same before that has failed: a save that fails is made of a newer step, and without
an answer about what storage has the job cannot go on"""


class SaveScheduler:
    """Holds the saver. One request at a time; what falls due meanwhile is done afterwards from newer snapshots."""

    def __init__(self, spec: JobSpec, pages: Pages, start: Callable[[], Saver], abnormal: Callable[[int], str]) -> None:
        """start: makes a new saver, also after one has died. abnormal: what is held against a step's numbers."""
        self._abnormal = abnormal
        self.spec, self.pages, self._start = spec, pages, start
        self.link = start()
        self.committed = max((step for step, _ in layout.list_iterations(spec.checkpoint_dir)), default=NONE)
        self._tried = self.committed  # newest step a save was attempted of
        self._waiting: deque[Answer] = deque()
        self._deaths = 0  # of savers over the request under way
        self._heard_wish = NONE, NONE  # attempt and step of the newest `job.save()` that was heard
        self._requested = False  # a checkpoint is asked for, by a rank or a person, and none was begun since
        self._asked = self._asked_by(self.pages[0])  # what the script asks for; of a run before, until it asks anew
        self._next_time: float | None = None
        self._committed_at: float | None = None  # monotonic; of `committed`, where this run has committed it

    @property
    def busy(self) -> bool:
        """A request is under way, or there is no saver to ask."""
        return self.link.closed or self.link.pending is not None

    @property
    def finding(self) -> bool:
        """The saver looks, or is to look, for a checkpoint that ranks wait for, or goes back to one."""
        pending = self.link.pending
        return bool(self._waiting) or (pending is not None and pending["do"] in ("find", "go_back"))

    def work(self) -> object:
        """Changes whenever the saver has done something; None while nothing is asked of it."""
        if self.link.pending is None or self.link.closed:
            return None
        return self.link.pid, self.link.work()

    def age(self, now: float) -> float | None:
        """Seconds since `committed` was; None where this run did not commit it."""
        return None if self._committed_at is None else now - self._committed_at

    # --- what the script asks for ---------------------------------------------------------------------------

    @property
    def keep(self) -> int:
        """How many checkpoints are kept."""
        return self._asked.keep or self.spec.saving.keep

    @property
    def _interval(self) -> StorageInterval:
        if self._asked.steps is not None or self._asked.seconds is not None:
            return StorageInterval(self._asked.steps, self._asked.seconds)
        return self.spec.saving.storage_interval

    def _asked_by(self, page: Page) -> SavingRequest:
        """What the process of rank 0 asks for, where no setting that the job was given says otherwise."""
        return (page.asked_saves or SavingRequest()).against(self.spec.saving.given)[0]

    def _hear_asked(self, pages: Sequence[Page], now: float) -> None:
        """A process that trains has asked for what it wants; of one that starts what was asked before holds on."""
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
        """Steps between checkpoints. Those that the script asks for its ranks hold by themselves (step_schedule.py)."""
        return None if self._asked.steps is not None else self._interval.steps

    def first_due(self, resume_step: int) -> int:
        """The step to hold first after a resume at `resume_step`; NONE where a duration or nothing decides."""
        every = self._announced_every
        return NONE if every is None else (resume_step // every + 1) * every

    def start_clock(self, now: float) -> None:
        """A storage interval that is a duration counts from the first attempt on."""
        if self._interval.seconds is not None and self._next_time is None:
            self._next_time = now + self._interval.seconds

    def tick(self, pages: Sequence[Page], front: tuple[int, float], now: float) -> None:
        """Ask for what all ranks hold, announce what is due.

        pages: those that speak of the running attempt. front: the newest step of any rank, the shortest step time.
        """
        self._hear_asked(pages, now)
        if self.busy:
            return
        held = {page.save_step for page in pages}
        step = held.pop() if len(held) == 1 and len(pages) == len(self.pages) else NONE
        # a rank's page is the rank's word: one that names a step which no slot holds has nothing to be saved
        if step > max(self.pages[0].saved, self.committed) and self.pages.all_hold(step):
            why = Why(self.pages[0].save_why)
            self.save(step, Why.REQUEST if self._requested and why is Why.INTERVAL else why)
            return
        missed = max((page.missed_step for page in pages), default=NONE)
        if missed > self.pages[0].saved:
            self.pages.release(missed)  # a rank has no snapshot of it: nobody is to wait until it is saved
        self._hear_wishes(pages)
        newest, seconds = front
        soon = announce_step(newest, seconds, self.pages.delay_seconds)
        if self._due(newest, soon, now):
            self.pages.hold_at(soon)

    def request(self) -> None:
        """Somebody asks for a checkpoint of one of the next steps."""
        self._requested = True

    def _hear_wishes(self, pages: Sequence[Page]) -> None:
        wish = max(((page.attempt, page.want_save) for page in pages if page.want_save != NONE), default=(NONE, NONE))
        if wish > self._heard_wish:
            self._heard_wish = wish
            self.request()

    def _due(self, front: int, soon: int, now: float) -> bool:
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
        """Ask the saver to commit a step that all ranks have in memory. Raises ValueError."""
        self._requested = False
        self.pages.reading(step)  # from here on ranks keep off these slots
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
        """The job waits for the save under way: it need not keep to its bandwidth."""
        if self.link.pending is not None and not self.link.closed:
            self.link.hurry()

    def find(self, load: Path | None = None, healthy_before: int | None = None) -> None:
        """Ask for the newest checkpoint that verifies, or the one to load, once the saver is free.

        healthy_before: of those only that are older than this step and marked healthy.
        """
        request: Answer = {"do": "find", "checkpoint_dir": str(self.spec.checkpoint_dir)}
        if load is not None:
            request = {"do": "find", "load": str(load)}
        elif healthy_before is not None:
            request["healthy_before"] = healthy_before
        self._ask(request)

    def go_back(self, step: int, skip: tuple[int, int] | None) -> None:
        """Have the checkpoints after `step` put aside (NONE: all), and samples left out, once the saver is free.

        skip: the first sample, and the one after the last.
        """
        self._ask({"do": "go_back", "checkpoint_dir": str(self.spec.checkpoint_dir), "step": step, "skip": skip})

    def _ask(self, request: Answer) -> None:
        if self.busy:
            self._waiting.append(request)
        else:
            self.link.ask(request)

    def answers(self, now: float) -> list[Answer] | None:
        """What the saver says; None when it is gone."""
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
        """Start a saver in the place of one that is gone. It is asked the same a few times, then that has failed.

        Raises OSError where none can be started: nothing is lost, and it can be called again.
        """
        pending = self.link.pending
        status = self.link.close(1.0)
        self.link = self._start()
        self._deaths += pending is not None
        again = pending is not None and self._deaths < _TRIES[pending["do"]]
        died: Answer = {"did": "die", "status": status, "request": pending, "again": again}
        if pending is None:
            self._ask_waiting()
            return [died]
        if again:
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
        """Checkpoints after `step` are put aside (NONE: all are): what follows is saved again."""
        self.committed = self._tried = step
        self.pages.went_back(step)

    def _saved(self, answer: Answer, now: float) -> None:
        self.pages.reading(NONE)
        self.pages.release(answer["step"])
        self._tried = max(self._tried, answer["step"])
        if "error" not in answer:
            self.committed = max(self.committed, answer["step"])
            self._committed_at = now
        if self._interval.seconds is not None:
            self._next_time = now + self._interval.seconds
