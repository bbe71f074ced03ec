"""One interval between snapshots for all nodes: the longest that a node wants, announced for a step that is ahead.

Snapshots of different steps on two nodes are of no use: a resume needs one step of all.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch_contract.protocol import announce_step

_SLACK = 0.2  # part by which another interval must differ


class CommonInterval:
    """Of one job."""

    def __init__(self, pages: ClusterPages, ranks_each: int) -> None:
        """ranks_each: of a node; its first one says what the node wants."""
        self._pages = pages
        self._each = ranks_each
        self._from = 0  # the step from which the announced one holds

    def look(self, front: Callable[[], tuple[int, float]]) -> None:
        """Announce another interval where the nodes want one.

        front: the newest step of any rank, and the seconds of the shortest; asked only where it counts, as it costs a
        look at every rank.
        """
        wanted = [page.wanted for page in self._pages.pages[:: self._each]]
        every = max(wanted)
        before = self._pages.every
        if not all(wanted) or (before and abs(every - before) <= _SLACK * before):
            return
        newest, step_seconds = front()
        if newest < self._from:
            return
        self._from = announce_step(newest, step_seconds, self._pages.delay_seconds)
        self._pages.announce_interval(every, self._from)

    def begin(self) -> None:
        """Another attempt begins."""
        self._from = 0
