"""Limits for how long a node's ranks may go on without the head. Pure.

The head gives a lost node's ranks to another node one lease after it last heard the node. The node counts its lease
from the moment at which it sent the last beat that the head has confirmed, which is earlier. Therefore the node's ranks
have ended before others replace them, whichever way the network is cut, as long as the two clocks differ by no more
than the head's allowance.
"""

from __future__ import annotations

_MOST = 1024  # unconfirmed beats that are remembered


class Lease:
    """The lease of one connection."""

    def __init__(self, seconds: float, now: float) -> None:
        """Begin the lease with the connection.

        Args:
            seconds: how long the lease lasts.
            now: monotonic seconds, as all moments here.
        """
        self._seconds = seconds
        self._since = now
        self._sent: dict[int, float] = {}

    def record_sent(self, beat: int, now: float) -> None:
        """Record that a beat is sent at `now` or a little later."""
        self._sent[beat] = now
        if len(self._sent) > _MOST:
            del self._sent[next(iter(self._sent))]

    def confirm(self, beat: int) -> None:
        """Extend the lease, because the head has confirmed a beat."""
        when = self._sent.get(beat)
        if when is not None:
            self._since = max(self._since, when)
            for older in [number for number in self._sent if number <= beat]:
                del self._sent[older]

    def renew(self, moment: float) -> None:
        """Restart the lease at `moment`, because no head existed then.

        A head that starts later waits one lease for missing nodes.
        """
        self._since = max(self._since, moment)

    def is_over(self, now: float) -> bool:
        """Return whether the ranks must end."""
        return now - self._since > self._seconds
