"""The limits of a job as it runs: what its ranks teach is noted in the run dir, for later runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftlaunch.health import limits_file
from ftlaunch.health.hang_detection import Wait
from ftlaunch.health.healthy_waits import HealthyWaits
from ftlaunch.health.time_limits import TimeLimits, asked_by
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThread

_NOTE_EVERY = 60.0  # seconds between writes: what a killed supervisor forgets at most,
_WORTH = 1.1  # but for what has grown by less than a tenth


class LimitLearning:
    """Knows the limits of a job, and keeps what they are learned from."""

    def __init__(self, spec: JobSpec, files: FileThread, say: Callable[[str], None]) -> None:
        """Read what earlier runs have noted; what cannot be used is said, and left out.

        files: writes in the run dir.
        """
        self.spec, self._files, self._say = spec, files, say
        self._noted = {} if spec.saving.fresh else self._read()
        self._longest = dict(self._noted)
        self._note_at = 0.0  # the first look decides
        self.limits: TimeLimits = asked_by(spec, self._longest)

    def _read(self) -> dict[str, float]:
        try:
            return limits_file.read(self.spec.run_dir, self.spec.job_id)
        except limits_file.NotOurs as error:
            why = str(error)
        except OSError as error:
            why = str(error.strerror)
        self._say(f"cannot use {self.spec.run_dir / limits_file.LIMITS}: {why}; limits are learned anew")
        return {}

    def of_attempt(self) -> HealthyWaits:
        """What looks at the ranks of a new attempt, and keeps the longest waits of the job up to date."""
        return HealthyWaits(self._longest)

    def look(self, attempt: HealthyWaits, waited: Sequence[Wait], awake_since: float, now: float) -> None:
        """Learn from how long the ranks of an attempt have waited, while none has failed."""
        attempt.look(waited, awake_since)
        if now < self._note_at:
            return
        if self._note_at and any(longest > _WORTH * self._noted.get(k, 0.0) for k, longest in self._longest.items()):
            self.note()
        self._note_at = now + _NOTE_EVERY

    def note(self) -> None:
        """Have what is not written yet written down. What cannot be written is said once."""
        longest = dict(self._longest)
        if longest == self._noted:
            return
        self._noted = longest
        self._files.write(
            lambda: limits_file.write(self.spec.run_dir, self.spec.job_id, longest),
            self._cannot_note,
            replaces=limits_file.LIMITS,
        )

    def _cannot_note(self, error: OSError) -> None:
        self._say(f"cannot write {self.spec.run_dir / limits_file.LIMITS}: {error.strerror}")
