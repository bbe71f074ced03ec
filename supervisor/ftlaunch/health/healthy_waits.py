"""The longest healthy wait of each kind, from which `auto` learns the limits. Pure; monotonic seconds.

A wait was healthy if a sign of progress, or an end without failure, has ended the wait. Healthy waits are the same
`hang_detection.waits` that hangs are judged by, so that a limit is never learned from one thing and applied to another.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch.health.hang_detection import Wait


class HealthyWaits:
    """Measures the healthy waits of the ranks of one attempt."""

    def __init__(self, longest: dict[str, float]) -> None:
        """Begin with an attempt.

        Args:
            longest: seconds of the longest known wait by kind, which `learn` updates in place.
        """
        self.longest = longest
        self._before: dict[tuple[int, bool], Wait] = {}  # (rank, whether its end is awaited) -> newest wait

    def learn(self, waited: Sequence[Wait], awake_since: float) -> None:
        """Learn from waits that have ended since the last call. Callers call this only while no rank has failed.

        Args:
            waited: what is awaited of the ranks now.
            awake_since: waits that began earlier teach nothing, because the supervisor was held up during them.
        """
        for wait in waited:
            key = wait.view.rank, wait.kind == "exit"
            before = self._before.get(key)
            if before is not None and before.since >= awake_since:
                self._compare(before, wait)
            self._before[key] = wait

    def _compare(self, before: Wait, now: Wait) -> None:
        """Update `longest` from two successive observations of a rank's wait."""
        until = now.view.ended if now.view.exited else now.since
        if not before.view.exited and until - before.since > self.longest.get(before.kind, 0.0):
            self.longest[before.kind] = until - before.since
