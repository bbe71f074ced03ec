"""The ranks of a node, as one of them sees them through their pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from ftlaunch_contract import protocol
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import NONE, Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_hooks.standalone.settings import AloneError

_ROUND = 5.0  # seconds: so often a wait looks whether the ranks that it waits for are alive


class Peers:
    """The pages of the node's ranks, and whether their processes live."""

    def __init__(self, rank: int, pages: Sequence[Page], node: NodeRanks) -> None:
        """rank: its number in the job. pages: of the ranks of `node`."""
        self.rank, self.world_size, self.node = rank, node.world_size, node
        self.pages = list(pages)
        self.page = pages[node.place(rank)]
        self.leader = pages[0]

    def others(self) -> list[Page]:
        """The pages of all ranks but this one."""
        return [page for page in self.pages if page is not self.page]

    def wait(self, done: Callable[[], bool], awaited: Callable[[], Iterable[int]]) -> None:
        """Wait until `done()`. Raises AloneError once a rank whose place on the node `awaited()` names is gone."""
        while not wait_until(done, time.monotonic() + _ROUND):
            for place in awaited():
                self._expect_alive(place)

    def wait_for_leader(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`. Raises AloneError once the node's first rank is gone."""
        self.wait(done, lambda: (0,))

    def _expect_alive(self, place: int) -> None:
        page = self.pages[place]
        if protocol.process_start_time(page.pid) != page.start_time:
            raise AloneError(f"cannot go on: rank {self.node.ranks[place]} is gone")

    def common_steps(self) -> frozenset[int]:
        """The steps whose snapshots all ranks of the node hold in memory."""
        return frozenset.intersection(*(frozenset(page.slot_steps()) for page in self.pages)) - {NONE}

    def newest_common(self) -> int:
        """The newest of them, or NONE."""
        return max(self.common_steps(), default=NONE)
