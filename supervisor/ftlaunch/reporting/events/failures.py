"""Events about failed calls of the supervisor itself: calls that the job can do without, and bugs that end the job."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ftlaunch.common.bulkheads import FailedCall
from ftlaunch.common.formatting import cut_in_the_middle
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority
from ftlaunch_contract.protocol import EXIT_BUG

_LONGEST = 300
"""characters of an error's text on the terminal"""


def describe_error(error: Exception) -> str:
    """Return the class and the message of an exception, in one line of bounded length."""
    return cut_in_the_middle(f"{type(error).__name__}: {error}", _LONGEST)


def format_traceback(error: Exception) -> str:
    """Return the traceback as Python prints it."""
    return "".join(traceback.format_exception(error))


@dataclass(frozen=True)
class CallFailed(JobEvent):
    """A call has failed that only looks or serves others; the job goes on without it."""

    name = "call_failed"
    priority = Priority.WARNING
    failed: FailedCall

    def fields(self) -> dict[str, Any]:
        """Return what failed, the error, the traceback, and how often this call has failed by now."""
        return {
            "what": self.failed.what,
            "error": describe_error(self.failed.error),
            "count": self.failed.count,
            "traceback": format_traceback(self.failed.error),
        }

    def sentence(self) -> str:
        """Return a sentence for the first failure of this call; "" for later ones."""
        if self.failed.count > 1:
            return ""
        why = describe_error(self.failed.error)
        return f"cannot {self.failed.what}: {why}; the job goes on, and it is tried again"


@dataclass(frozen=True)
class InternalError(JobEvent):
    """An error that nothing in the supervisor expects: the job is ended in good order."""

    name = "internal_error"
    priority = Priority.ERROR
    error: Exception
    path: Path | None
    """the file with the traceback; None where it could not be written"""

    def fields(self) -> dict[str, Any]:
        """Return the error and its traceback."""
        return {"error": describe_error(self.error), "traceback": format_traceback(self.error)}

    def sentence(self) -> str:
        """Return what happened, what follows, and where the traceback is."""
        where = "in the journal" if self.path is None else f"in {self.path}"
        return (
            f"a bug of ftlaunch's own: {describe_error(self.error)}; the ranks are ended, and their newest step is"
            f" saved; please report it, with the traceback {where}"
        )


@dataclass(frozen=True)
class JobBrokenOff(JobEvent):
    """The job could not even be ended in good order: its ranks were killed, and its memory is kept."""

    name = "job_failed"
    priority = Priority.ERROR
    error: Exception

    def fields(self) -> dict[str, Any]:
        """Return the exit code and the error."""
        return {"code": EXIT_BUG, "cause": None, "sentence": f"a bug of ftlaunch's own: {describe_error(self.error)}"}
