"""How much memory copies may take."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ftlaunch.nodes.peers.held.room import check_room, room_for_copies
from ftlaunch_contract.files.memory_pools import MemoryPool


def test_a_part_of_the_file_system_and_of_each_pool_is_left_to_others() -> None:
    assert room_for_copies(500, 1000, 4, []) == (500 - 100) * 4
    assert room_for_copies(50, 1000, 4, []) == 0
    assert room_for_copies(500, 1000, 4, [MemoryPool(10_000, 900)]) == 400
    assert room_for_copies(500, 1000, 4, [MemoryPool(10_000, 900), MemoryPool(10_000, 100)]) == 0
    assert room_for_copies(0, 0, 0, [MemoryPool(10_000, 900)]) == 400, "mounted without a limit"


def test_a_refusal_has_the_numbers(tmp_path: Path) -> None:
    check_room(tmp_path, 1)
    with pytest.raises(OSError, match=r"no room: 1099511627776 MiB are needed, \d+ MiB may be taken in ") as refused:
        check_room(tmp_path, 1 << 60)
    assert refused.value.errno == errno.ENOSPC
