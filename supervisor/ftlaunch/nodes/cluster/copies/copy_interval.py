"""Chooses the steps between copies to other nodes: as many as the node wants that has the most to send.

The interval is a multiple of the steps between snapshots, and each longer interval is a multiple of all shorter ones.
Therefore, even while the interval changes, nodes have copies of common steps. `choose_interval` is pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch.nodes.cluster.nodes.node import Node

MOST = 1 << 30  # steps


class CopyInterval:
    """The interval between copies of one job."""

    def __init__(self, pages: ClusterPages, asked: int | Literal["auto"]) -> None:
        """Use the mirrors of the pages. asked: the number of steps that the user wants; 0 for no copies."""
        self._pages = pages
        self._asked = asked

    def update(self, nodes: Iterable[Node]) -> None:
        """Announce the interval if it has changed. nodes: those with a place."""
        if not self._asked:
            return
        every = max(self._pages.every, 1)
        if self._asked == "auto":
            found = choose_interval(every, max((node.wants_copies_every for node in nodes), default=1))
        else:
            found = max(self._asked // every, 1) * every
        if found != self._pages.copied_every:
            self._pages.copy_every(found)


def choose_interval(every: int, wanted: int) -> int:
    """Return the smallest of `every`, 2 * `every`, 4 * `every`, ... that is at least `wanted`."""
    found = every
    while found < min(wanted, MOST):
        found *= 2
    return found
