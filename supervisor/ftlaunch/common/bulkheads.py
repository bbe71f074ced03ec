"""Bulkheads: observing the job, or serving clients, may fail without ending the job.

The event loop does three kinds of work. Serving clients (the control socket, notices) drops the client when a call
fails. Observing (activity of processes, logs, /proc, the kernel's log) skips one observation when a call fails, and
the next observation makes up for it. Only a failure of the job's own state may end the job, and then in good order
(`Supervisor.fail`). Work of the first two kinds is called through a bulkhead; the word comes from Michael Nygard's
"Release It!".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True)
class FailedCall:
    """A call that failed and without whose result the job goes on."""

    what: str
    """the purpose of the call; completes a sentence that begins with "cannot" """
    error: Exception
    count: int
    """number of failed calls for the same purpose so far, this call included"""


class Bulkheads:
    """Calls functions whose failure costs the job nothing but their result."""

    def __init__(self, report: Callable[[FailedCall], None]) -> None:
        """Start with no failed call.

        Args:
            report: called for the first, second, fourth, eighth ... failure of each purpose.
        """
        self._report = report
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of failed calls by purpose."""
        return self._counts

    def call(self, what: str, function: Callable[[], Result], otherwise: Result) -> Result:
        """Call `function` and return its result. If `function` raises an exception, report it and return `otherwise`.

        Args:
            what: the purpose of the call; completes a sentence that begins with "cannot".
            function: the function to call.
            otherwise: the result when the call fails.
        """
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - any error is reported, and the caller goes on without the result
            self.note(what, error)
            return otherwise

    def note(self, what: str, error: Exception) -> None:
        """Count a failed call, and report it if its count is a power of two.

        Args:
            what: the purpose of the call; completes a sentence that begins with "cannot".
            error: the exception that the call raised.
        """
        self._counts[what] += 1
        count = self._counts[what]
        if count & (count - 1) == 0:
            self._report(FailedCall(what=what, error=error, count=count))
