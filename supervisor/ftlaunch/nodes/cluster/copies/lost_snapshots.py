"""Snapshots of ranks whose memory is lost, made again on the nodes that keep their copies, so that they can be saved.

The next attempt may have no node for these ranks: the job goes on with fewer nodes, or ends. No rank runs meanwhile.
The node that has made a rank's snapshot again saves it, as if the rank were its own, until the nodes change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from ftlaunch.memory import recovery_plan
from ftlaunch.memory.recovery_plan import NONE, Kept, RecoveryPlan, Rung
from ftlaunch.nodes.cluster.around import Around
from ftlaunch_contract.protocol import Resume

_PATIENCE = 10.0  # seconds in which all nodes must have said what they keep
_SLOT = 0  # which a node fetches into


class CopiesElsewhere(Protocol):
    """What is known of the copies that nodes keep, and who brings them: see PeerCopies."""

    lineage: str
    """of the attempt that is over"""

    def known(self, lineage: str) -> bool:
        """Whether it is known what nodes keep; asks them."""

    def kept(self) -> Sequence[Kept]:
        """What they keep."""

    def place_of_keeper(self, number: int) -> int:
        """The place of the node that is `node` of a Kept, or NONE."""

    def bring(self, plan: RecoveryPlan, hosts: Mapping[int, int], done: Callable[[str, Any], None]) -> None:
        """Have nodes fetch what a plan takes from other nodes. hosts: rank -> the place that fetches."""


class LostSnapshots:
    """Of one job."""

    def __init__(self, around: Around, copies: CopiesElsewhere) -> None:
        self._around = around
        self._copies = copies
        self._homes: dict[int, int] = {}  # rank -> place of the node that has made its snapshot again
        self._asked: tuple[int, Callable[[], None], float] | None = None  # until when it is waited for the answers

    def make_whole(self, newer_than: int, done: Callable[[], None]) -> None:
        """Have the newest step made whole that is newer than a step; then call `done`, whether there is one or not."""
        self._asked = newer_than, done, self._around.clock() + _PATIENCE
        self.look()

    def look(self) -> None:
        """Go on once it is known what the nodes keep."""
        if self._asked is None:
            return
        newer_than, done, until = self._asked
        if not self._copies.known(self._copies.lineage) and self._around.clock() < until:
            return
        self._asked = None
        plan, hosts = self._plan()
        if plan.kind is not Resume.PEER or plan.step <= newer_than or NONE in hosts.values():
            done()
            return

        def brought(why: str, _: object) -> None:
            if why:
                self._around.say(f"cannot save step {plan.step}, of which a node is lost: {why}")
            else:
                self._take_up(plan.step, hosts)
            done()

        self._copies.bring(plan, hosts, brought)

    def _plan(self) -> tuple[RecoveryPlan, dict[int, int]]:
        """The plan for all ranks, and rank -> place of the node that keeps its copy, or NONE."""
        around = self._around
        copies = self._copies
        pages = around.pages
        plan = recovery_plan.of_snapshots(pages.slots(), len(pages), (), around.ranks_each, copies.kept())
        far = {rank: source.node for (rank, _), source in plan.sources.items() if source.rung is Rung.PEER}
        return plan, {rank: copies.place_of_keeper(node) for rank, node in far.items()}

    def _take_up(self, step: int, hosts: Mapping[int, int]) -> None:
        for rank in hosts:
            self._around.pages[rank].set_slot(_SLOT, step)
        self._homes = dict(hosts)
        self._around.say(
            f"step {step} can be saved: its snapshots of rank {', '.join(map(str, sorted(hosts)))}, whose node is lost,"
            f" were made again from copies on node {', '.join(map(str, sorted(set(hosts.values()))))}"
        )

    # --- where they are ---------------------------------------------------------------------------------------

    def by_place(self, values: Mapping[int, Any]) -> dict[int, dict[int, Any]]:
        """By the place of the node that has the rank's snapshot: what is given by rank."""
        parts: dict[int, dict[int, Any]] = {}
        for rank, value in values.items():
            parts.setdefault(self._homes.get(rank, rank // self._around.ranks_each), {})[rank] = value
        return parts

    def lose(self, place: int) -> None:
        """The node of a place is lost, and with it what it has made again."""
        self._forget([rank for rank, home in self._homes.items() if home == place])

    def let_go(self) -> None:
        """The nodes may change: what was made again was saved, and belongs to no node's own ranks."""
        self._forget(list(self._homes))

    def _forget(self, ranks: list[int]) -> None:
        for rank in ranks:
            del self._homes[rank]
            self._around.pages.forget(rank, 1)
