"""Steps in the memory of nodes that come, taken into the mirrors: of one attempt only, and of its number of nodes."""

from __future__ import annotations

from collections.abc import Iterable

from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.membership.lineage import nodes_of
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node


class HeldSteps:
    """Of one job."""

    def __init__(self, around: Around, roster: Roster) -> None:
        self._around = around
        self._roster = roster
        self.lineage = ""
        """whose steps count; none: no attempt was begun by this head, and no node has come with steps"""

    def take_up_of(self, nodes: Iterable[Node]) -> None:
        """Of nodes that have just got their places."""
        for node in nodes:
            if node.member.place >= 0 and node.slots is not None:
                self._take_up(node)

    def _take_up(self, node: Node) -> None:
        slots = node.slots
        node.slots = None
        place = node.member.place
        if slots is None or node.member.held != place:
            return
        if nodes_of(node.lineage) != self._roster.wanted:  # its snapshots are those of another number of ranks
            return
        if not self.lineage:
            self.lineage = node.lineage
        if node.lineage != self.lineage:  # its steps were made in another attempt: never to be mixed with these
            return
        each = self._around.ranks_each
        for rank in range(place * each, (place + 1) * each):
            for slot, step in enumerate(slots.get(rank, ())):
                self._around.pages[rank].set_slot(slot, step)
