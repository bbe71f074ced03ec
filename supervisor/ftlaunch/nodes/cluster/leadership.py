"""Whether this head may be a head still: what it hears of the nodes, and what storage has seen of it."""

from __future__ import annotations

from collections.abc import Mapping

from ftlaunch.nodes.cluster.around import Around
from ftlaunch.nodes.cluster.membership.fences import Fences
from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node

STALE_PART = 0.75
"""part of the node timeout after which a head that shows no sign of life is gone, and a node may start another"""


class Leadership:
    """Of one head."""

    def __init__(self, around: Around, roster: Roster, nodes: Mapping[int, Node], fences: Fences) -> None:
        self._around = around
        self._roster = roster
        self._nodes = nodes
        self._fences = fences

    def is_cut_off(self) -> bool:
        """Whether no node of another machine is connected, and a lost one may live: this head may be cut off."""
        own = self._around.address
        now = self._around.clock()
        # In this order: it is asked in every turn of the loop, and where no node is lost nobody looks at all nodes.
        return self._fences.stand_for_others(own, now) and all(node.address == own for node in self._nodes.values())

    def may_go_on(self) -> bool:
        """Whether ranks may go on: no other head can have taken this one's place, or no node that has ranks is there
        to start one. A head that only the storage does not answer is a head still.
        """
        around = self._around
        if around.leads():
            return True
        least = around.clock() - around.timeout * STALE_PART
        heard = all(node.heard >= least for node in self._nodes.values() if node.member.place >= 0)
        return heard and not self._roster.vacant
