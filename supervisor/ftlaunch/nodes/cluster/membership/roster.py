"""How many nodes a job has, and which node has which place: pure.

A node keeps its place as long as it lives. A place whose node is lost goes to the node that has its memory, then to
the longest-waiting standby. Only between two attempts, and only where the job has a least and a most, the number of
places changes: then nodes beyond it move to places that are vacant, and no memory counts any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from ftlaunch.nodes.cluster.membership.lineage import nodes_of

_GETS_READY = 5.0  # seconds that a node with memory is waited for


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
    lineage: str = ""
    """of which attempt its memory is"""
    leaving: bool = False
    """it is to leave: the next attempt begins without it"""

    @property
    def able(self) -> bool:
        """Whether it can be a node of the next attempt."""
        return self.ready and not self.leaving


class Roster:
    """The members, and their places."""

    def __init__(self, least: int, most: int, last_call: float = 0.0) -> None:
        """least, most: nodes of the job. last_call: see Around."""
        self.least = least
        self.most = most
        self.last_call = last_call
        self.wanted = most
        """places: nodes of the attempt, or of the one whose memory is taken up"""
        self.members: dict[int, Member] = {}  # in the order of their coming
        self.begun = False
        """places were given before: from now on a wish counts no more than another"""
        self.called_since: float | None = None
        """since when the least nodes are here before the first attempt, and more are waited for"""
        self._memory_since: float | None = None  # since when a node that has memory is waited for until it is ready
        self._kept = 0  # the number that the next attempt keeps; 0: it may change

    def join(self, member: Member) -> None:
        """A node has come."""
        self.members[member.key] = member

    def leave(self, key: int) -> Member | None:
        """A node is gone; returns it, where it was known."""
        return self.members.pop(key, None)

    def at(self, place: int) -> Member | None:
        """The node of a place."""
        return next((one for one in self.members.values() if one.place == place), None)

    def placed(self) -> dict[int, Member]:
        """The nodes that have places, by place."""
        return {one.place: one for one in self.members.values() if one.place >= 0}

    @property
    def vacant(self) -> list[int]:
        """Places without a node."""
        taken = {one.place for one in self.members.values()}
        return [place for place in range(self.wanted) if place not in taken]

    @property
    def standing_by(self) -> list[Member]:
        """Nodes without a place that can have one."""
        return [one for one in self.members.values() if one.place < 0 and not one.leaving]

    @property
    def able(self) -> list[Member]:
        """Nodes that can have a part in the next attempt."""
        return [one for one in self.members.values() if one.able]

    @property
    def missing(self) -> int:
        """Nodes that the job needs and that have not come; one that gets ready is not missing."""
        return self.least - sum(not one.leaving for one in self.members.values())

    # --- how many -----------------------------------------------------------------------------------------------

    def size(self, now: float) -> int | None:
        """How many nodes the next attempt is to have; None: others have to come, or to get ready."""
        able = len(self.able)
        here = sum(not one.leaving for one in self.members.values())
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
            self.called_since = now if self.called_since is None else self.called_since
            if now - self.called_since < self.last_call:
                return None
        return min(able, self.most)

    def changes(self, size: int) -> bool:
        """Whether an attempt of so many nodes has others than memory is of."""
        return size != self.wanted or any(one.leaving and one.place >= 0 for one in self.members.values())

    def keep(self) -> None:
        """The next attempt has as many nodes as the last one, whoever else is here."""
        self._kept = self.wanted
        for member in self.members.values():
            member.leaving = False

    def resize(self, size: int) -> None:
        """Have so many places; no memory fits them but that of so many nodes."""
        if size == self.wanted:
            return
        self.wanted = size
        for member in self.members.values():
            member.held = -1
            if member.place >= size:
                member.place = -1

    def inherited(self) -> str:
        """The lineage whose places all have nodes here, with its memory; of several that of most nodes; or nothing."""
        return self._whole(one for one in self.members.values() if one.ready)

    def _awaits_memory(self, now: float) -> bool:
        """Whether a node that gets ready has what a lineage lacks: another one in its place would lose steps."""
        comes = "" if self.begun else self._whole(one for one in self.members.values() if not one.leaving)
        if not comes or comes == self.inherited():
            self._memory_since = None
            return False
        self._memory_since = now if self._memory_since is None else self._memory_since
        return now - self._memory_since < _GETS_READY

    def _whole(self, members: Iterable[Member]) -> str:
        held: dict[str, set[int]] = {}
        for member in members:
            if 0 <= member.held < nodes_of(member.lineage) <= self.most:
                held.setdefault(member.lineage, set()).add(member.held)
        whole = [lineage for lineage, places in held.items() if len(places) == nodes_of(lineage)]
        return max(whole, key=nodes_of, default="")

    def inherit(self, lineage: str) -> None:
        """Take up the memory of a lineage: its places go to the nodes that have it."""
        self.wanted = nodes_of(lineage)
        for member in self.members.values():
            if member.lineage == lineage and member.ready and self.at(member.held) is None:
                member.place = member.held

    # --- who has which place ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """An attempt begins, or goes on: it has been decided how many nodes there are."""
        self.begun = True
        self._kept = 0
        self.called_since = None

    def fill(self) -> bool:
        """Give the vacant places to nodes that are able; True when every place has one.

        Before the first attempt places are only given when there are enough nodes for all: then whoever has the memory
        of a place, or was started for it, gets it, whatever the order of their coming.
        """
        able = [one for one in self.standing_by if one.ready]
        if not self.begun and len(able) < len(self.vacant):
            return False
        for isolated, match in itertools.product((False, True), (_held, _wished, None)):
            vacant = self.vacant
            free = [one for one in able if one.place < 0 and one.isolated == isolated]
            if match is None:
                for place, found in zip(vacant, free, strict=False):
                    found.place = place
                continue
            fitting: dict[int, Member] = {}
            for one in free:
                fitting.setdefault(match(one), one)
            for place in vacant:
                if place in fitting:
                    fitting[place].place = place
        full = not self.vacant and all(one.ready for one in self.members.values() if one.place >= 0)
        self.begun = self.begun or full
        return full


def _held(member: Member) -> int:
    return member.held


def _wished(member: Member) -> int:
    return member.wish
