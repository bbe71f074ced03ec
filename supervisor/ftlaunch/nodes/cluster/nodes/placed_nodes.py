"""The nodes of an attempt by place, and the ranks of a place. Also reports joins, places and leaves to the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ftlaunch.nodes.cluster.membership.roster import Member, Roster
from ftlaunch.nodes.cluster.nodes.node import Node
from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.reporting.events.nodes import NodeJoined, NodeLeft, NodePlaced


class PlacedNodes:
    """The connected nodes of one job that have places."""

    def __init__(
        self, roster: Roster, nodes: Mapping[int, Node], ranks_each: int, report: Callable[[JobEvent], None]
    ) -> None:
        """Begin without nodes.

        Args:
            roster: the members and their places.
            nodes: the connected nodes, by the key of their members.
            ranks_each: ranks of each node.
            report: writes an event to the journal.
        """
        self._roster = roster
        self._nodes = nodes
        self._each = ranks_each
        self._report = report
        self._reported_places: dict[int, int] = {}  # the place that the journal was told of, by the key of a member

    def node_of(self, member: Member | None) -> Node | None:
        """Return the node of a member, or None if it is not connected."""
        return None if member is None else self._nodes.get(member.key)

    def at(self, place: int) -> Node | None:
        """Return the node of a place, or None."""
        return self.node_of(self._roster.at(place))

    def all(self) -> dict[int, Node]:
        """Return the nodes that have places, by place."""
        return {node.member.place: node for node in self._nodes.values() if node.member.place >= 0}

    def in_order(self, placed: Mapping[int, Member]) -> Iterator[tuple[int, Node]]:
        """Yield the places of an attempt that have a connected node, each with the node."""
        for place in range(self._roster.wanted):
            if (node := self.node_of(placed.get(place))) is not None:
                yield place, node

    def ranks_of(self, place: int) -> range:
        """Return the ranks of a place."""
        return range(place * self._each, (place + 1) * self._each)

    def send(self, place: int, do: str, **fields: Any) -> bool:
        """Send a message to the node of a place. Return False if there is no node."""
        if (node := self.at(place)) is not None:
            node.send(do, **fields)
        return node is not None

    def send_all(self, do: str, **fields: Any) -> None:
        """Send a message to every node of the attempt."""
        for node in self._nodes.values():
            if node.member.place >= 0:
                node.send(do, **fields)

    # --- events -----------------------------------------------------------------------------------------------

    def report_joined(self, node: Node) -> None:
        """Report that a node has come."""
        self._reported_places[node.member.key] = node.member.place
        self._report(NodeJoined(node.member.key, node.host, node.address))

    def report_places(self) -> None:
        """Report the places that have changed, because an attempt begins or goes on."""
        for key, node in self._nodes.items():
            if self._reported_places.get(key) != node.member.place:
                self._reported_places[key] = node.member.place
                self._report(NodePlaced(key, node.member.place))

    def report_left(self, node: Node, why: str) -> None:
        """Report that a node is gone."""
        self._reported_places.pop(node.member.key, None)
        self._report(NodeLeft(node.member.key, node.member.place, why))
