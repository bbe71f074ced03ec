"""Plans where an attempt takes its state from: the newest step that is whole, and the source of each shard. Pure.

A shard that several ranks hold with equal values (its replica group) is available as long as one copy is left. A step
is available only if there is a copy of every shard; otherwise an older step in memory is tried, then storage. The rule
is that of ModelArts' recovery strategy (usable = group - failed; the lowest usable rank supplies), extended by copies
on other nodes, by the nearest copy instead of the lowest rank, and by suppliers that share the work.

The supervisor calls `of_snapshots` before an attempt (checkpoints/resume.py), and the head of several nodes calls it
before it saves the snapshots of lost nodes. Copiers call `balance` to choose the nodes from which they read.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ftlaunch_contract.protocol import Resume

NONE = -1
"""no step, no node, no rank"""


class Rung(enum.IntEnum):
    """How far a shard has to be moved, the nearest first."""

    OWN = 0  # from the rank's own snapshot, in the memory of its node
    NODE = 1  # from another rank's snapshot, in the memory of the same node
    PEER = 2  # from the memory of another node
    STORAGE = 3


@dataclass(frozen=True, order=True)
class Shard:
    """A part of the job's state. Ranks that hold the same shard are replicas of each other."""

    group: str  # the tensors: "model", "opt", ...
    coordinates: tuple[tuple[str, int], ...] = ()  # in the group, such as (("tp", 0), ("pp", 1))


@dataclass(frozen=True)
class Copy:
    """A whole copy of a shard in memory."""

    shard: Shard
    step: int
    rank: int  # the rank whose snapshot contains the copy
    node: int  # the node whose memory holds the copy: the rank's own node, or another that keeps the snapshot
    outlives_rank: bool = True  # whether the copy survives the rank's process, as a snapshot in /dev/shm does


@dataclass(frozen=True)
class Failed:
    """The ranks and nodes that are gone."""

    ranks: frozenset[int] = frozenset()
    nodes: frozenset[int] = frozenset()

    def spares(self, copy: Copy) -> bool:
        """Return whether a copy is still available."""
        return copy.node not in self.nodes and (copy.outlives_rank or copy.rank not in self.ranks)


@dataclass(frozen=True)
class RankNeeds:
    """A rank of the next attempt: the node it runs on, and the shards it needs."""

    rank: int
    node: int
    needs: frozenset[Shard]


@dataclass(frozen=True)
class Source:
    """Where a rank takes a shard from."""

    rung: Rung
    node: int = NONE  # the node whose memory holds the copy; NONE for storage
    rank: int = NONE  # the rank whose snapshot contains the copy; NONE for storage


@dataclass(frozen=True)
class RecoveryPlan:
    """The step to resume from, and where each shard comes from."""

    kind: Resume  # FRESH, MEMORY (no other node is asked), PEER (some node is asked) or STORAGE
    step: int  # 0 if the kind is FRESH
    sources: Mapping[tuple[int, Shard], Source]  # by rank and the shard that the rank needs


def plan(
    ranks: Sequence[RankNeeds], copies: Iterable[Copy], stored: Collection[int], failed: Failed | None = None
) -> RecoveryPlan:
    """Plan a resume from the newest whole step, which comes from memory if storage has nothing newer.

    Without a whole step the plan is FRESH at step 0, without sources.

    A plan never mixes memory and storage, because an earlier attempt may have stored the same step.

    Args:
        ranks: the ranks of the next attempt.
        copies: copies of one attempt; those of earlier attempts were withdrawn before.
        stored: steps of complete checkpoints.
        failed: ranks and nodes whose copies are lost.
    """
    failed = failed or Failed()
    held: dict[int, dict[Shard, list[Copy]]] = {}
    for copy in copies:
        if copy.step >= 0 and failed.spares(copy):
            held.setdefault(copy.step, {}).setdefault(copy.shard, []).append(copy)
    needed = frozenset[Shard]().union(*(rank.needs for rank in ranks))
    whole = [step for step, shards in held.items() if needed and needed <= shards.keys()]
    memory = max(whole, default=NONE)
    storage = max(stored, default=NONE)
    if memory == storage == NONE:
        return RecoveryPlan(Resume.FRESH, 0, {})
    if storage > memory:
        all_needs = [(rank.rank, shard) for rank in ranks for shard in sorted(rank.needs)]
        return RecoveryPlan(Resume.STORAGE, storage, dict.fromkeys(all_needs, Source(Rung.STORAGE)))
    sources = _assign_sources(ranks, held[memory])
    needs_peer = any(source.rung is Rung.PEER for source in sources.values())
    return RecoveryPlan(Resume.PEER if needs_peer else Resume.MEMORY, memory, sources)


@dataclass(frozen=True)
class Kept:
    """The snapshot of a rank that a node keeps as a copy for another node."""

    rank: int
    step: int
    node: int  # a number of the keeping node that no rank's own node has


def of_snapshots(
    slots: Mapping[int, Sequence[int]],
    ranks: int,
    stored: Collection[int] = (),
    ranks_each: int = 0,
    kept: Iterable[Kept] = (),
) -> RecoveryPlan:
    """Plan a resume of ranks of which each needs its own snapshot.

    Args:
        slots: the steps in the slots of each rank, NONE for a slot without a whole snapshot. Ranks beyond `ranks` are
            ignored.
        ranks: number of ranks of the next attempt.
        stored: steps of complete checkpoints.
        ranks_each: ranks of each node; 0 if there is one node.
        kept: copies of snapshots that nodes keep for other nodes. Copies of ranks beyond `ranks` are ignored.
    """
    ranks_per_node = ranks_each or ranks
    shards = [Shard("snapshot", (("rank", rank),)) for rank in range(ranks)]
    needs = [
        RankNeeds(rank, node=rank // ranks_per_node, needs=frozenset({shard})) for rank, shard in enumerate(shards)
    ]
    copies = [
        Copy(shard=shard, step=step, rank=rank, node=rank // ranks_per_node)
        for rank, shard in enumerate(shards)
        for step in dict.fromkeys(slots.get(rank, ()))
    ]
    copies += [
        Copy(shard=shards[snapshot.rank], step=snapshot.step, rank=snapshot.rank, node=snapshot.node)
        for snapshot in kept
        if snapshot.rank < ranks
    ]
    return plan(needs, copies, stored)


def newest_common(slots: Mapping[int, Sequence[int]], ranks: int) -> int:
    """Return the newest step that the ranks 0 to `ranks - 1` all hold whole, or NONE.

    Args:
        slots: the steps in the slots of each rank, NONE for a slot without a whole snapshot.
        ranks: number of ranks. A rank that is missing in `slots` holds no step.
    """
    return newest_of_all(slots.get(rank, ()) for rank in range(ranks))


def newest_of_all(held: Iterable[Sequence[int]]) -> int:
    """Return the newest step that all ranks hold, or NONE.

    Args:
        held: for each rank the steps in its slots, NONE for a slot without a whole snapshot.
    """
    each = iter(held)
    common = {step for step in next(each, ()) if step >= 0}
    for steps in each:
        common.intersection_update(steps)
        if not common:
            break
    return max(common, default=NONE)


# --- assigning sources ------------------------------------------------------------------------------------

_Need = tuple[int, Shard]  # a rank, and a shard that the rank needs
_Key = TypeVar("_Key", bound="int | _Need")  # identifies a need in `balance`
_Supplier = TypeVar("_Supplier", bound="int | tuple[int, int]")


def _assign_sources(ranks: Sequence[RankNeeds], held: Mapping[Shard, Sequence[Copy]]) -> dict[_Need, Source]:
    """Return the nearest source for every rank and shard. Among equally near ones, the load is balanced.

    The rungs are balanced one by one, because copies that are read on the node itself are no load on its network.

    Args:
        ranks: the ranks of the next attempt.
        held: the available copies of each shard, all of one step; at least one of each shard that a rank needs.
    """
    nearest: dict[Rung, dict[_Need, list[Copy]]] = {}
    for rank in ranks:
        for shard in rank.needs:
            rung = min(_rung(copy, rank) for copy in held[shard])
            copies = [copy for copy in held[shard] if _rung(copy, rank) is rung]
            nearest.setdefault(rung, {})[rank.rank, shard] = copies
    sources = {}
    for rung, needs in nearest.items():
        for need, copy in _choose_copies(needs).items():
            sources[need] = Source(rung, copy.node, copy.rank)
    return sources


def _choose_copies(choices: Mapping[_Need, Sequence[Copy]]) -> dict[_Need, Copy]:
    """Choose one copy for each need so that first the nodes and then the ranks of each node share the load.

    Args:
        choices: for each need the copies that fulfil it, at least one.
    """
    node_choices = {need: {copy.node for copy in copies} for need, copies in choices.items()}
    nodes = balance(node_choices)

    on_chosen_node: dict[_Need, dict[tuple[int, int], Copy]] = {}
    for need, copies in choices.items():
        on_chosen_node[need] = {(copy.node, copy.rank): copy for copy in copies if copy.node == nodes[need]}
    suppliers = balance(on_chosen_node)
    return {need: on_chosen_node[need][supplier] for need, supplier in suppliers.items()}


def _rung(copy: Copy, rank: RankNeeds) -> Rung:
    """Return how far a copy is from a rank."""
    if copy.node != rank.node:
        return Rung.PEER
    return Rung.OWN if copy.rank == rank.rank else Rung.NODE


def balance(choices: Mapping[_Key, Collection[_Supplier]]) -> dict[_Key, _Supplier]:
    """Choose one supplier for each need so that the busiest one supplies as little as possible.

    The result depends on the choices alone, so that all nodes compute the same.

    The algorithm builds an optimal semi-matching, need by need: the new need goes to the supplier with the least load
    that can be reached if needs already placed may move (Harvey, Ladner, Lovasz, Tamir, "Semi-matchings for bipartite
    graphs and load balancing", 2006).

    Args:
        choices: for each need the suppliers that can fulfil it, at least one.
    """
    if all(len(suppliers) == 1 for suppliers in choices.values()):  # usual, and fast for thousands of ranks
        return {need: next(iter(suppliers)) for need, suppliers in choices.items()}
    placed: dict[_Key, _Supplier] = {}
    supplied: dict[_Supplier, set[_Key]] = {}
    for new in sorted(choices):
        reached: dict[_Supplier, _Key] = {}  # for each supplier the need that could move there
        moving = [new]
        for need in moving:  # the loop extends the list
            for supplier in sorted(set(choices[need]) - reached.keys()):
                reached[supplier] = need
                moving.extend(sorted(supplied.get(supplier, ())))
        target = min(reached, key=lambda supplier: (len(supplied.get(supplier, ())), supplier))
        while True:  # move needs along the path that leads back to the new need
            need = reached[target]
            before = placed.get(need)
            placed[need] = target
            supplied.setdefault(target, set()).add(need)
            if before is None:
                break
            supplied[before].remove(need)
            target = before
    return placed
