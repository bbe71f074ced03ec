"""Whatever the slots hold: what somebody may still need is never handed out to be overwritten."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import MEMORY_SLOTS, PEER_SLOTS, SLOTS, STAGED
from ftlaunch_hooks.snapshots.slot_policy import SlotPolicy

STEPS = st.integers(0, 5)
COUNTS = st.integers(0, PEER_SLOTS)


@st.composite
def policies(draw: st.DrawFn) -> SlotPolicy:
    """Slots as a rank can have them: no step stands in two of them, and the newest step is in its slot."""
    steps = tuple(draw(st.permutations([NONE] * SLOTS + list(range(6))))[:SLOTS])
    exists = tuple(step != NONE or draw(st.booleans()) for step in steps)
    newest = draw(st.sampled_from([NONE, *(n for n in range(SLOTS) if steps[n] != NONE)]))
    busy, pinned = draw(st.frozensets(STEPS, max_size=2)), draw(st.frozensets(STEPS, max_size=2))
    return SlotPolicy(steps, exists, newest, busy, pinned)


@given(policies(), COUNTS, st.just(NONE) | STEPS)
def test_a_slot_for_the_saver_is_never_free(slots: SlotPolicy, count: int, keep: int) -> None:
    for among in (slots.used(count), [STAGED]):
        free = slots.free(among, keep)
        assert set(free) <= set(among)
        assert not {slots.steps[n] for n in free} & set(slots.busy)


@given(policies(), st.integers(2, PEER_SLOTS), st.just(NONE) | STEPS)
def test_the_last_whole_snapshot_is_never_free(slots: SlotPolicy, count: int, keep: int) -> None:
    """After any choice among two slots or more there is a snapshot that all ranks have: the newest, or `keep`."""
    assume(slots.newest != NONE)
    for chosen in slots.free(slots.used(count), keep):
        left = {step for n, step in enumerate(slots.steps) if n != chosen and step != NONE}
        assert slots.steps[slots.newest] in left or keep in left


@given(policies(), st.just(NONE) | STEPS)
def test_three_slots_never_give_the_newest_away(slots: SlotPolicy, keep: int) -> None:
    assert slots.newest not in slots.free(slots.used(MEMORY_SLOTS), keep)


@given(policies(), st.just(NONE) | STEPS)
def test_a_slot_by_itself_waits_for_the_saver_of_any_other(slots: SlotPolicy, keep: int) -> None:
    in_memory = {slots.steps[n] for n in range(PEER_SLOTS)}
    assert not (in_memory & set(slots.busy) and slots.free(slots.used(1), keep))


@given(policies(), COUNTS)
def test_used_slots_are_as_many_as_there_is_room_for(slots: SlotPolicy, count: int) -> None:
    used = slots.used(count)
    assert used == [STAGED] if count == 0 else (len(used) == len(set(used)) == count and STAGED not in used)
    if count and slots.newest not in (NONE, STAGED):
        assert slots.newest in used


@given(policies(), COUNTS)
def test_surplus_is_what_nobody_needs(slots: SlotPolicy, count: int) -> None:
    surplus = set(slots.surplus(count))
    assert not surplus & {*slots.used(count), slots.newest}
    assert all(slots.exists[n] and slots.steps[n] not in slots.busy for n in surplus)


@given(policies(), COUNTS, st.just(NONE) | STEPS)
def test_the_best_free_slot_is_the_oldest_of_those_that_have_their_memory(
    slots: SlotPolicy, count: int, keep: int
) -> None:
    free = slots.free(slots.used(count), keep)
    assert free == sorted(free, key=lambda n: (slots.steps[n] in slots.pinned, not slots.exists[n], slots.steps[n]))


@given(st.permutations([NONE, 2, 3, 4]), st.just(NONE) | STEPS, st.integers(3, PEER_SLOTS))
def test_the_two_newest_steps_of_which_copies_are_made_are_overwritten_last(
    steps: list[int], keep: int, count: int
) -> None:
    slots = SlotPolicy([*steps, NONE], [True] * SLOTS, steps.index(4), (), {3, 4})
    best = slots.free(slots.used(count), keep)[0]
    assert slots.steps[best] in (NONE, 2)


def test_a_rank_never_waits_for_a_copy() -> None:
    slots = SlotPolicy([3, 4, NONE, NONE, NONE], [True, True, False, False, False], 1, (), {3, 4})
    assert slots.free(slots.used(2), NONE) == [0]
