"""The nodes of an attempt by their places, and the ranks of a place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ftlaunch.nodes.cluster.membership.roster import Member, Roster
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.nodes import NodeJoined, NodeLeft, NodePlaced


class PlacedNodes:
    """Of one job."""

    def __init__(
        self, roster: Roster, nodes: Mapping[int, Node], ranks_each: int, tell: Callable[[JobEvent], None]
    ) -> None:
        """nodes: by key of their members. ranks_each: of a node. tell: is told who comes, is placed and leaves."""
        self._roster = roster
        self._nodes = nodes
        self._each = ranks_each
        self._tell = tell
        self._told: dict[int, int] = {}  # by key of a member: the place that was told

    def node_of(self, member: Member | None) -> Node | None:
        """The node of a member, where it is connected."""
        return None if member is None else self._nodes.get(member.key)

    def at(self, place: int) -> Node | None:
        """The node of a place, where there is one."""
        return self.node_of(self._roster.at(place))

    def all(self) -> dict[int, Node]:
        """The nodes that have places."""
        return {node.member.place: node for node in self._nodes.values() if node.member.place >= 0}

    def in_order(self, placed: Mapping[int, Member]) -> Iterator[tuple[int, Node]]:
        """The places of an attempt that have a node, with it."""
        for place in range(self._roster.wanted):
            if (node := self.node_of(placed.get(place))) is not None:
                yield place, node

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

    # --- told -------------------------------------------------------------------------------------------------

    def came(self, node: Node) -> None:
        """A node has come."""
        self._told[node.member.key] = node.member.place
        self._tell(NodeJoined(node.member.key, node.host, node.address))

    def given(self) -> None:
        """Places are given: an attempt begins, or goes on."""
        for key, node in self._nodes.items():
            if self._told.get(key) != node.member.place:
                self._told[key] = node.member.place
                self._tell(NodePlaced(key, node.member.place))

    def left(self, node: Node, why: str) -> None:
        """A node is gone."""
        self._told.pop(node.member.key, None)
        self._tell(NodeLeft(node.member.key, node.member.place, why))
