"""The end of a job in parts: one that fails costs a sentence, and neither the other parts nor the exit code."""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.reporting.events.failures import describe_error


class Closing:
    """Gives back, part by part, what a job had."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        """complain: says a sentence on what cannot be done."""
        self._complain = complain

    def __call__(self, what: str, close: Callable[[], object]) -> None:
        """Do one part. what: completes a sentence that begins with "cannot"."""
        try:
            close()
        except Exception as error:  # noqa: BLE001 - any: it is told, and the job is over all the same
            self._complain(f"cannot {what}: {describe_error(error)}; the job has ended all the same")
