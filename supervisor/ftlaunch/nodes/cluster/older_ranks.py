"""Ranks that another head has begun: taken up, or ended; no others begin before none of them can be at work."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.membership.fences import Fences
from ftlaunch.nodes.cluster.membership.lineage import follows, nodes_of
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

_TAKEOVER = 1.2  # of a lease: this head may have begun before a node knew that it had lost the one before


class OlderRanks:
    """At one head."""

    def __init__(self, around: Around, roster: Roster, nodes: Mapping[int, Node], fences: Fences, lease: float) -> None:
        """nodes: by key of their members. lease: seconds for which a node's ranks go on unheard."""
        self._around = around
        self._roster = roster
        self._nodes = nodes
        self._fences = fences
        self._may_be_taken_up = around.plan is not None
        self._begun = False
        self._since: float | None = None  # when the first node has said that it runs the plan's attempt
        self._lease = lease
        self.last = around.clock() + lease * _TAKEOVER
        """the latest moment at which a node that nobody knows may be at work"""
        self._attempts = {} if around.plan is None else {around.plan.lineage: self.last}
        """lineage of an attempt whose nodes are to come -> until when those that have not come may be at work"""

    def meet(self, node: Node) -> None:
        """A node has come: ranks of the attempt that is to be taken up run on, all others are of no use any more."""
        plan = self._around.plan
        place = node.running.get("place")
        mine = self._may_be_taken_up and plan is not None and node.lineage == plan.lineage
        mine = mine and not node.running.get("killed")
        if node.running and mine and isinstance(place, int) and place in self._roster.vacant:
            node.member.place = place
            node.member.ready = True
            if self._since is None:
                self._since = self._around.clock()
        elif node.running:
            node.ends = True
            node.send("kill")
            if plan is None or follows(node.lineage, plan.run, plan.attempt):
                # A head that storage did not see has gone on beside this one, until now at the latest.
                self._attempts[node.lineage] = self._around.clock() + self._lease * _TAKEOVER

    @property
    def awaited(self) -> bool:
        """Whether an attempt is to be taken up as soon as its other nodes have come, or have had the time to."""
        return self._since is not None

    def adoptable(self) -> int | None:
        """The attempt to be taken up now: all its nodes are here, or had the time to come; None: there is none, yet."""
        plan = self._around.plan
        if self._since is None or plan is None:
            return None
        late = self._around.clock() > self._since + self._lease
        return plan.attempt if not self._roster.vacant or late else None

    def untold(self) -> list[int]:
        """Pass on where they resume to nodes that the head before did not tell any more.

        Returns the places that nobody can tell: where it had told none.
        """
        running = [node for node in self._nodes.values() if node.member.place >= 0 and node.running]
        resumes = {node: tuple(map(int, node.running["resume"])) for node in running}
        told = [resume for resume in resumes.values() if resume[0] != Resume.UNDECIDED]
        if not told:
            return [node.member.place for node in running]
        for node, resume in resumes.items():
            if resume[0] == Resume.UNDECIDED:
                node.send("pages", verb="decide", values=[*told[0], NONE])
        return []

    def pass_on_stop(self) -> None:
        """Have all ranks stop where some were told to: the head that is gone may not have told all nodes."""
        running = [node.running for node in self._nodes.values() if node.member.place >= 0 and node.running]
        step = max((int(told.get("stop_at", NONE)) for told in running), default=NONE)
        if step != NONE:
            for page in self._around.pages.pages:
                page.stop_at = step
            self._around.pause()

    def close(self) -> None:
        """From now on none are taken up: that was done, or other ranks begin."""
        self._may_be_taken_up = False
        self._since = None
        self._begun = True

    def may_run(self) -> bool:
        """Whether some may be at work: their agents end them, or a node has not come that may have some."""
        if any(node.ends for node in self._nodes.values()):
            return True
        now = self._around.clock()
        if self._begun:
            return False
        if self._around.may_be_beside and now <= self.last:
            return True  # also where the plan's nodes have come: the head before may have begun ranks on others since
        if any(now <= until and self._is_incomplete(lineage) for lineage, until in self._attempts.items()):
            return True
        return self._may_be_taken_up and not self._fences.all_down(now)

    def _is_incomplete(self, lineage: str) -> bool:
        """Whether a node of an attempt has not come."""
        known = {node.member.held for node in self._nodes.values() if node.lineage == lineage}
        return not known.issuperset(range(nodes_of(lineage)))
