"""Two ranks with a small file system in memory agree on fewer snapshot slots."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests.support.disks import needs_root, small_tmpfs
from tests.support.snapshots import Rank, content, make_pages

from ftlaunch_contract.checkpoint import layout, tensor_file
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import STAGED, Why
from ftlaunch_hooks.snapshots.memory_budget import room_in
from ftlaunch_hooks.snapshots.slot_file import SlotFile
from ftlaunch_hooks.storage.saved_tensors import MemoryReader

MIB = 1 << 20


class Pair:
    """Two ranks that do everything at once, each in a thread, as real ones do."""

    def __init__(self, directory: Path, storage: Path, base: int = NONE, attempt: int = 0) -> None:
        self.directory = directory
        self.ranks = [Rank(directory, rank, 2, attempt, base, storage) for rank in range(2)]

    def both(self, act: Callable[[Rank], object]) -> list[object]:
        found: dict[int, object] = {}
        threads = [
            threading.Thread(target=lambda n=n, rank=rank: found.update({n: act(rank)}))  # type: ignore[misc]
            for n, rank in enumerate(self.ranks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return [found[0], found[1]]

    def fit(self, step: int) -> int:
        self.both(lambda rank: rank.snapshots.fit(step))
        assert self.ranks[0].snapshots.budget.slots == self.ranks[1].snapshots.budget.slots
        return self.ranks[0].snapshots.budget.slots

    def take(self, step: int, hold: Why | None = None, keep: int = NONE) -> list[object]:
        return self.both(lambda rank: rank.take(step, hold, keep))

    def grow(self, mib: float) -> None:
        for rank in self.ranks:
            rank.value.tensor = torch.zeros(int(mib * MIB / 4))

    def common(self) -> list[int]:
        """Every step both have whole, newest first; each is looked into."""
        held = [content(self.directory, rank.page, n) for n, rank in enumerate(self.ranks)]
        assert all(step == value for found in held for step, value in found.items())
        return sorted(set(held[0]) & set(held[1]), reverse=True)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


@pytest.fixture
def small(memory: Path) -> Iterator[Path]:
    with small_tmpfs(memory / "small", "10m") as directory:
        make_pages(directory, 2)
        yield directory


@pytest.fixture
def pair(small: Path, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(small, tmp_path / "storage")
    yield pair
    pair.close()


@needs_root
@pytest.mark.parametrize(("mib", "slots"), [(0.1, 3), (1.9, 2), (3.0, 1), (5.0, 0)])
def test_ranks_agree_before_the_first_snapshot(pair: Pair, mib: float, slots: int) -> None:
    """9 MiB of 10 are for snapshots; a tenth is left to others."""
    assert room_in(pair.directory) < 9 * MIB
    pair.grow(mib)
    assert pair.fit(0) == slots
    said = pair.ranks[0].page.memory
    assert (said.slots, said.needed // MIB) == (slots, int(2 * mib))


@needs_root
def test_with_two_slots_the_step_that_is_being_saved_is_never_overwritten(pair: Pair) -> None:
    pair.grow(1.9)
    assert pair.fit(0) == 2
    pair.take(1)
    pair.take(2, Why.INTERVAL)
    for step in range(3, 7):  # rank 0 of a job says: keep 2
        assert pair.take(step, keep=2) == [True, True]
        assert pair.common() == [step, 2]
    for rank in pair.ranks:
        rank.page.saved = 2
    pair.take(7)
    assert pair.common() == [7, 6]
    assert not layout.slot_dir(pair.directory, 0, 2).exists()


@needs_root
def test_with_two_slots_a_rank_in_mid_copy_falls_back_to_the_step_that_is_being_saved(pair: Pair) -> None:
    pair.grow(1.9)
    pair.fit(0)
    pair.take(1)
    pair.take(2, Why.INTERVAL)
    pair.take(3, keep=2)
    pair.ranks[0].take(4, keep=2)  # the other dies before, or in, its copy
    assert pair.common() == [2]


@needs_root
def test_a_state_that_grows_is_met_about(pair: Pair) -> None:
    """An optimizer makes its state in the first step."""
    pair.grow(0.5)
    assert pair.fit(0) == 3
    pair.take(0)
    pair.grow(1.9)
    pair.take(1)
    assert pair.ranks[0].snapshots.budget.progress.wanted()
    assert pair.fit(2) == 2
    assert pair.common() == [1]
    pair.take(2)
    pair.take(3)
    assert pair.common() == [3, 2]
    assert not pair.ranks[0].snapshots.budget.progress.wanted()


@needs_root
def test_one_rank_without_room_stops_the_snapshots_of_all_until_they_have_met(pair: Pair) -> None:
    """Nobody waits for a snapshot that never comes, and the newest common step stays."""
    pair.grow(0.5)
    pair.fit(0)
    pair.take(1)
    pair.take(2)
    hog = pair.directory / "hog"
    with hog.open("wb") as file:  # somebody else takes what there is
        os.posix_fallocate(file.fileno(), 0, os.statvfs(pair.directory).f_bavail * 4096 - MIB // 2)
    pair.ranks[1].value.tensor = torch.zeros(3 * MIB // 4)
    assert not pair.take(3)[1]
    assert pair.take(4) == [False, False]
    assert pair.common() == [2]
    hog.unlink()
    assert pair.fit(5) == 2, "one less than what there was no room for"
    assert pair.take(5) == [True, True]
    assert pair.common() == [5, 2]


@needs_root
def test_one_slot_is_overwritten_where_it_lies_but_not_while_it_is_saved(pair: Pair) -> None:
    pair.grow(3.0)
    assert pair.fit(0) == 1
    pair.take(10)
    pair.take(20, Why.INTERVAL)
    assert pair.common() == [20]
    waiting = threading.Thread(target=pair.take, args=(30,))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    assert pair.common() == [20]
    for rank in pair.ranks:
        rank.page.saved = 20
    waiting.join(60)
    assert pair.common() == [30]


@needs_root
def test_without_room_only_what_is_for_the_saver_is_laid_down_and_on_storage(pair: Pair, tmp_path: Path) -> None:
    pair.grow(5.0)
    assert pair.fit(0) == 0
    assert pair.take(1) == [False, False]
    assert pair.take(2, Why.INTERVAL) == [True, True]
    assert [rank.page.save_step for rank in pair.ranks] == [2, 2]
    assert pair.common() == [2]
    slot = layout.slot_dir(pair.directory, 0, STAGED)
    assert slot.resolve().is_relative_to(tmp_path)
    reader = MemoryReader(pair.directory, 2, 2, {0: STAGED, 1: STAGED})  # what the next attempt does
    assert reader.pieces("value.tensor")[0].tensor().unique().tolist() == [2]
    assert room_in(pair.directory) > 8 * MIB, "memory is left to others"
    layout.remove_slots(pair.directory)
    assert not (tmp_path / "storage").exists()


@needs_root
@pytest.mark.parametrize("mib", [3.0, 5.0])
def test_a_step_that_one_rank_could_not_hold_does_not_block_the_next(pair: Pair, mib: float) -> None:
    """It will never be saved: the others let go of it."""
    pair.grow(mib)
    pair.fit(0)
    pair.ranks[1].value.tensor = torch.zeros(1).expand(1 << 40)
    pair.ranks[0].value.tensor.fill_(2)
    assert pair.both(lambda rank: rank.snapshots.capture(2, Why.INTERVAL)) == [True, False]
    pair.grow(mib)
    assert pair.take(3, Why.INTERVAL) == [True, True]
    assert pair.common() == [3]
    assert pair.fit(4) == 0
    for rank in pair.ranks:
        rank.page.saved = 3
    assert pair.take(4, Why.INTERVAL) == [True, True]
    assert pair.common() == [4]


@needs_root
@pytest.mark.parametrize("first", [0, 1])
def test_what_is_for_the_saver_is_not_lost_for_want_of_memory(pair: Pair, first: int) -> None:
    """It goes to storage at once, on the rank that has no room and on those that hear of it in time.

    The ranks meet about it afterwards.
    """
    pair.grow(0.5)
    assert pair.fit(0) == 3
    pair.take(1)
    pair.ranks[1].value.tensor = torch.zeros(10 * MIB // 4)
    assert all(pair.ranks[rank].take(2, Why.STOP) for rank in (first, 1 - first))
    assert pair.common() == [2, 1]
    assert layout.slot_dir(pair.directory, 1, STAGED).is_symlink()
    assert layout.slot_dir(pair.directory, 0, STAGED).is_symlink() == (first == 1)


@needs_root
def test_memory_is_given_back_when_it_does_not_suffice_any_more(pair: Pair) -> None:
    pair.grow(1.9)
    assert pair.fit(0) == 2
    pair.take(1)
    pair.take(2)
    pair.grow(5.0)
    assert False in pair.take(3)
    assert pair.fit(4) == 0
    assert pair.common() == [2], "until there is something newer on storage"
    assert pair.take(4, Why.INTERVAL) == [True, True]
    assert pair.common() == [4, 2]
    for rank in pair.ranks:
        rank.page.saved = 4
    pair.take(8, Why.INTERVAL)
    assert pair.common() == [8]
    assert not [path for path in pair.directory.glob("slot_*") if not path.is_symlink()]


@needs_root
def test_the_next_attempt_begins_with_what_lies_on_storage(small: Path, pair: Pair, tmp_path: Path) -> None:
    pair.grow(5.0)
    pair.fit(0)
    pair.take(2, Why.STOP)
    again = Pair(small, tmp_path / "storage", base=2, attempt=1)
    again.grow(5.0)
    assert again.fit(2) == 0
    assert again.common() == [2]
    again.take(6, Why.INTERVAL)
    assert again.common() == [6]
    again.close()


@needs_root
def test_memory_mounted_without_a_limit_is_no_limit(memory: Path) -> None:
    with small_tmpfs(memory / "endless", "0") as directory:
        assert room_in(directory) > 1 << 50


@needs_root
def test_what_is_not_there_is_not_tried_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a file system takes all there is before it fails, others would die of it meanwhile."""
    tried: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda fd, offset, size: tried.append(size))
    free = os.statvfs(pair.directory).f_bavail * os.statvfs(pair.directory).f_frsize
    chunk = tensor_file.whole_chunk("x", "U8", (free,))
    with pytest.raises(OSError, match="No space left"):
        SlotFile(pair.directory / "x", [chunk])
    assert tried == []
    assert list(pair.directory.glob("x*")) == []
