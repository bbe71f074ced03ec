"""Loads the steps in the memory of new nodes into the mirrors, if they belong to the attempt that counts.

Steps of two attempts, or of two numbers of nodes, are never mixed.
"""

from __future__ import annotations

from collections.abc import Iterable

from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node


class HeldSteps:
    """The steps in the nodes' memory, of one job."""

    def __init__(self, context: ClusterContext, roster: Roster) -> None:
        self._context = context
        self._roster = roster
        self.lineage = ""
        """the lineage whose steps count; empty before the first attempt and before a node with steps has come"""

    def load_steps(self, nodes: Iterable[Node]) -> None:
        """Load into the mirrors the steps of nodes that have got their places."""
        for node in nodes:
            if node.member.place >= 0 and node.slots is not None:
                self._load_steps_of(node)

    def _load_steps_of(self, node: Node) -> None:
        slots = node.slots
        node.slots = None
        place = node.member.place
        if slots is None or node.member.held != place:
            return
        if nodes_of(node.lineage) != self._roster.wanted:  # the snapshots are of another number of ranks
            return
        if not self.lineage:
            self.lineage = node.lineage
        if node.lineage != self.lineage:  # the steps were made in another attempt
            return
        each = self._context.ranks_each
        for rank in range(place * each, (place + 1) * each):
            for slot, step in enumerate(slots.get(rank, ())):
                self._context.pages[rank].set_slot(slot, step)
