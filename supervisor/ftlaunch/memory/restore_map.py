"""Describes where each rank of the next attempt takes its state from. Pure.

The map is written to a file before the ranks are started. ModelArts has a similar recovery file, which says which other
rank of the same strategy supplies the state of ranks that were lost to a fault.
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
    """OWN (the memory of the rank's node), COPIES (in another node's memory), STORAGE or BEGINNING"""
    keeper: int = NONE
    """place of the node that keeps the copies; NONE if that node has no place or the source is another"""

    def fields(self) -> dict[str, Any]:
        """Return the row as JSON fields."""
        row: dict[str, Any] = {"ranks": stretches(self.ranks), "from": self.source}
        if self.source == COPIES:
            row["keeper"] = None if self.keeper == NONE else self.keeper
        return row


@dataclass(frozen=True)
class RestoreMap:
    """Where the state of the next attempt comes from."""

    kind: Resume
    """source of the state; UNDECIDED until the saver has found the newest checkpoint that verifies"""
    step: int
    """step to resume from, or NONE; if UNDECIDED, the newest step on storage, which is not verified yet"""
    rows: Sequence[RestoreRow]
    replicas: Sequence[int] = ()
    """places of nodes whose ranks all hold the step themselves, and which supply what replicas hold alike"""

    @property
    def lost(self) -> list[int]:
        """The ranks whose step is not in the memory of their own node."""
        return sorted(rank for row in self.rows if row.source != OWN for rank in row.ranks)

    @property
    def source(self) -> str | None:
        """The source as the journal names it; None if the job begins."""
        return STORAGE if self.kind is Resume.UNDECIDED else RESTORED_FROM.get(self.kind)


def restore_map(
    kind: Resume, plan: RecoveryPlan, *, ranks: int, ranks_each: int, place_of: Callable[[int], int]
) -> RestoreMap:
    """Return where each rank takes its state from.

    Args:
        kind: the decided source. UNDECIDED is possible where the plan says storage, as storage is verified first.
        plan: a plan made by `of_snapshots`.
        ranks: number of ranks that take part.
        ranks_each: ranks of each node; 0 if there is one node.
        place_of: returns the place of a node that keeps copies according to the plan, or NONE.
    """
    if not kind.in_memory:
        source = BEGINNING if kind is Resume.FRESH else STORAGE
        return RestoreMap(kind, plan.step, [RestoreRow(range(ranks), source)])
    by_source: dict[tuple[str, int], list[int]] = {}
    for (rank, _), supplier in sorted(plan.sources.items()):
        key = (COPIES, supplier.node) if supplier.rung is Rung.PEER else (OWN, NONE)
        by_source.setdefault(key, []).append(rank)
    rows = [
        RestoreRow(supplied, source, place_of(node) if source == COPIES else NONE)
        for (source, node), supplied in by_source.items()
    ]
    unharmed = {rank for row in rows if row.source == OWN for rank in row.ranks}
    each = ranks_each or ranks
    replicas = [place for place in range(ranks // each) if unharmed.issuperset(range(place * each, (place + 1) * each))]
    return RestoreMap(kind=kind, step=plan.step, rows=rows, replicas=replicas if kind is Resume.PEER else ())
