"""All ranks of a node, as one of them sees them through their pages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from ftlaunch_contract import protocol
from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_hooks.standalone.settings import AloneError

_ROUND = 5.0  # seconds: so often a wait looks whether the ranks that it waits for are alive


class Peers:
    """The pages of all ranks, and whether their processes live."""

    def __init__(self, rank: int, pages: Sequence[Page]) -> None:
        self.rank, self.world_size = rank, len(pages)
        self.pages = list(pages)
        self.page = pages[rank]
        self.leader = pages[0]

    def others(self) -> list[Page]:
        """The pages of all ranks but this one."""
        return [page for page in self.pages if page is not self.page]

    def wait(self, done: Callable[[], bool], awaited: Callable[[], Iterable[int]]) -> None:
        """Wait until `done()`. Raises AloneError once one of the ranks that `awaited()` names is gone."""
        while not wait_until(done, time.monotonic() + _ROUND):
            for rank in awaited():
                self._expect_alive(rank)

    def wait_for_leader(self, done: Callable[[], bool]) -> None:
        """Wait until `done()`. Raises AloneError once rank 0 is gone."""
        self.wait(done, lambda: (0,))

    def _expect_alive(self, rank: int) -> None:
        page = self.pages[rank]
        if protocol.process_start_time(page.pid) != page.start_time:
            raise AloneError(f"cannot go on: rank {rank} is gone")

    def newest_common(self) -> int:
        """The newest step whose snapshot all ranks hold in memory, or NONE."""
        return max(set[int].intersection(*(set(page.slot_steps()) for page in self.pages)))
