"""Says, again and again, that storage does not answer: the saver is in a system call that does not come back.

Nothing is done about it: a process in such a call cannot be killed, and another saver would run into the same call. The
training goes on. Its end does not wait for such a saver: see final_save.py. A saver that was stopped is ended instead.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.checkpoints.save_scheduler import SaveScheduler
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.checkpoints import StorageAnswers, StorageSilent

_LOOK = 5.0  # seconds between looks at what the saver does
_FIRST = 60.0  # seconds without a sign of work until it is said; then after twice as long each time
_LONGEST = 3600.0


class SaverSilence:
    """Notices when the saver of a job has done nothing for a while, and tells so."""

    def __init__(self, saving: SaveScheduler, tell: Callable[[JobEvent], None]) -> None:
        self._saving, self._tell = saving, tell
        self._work: object = None
        self._since, self._looked = 0.0, float("-inf")
        self._due, self._pause = _FIRST, _FIRST

    def look(self, now: float) -> None:
        """Compare what the saver has done with what it had done at the look before. now: monotonic seconds."""
        self._saving.link.look(now)
        if now - self._looked < _LOOK:
            return
        self._saving.link.look(now)
        self._looked, work = now, self._saving.work()
        if work is None or work != self._work:
            self._end(now)
            self._work, self._since = work, now
            return
        silent = now - self._since
        if silent >= self._due:
            newest = self._saving.committed, self._saving.age(now)
            self._tell(StorageSilent(silent, self._saving.spec.checkpoint_dir, *newest))
            self._pause = min(2 * self._pause, _LONGEST)
            self._due = silent + self._pause

    def _end(self, now: float) -> None:
        if self._pause != _FIRST:
            self._tell(StorageAnswers(now - self._since))
        self._due = self._pause = _FIRST
