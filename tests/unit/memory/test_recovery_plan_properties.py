"""A recovery plan names only what can be had: whatever has failed, and in whatever order it is told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ftlaunch.memory.recovery_plan import NONE, Copy, Failed, RankNeeds, Rung, Shard, newest_common, of_snapshots, plan
from ftlaunch_contract.protocol import Resume

RANKS, NODES, STEPS = 4, 3, 4
shards = st.builds(Shard, st.sampled_from(["model", "opt"]), st.sampled_from([(), (("tp", 0),), (("tp", 1),)]))
nodes, ranks = st.integers(0, NODES - 1), st.integers(0, RANKS - 1)
copies = st.builds(Copy, shards, st.integers(NONE, STEPS), ranks, nodes, st.booleans())
failures = st.builds(Failed, st.frozensets(ranks, max_size=2), st.frozensets(nodes, max_size=2))


@dataclass
class Case:
    """What a plan is asked for."""

    places: Sequence[RankNeeds]
    copies: Sequence[Copy]
    stored: Collection[int]
    failed: Failed

    @property
    def left(self) -> list[Copy]:
        """The copies that can still be had."""
        return [copy for copy in self.copies if copy.step >= 0 and self.failed.spares(copy)]

    def whole(self, step: int) -> bool:
        """Whether every shard that some rank needs has a copy left of this step."""
        held = {copy.shard for copy in self.left if copy.step == step}
        return all(place.needs <= held for place in self.places)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    needs = st.frozensets(shards, min_size=1, max_size=3)
    places = [RankNeeds(rank, draw(nodes), draw(needs)) for rank in range(draw(st.integers(1, RANKS)))]
    stored = draw(st.sets(st.integers(0, STEPS), max_size=2))
    return Case(places, draw(st.lists(copies, max_size=40)), stored, draw(failures))


def asked(case: Case) -> dict[tuple[int, Shard], RankNeeds]:
    return {(place.rank, shard): place for place in case.places for shard in place.needs}


@given(cases())
def test_every_shard_of_the_step_comes_from_a_copy_that_is_left(case: Case) -> None:
    found = plan(case.places, case.copies, case.stored, case.failed)
    assert set(found.sources) == (set() if found.kind is Resume.FRESH else set(asked(case)))
    for (rank, shard), source in found.sources.items():
        if source.rung is Rung.STORAGE:
            assert found.kind is Resume.STORAGE
            continue
        assert any(
            (copy.shard, copy.step, copy.node, copy.rank) == (shard, found.step, source.node, source.rank)
            for copy in case.left
        )
        place = asked(case)[rank, shard]
        assert (source.rung is Rung.PEER) == (source.node != place.node)
        assert (source.rung is Rung.OWN) == ((source.node, source.rank) == (place.node, rank))


@given(cases())
def test_the_step_is_the_newest_that_is_whole(case: Case) -> None:
    found = plan(case.places, case.copies, case.stored, case.failed)
    memory = max((step for step in range(STEPS + 1) if case.whole(step)), default=NONE)
    storage = max(case.stored, default=NONE)
    kinds = {Resume.FRESH} if memory == storage == NONE else {Resume.STORAGE}
    if memory >= storage and memory != NONE:
        kinds = {Resume.MEMORY, Resume.PEER}
    assert found.kind in kinds
    assert found.step == max(memory, storage, 0)
    assert (found.kind is Resume.PEER) == any(source.rung is Rung.PEER for source in found.sources.values())


@given(cases())
def test_the_nearest_copy_is_taken(case: Case) -> None:
    found = plan(case.places, case.copies, case.stored, case.failed)
    for (rank, shard), source in found.sources.items():
        place = asked(case)[rank, shard]
        near = [copy for copy in case.left if (copy.shard, copy.step) == (shard, found.step)]
        if source.rung is Rung.PEER:
            assert all(copy.node != place.node for copy in near)
        elif source.rung is Rung.NODE:
            assert (place.node, rank) not in {(copy.node, copy.rank) for copy in near}


@given(cases(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_what_is_told(case: Case, random: object) -> None:
    others, places = list(case.copies), list(case.places)
    random.shuffle(others)  # type: ignore[attr-defined]
    random.shuffle(places)  # type: ignore[attr-defined]
    found = plan(case.places, case.copies, case.stored, case.failed)
    again = plan(places, others, case.stored, case.failed)
    assert (again.kind, again.step, dict(again.sources)) == (found.kind, found.step, dict(found.sources))


@given(st.dictionaries(ranks, st.lists(st.integers(NONE, STEPS), max_size=3)), st.integers(1, RANKS))
def test_the_newest_common_step_is_in_a_slot_of_every_rank(slots: dict[int, list[int]], count: int) -> None:
    common = set.intersection(*(set(slots.get(rank, ())) for rank in range(count))) - {NONE}
    assert newest_common(slots, count) == max(common, default=NONE)
    assert all(source.rung is Rung.OWN for source in of_snapshots(slots, count).sources.values())
