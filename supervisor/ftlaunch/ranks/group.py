"""The interface through which the engine starts, observes and ends the ranks of one attempt.

The engine does not know on which machine a rank runs. `LocalRanks` implements the interface for this machine,
`ClusterRanks` for ranks on several nodes. All methods are called in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks.rank import Rank
from ftlaunch.ranks.view import RankView
from ftlaunch_contract.pages.page import Page

Exited = Callable[[Rank], None]
"""a callback that is called once with each rank whose process has ended"""


class RankGroup(Protocol):
    """Starts the ranks of an attempt, shows what they do, and ends them. No method waits.

    A RankGroup is what torchelastic calls a WorkerGroup.
    """

    attempt: int
    """number of the attempt"""
    started: float
    """time at which the attempt began, in monotonic seconds"""
    port: int
    """MASTER_PORT of the attempt"""

    @property
    def ranks(self) -> Mapping[int, Rank]:
        """The started ranks by number."""

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start every rank.

        Raises:
            SpawnFailed: a rank cannot be started. The ranks that were started before it belong to the group.
        """

    def replace(self, rank: int, due: float) -> None:
        """Kill one rank and its process group; `refill` starts the rank again.

        Args:
            rank: number of the rank.
            due: when the rank may be started again, in monotonic seconds.
        """

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Start the replaced ranks that are due.

        Yields:
            The number of a rank, as soon as the rank runs, and how often the rank was started again.

        Raises:
            SpawnFailed: a rank cannot be started. The ranks before it run, and have been yielded.
        """

    @property
    def refilling(self) -> bool:
        """Whether some rank is about to be started again."""

    # --- observing --------------------------------------------------------------------------------------------

    def notice(self, now: float) -> None:
        """Record what can only be seen by comparing two observations: phases, activity, growth of logs."""

    def views(self) -> list[RankView]:
        """Return what is known of each rank, for decisions."""

    def pages(self) -> list[tuple[int, Page]]:
        """Return pairs of rank and page, of those pages that were written in this attempt."""

    @property
    def resuming(self) -> bool:
        """Whether some rank has restored its state, so that the others are about to do so."""

    @property
    def living(self) -> list[int]:
        """The ranks whose processes have not been reaped."""

    @property
    def empty(self) -> bool:
        """Whether all ranks' processes have been reaped."""

    def dying(self) -> dict[int, float]:
        """Return the ranks that a signal is ending at this moment, and since when, in monotonic seconds."""

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Record which of `ranks` a signal has begun to end.

        Args:
            ranks: the ranks to examine.
            order: place of these ends among the ends of all ranks.
            now: monotonic seconds.

        Returns:
            The signal by rank; each rank is returned by one call only.
        """

    def failed(self, *, must_read: bool) -> list[Evidence]:
        """Return what the failed ranks left behind; a rank that is to be started again is not among them.

        Args:
            must_read: raise if a log cannot be read; otherwise such a log counts as empty.

        Raises:
            OSError: a log cannot be read, and `must_read` is set.
        """

    def all_done(self) -> bool:
        """Return whether every rank has completed its work and ended with 0, and none because of a stop request."""

    def stopped(self) -> set[int]:
        """Return the ranks whose processes are stopped (SIGSTOP)."""

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """Return what an autopsy has to know of the living ranks.

        Args:
            why: the reason for the autopsy.
        """

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """Send SIGTERM to every rank once, and SIGCONT, so that stopped processes can handle the SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL to every rank's process group."""

    def reap(self, spared: Sequence[int]) -> int:
        """Reap ended processes that ranks have left, and ranks whose ends the event loop cannot wait for.

        Args:
            spared: pids of helper processes, which are not reaped.

        Returns:
            The number of reaped orphans.
        """

    def sweep(self, spared: Sequence[int]) -> bool:
        """Kill what the ranks left behind. Called once no rank is left, until nothing is left.

        Args:
            spared: pids of helper processes, which are not killed.

        Returns:
            Whether nothing is left.
        """
