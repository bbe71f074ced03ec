"""Runs the parts of a job's end one by one, so that a failing part changes neither the other parts nor the exit code.

Used in the main thread by `engine/main.py` and by the programs of several nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.reporting.events.failures import describe_error


class Closing:
    """Runs steps of a job's end and reports those that fail."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        """Make the runner.

        Args:
            complain: called with a sentence for each step that fails.
        """
        self._complain = complain

    def __call__(self, what: str, close: Callable[[], object]) -> None:
        """Run one step. An exception of the step is reported, not raised.

        Args:
            what: what the step does; completes a sentence that begins with "cannot".
            close: the step.
        """
        try:
            close()
        except Exception as error:  # noqa: BLE001 - any error is reported, and the job is over all the same
            self._complain(f"cannot {what}: {describe_error(error)}; the job has ended all the same")
