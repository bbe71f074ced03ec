"""How many steps lie between copies to other nodes: as many as the node wants that has the most to send.

It is a multiple of the steps between snapshots, and a longer one a multiple of a shorter one: while it changes, the
steps of which there are copies are still steps that all nodes have.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.nodes.node import Node

MOST = 1 << 30  # steps


class CopyInterval:
    """Of one job."""

    def __init__(self, pages: ClusterPages, asked: int | Literal["auto"]) -> None:
        """asked: steps; 0 is off."""
        self._pages = pages
        self._asked = asked

    def look(self, nodes: Iterable[Node]) -> None:
        """Announce another interval where it has changed."""
        if not self._asked:
            return
        every = max(self._pages.every, 1)
        if self._asked == "auto":
            found = interval(every, max((node.wants_copies_every for node in nodes), default=1))
        else:
            found = max(self._asked // every, 1) * every
        if found != self._pages.copied_every:
            self._pages.copy_every(found)


def interval(every: int, wanted: int) -> int:
    """The shortest that is `every`, doubled again and again, and at least `wanted`. Pure."""
    found = every
    while found < min(wanted, MOST):
        found *= 2
    return found
