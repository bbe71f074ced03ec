"""The roster: decides how many nodes a job has, and which node has which place. Pure.

A node keeps its place as long as it lives. The place of a lost node goes to the node that has the place's memory, else
to the standby that waits longest. The number of places changes only between two attempts, and only if the job's least
and largest number of nodes differ. Nodes beyond the new number then move to vacant places, and the nodes' memory no
longer counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from ftlaunch.nodes.cluster.membership.lineage import nodes_of

_READY_SECONDS = 5.0  # that a node with memory is given to get ready


@dataclass
class Member:
    """A node that has said hello."""

    key: int
    """identifies the node's connection"""
    wish: int
    """the place that the node was started for (--node-rank), or -1"""
    held: int
    """the place whose memory the node has, or -1"""
    ready: bool = False
    """whether ranks can be started on the node"""
    place: int = -1
    """the node's place; -1 while the node stands by"""
    machine: str = ""
    """the node's machine, as NodeFacts names it"""
    isolated: bool = False
    """whether the node gets a place only if no other member can take it"""
    lineage: str = ""
    """the lineage of the steps in the node's memory"""
    leaving: bool = False
    """whether the next attempt begins without the node"""

    @property
    def able(self) -> bool:
        """Whether the node can take part in the next attempt."""
        return self.ready and not self.leaving


class Roster:
    """The members of a job and their places."""

    def __init__(self, least: int, most: int, last_call_seconds: float = 0.0) -> None:
        """Begin without members.

        Args:
            least: the least number of nodes of the job.
            most: the largest number of nodes.
            last_call_seconds: seconds for which a job with its least number of nodes waits for more before its first
                attempt.
        """
        self.least = least
        self.most = most
        self.last_call_seconds = last_call_seconds
        self.wanted = most
        """the number of places: nodes of the attempt, or of the attempt whose memory is occupied up"""
        self.members: dict[int, Member] = {}  # by key, in the order of their coming
        self.begun = False
        """whether places were given before"""
        self.called_since: float | None = None
        """since when the least number of nodes is here and more are waited for, before the first attempt; else None"""
        self._memory_since: float | None = None  # since when a node with memory is waited for until it is ready
        self._kept = 0  # the number of nodes that the next attempt must keep; 0 if it may change

    def join(self, member: Member) -> None:
        """Add a member."""
        self.members[member.key] = member

    def leave(self, key: int) -> Member | None:
        """Remove a member. Return it, or None if the key is unknown."""
        return self.members.pop(key, None)

    def at(self, place: int) -> Member | None:
        """Return the member that has a place, or None."""
        return next((member for member in self.members.values() if member.place == place), None)

    def placed(self) -> dict[int, Member]:
        """Return the members that have places, by place."""
        return {member.place: member for member in self.members.values() if member.place >= 0}

    @property
    def vacant(self) -> list[int]:
        """Places without a member."""
        occupied = {member.place for member in self.members.values()}
        return [place for place in range(self.wanted) if place not in occupied]

    @property
    def standing_by(self) -> list[Member]:
        """Members without a place that are not leaving."""
        return [member for member in self.members.values() if member.place < 0 and not member.leaving]

    @property
    def able(self) -> list[Member]:
        """Members that can take part in the next attempt."""
        return [member for member in self.members.values() if member.able]

    @property
    def missing(self) -> int:
        """The number of nodes that the job still needs, counting those that are not ready yet as present."""
        return self.least - sum(not member.leaving for member in self.members.values())

    # --- how many -----------------------------------------------------------------------------------------------

    def size(self, now: float) -> int | None:
        """Return the number of nodes of the next attempt, or None while nodes must still come or get ready."""
        able = len(self.able)
        here = sum(not member.leaving for member in self.members.values())
        if able < self.least:
            self.called_since = None
            return None
        if self._kept and able >= self._kept:
            return self._kept
        if self._awaits_memory(now):
            return None
        if able < min(here, self.most):
            return None
        if not self.begun and able < self.most:
            if self.called_since is None:
                self.called_since = now
            if now - self.called_since < self.last_call_seconds:
                return None
        return min(able, self.most)

    def changes(self, size: int) -> bool:
        """Return whether an attempt of `size` nodes differs in its nodes from the present places."""
        return size != self.wanted or any(member.leaving and member.place >= 0 for member in self.members.values())

    def keep(self) -> None:
        """Have the next attempt keep the number of nodes, and keep those that were to leave."""
        self._kept = self.wanted
        for member in self.members.values():
            member.leaving = False

    def resize(self, size: int) -> None:
        """Change the number of places. The nodes' memory no longer counts, because it fits only the old number."""
        if size == self.wanted:
            return
        self.wanted = size
        for member in self.members.values():
            member.held = -1
            if member.place >= size:
                member.place = -1

    def inherited(self) -> str:
        """Return the lineage whose memory is complete on ready members; the one of most nodes, or empty."""
        return self._complete_lineage(member for member in self.members.values() if member.ready)

    def _awaits_memory(self, now: float) -> bool:
        """Return whether to wait for a member that is not ready yet, because its memory completes a lineage.

        Another node in its place would lose steps.
        """
        complete = (
            ""
            if self.begun
            else self._complete_lineage(member for member in self.members.values() if not member.leaving)
        )
        if not complete or complete == self.inherited():
            self._memory_since = None
            return False
        if self._memory_since is None:
            self._memory_since = now
        return now - self._memory_since < _READY_SECONDS

    def _complete_lineage(self, members: Iterable[Member]) -> str:
        """Return the lineage of most nodes whose places are all held by `members`, or empty."""
        held: dict[str, set[int]] = {}
        for member in members:
            if 0 <= member.held < nodes_of(member.lineage) <= self.most:
                held.setdefault(member.lineage, set()).add(member.held)
        whole = [lineage for lineage, places in held.items() if len(places) == nodes_of(lineage)]
        return max(whole, key=nodes_of, default="")

    def inherit(self, lineage: str) -> None:
        """Give the places of a lineage to the members that hold its memory."""
        self.wanted = nodes_of(lineage)
        for member in self.members.values():
            if member.lineage == lineage and member.ready and self.at(member.held) is None:
                member.place = member.held

    # --- who has which place ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that an attempt begins or goes on, with a decided number of nodes."""
        self.begun = True
        self._kept = 0
        self.called_since = None

    def fill(self) -> bool:
        """Give the vacant places to ready standbys.

        Members that are not isolated come first; among these, members that hold the memory of a place, then those that
        were started for it, then the longest-waiting ones. Before the first attempt, places are given only once there
        are enough nodes for all, so that the order of their coming does not matter.

        Returns:
            Whether every place has a ready member.
        """
        able = [member for member in self.standing_by if member.ready]
        if not self.begun and len(able) < len(self.vacant):
            return False
        for isolated, match in itertools.product((False, True), (_held, _wished, None)):
            vacant = self.vacant
            free = [member for member in able if member.place < 0 and member.isolated == isolated]
            if match is None:
                for place, found in zip(vacant, free, strict=False):
                    found.place = place
                continue
            fitting: dict[int, Member] = {}
            for member in free:
                fitting.setdefault(match(member), member)
            for place in vacant:
                if place in fitting:
                    fitting[place].place = place
        full = not self.vacant and all(member.ready for member in self.members.values() if member.place >= 0)
        self.begun = self.begun or full
        return full


def _held(member: Member) -> int:
    return member.held


def _wished(member: Member) -> int:
    return member.wish
