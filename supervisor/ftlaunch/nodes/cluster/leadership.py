"""Decides whether this head may still act as the head, from what nodes and storage have shown. Runs in its loop."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.nodes.channel.claims import STALE_PART
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.membership.fences import Fences
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node


class Leadership:
    """The leadership of one head."""

    def __init__(self, context: ClusterContext, roster: Roster, nodes: Mapping[int, Node], fences: Fences) -> None:
        self._context = context
        self._roster = roster
        self._nodes = nodes
        self._fences = fences
        self._unseen_since: float | None = None  # since when this head may not go on

    def is_cut_off(self) -> bool:
        """Return whether this head may be cut off: no node of another machine is connected, and a lost one may live."""
        own = self._context.address
        now = self._context.clock()
        # In this order, because this is asked in every turn of the loop: while no node is lost, no loop over all nodes
        # runs.
        return self._fences.stand_for_others(own, now) and all(node.address == own for node in self._nodes.values())

    def unseen_seconds(self) -> float:
        """Return for how long this head may not have gone on, to be asked again and again; 0 while it may."""
        now = self._context.clock()
        if self.may_go_on():
            self._unseen_since = None
        elif self._unseen_since is None:
            self._unseen_since = now
        return 0.0 if self._unseen_since is None else now - self._unseen_since

    def may_go_on(self) -> bool:
        """Return whether ranks may go on, because no other head can have taken over.

        If storage does not answer, this head still leads as long as it hears all nodes of the attempt: none of them
        then starts another head.
        """
        context = self._context
        if context.leads():
            return True
        earliest = context.clock() - context.timeout_seconds * STALE_PART
        placed = (node for node in self._nodes.values() if node.member.place >= 0)
        return all(node.last_message_at >= earliest for node in placed) and not self._roster.vacant
