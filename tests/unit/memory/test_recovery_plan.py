"""Where the state of an attempt comes from, against an oracle that tries everything."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from ftlaunch.memory.recovery_plan import (
    NONE,
    Copy,
    Failed,
    RankNeeds,
    RecoveryPlan,
    Rung,
    Shard,
    Source,
    newest_common,
    of_snapshots,
    plan,
)
from ftlaunch_contract.protocol import Resume

SPARE = 9  # a node that was not there: nothing lies in its memory


# --- one node ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "ranks", "step"),
    [
        ({}, 0, NONE),
        ({}, 2, NONE),
        ({0: [3, 4, NONE]}, 1, 4),
        ({0: [3, 4, NONE], 1: [4, 3, 2]}, 2, 4),
        ({0: [5, 4, 3], 1: [4, 3, 2]}, 2, 4),  # rank 1 was torn while it wrote step 5
        ({0: [5, NONE, NONE], 1: [4, NONE, NONE]}, 2, NONE),
        ({0: [5, 4, NONE]}, 2, NONE),  # a rank is missing
        ({0: [NONE] * 3, 1: [NONE] * 3}, 2, NONE),
        ({0: [0, NONE, NONE], 1: [0, NONE, NONE]}, 2, 0),
        ({0: [7, 9, 8], 1: [8, 7, 9], 2: [8, NONE, 7]}, 3, 8),
        ({0: [9, 8], 1: [9, 8], 2: [1, 2]}, 2, 9),  # of more ranks than the job has now
    ],
)
def test_newest_common(slots: dict[int, list[int]], ranks: int, step: int) -> None:
    assert newest_common(slots, ranks) == step


@pytest.mark.parametrize(
    ("memory", "stored", "kind", "step"),
    [
        (NONE, [], Resume.FRESH, 0),
        (10, [], Resume.MEMORY, 10),
        (NONE, [5, 10], Resume.STORAGE, 10),
        (10, [10, 5], Resume.MEMORY, 10),  # it costs less
        (9, [10], Resume.STORAGE, 10),
        (11, [10], Resume.MEMORY, 11),
        (0, [], Resume.MEMORY, 0),
        (NONE, [0], Resume.STORAGE, 0),
    ],
)
def test_memory_or_storage(memory: int, stored: list[int], kind: Resume, step: int) -> None:
    found = of_snapshots({0: [memory, NONE, 2], 1: [NONE, memory, 3]}, 2, stored)
    assert (found.kind, found.step) == (kind, step)
    assert of_snapshots({}, 2).kind is Resume.FRESH


def test_a_snapshot_that_a_peer_keeps_is_fetched_from_the_node_with_least_to_send() -> None:
    """Node 0 is lost; what its two ranks held is on nodes 1 and 2: one each, though 1 has both."""
    shards = [Shard("opt", (("zero", rank),)) for rank in range(2)]
    copies = [Copy(shards[0], 7, 0, 1), Copy(shards[1], 7, 1, 1), Copy(shards[0], 7, 0, 2), Copy(shards[1], 7, 1, 0)]
    places = [RankNeeds(rank, SPARE, frozenset({shard})) for rank, shard in enumerate(shards)]
    found = plan(places, copies, [6], Failed(nodes=frozenset({0})))
    assert (found.kind, found.step) == (Resume.PEER, 7)
    assert found.sources == {
        (0, shards[0]): Source(Rung.PEER, 2, 0),  # who can only go to node 1 has gone there first
        (1, shards[1]): Source(Rung.PEER, 1, 1),
    }


# --- every small layout, every failure ----------------------------------------------------------------------

Holds = Callable[[int, int], frozenset[Shard]]  # (rank, ranks) -> the shards in its snapshot


def shard(group: str, **place: int) -> Shard:
    return Shard(group, tuple(place.items()))


def split(rank: int, ranks: int) -> frozenset[Shard]:
    """Replicated parameters of which each rank of a node keeps a part (ranks: of a node)."""
    return frozenset({shard("model", part=rank % 2)})


HOLDS: dict[str, Holds] = {
    "data": lambda rank, ranks: frozenset({shard("model"), shard("opt")}),
    "split": split,
    "tensor": lambda rank, ranks: frozenset({shard("model", tp=rank % 2)}),
    "pipeline": lambda rank, ranks: frozenset({shard("model", pp=rank * 2 // ranks)}),
    "zero": lambda rank, ranks: frozenset({shard("model"), shard("opt", zero=rank)}),
    "hybrid": lambda rank, ranks: frozenset({shard("model", tp=rank % 2, pp=rank // 2), shard("opt", zero=rank)}),
}


@dataclass(frozen=True)
class Layout:
    """A job: who holds what, where."""

    name: str
    nodes: int
    per_node: int
    kept_by_peer: bool  # the next node keeps a copy of every snapshot
    outlives_rank: bool

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    def holds(self, rank: int) -> frozenset[Shard]:
        return HOLDS[self.name](rank, self.ranks)

    def needs(self, rank: int) -> frozenset[Shard]:
        return frozenset().union(*map(self.holds, range(self.ranks))) if self.name == "split" else self.holds(rank)

    def copies(self, steps: Sequence[Sequence[int]]) -> list[Copy]:
        """steps: by rank, the steps in its slots."""
        found = []
        for rank, slots in enumerate(steps):
            node = rank // self.per_node
            for step, held in itertools.product(slots, sorted(self.holds(rank))):
                found.append(Copy(held, step, rank, node, self.outlives_rank))
                if self.kept_by_peer:
                    found.append(Copy(held, step, rank, (node + 1) % self.nodes, True))
        return found

    def places(self, failed: Failed) -> list[RankNeeds]:
        """Ranks of a lost node go to a spare one."""
        nodes = [rank // self.per_node for rank in range(self.ranks)]
        return [RankNeeds(r, SPARE if n in failed.nodes else n, self.needs(r)) for r, n in enumerate(nodes)]

    def failures(self) -> Iterator[Failed]:
        """Every set of lost ranks and nodes."""
        for ranks in subsets(self.ranks):
            for nodes in subsets(self.nodes):
                yield Failed(ranks, nodes)


def subsets(count: int) -> list[frozenset[int]]:
    items = range(count)
    return [frozenset(c) for size in range(count + 1) for c in itertools.combinations(items, size)]


def costs(copy: Copy, place: RankNeeds) -> int:
    return [copy.node == place.node and copy.rank == place.rank, copy.node == place.node, True].index(True)


def expected(
    places: list[RankNeeds], copies: list[Copy], stored: list[int], failed: Failed
) -> tuple[Resume, int, dict]:
    """(kind, step, {(rank, shard): the equally cheap copies}), by looking at every step there might be."""
    for step in range(9, -1, -1):
        choices = {}
        for place in places:
            for need in place.needs:
                left = [
                    copy
                    for copy in copies
                    if (copy.step, copy.shard) == (step, need)
                    and not (copy.node in failed.nodes or (copy.rank in failed.ranks and not copy.outlives_rank))
                ]
                cheapest = min((costs(copy, place) for copy in left), default=None)
                choices[place.rank, need] = [copy for copy in left if costs(copy, place) == cheapest]
        if all(choices.values()):
            abroad = [key for key, found in choices.items() if found[0].node != places[key[0]].node]
            return (Resume.PEER if abroad else Resume.MEMORY), step, choices
        if step in stored:
            return Resume.STORAGE, step, {}
    return Resume.FRESH, 0, {}


def fewest(choices: list[set[int]]) -> int:
    """The least that the busiest supplier must supply, by trying every way to share the work out."""
    return min(max(Counter(way).values(), default=0) for way in itertools.product(*choices))


def check(layout: Layout, steps: Sequence[Sequence[int]], stored: list[int], failed: Failed) -> RecoveryPlan:
    places, copies = layout.places(failed), layout.copies(steps)
    found = plan(places, copies, stored, failed)
    kind, step, choices = expected(places, copies, stored, failed)
    what = (layout, steps, stored, failed)
    assert (found.kind, found.step) == (kind, step), what
    if kind is Resume.STORAGE:
        assert found.sources == {(p.rank, need): Source(Rung.STORAGE) for p in places for need in p.needs}, what
        return found
    assert found.sources.keys() == choices.keys(), what
    abroad = []
    for key, source in found.sources.items():
        assert (source.node, source.rank) in {(copy.node, copy.rank) for copy in choices[key]}, what
        assert source.rung == costs(choices[key][0], places[key[0]]), what
        if source.rung is Rung.PEER:
            abroad.append((source.node, {copy.node for copy in choices[key]}))
    busiest = max(Counter(node for node, _ in abroad).values(), default=0)
    assert busiest == fewest([nodes for _, nodes in abroad]), what
    return found


SLOTS = [(4, 3), (5, 4), (NONE, 5)]  # a rank that has yet to commit 5; one that has; one torn while it wrote 6


def sweep(layout: Layout, slots: list[tuple[int, int]], stored: list[list[int]], every: int = 1) -> Counter[Resume]:
    """Check all failures of a job, or only every so many."""
    kinds: Counter[Resume] = Counter()
    cases = itertools.product(itertools.product(slots, repeat=layout.ranks), layout.failures())
    for steps, failed in itertools.islice(cases, 0, None, every):
        for on_storage in stored:
            kinds[check(layout, steps, on_storage, failed).kind] += 1
    return kinds


def answers(name: str, kept_by_peer: bool) -> set[Resume]:
    """The answers that a sweep over all failures must meet."""
    if name in ("zero", "hybrid") and not kept_by_peer:  # only its own rank has a shard of the optimizer
        return {Resume.FRESH, Resume.MEMORY, Resume.STORAGE}
    return {Resume.FRESH, Resume.MEMORY, Resume.PEER, Resume.STORAGE}


@pytest.mark.parametrize("kept_by_peer", [False, True])
@pytest.mark.parametrize("name", HOLDS)
def test_every_failure_of_a_small_job(name: str, kept_by_peer: bool) -> None:
    kinds: Counter[Resume] = Counter()
    for outlives in (True, False):
        for nodes, per_node in [(2, 1), (1, 2)]:
            kinds += sweep(Layout(name, nodes, per_node, kept_by_peer, outlives), SLOTS, [[], [3, 5]])
        kinds += sweep(Layout(name, 3, 1, kept_by_peer, outlives), SLOTS[:2], [[], [4]], every=7)
    assert set(kinds) == answers(name, kept_by_peer), "the sweep has seen every answer"


@pytest.mark.slow
@pytest.mark.parametrize("kept_by_peer", [False, True])
@pytest.mark.parametrize("name", HOLDS)
def test_every_failure_of_a_larger_job(name: str, kept_by_peer: bool) -> None:
    kinds: Counter[Resume] = Counter()
    for outlives in (True, False):
        kinds += sweep(Layout(name, 3, 1, kept_by_peer, outlives), SLOTS, [[], [2], [4], [6]])
        kinds += sweep(Layout(name, 2, 2, kept_by_peer, outlives), SLOTS, [[], [2], [4], [6]])
        kinds += sweep(Layout(name, 3, 2, kept_by_peer, outlives), SLOTS[:2], [[3]])
    assert set(kinds) == answers(name, kept_by_peer), "the sweep has seen every answer"


def test_the_order_in_which_copies_are_named_makes_no_difference() -> None:
    layout = Layout("data", 3, 1, True, True)
    copies, failed = layout.copies([(5, 4), (5, 4), (4, 3)]), Failed(nodes=frozenset({0}))
    first = plan(layout.places(failed), copies, [], failed)
    assert first.kind is Resume.PEER
    for turn in range(len(copies)):
        assert plan(layout.places(failed), copies[turn:] + copies[:turn], [], failed) == first
        assert plan(layout.places(failed), copies[turn::-1] + copies[:turn:-1], [], failed) == first
