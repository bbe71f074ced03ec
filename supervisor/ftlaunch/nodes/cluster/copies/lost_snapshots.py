"""Restores snapshots of ranks whose memory is lost, on the nodes that keep their copies, so that they can be saved.

This is for jobs that go on with fewer nodes or end, so that no node comes for these ranks. No rank runs meanwhile.
Until the nodes change, the node that has restored a rank's snapshot saves it as if the rank were its own. Runs in the
head's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ftlaunch.memory import recovery_plan
from ftlaunch.memory.recovery_plan import NONE, Kept, RecoveryPlan, Rung
from ftlaunch.nodes.cluster.cluster_context import ClusterContext
from ftlaunch_contract.protocol import Resume

_PATIENCE_SECONDS = 10.0  # seconds that the nodes have to report what they keep
_SLOT = 0  # the slot that a node fetches into


class CopiesElsewhere(Protocol):
    """What LostSnapshots needs to know of kept copies. `PeerCopies` implements it."""

    lineage: str
    """the lineage of the attempt that is over"""

    def ask_kept(self, lineage: str) -> bool:
        """Ask the nodes what they keep, once. Return whether nothing had to be asked or all have answered."""

    def kept(self) -> Sequence[Kept]:
        """Return the copies that nodes keep."""

    def place_of_keeper(self, number: int) -> int:
        """Return the place of the node with the keeper number `number` (`Kept.node`), or NONE."""

    def fetch_for_lost(self, plan: RecoveryPlan, hosts: Mapping[int, int], done: Callable[[str, Any], None]) -> None:
        """Have the nodes in `hosts` fetch snapshots of ranks whose nodes are lost. Returns at once.

        Args:
            plan: where each snapshot comes from.
            hosts: rank -> the place whose node fetches the rank's snapshot.
            done: called at the end with the reason of a failure (empty after success), and with what came from where;
                not called if an attempt begins before.
        """


class LostSnapshots:
    """The restored snapshots of one job."""

    def __init__(self, context: ClusterContext, copies: CopiesElsewhere) -> None:
        self._context = context
        self._copies = copies
        self._homes: dict[int, int] = {}  # rank -> place of the node that has restored its snapshot
        # A step, what to call in the end, and until when the nodes' answers are waited for.
        self._pending: tuple[int, Callable[[], None], float] | None = None

    def make_whole(self, newer_than: int, done: Callable[[], None]) -> None:
        """Restore the newest step above `newer_than`, if one can be restored, and call `done` in any case."""
        self._pending = newer_than, done, self._context.clock() + _PATIENCE_SECONDS
        self.poll()

    def poll(self) -> None:
        """Go on with a restore once it is known what the nodes keep."""
        if self._pending is None:
            return
        newer_than, done, until = self._pending
        if not self._copies.ask_kept(self._copies.lineage) and self._context.clock() < until:
            return
        self._pending = None
        plan, hosts = self._plan()
        if plan.kind is not Resume.PEER or plan.step <= newer_than or NONE in hosts.values():
            done()
            return

        def brought(why: str, _: object) -> None:
            if why:
                self._context.say(f"cannot save step {plan.step}, of which a node is lost: {why}")
            else:
                self._note_restored(plan.step, hosts)
            done()

        self._copies.fetch_for_lost(plan, hosts, brought)

    def _plan(self) -> tuple[RecoveryPlan, dict[int, int]]:
        """Plan the restore.

        Returns:
            The plan for all ranks; and by rank the place of the node that keeps its copy, or NONE, for ranks whose
            snapshot is lost.
        """
        context = self._context
        copies = self._copies
        pages = context.pages
        plan = recovery_plan.of_snapshots(
            slots=pages.slots(),
            ranks=len(pages),
            ranks_each=context.ranks_each,
            kept=copies.kept(),
        )
        keepers = {rank: source.node for (rank, _), source in plan.sources.items() if source.rung is Rung.PEER}
        return plan, {rank: copies.place_of_keeper(number) for rank, number in keepers.items()}

    def _note_restored(self, step: int, hosts: Mapping[int, int]) -> None:
        for rank in hosts:
            self._context.pages[rank].set_slot(_SLOT, step)
        self._homes = dict(hosts)
        self._context.say(
            f"step {step} can be saved: its snapshots of rank {', '.join(map(str, sorted(hosts)))}, whose node is lost,"
            f" were made again from copies on node {', '.join(map(str, sorted(set(hosts.values()))))}"
        )

    # --- where they are ---------------------------------------------------------------------------------------

    def by_place(self, values: Mapping[int, Any]) -> dict[int, dict[int, Any]]:
        """Group `values`, given by rank, by the place of the node that holds the rank's snapshot."""
        parts: dict[int, dict[int, Any]] = {}
        for rank, value in values.items():
            parts.setdefault(self._homes.get(rank, rank // self._context.ranks_each), {})[rank] = value
        return parts

    def lose(self, place: int) -> None:
        """Forget what the node of a place has restored, because the node is lost."""
        self._forget([rank for rank, home in self._homes.items() if home == place])

    def forget_all(self) -> None:
        """Forget all restored snapshots before the nodes change; they were saved, and belong to no node's own ranks."""
        self._forget(list(self._homes))

    def _forget(self, ranks: list[int]) -> None:
        for rank in ranks:
            del self._homes[rank]
            self._context.pages.forget(rank, 1)
