"""The nodes of an attempt by their places, and the ranks of a place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftlaunch.cluster.membership.roster import Member, Roster
from ftlaunch.cluster.nodes.node import Node


class PlacedNodes:
    """Of one job."""

    def __init__(self, roster: Roster, nodes: Mapping[int, Node], ranks_each: int) -> None:
        """nodes: by key of their members. ranks_each: of a node."""
        self._roster, self._nodes, self._each = roster, nodes, ranks_each

    def node_of(self, member: Member | None) -> Node | None:
        """The node of a member, where it is connected."""
        return None if member is None else self._nodes.get(member.key)

    def at(self, place: int) -> Node | None:
        """The node of a place, where there is one."""
        return self.node_of(self._roster.at(place))

    def all(self) -> dict[int, Node]:
        """The nodes that have places."""
        return {node.member.place: node for node in self._nodes.values() if node.member.place >= 0}

    def ranks_of(self, place: int) -> range:
        """The ranks of a place."""
        return range(place * self._each, (place + 1) * self._each)

    def tell(self, place: int, do: str, **fields: Any) -> bool:
        """Send a message to the node of a place; False where there is none."""
        if (node := self.at(place)) is not None:
            node.send(do, **fields)
        return node is not None

    def tell_all(self, do: str, **fields: Any) -> None:
        """Send a message to every node of the attempt."""
        for node in self._nodes.values():
            if node.member.place >= 0:
                node.send(do, **fields)
