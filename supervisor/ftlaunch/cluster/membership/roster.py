"""Which node has which place in the job: pure.

A node keeps its place as long as it lives. A place whose node is lost goes to the node that has its memory, then to
the longest-waiting standby. Nobody is moved because somebody comes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass
class Member:
    """A node that has said hello."""

    key: int
    """which connection"""
    wish: int
    """the place that it was started for (--node-rank), or -1"""
    held: int
    """the place whose memory it has, or -1"""
    ready: bool = False
    """ranks can be started there"""
    place: int = -1
    """-1: it stands by"""
    machine: str = ""
    """see NodeFacts"""
    isolated: bool = False
    """it gets a place only where no other member can take it"""


class Roster:
    """The members, and their places."""

    def __init__(self, wanted: int) -> None:
        """wanted: nodes of the job."""
        self.wanted = wanted
        self.members: dict[int, Member] = {}  # in the order of their coming
        self._begun = False  # places were given before: from now on a wish counts no more than another

    def join(self, member: Member) -> None:
        """A node has come."""
        self.members[member.key] = member

    def leave(self, key: int) -> Member | None:
        """A node is gone; returns it, where it was known."""
        return self.members.pop(key, None)

    def at(self, place: int) -> Member | None:
        """The node of a place."""
        return next((one for one in self.members.values() if one.place == place), None)

    @property
    def vacant(self) -> list[int]:
        """Places without a node."""
        taken = {one.place for one in self.members.values()}
        return [place for place in range(self.wanted) if place not in taken]

    @property
    def standing_by(self) -> list[Member]:
        """Nodes without a place."""
        return [one for one in self.members.values() if one.place < 0]

    def fill(self) -> bool:
        """Give the vacant places to nodes that are ready; True when every place has one.

        Before the first attempt places are only given when there are enough nodes for all: then whoever has the memory
        of a place, or was started for it, gets it, whatever the order of their coming.
        """
        ready = [one for one in self.standing_by if one.ready]
        if not self._begun and len(ready) < len(self.vacant):
            return False
        for isolated, match in itertools.product((False, True), (_held, _wished, _anyone)):
            for place in self.vacant:
                fitting = (one for one in ready if one.place < 0 and one.isolated == isolated and match(one, place))
                found = next(fitting, None)
                if found is not None:
                    found.place = place
        full = not self.vacant and all(one.ready for one in self.members.values() if one.place >= 0)
        self._begun = self._begun or full
        return full


def _held(member: Member, place: int) -> bool:
    return member.held == place


def _wished(member: Member, place: int) -> bool:
    return member.wish == place


def _anyone(member: Member, place: int) -> bool:
    return True
