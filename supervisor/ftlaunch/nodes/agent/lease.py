"""For how long a node's ranks may go on without a word from the head: pure.

The head gives a lost node's ranks to another node once the time of a lease has passed since it has last heard the node.
The node counts from the moment at which it has sent what the head has heard, which was earlier; so its own ranks have
ended by then, whichever way the network is cut, as long as both clocks run alike but for the head's allowance.
"""

from __future__ import annotations

_MOST = 1024  # beats on their way


class Lease:
    """Of one connection."""

    def __init__(self, seconds: float, now: float) -> None:
        """It begins with the connection."""
        self._seconds, self._since = seconds, now
        self._sent: dict[int, float] = {}

    def sent(self, beat: int, now: float) -> None:
        """A beat is sent at this moment, or a little later."""
        self._sent[beat] = now
        if len(self._sent) > _MOST:
            del self._sent[next(iter(self._sent))]

    def heard(self, beat: int) -> None:
        """The head has heard a beat."""
        when = self._sent.get(beat)
        if when is not None:
            self._since = max(self._since, when)
            for older in [number for number in self._sent if number <= beat]:
                del self._sent[older]

    def renew(self, moment: float) -> None:
        """At this moment there was no head: one that begins later waits as long as a lease for those it misses."""
        self._since = max(self._since, moment)

    def is_over(self, now: float) -> bool:
        """Whether the ranks must end."""
        return now - self._since > self._seconds
