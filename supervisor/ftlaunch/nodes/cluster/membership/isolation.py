"""Decides which machines get no more ranks, because failures of the job have begun on them too often. Pure.

A failure counts for the machine on which it began, at most once in each attempt. Errors of the script count for no
machine, because they would happen on any. An isolated machine keeps its place if no other machine can take it: no job
ends for want of a better machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ftlaunch.nodes.cluster.membership.roster import Member
from ftlaunch.policy.cause_kinds import NOT_THE_MACHINES

MOST_MACHINES = 1000
"""the number of machines whose failures are counted"""


class Isolation:
    """The failures of one job by machine."""

    def __init__(self, limit: int, failures: Mapping[str, int]) -> None:
        """Begin with counted failures.

        Args:
            limit: failures after which a machine is isolated; 0 for never.
            failures: the failures counted so far, by machine.
        """
        self._limit = limit
        self.failures = dict(failures)
        self._places: dict[int, str] = {}  # the machines of the running attempt, by place
        self._blamed: set[str] = set()  # machines that were blamed in this attempt
        self._reported: set[str] = set()  # isolated machines that the terminal was told of

    # --- what is counted --------------------------------------------------------------------------------------

    def begin_attempt(self, places: Mapping[int, str]) -> None:
        """Note that an attempt has begun. places: the machines by place."""
        self._places = dict(places)
        self._blamed = set()

    def placed(self) -> list[str]:
        """Return the machines of the running attempt by place; empty text for a place without a known node."""
        return [self._places.get(place, "") for place in range(max(self._places, default=-1) + 1)]

    def blame(self, place: int, kind: str) -> bool:
        """Count a failure that has begun in a place. Return whether it counts.

        Args:
            place: the place.
            kind: the kind of the failure's cause.
        """
        machine = self._places.get(place)
        if machine is None or machine in self._blamed or kind in NOT_THE_MACHINES:
            return False
        if machine not in self.failures and len(self.failures) >= MOST_MACHINES:
            return False
        self._blamed.add(machine)
        self.failures[machine] = self.failures.get(machine, 0) + 1
        return True

    def forgive(self, machine: str) -> int:
        """Reset the failures of a machine. Return how many there were."""
        self._reported.discard(machine)
        return self.failures.pop(machine, 0)

    def of(self, machine: str) -> int:
        """Return the failures that have begun on a machine."""
        return self.failures.get(machine, 0)

    def is_isolated(self, machine: str) -> bool:
        """Return whether a machine must lose its place to another one."""
        return bool(self._limit) and self.of(machine) >= self._limit

    # --- what follows -----------------------------------------------------------------------------------------

    def moves(self, members: Iterable[Member]) -> list[tuple[Member, Member | None]]:
        """Return the isolated members that have a place, each with the ready standby that takes it, or None."""
        known = list(members)
        ready = [member for member in known if member.place < 0 and member.able and not member.isolated]
        isolated = [member for member in known if member.place >= 0 and member.isolated]
        isolated.sort(key=lambda member: member.place)
        return [(member, ready.pop(0) if ready else None) for member in isolated]

    def is_news(self, machine: str, replaced: bool) -> bool:
        """Return whether to report that an isolated machine loses its place (always) or keeps it (once)."""
        news = replaced or machine not in self._reported
        self._reported.add(machine)
        return news
