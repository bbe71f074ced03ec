"""Gives a rank its view of the ranks of its node, through their pages. Used by jobs without a supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from ftlaunch_contract import protocol
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_hooks.standalone.settings import AloneError

_ROUND_SECONDS = 5.0  # after this time a wait checks again that the awaited ranks are alive


class Peers:
    """The pages of a node's ranks."""

    def __init__(self, rank: int, pages: Sequence[Page], node: NodeRanks) -> None:
        """Keep the pages.

        Args:
            rank: this rank's number in the job.
            pages: the pages of the ranks of `node`, in the order of the ranks.
            node: the ranks of this node.
        """
        self.rank = rank
        self.world_size = node.world_size
        self.node = node
        self.pages = list(pages)
        self.page = pages[node.place(rank)]
        self.leader = pages[0]

    def others(self) -> list[Page]:
        """Return the pages of all ranks of the node but this one."""
        return [page for page in self.pages if page is not self.page]

    def wait(self, done: Callable[[], bool], awaited: Callable[[], Iterable[int]]) -> None:
        """Wait, without limit, until `done()` is true.

        Args:
            done: the condition, which other ranks make true by writing to their pages.
            awaited: returns the places on the node of the ranks that are still awaited.

        Raises:
            AloneError: the process of an awaited rank is gone.
        """
        while not wait_until(done, time.monotonic() + _ROUND_SECONDS):
            for place in awaited():
                self._expect_alive(place)

    def wait_for_leader(self, done: Callable[[], bool]) -> None:
        """Wait until `done()` is true. Raises AloneError if the process of the node's first rank is gone."""
        self.wait(done, lambda: (0,))

    def _expect_alive(self, place: int) -> None:
        page = self.pages[place]
        if protocol.process_start_time(page.pid) != page.start_time:
            raise AloneError(f"cannot go on: rank {self.node.ranks[place]} is gone")

    def common_steps(self) -> frozenset[int]:
        """Return the steps whose snapshots all ranks of the node hold in memory."""
        return frozenset.intersection(*(frozenset(page.slot_steps()) for page in self.pages)) - {NONE}

    def newest_common(self) -> int:
        """Return the newest step whose snapshots all ranks of the node hold in memory, or NONE."""
        return max(self.common_steps(), default=NONE)
