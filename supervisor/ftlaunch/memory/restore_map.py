"""Which rank of the next attempt takes its state from where, as it is written before the ranks are started. Pure.

The idea is that of ModelArts, whose recovery file says, for the ranks that a fault has cost, which other rank of the
same strategy supplies what they held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ftlaunch.common.formatting import stretches
from ftlaunch.memory.recovery_plan import NONE, RecoveryPlan, Rung
from ftlaunch_contract.protocol import RESTORED_FROM, Resume

OWN = "own memory"
COPIES = "copies"
STORAGE = "storage"
BEGINNING = "beginning"


@dataclass(frozen=True)
class RestoreRow:
    """Ranks whose state comes from one place."""

    ranks: Sequence[int]
    source: str
    """own memory: of the rank's node; copies: in another node's memory; storage; beginning"""
    keeper: int = NONE
    """place of the node that keeps the copies; NONE: it has no place, or there are no copies"""

    def fields(self) -> dict[str, Any]:
        """Return the row for a file."""
        row: dict[str, Any] = {"ranks": stretches(self.ranks), "from": self.source}
        if self.source == COPIES:
            row["keeper"] = None if self.keeper == NONE else self.keeper
        return row


@dataclass(frozen=True)
class RestoreMap:
    """Where the state of the next attempt comes from."""

    kind: Resume
    """UNDECIDED: the saver is asked first for the newest checkpoint that verifies"""
    step: int
    """to go on from; of UNDECIDED the newest that storage has, which is not verified yet; or NONE"""
    rows: Sequence[RestoreRow]
    replicas: Sequence[int] = ()
    """places of nodes whose ranks hold the step themselves: they supply what replicas hold alike"""

    @property
    def lost(self) -> list[int]:
        """The ranks that do not find the step in the memory of their own node."""
        return sorted(rank for row in self.rows if row.source != OWN for rank in row.ranks)

    @property
    def source(self) -> str | None:
        """What all of it comes from, as the journal names it; None: the job begins."""
        return STORAGE if self.kind is Resume.UNDECIDED else RESTORED_FROM.get(self.kind)


def restore_map(
    kind: Resume, plan: RecoveryPlan, *, ranks: int, ranks_each: int, place_of: Callable[[int], int]
) -> RestoreMap:
    """Return where each rank takes its state from.

    Args:
        kind: what was decided, which may be more careful than the plan: storage is verified first.
        plan: of snapshots.
        ranks: so many take part.
        ranks_each: of a node; 0: there is one node.
        place_of: the place of the node that a plan's source names as keeping copies, or NONE.
    """
    if not kind.in_memory:
        source = BEGINNING if kind is Resume.FRESH else STORAGE
        return RestoreMap(kind, plan.step, [RestoreRow(range(ranks), source)])
    by_source: dict[tuple[str, int], list[int]] = {}
    for (rank, _), found in sorted(plan.sources.items()):
        far = found.rung is Rung.PEER
        by_source.setdefault((COPIES if far else OWN, found.node if far else NONE), []).append(rank)
    rows = [
        RestoreRow(found, source, place_of(node) if source == COPIES else NONE)
        for (source, node), found in by_source.items()
    ]
    here = {rank for row in rows if row.source == OWN for rank in row.ranks}
    each = ranks_each or ranks
    replicas = [place for place in range(ranks // each) if here.issuperset(range(place * each, (place + 1) * each))]
    return RestoreMap(kind, plan.step, rows, replicas if kind is Resume.PEER else ())
