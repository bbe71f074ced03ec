"""A stop that nodes ask for while a head takes the place of another one: it waits until the ranks are taken up. Pure.

The nodes remember that the job was told to stop, and tell the next head, each as it comes. A head that stopped at the
first word would save what this one node holds, and end the ranks of the others before their newest step is known.
"""

from __future__ import annotations


class InheritedStop:
    """Of one head."""

    def __init__(self, until: float) -> None:
        """until: monotonic seconds from which on nobody is waited for."""
        self._until, self._why = until, ""

    def ask(self, why: str) -> None:
        """A node asks the job to stop."""
        self._why = self._why or why

    def due(self, now: float, *, begun: bool) -> str:
        """Why the job is to stop now; empty where it is not. begun: the ranks were taken up, or others started."""
        return self._why if begun or now >= self._until else ""
