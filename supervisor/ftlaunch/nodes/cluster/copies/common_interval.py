"""Chooses one interval between snapshots for all nodes: the longest that a node wants.

A resume needs the same step on all nodes. Therefore a new interval is announced for a step that no rank has reached
yet. Runs in the head's event loop.
"""

from __future__ import annotations

from collections.abc import Callable

from ftlaunch.nodes.cluster.mirrors.cluster_pages import ClusterPages
from ftlaunch_contract.protocol import announce_step

_SLACK = 0.2  # the fraction by which a new interval must differ from the present one


class CommonInterval:
    """The interval between snapshots of one job."""

    def __init__(self, pages: ClusterPages, ranks_each: int) -> None:
        """Use the mirrors of the pages. ranks_each: ranks of each node; the first one holds what its node wants."""
        self._pages = pages
        self._each = ranks_each
        self._from = 0  # the step from which the announced interval holds

    def update(self, front: Callable[[], tuple[int, float]]) -> None:
        """Announce another interval if the nodes want one.

        Args:
            front: returns the newest step of any rank and the seconds of the shortest step. Called only if needed,
                because the call looks at every rank.
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
        """Forget the announcement, because another attempt begins."""
        self._from = 0
