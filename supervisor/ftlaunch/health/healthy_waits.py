"""The longest healthy wait of each kind: what `auto` learns its limits from. Pure; seconds.

A wait was healthy when a sign of progress, or an honest end, has ended it. It is measured as hangs are (health.waits),
so that a limit is never learned from one thing and held against another.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftlaunch.health.hang_detection import Wait


class HealthyWaits:
    """Looks at the ranks of one attempt."""

    def __init__(self, longest: dict[str, float]) -> None:
        """longest: kind of wait -> the longest known; it is kept up to date."""
        self.longest = longest
        self._before: dict[tuple[int, bool], Wait] = {}

    def look(self, waited: Sequence[Wait], awake_since: float) -> None:
        """Learn from what has ended since the last look, while no rank has failed.

        awake_since: what began earlier teaches nothing, the supervisor was held up meanwhile.
        """
        for wait in waited:
            key = wait.view.rank, wait.kind == "exit"
            before = self._before.get(key)
            if before is not None and before.since >= awake_since:
                self._learn(before, wait)
            self._before[key] = wait

    def _learn(self, before: Wait, now: Wait) -> None:
        until = now.view.ended if now.view.exited else now.since
        if not before.view.exited and until - before.since > self.longest.get(before.kind, 0.0):
            self.longest[before.kind] = until - before.since
