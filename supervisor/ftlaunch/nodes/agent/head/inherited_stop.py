"""Delays a stop that a new head inherits from the head before, until the running ranks are adopted. Pure.

Each node remembers that the job was told to stop, and tells the next head as soon as the node joins. A head that
stopped on the first such message would save only what that node holds, and would end the other nodes' ranks before
their newest step is known.
"""

from __future__ import annotations


class InheritedStop:
    """A request to stop that a new head has inherited, if any."""

    def __init__(self, until: float) -> None:
        """Wait until `until`, in monotonic seconds, at most."""
        self._until = until
        self._why = ""

    def ask(self, why: str) -> None:
        """Record that a node asks the job to stop. The first reason is kept."""
        self._why = self._why or why

    def due(self, now: float, *, begun: bool) -> str:
        """Return why the job must stop now; empty if it must not.

        Args:
            now: monotonic seconds.
            begun: whether ranks were adopted or started.
        """
        return self._why if begun or now >= self._until else ""
