"""Listens to the saver for the event loop, and starts another in the place of one that has died."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.checkpoints.save_scheduler import Answer, SaveScheduler
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import SaverDied, SaverMissing, is_abnormal, of_save
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.loop import Loop

_AGAIN = 1.0  # seconds until it is tried again to start a saver


class SaverWatch:
    """Hears the saver of a job, limits how long a save may stand still, and replaces a saver that has died."""

    def __init__(
        self,
        spec: JobSpec,
        loop: Loop,
        clock: Callable[[], float],
        tell: Callable[[JobEvent], None],
        heed: Callable[[Answer], None],
        abandon: Callable[[str], None],
    ) -> None:
        """heed: takes what the saver answers, and that it has died. abandon: gives up what waits for a save."""
        self._spec, self._loop, self._clock, self._tell = spec, loop, clock, tell
        self._heed, self._abandon = heed, abandon
        self._missing_since: float | None = None
        self._after_abnormal = False

    def listen(self, saving: SaveScheduler) -> None:
        """Take what the running saver answers."""
        self._loop.register(saving.link.fd, lambda: self._on_answer(saving))

    def _on_answer(self, saving: SaveScheduler) -> None:
        now = self._clock()
        answers = saving.answers(now)
        if answers is None:
            self._loop.unregister(saving.link.fd)
            self._revive(saving)
            return
        for answer in answers:
            self._take(answer, saving.keep)

    def _revive(self, saving: SaveScheduler) -> None:
        """Start another saver.

        The ranks go on without one for as long as none can be started: what is due is saved later. At its end the
        job waits no longer than the grace, counted from when there was none.
        """
        now = self._clock()
        try:
            answers = saving.revive()
        except OSError as error:
            self._loop.call_at(now + _AGAIN, "saver", lambda: self._revive(saving))
            if self._missing_since is None:
                self._missing_since = now
                self._tell(SaverMissing(error.strerror))
            if now - self._missing_since > self._spec.grace:
                self._abandon(f"no saver can be started: {error.strerror}")
            return
        self._missing_since = None
        self.listen(saving)
        for answer in answers:
            self._take(answer, saving.keep)

    def _take(self, answer: Answer, keep: int) -> None:
        if answer["did"] == "die":
            self._tell(SaverDied(answer))
        elif answer["did"] == "save":
            for event in of_save(answer, self._spec, keep=keep, after_abnormal=self._after_abnormal):
                self._tell(event)
            if "error" not in answer:
                self._after_abnormal = is_abnormal(answer)
        self._heed(answer)
