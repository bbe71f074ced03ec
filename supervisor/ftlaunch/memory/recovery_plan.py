"""Where the state of an attempt comes from: the newest step that can be had whole, and of it every shard. Pure.

A shard that several ranks hold alike (its replica group) can be had as long as one copy of it is left. Without a copy
of every shard a step cannot be had, and the next best is tried: an older step in memory, then storage. The rule is
that of ModelArts' recovery strategy (usable = group - failed; the least usable rank supplies), extended by copies on
other nodes, by the nearest copy instead of the lowest rank, and by suppliers that share the work.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ftlaunch_contract.protocol import Resume

NONE = -1


class Rung(enum.IntEnum):
    """How far a shard has to be moved, the nearest first."""

    OWN = 0  # the rank's own snapshot, in the memory of its node
    NODE = 1  # another rank's, in the memory of the same node
    PEER = 2  # in the memory of another node
    STORAGE = 3


@dataclass(frozen=True, order=True)
class Shard:
    """A part of the job's state. Ranks that hold the same shard are replicas of each other."""

    group: str  # which tensors: "model", "opt", ...
    place: tuple[tuple[str, int], ...] = ()  # what tells it from the group's others: (("tp", 0), ("pp", 1))


@dataclass(frozen=True)
class Copy:
    """A whole copy of a shard in memory."""

    shard: Shard
    step: int
    rank: int  # the rank in whose snapshot it lies
    node: int  # in whose memory: of the rank's own node, or of a peer that keeps a copy
    outlives_rank: bool = True  # a snapshot does; what is in the process, or on its GPU, does not


@dataclass(frozen=True)
class Failed:
    """The ranks and nodes that are gone."""

    ranks: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()

    def spares(self, copy: Copy) -> bool:
        """Whether a copy can still be had."""
        return copy.node not in self.nodes and (copy.outlives_rank or copy.rank not in self.ranks)


@dataclass(frozen=True)
class RankNeeds:
    """A rank of the next attempt: the node it runs on, and the shards it needs."""

    rank: int
    node: int
    needs: frozenset[Shard]


@dataclass(frozen=True)
class Source:
    """Where a rank takes a shard from: whose snapshot, in which node's memory (NONE and NONE: storage)."""

    rung: Rung
    node: int = NONE
    rank: int = NONE


@dataclass(frozen=True)
class RecoveryPlan:
    """The answer: the step, and by (rank, shard) where each comes from."""

    kind: Resume  # FRESH, MEMORY (no other node is asked), PEER (one is) or STORAGE
    step: int
    sources: Mapping[tuple[int, Shard], Source]


def plan(
    places: Sequence[RankNeeds], copies: Iterable[Copy], stored: Collection[int], failed: Failed | None = None
) -> RecoveryPlan:
    """The newest step that can be had whole, from memory where storage has nothing newer; FRESH without any.

    copies: of one attempt; those of earlier attempts were withdrawn before. stored: steps of complete
    checkpoints. A plan never mixes memory and storage: an earlier attempt may have stored the same step.
    """
    failed = failed or Failed()
    held: dict[int, dict[Shard, list[Copy]]] = {}
    for copy in copies:
        if copy.step >= 0 and failed.spares(copy):
            held.setdefault(copy.step, {}).setdefault(copy.shard, []).append(copy)
    needed = frozenset[Shard]().union(*(place.needs for place in places))
    whole = [step for step, shards in held.items() if needed and needed <= shards.keys()]
    memory, storage = max(whole, default=NONE), max(stored, default=NONE)
    if memory == storage == NONE:
        return RecoveryPlan(Resume.FRESH, 0, {})
    if storage > memory:
        everything = [(place.rank, shard) for place in places for shard in sorted(place.needs)]
        return RecoveryPlan(Resume.STORAGE, storage, dict.fromkeys(everything, Source(Rung.STORAGE)))
    sources = _share_out(places, held[memory])
    far = any(source.rung is Rung.PEER for source in sources.values())
    return RecoveryPlan(Resume.PEER if far else Resume.MEMORY, memory, sources)


@dataclass(frozen=True)
class Kept:
    """The snapshot of a rank in the memory of a node that is not the rank's own."""

    rank: int
    step: int
    node: int


def of_snapshots(
    slots: Mapping[int, Sequence[int]], ranks: int, stored: Collection[int] = (), ranks_each: int = 0,
    kept: Iterable[Kept] = (),
) -> RecoveryPlan:  # fmt: skip
    """The plan for `ranks` ranks, each with its own snapshots.

    slots: rank -> the step in each of its slots (NONE: not whole); of other ranks it may hold more. ranks_each: of a
    node; 0: there is one node. kept: what other nodes than a rank's own have of its snapshots.
    """
    each = ranks_each or ranks
    shards = [Shard("snapshot", (("rank", rank),)) for rank in range(ranks)]
    places = [RankNeeds(rank, rank // each, frozenset({shard})) for rank, shard in enumerate(shards)]
    copies = [
        Copy(shard, step, rank, rank // each)
        for rank, shard in enumerate(shards)
        for step in dict.fromkeys(slots.get(rank, ()))
    ]
    copies += [Copy(shards[one.rank], one.step, one.rank, one.node) for one in kept if one.rank < ranks]
    return plan(places, copies, stored)


def newest_common(slots: Mapping[int, Sequence[int]], ranks: int) -> int:
    """The newest step that every one of `ranks` ranks of one node holds whole in a slot, or NONE."""
    return newest_of_all(slots.get(rank, ()) for rank in range(ranks))


def newest_of_all(held: Iterable[Sequence[int]]) -> int:
    """The newest step that stands in each of these, or NONE. held: of each rank, the step in each slot, or NONE."""
    each = iter(held)
    common = {step for step in next(each, ()) if step >= 0}
    for steps in each:
        common.intersection_update(steps)
        if not common:
            break
    return max(common, default=NONE)


# --- sharing out ------------------------------------------------------------------------------------------

_Need = tuple[int, Shard]  # (rank, what it needs)
_Wish = TypeVar("_Wish", bound="int | _Need")
_Supplier = TypeVar("_Supplier", bound="int | tuple[int, int]")


def _share_out(places: Sequence[RankNeeds], held: Mapping[Shard, Sequence[Copy]]) -> dict[_Need, Source]:
    """For every rank and shard the nearest source; of several no node, and on it no rank, supplies more than it must.

    The rungs are shared out one by one: what is read on the node itself is no load to what it sends.
    """
    cheapest: dict[Rung, dict[_Need, list[Copy]]] = {}
    for place in places:
        for shard in place.needs:
            rung = min(_rung(copy, place) for copy in held[shard])
            copies = [copy for copy in held[shard] if _rung(copy, place) is rung]
            cheapest.setdefault(rung, {})[place.rank, shard] = copies
    sources = {}
    for rung, wishes in cheapest.items():
        nodes = balance({wish: {copy.node for copy in copies} for wish, copies in wishes.items()})
        suppliers = balance(
            {wish: {(c.node, c.rank) for c in copies if c.node == nodes[wish]} for wish, copies in wishes.items()}
        )
        sources.update({wish: Source(rung, node, rank) for wish, (node, rank) in suppliers.items()})
    return sources


def _rung(copy: Copy, place: RankNeeds) -> Rung:
    if copy.node != place.node:
        return Rung.PEER
    return Rung.OWN if copy.rank == place.rank else Rung.NODE


def balance(choices: Mapping[_Wish, Collection[_Supplier]]) -> dict[_Wish, _Supplier]:
    """One supplier for each wish, so that the busiest supplies as little as possible; the same on every node.

    An optimal semi-matching, wish by wish: the new wish goes to the supplier with the least load that can be
    reached when wishes already placed may move (Harvey, Ladner, Lovasz, Tamir, "Semi-matchings for bipartite
    graphs and load balancing", 2006).
    """
    if all(len(suppliers) == 1 for suppliers in choices.values()):  # thousands of ranks, nothing to choose
        return {wish: next(iter(suppliers)) for wish, suppliers in choices.items()}
    placed: dict[_Wish, _Supplier] = {}
    supplied: dict[_Supplier, set[_Wish]] = {}
    for new in sorted(choices):
        reached: dict[_Supplier, _Wish] = {}  # supplier -> the wish that could move there
        moving = [new]
        for wish in moving:  # the list grows meanwhile
            for supplier in sorted(set(choices[wish]) - reached.keys()):
                reached[supplier] = wish
                moving.extend(sorted(supplied.get(supplier, ())))
        target = min(reached, key=lambda supplier: (len(supplied.get(supplier, ())), supplier))
        while True:
            wish = reached[target]
            before = placed.get(wish)
            placed[wish] = target
            supplied.setdefault(target, set()).add(wish)
            if before is None:
                break
            supplied[before].remove(wish)
            target = before
    return placed
