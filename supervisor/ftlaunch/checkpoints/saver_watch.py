"""Connects the saver to the event loop: reports its answers, and starts another saver after one has died.

`engine/supervisor.py` makes one SaverWatch for a job; all calls come from the event loop in the main thread.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.checkpoints.save_scheduler import Answer, SaveScheduler
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import SaverDied, SaverMissing, is_abnormal, of_save
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.loop import Loop

_RETRY_SECONDS = 1.0
"""time between two tries to start a saver"""


class SaverWatch:
    """Takes the answers of a job's saver, and replaces a saver that has died."""

    def __init__(
        self,
        spec: JobSpec,
        loop: Loop,
        clock: Callable[[], float],
        report: Callable[[JobEvent], None],
        on_answer: Callable[[Answer], None],
        abandon: Callable[[str], None],
    ) -> None:
        """Watch nothing until `listen`.

        Args:
            spec: the job.
            loop: waits for answers, and for the time of the next try to start a saver.
            clock: returns monotonic seconds.
            report: reports an event.
            on_answer: called with each answer of the saver, and with the news of its death (`did` is "die").
            abandon: called with a reason when no saver can be started for longer than the grace, to give up the last
                save of the job if one is under way.
        """
        self._spec = spec
        self._loop = loop
        self._clock = clock
        self._report = report
        self._answer_handler = on_answer
        self._abandon = abandon
        self._missing_since: float | None = None  # monotonic; None: there is a saver
        self._after_abnormal = False  # whether the newest checkpoint is marked abnormal

    def listen(self, saving: SaveScheduler) -> None:
        """Take the answers of the running saver, and of all that take its place."""
        self._loop.register(saving.link.fd, lambda: self._on_answer(saving))

    def _on_answer(self, saving: SaveScheduler) -> None:
        now = self._clock()
        answers = saving.answers(now)
        if answers is None:
            self._loop.unregister(saving.link.fd)
            self._revive(saving)
            return
        for answer in answers:
            self._handle(answer, saving.keep)

    def _revive(self, saving: SaveScheduler) -> None:
        """Start another saver, or try again later.

        The ranks train on while no saver can be started, and what is due is saved later. The end of the job waits for a
        saver no longer than the grace, counted from the moment when the first try failed.
        """
        now = self._clock()
        try:
            answers = saving.revive()
        except OSError as error:
            self._loop.call_at(now + _RETRY_SECONDS, "saver", lambda: self._revive(saving))
            if self._missing_since is None:
                self._missing_since = now
                self._report(SaverMissing(error.strerror))
            if now - self._missing_since > self._spec.grace:
                self._abandon(f"no saver can be started: {error.strerror}")
            return
        self._missing_since = None
        self.listen(saving)
        for answer in answers:
            self._handle(answer, saving.keep)

    def _handle(self, answer: Answer, keep: int) -> None:
        """Report an answer of the saver and hand it on. keep: number of checkpoints that are kept."""
        if answer["did"] == "die":
            self._report(SaverDied(answer))
        elif answer["did"] == "save":
            for event in of_save(answer, self._spec, keep=keep, after_abnormal=self._after_abnormal):
                self._report(event)
            if "error" not in answer:
                self._after_abnormal = is_abnormal(answer)
        self._answer_handler(answer)
