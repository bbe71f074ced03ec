"""Which machines get no ranks any more, because failures of the job began on them too often: pure.

A failure counts for the machine on which it began, once an attempt. What the script itself does wrong counts for none:
it would fail anywhere. A machine whose place nobody can take keeps it: no job ends for want of a better machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftlaunch.nodes.cluster.membership.roster import Member
from ftlaunch.policy.cause_kinds import NOT_THE_MACHINES

MOST_MACHINES = 1000
"""of which failures are counted; beyond them no new one is"""


class Isolation:
    """Of one job."""

    def __init__(self, limit: int, failures: Mapping[str, int]) -> None:
        """limit: failures after which a machine is isolated; 0: never. failures: by machine, counted so far."""
        self._limit = limit
        self.failures = dict(failures)
        self._places: dict[int, str] = {}  # the machines of the running attempt
        self._blamed: set[str] = set()  # in that attempt
        self._told: set[str] = set()

    # --- what is counted --------------------------------------------------------------------------------------

    def begun(self, places: Mapping[int, str]) -> None:
        """An attempt has begun. places: which machine has which place."""
        self._places = dict(places)
        self._blamed = set()

    def placed(self) -> list[str]:
        """The machines of the running attempt, by place; an empty word for a place whose node is not known."""
        return [self._places.get(place, "") for place in range(max(self._places, default=-1) + 1)]

    def blame(self, place: int, kind: str) -> bool:
        """A failure of this kind has begun in a place; whether that counts."""
        machine = self._places.get(place)
        if machine is None or machine in self._blamed or kind in NOT_THE_MACHINES:
            return False
        if machine not in self.failures and len(self.failures) >= MOST_MACHINES:
            return False
        self._blamed.add(machine)
        self.failures[machine] = self.failures.get(machine, 0) + 1
        return True

    def forgive(self, machine: str) -> int:
        """Count its failures from nothing again; returns how many there were."""
        self._told.discard(machine)
        return self.failures.pop(machine, 0)

    def of(self, machine: str) -> int:
        """Failures that have begun on a machine."""
        return self.failures.get(machine, 0)

    def is_isolated(self, machine: str) -> bool:
        """Whether it gets no ranks where another can take its place."""
        return bool(self._limit) and self.of(machine) >= self._limit

    # --- what follows -----------------------------------------------------------------------------------------

    def moves(self, members: Iterable[Member]) -> list[tuple[Member, Member | None]]:
        """Isolated members that have a place, each with a ready standby that is to take it, or None."""
        known = list(members)
        ready = [one for one in known if one.place < 0 and one.able and not one.isolated]
        placed = sorted((one for one in known if one.place >= 0 and one.isolated), key=lambda one: one.place)
        return [(one, ready.pop(0) if ready else None) for one in placed]

    def is_news(self, machine: str, replaced: bool) -> bool:
        """Whether to tell that an isolated machine loses its place (always), or keeps it (once)."""
        news = replaced or machine not in self._told
        self._told.add(machine)
        return news
