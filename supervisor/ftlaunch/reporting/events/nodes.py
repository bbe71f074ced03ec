"""Events about the nodes of a job of several nodes: a node joins, gets a place or stands by, and leaves. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ftlaunch.reporting.events.base import JobEvent
from ftlaunch.system.systemd import Priority

_LONGEST = 200  # characters of what a node says of itself


@dataclass(frozen=True)
class NodeJoined(JobEvent):
    """A node has come; it stands by until it has a place."""

    name = "node_joined"
    node: int
    """the number that the head has given to the node"""
    host: str
    address: str

    def fields(self) -> dict[str, Any]:
        """Return the node's number at this head, its host and its address."""
        return {"node": self.node, "host": self.host[:_LONGEST], "address": self.address[:_LONGEST]}


@dataclass(frozen=True)
class NodePlaced(JobEvent):
    """An attempt begins, and a node has another place than before."""

    name = "node_placed"
    node: int
    place: int

    def fields(self) -> dict[str, Any]:
        """Return the node's number and its place; place -1: the node stands by from now on."""
        return {"node": self.node, "place": self.place}


@dataclass(frozen=True)
class NodeLeft(JobEvent):
    """A node is gone: it is lost, or it has left."""

    name = "node_left"
    priority = Priority.WARNING
    node: int
    place: int
    why: str

    def fields(self) -> dict[str, Any]:
        """Return the node's number, its last place, and why the node is gone."""
        return {"node": self.node, "place": self.place, "why": self.why}
