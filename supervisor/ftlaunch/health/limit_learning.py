"""The time limits of a running job: learns from the ranks, and notes what was learned in the run dir for later runs.

The supervisor's event loop calls `LimitLearning`; the file thread reads and writes the run dir.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ftlaunch.health import limits_file
from ftlaunch.health.hang_detection import Wait
from ftlaunch.health.healthy_waits import HealthyWaits
from ftlaunch.health.time_limits import TimeLimits, asked_by
from ftlaunch.spec.job_spec import JobSpec
from ftlaunch.system.file_thread import FileThread

_NOTE_INTERVAL_SECONDS = 60.0  # between writes, of which a killed supervisor loses at most one
_WORTH_NOTING = 1.1  # growth of a longest wait from which a write is worth its cost


class LimitLearning:
    """Holds the limits of a job, and the longest healthy waits from which the limits are learned."""

    def __init__(self, spec: JobSpec, files: FileThread, say: Callable[[str], None]) -> None:
        """Read what earlier runs have noted. A file that cannot be used is reported and ignored.

        Args:
            spec: the job.
            files: thread that reads and writes in the run dir.
            say: reports a sentence to people.
        """
        self.spec = spec
        self._files = files
        self._say = say
        self._noted = {} if spec.saving.fresh else self._read()  # seconds by kind of wait, as the file has them
        self._longest = dict(self._noted)  # seconds by kind of wait, as they are known now
        self._note_at = 0.0  # monotonic seconds of the next write; 0 before the first `learn`
        self.limits: TimeLimits = asked_by(spec, self._longest)

    def _read(self) -> dict[str, float]:
        """Return the longest waits from the file, in seconds by kind; empty if the file cannot be used."""
        try:
            return limits_file.read(self.spec.run_dir, self.spec.job_id)
        except limits_file.NotOurs as error:
            why = str(error)
        except OSError as error:
            why = str(error.strerror)
        self._say(f"cannot use {self.spec.run_dir / limits_file.LIMITS}: {why}; limits are learned anew")
        return {}

    def of_attempt(self) -> HealthyWaits:
        """Return the observer of a new attempt's ranks, which keeps the longest waits of the job up to date."""
        return HealthyWaits(self._longest)

    def learn(self, attempt: HealthyWaits, waited: Sequence[Wait], awake_since: float, now: float) -> None:
        """Learn from the waits of an attempt's ranks, and write the file if that is due.

        Args:
            attempt: observer of the attempt, from `of_attempt`.
            waited: what is awaited of the ranks now; no rank has failed.
            awake_since: waits that began earlier teach nothing, because the supervisor was held up during them.
            now: monotonic seconds.
        """
        attempt.learn(waited, awake_since)
        if now < self._note_at:
            return
        if self._note_at and self._has_grown():
            self.note()
        self._note_at = now + _NOTE_INTERVAL_SECONDS

    def _has_grown(self) -> bool:
        """Return whether some longest wait has grown enough to be written."""
        return any(longest > _WORTH_NOTING * self._noted.get(kind, 0.0) for kind, longest in self._longest.items())

    def note(self) -> None:
        """Have the file thread write the longest waits if they have changed. A failure is reported."""
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
