"""The ranks of one attempt, as an interface: the engine does not know on which machine a rank runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ftlaunch.policy.failure_diagnosis import Evidence
from ftlaunch.ranks.rank import Rank
from ftlaunch.ranks.view import RankView
from ftlaunch_contract.pages.page import Page

Exited = Callable[[Rank], None]
"""Called once with each rank whose process has ended."""


class RankGroup(Protocol):
    """Starts the ranks of an attempt, shows what they do, and ends them. No method waits.

    torchelastic calls the same thing a WorkerGroup. `LocalRanks` is the group of this machine.
    """

    attempt: int
    started: float
    """monotonic seconds"""
    port: int
    """MASTER_PORT of the attempt"""

    @property
    def ranks(self) -> Mapping[int, Rank]:
        """The ranks that have been started, by number."""

    # --- starting ---------------------------------------------------------------------------------------------

    def spawn(self) -> None:
        """Start every rank. Raises SpawnFailed; the ranks that were started by then belong to the group."""

    def replace(self, rank: int, due: float) -> None:
        """End one rank and its process group; `refill` starts it again at `due`."""

    def refill(self, now: float) -> Iterator[tuple[int, int]]:
        """Start the ranks that are due; yields (rank, how often it was started again) as each of them runs.

        Raises SpawnFailed at a rank that cannot be started: those before it run, and have been told of.
        """

    @property
    def refilling(self) -> bool:
        """Whether some rank is about to be started again."""

    # --- looking ----------------------------------------------------------------------------------------------

    def notice(self, now: float) -> None:
        """Look at what can only be seen by comparing two looks: phases, activity, logs."""

    def views(self) -> list[RankView]:
        """What decisions are made from."""

    def pages(self) -> list[tuple[int, Page]]:
        """The pages that speak of this attempt, with their ranks."""

    @property
    def resuming(self) -> bool:
        """Whether some rank has restored its state: the others are about to."""

    @property
    def living(self) -> list[int]:
        """The ranks whose processes are left."""

    @property
    def empty(self) -> bool:
        """Whether no rank's process is left."""

    def dying(self) -> dict[int, float]:
        """The ranks that a signal is ending at this moment, with the time of the beginning."""

    def note_dying(self, ranks: Iterable[int], order: int, now: float) -> dict[int, int]:
        """Of these ranks those that a signal has begun to end, with the signal; each rank is returned once."""

    def failed(self, *, must_read: bool) -> list[Evidence]:
        """What the failed ranks left behind; a rank that is to be started again is not among them.

        must_read: raise OSError where a log cannot be read; else such a log counts as empty.
        """

    def all_done(self) -> bool:
        """Whether every rank has ended honestly with 0, and none because it was told to stop."""

    def stopped(self) -> set[int]:
        """The ranks whose processes are stopped (SIGSTOP)."""

    def subjects(self, why: str) -> list[dict[str, Any]]:
        """What an autopsy has to know of the living ranks. why: what each of them is asked for."""

    # --- ending -----------------------------------------------------------------------------------------------

    def ask_to_leave(self) -> None:
        """SIGTERM to every rank, once; stopped processes are continued so that they can hear it."""

    def kill(self) -> None:
        """SIGKILL to every rank's process group."""

    def reap(self, spared: Sequence[int]) -> int:
        """Take the exit status of processes that ranks have left and that have ended; return how many there were.

        Ranks whose ends could not be waited for are looked at as well. spared: helpers' pids.
        """

    def sweep(self, spared: Sequence[int]) -> bool:
        """Once no rank is left: kill what the ranks left behind. True when nothing is left. spared: helpers' pids."""
