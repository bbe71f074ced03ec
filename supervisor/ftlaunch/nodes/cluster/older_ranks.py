"""Ranks that an earlier head has started: decides whether they are adopted or ended.

No other ranks begin while any of them can still be at work. Runs in the head's event loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.membership.fences import Fences
from ftlaunch.nodes.cluster.membership.lineage import follows, nodes_of
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Resume

_TAKEOVER = 1.2  # times a lease: this head may have begun before a node noticed the loss of the earlier head


class OlderRanks:
    """The ranks of earlier heads, at one head."""

    def __init__(
        self, context: ClusterContext, roster: Roster, nodes: Mapping[int, Node], fences: Fences, lease_seconds: float
    ) -> None:
        """Wait for the nodes of the plan's attempt, if there is a plan.

        Args:
            context: what the classes about nodes share.
            roster: the members and their places.
            nodes: the connected nodes, by the key of their members.
            fences: lost nodes that may still be at work.
            lease_seconds: seconds for which a node's ranks go on without a head.
        """
        self._context = context
        self._roster = roster
        self._nodes = nodes
        self._fences = fences
        self._may_adopt = context.plan is not None
        self._begun = False
        self._since: float | None = None  # when the first node with ranks of the plan's attempt has come
        self._lease_seconds = lease_seconds
        self.last = context.clock() + lease_seconds * _TAKEOVER
        """until when a node that has not come may be at work"""
        # Lineage of an attempt -> until when its nodes that have not come may be at work.
        self._attempts = {} if context.plan is None else {context.plan.lineage: self.last}

    def meet(self, node: Node) -> None:
        """Keep the ranks of a new node if they belong to the plan's attempt; else have them killed."""
        plan = self._context.plan
        place = node.running.get("place")
        is_planned = self._may_adopt and plan is not None and node.lineage == plan.lineage
        is_adoptable = is_planned and not node.running.get("killed")
        if node.running and is_adoptable and isinstance(place, int) and place in self._roster.vacant:
            node.member.place = place
            node.member.ready = True
            if self._since is None:
                self._since = self._context.clock()
        elif node.running:
            node.ends = True
            node.send("kill")
            if plan is None or follows(node.lineage, plan.run, plan.attempt):
                # Another head, whose plan storage did not show, has started these ranks, and perhaps others on nodes
                # that have not come yet.
                self._attempts[node.lineage] = self._context.clock() + self._lease_seconds * _TAKEOVER

    @property
    def awaited(self) -> bool:
        """Whether an attempt is to be adopted once its other nodes have come or have had their time."""
        return self._since is not None

    def find_adoptable(self) -> int | None:
        """Return the attempt to adopt now, because all its nodes have come or have had their time; else None."""
        plan = self._context.plan
        if self._since is None or plan is None:
            return None
        is_late = self._context.clock() > self._since + self._lease_seconds
        return plan.attempt if not self._roster.vacant or is_late else None

    def send_missing_decisions(self) -> list[int]:
        """Send where the attempt resumes to nodes that the lost head has not told yet, as it has told other nodes.

        Returns:
            The places of nodes that cannot be told, because the lost head has told none.
        """
        running = [node for node in self._nodes.values() if node.member.place >= 0 and node.running]
        resumes = {node: tuple(map(int, node.running["resume"])) for node in running}
        decided = [resume for resume in resumes.values() if resume[0] != Resume.UNDECIDED]
        if not decided:
            return [node.member.place for node in running]
        for node, resume in resumes.items():
            if resume[0] == Resume.UNDECIDED:
                node.send("pages", verb="decide", values=[*decided[0], NONE])
        return []

    def pass_on_stop(self) -> None:
        """Stop all ranks at the step at which some were told to stop; the lost head may not have told all nodes."""
        running = [node.running for node in self._nodes.values() if node.member.place >= 0 and node.running]
        step = max((int(ranks.get("stop_at", NONE)) for ranks in running), default=NONE)
        if step != NONE:
            for page in self._context.pages.pages:
                page.stop_at = step
            self._context.pause()

    def close(self) -> None:
        """Adopt no ranks from now on, because that was done or other ranks begin."""
        self._may_adopt = False
        self._since = None
        self._begun = True

    def may_run(self) -> bool:
        """Return whether older ranks may be at work: an agent is ending some, or a missing node may have some."""
        if any(node.ends for node in self._nodes.values()):
            return True
        now = self._context.clock()
        if self._begun:
            return False
        if self._context.may_be_beside and now <= self.last:
            return True  # even if the plan's nodes have come, because the earlier head may have used others since
        if any(now <= until and self._is_incomplete(lineage) for lineage, until in self._attempts.items()):
            return True
        return self._may_adopt and not self._fences.all_down(now)

    def _is_incomplete(self, lineage: str) -> bool:
        """Return whether a node of an attempt has not come."""
        known = {node.member.held for node in self._nodes.values() if node.lineage == lineage}
        return not known.issuperset(range(nodes_of(lineage)))
