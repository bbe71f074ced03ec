"""Reports that storage does not answer: the saver hangs in a system call.

Nothing can be done about this: a process in such a call cannot be killed, and another saver would run into the same
call. The training goes on, and the end of the job does not wait for such a saver (`final_save.py`). A saver that was
stopped by SIGSTOP is killed instead. `engine/supervisor.py` calls `poll` in every turn of its loop.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.checkpoints.save_scheduler import SaveScheduler
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import StorageAnswers, StorageSilent

_POLL_SECONDS = 5.0
"""time between two polls of what the saver has done"""
_FIRST_REPORT_SECONDS = 60.0
"""time without a sign of work until the first report; the time to the next report doubles with each one"""
_LONGEST_PAUSE_SECONDS = 3600.0
"""longest time between two reports"""


class SaverSilence:
    """Notices when the saver of a job has done nothing for a while, and reports this, and the end of the silence."""

    def __init__(self, saving: SaveScheduler, report: Callable[[JobEvent], None]) -> None:
        self._saving = saving
        self._report = report
        self._work: object = None  # what the saver had done at the last poll
        self._since = 0.0  # monotonic; when the saver was last seen to have worked
        self._polled_at = float("-inf")
        self._due_seconds = _FIRST_REPORT_SECONDS  # length of the silence at which it is reported next
        self._pause_seconds = _FIRST_REPORT_SECONDS

    def poll(self, now: float) -> None:
        """Compare what the saver has done with what it had done at the last poll. now: monotonic seconds."""
        self._saving.link.kill_if_stopped(now)
        if now - self._polled_at < _POLL_SECONDS:
            return
        self._polled_at = now
        work = self._saving.work()
        if work is None or work != self._work:
            self._end_silence(now)
            self._work = work
            self._since = now
            return
        silent_seconds = now - self._since
        if silent_seconds >= self._due_seconds:
            self._report(
                StorageSilent(
                    seconds=silent_seconds,
                    place=self._saving.spec.checkpoint_dir,
                    newest=self._saving.committed,
                    age=self._saving.age(now),
                )
            )
            self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)
            self._due_seconds = silent_seconds + self._pause_seconds

    def _end_silence(self, now: float) -> None:
        """Report the end of a silence that was reported."""
        if self._pause_seconds != _FIRST_REPORT_SECONDS:
            self._report(StorageAnswers(now - self._since))
        self._due_seconds = _FIRST_REPORT_SECONDS
        self._pause_seconds = _FIRST_REPORT_SECONDS
