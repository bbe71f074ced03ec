"""Bulkheads: what only looks, or serves others, may fail without ending the job.

Three kinds of work are done in the event loop. What serves others (the control socket, notices) drops its client where
a call fails. What looks (activity of processes, logs, /proc, the kernel's log) goes without that look; the next one
makes up for it. Only the job's own state may end the job, and then in good order (`Supervisor.fail`). The first two
kinds are called through a bulkhead, a word of Michael Nygard's "Release It!".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class FailedCall:
    """A call that has failed, and that the job goes on without."""

    what: str
    """completes a sentence that begins with "cannot" """
    error: Exception
    count: int
    """how often calls for the same purpose have failed by now"""


class Bulkheads:
    """Makes calls whose failure costs no more than their result."""

    def __init__(self, report: Callable[[FailedCall], None]) -> None:
        """report: takes the first failure of each kind, the second, the fourth, the eighth and so on."""
        self._report = report
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """How often a call has failed, by what it was for."""
        return self._counts

    def call(self, what: str, function: Callable[[], Result], otherwise: Result) -> Result:
        """Return what a function returns, or `otherwise` where it raises an exception, which is reported.

        Args:
            what: the purpose of the call; completes a sentence that begins with "cannot".
            function: what is called.
            otherwise: what the caller goes on with where the call fails.
        """
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - any: it is reported, and the caller goes on without the result
            self.note(what, error)
            return otherwise

    def note(self, what: str, error: Exception) -> None:
        """Count a call that has failed, and report it. what: as `call` takes it."""
        self._counts[what] += 1
        count = self._counts[what]
        if count & (count - 1) == 0:
            self._report(FailedCall(what, error, count))
