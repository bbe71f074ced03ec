"""Notifies nodes without a place that they stand by, and what for."""

from __future__ import annotations

from collections.abc import Iterable

from ftlaunch.nodes.cluster.membership.roster import Roster
from ftlaunch.nodes.cluster.nodes.node import Node


def notify(nodes: Iterable[Node], roster: Roster) -> None:
    """Notify the ready nodes that have no place, unless a place is vacant for them."""
    if roster.vacant:
        return
    for node in nodes:
        if node.member.place < 0 and node.member.ready:
            node.send("standby", why=_why(node, roster))


def _why(node: Node, roster: Roster) -> str:
    has = f"the job has its {roster.wanted} nodes" if roster.wanted > 1 else "the job has its node"
    if node.member.isolated:
        return f"{has}, and too many failures have begun on this machine (--isolate-after)"
    ready = f"{has}, and this one takes the place of the next that fails or leaves"
    if roster.wanted == roster.most:
        return ready
    return f"{ready}; up to {roster.most} nodes are taken in at the next restart, or by `ftctl nodes grow`"
