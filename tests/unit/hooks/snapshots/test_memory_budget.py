"""How many snapshot slots there is room for, and the sentence that says what fewer cost."""

from __future__ import annotations

import pytest

from ftlaunch_contract.files.memory_pools import MemoryPool
from ftlaunch_contract.pages.memory_state import Memory, reduced_memory
from ftlaunch_contract.protocol import MEMORY_SLOTS
from ftlaunch_hooks.snapshots.memory_budget import is_tight, memory_for, slots_for

MIB = 1 << 20


@pytest.mark.parametrize(
    ("needed", "room", "most", "slots"),
    [(10, 30, 3, 3), (10, 29, 3, 2), (10, 19, 3, 1), (10, 9, 3, 0), (10, 99, 2, 2), (0, 0, 3, 3), (10, 99, 0, 0)],
)
def test_as_many_slots_as_there_is_room_for(needed: int, room: int, most: int, slots: int) -> None:
    assert slots_for(needed, room, most) == slots


def test_a_sentence_says_what_it_costs() -> None:
    said = {slots: reduced_memory(Memory(slots, 10, 5 * MIB, 9 * MIB)) for slots in range(MEMORY_SLOTS)}
    assert all("takes 5 MiB, there are 9 MiB" in sentence for sentence in said.values())
    assert "costs the steps since that checkpoint's" in said[2]
    assert "a crash costs up to 10 steps" in said[1]
    assert "since the newest checkpoint" in said[0]


def test_the_scarcest_memory_counts_and_a_reserve_is_left() -> None:
    machine, group = MemoryPool(1000, 500), MemoryPool(200, 100)
    assert memory_for([machine], held=0) == 450
    assert memory_for([machine, group], held=0) == 90
    assert memory_for([machine, group], held=60) == 150, "what the slots take already is theirs"
    assert memory_for([], held=0) > 1 << 50, "nothing is known"


def test_a_hundredth_is_always_there() -> None:
    assert memory_for([MemoryPool(1000, 0)], held=5) == 10


def test_memory_is_tight_below_a_fortieth() -> None:
    assert is_tight([MemoryPool(1000, 24)])
    assert not is_tight([MemoryPool(1000, 25)])
    assert not is_tight([])
