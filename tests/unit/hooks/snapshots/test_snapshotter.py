"""Snapshots in memory: which slot is overwritten when, and what outlives an attempt."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.snapshots import Rank, content, make_pages

from ftlaunch_contract.checkpoint import layout, tensor_file
from ftlaunch_contract.pages.page import NONE
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.snapshots.copies import Copies
from ftlaunch_hooks.storage.saved_tensors import MemoryReader


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    make_pages(memory, 1)
    rank = Rank(memory, 0, 1)
    yield rank
    rank.close()


@pytest.fixture
def pair(memory: Path) -> Iterator[list[Rank]]:
    make_pages(memory, 2)
    ranks = [Rank(memory, 0, 2), Rank(memory, 1, 2)]
    yield ranks
    for rank in ranks:
        rank.close()


# --- which slot -------------------------------------------------------------------------------------------


def test_two_slots_alternate_and_hold_the_two_newest_steps(memory: Path, rank: Rank) -> None:
    for step in range(5):
        rank.take(step)
        assert rank.snapshots.newest == step
        assert content(memory, rank.page) == {s: s for s in (step - 1, step) if s >= 0}
    assert not layout.slot_dir(memory, 0, 2).exists()


def test_a_snapshot_held_for_the_saver_stays_until_it_is_saved(memory: Path, rank: Rank) -> None:
    rank.take(0)
    rank.take(1, Why.INTERVAL)
    assert (rank.page.save_step, rank.page.save_why) == (1, Why.INTERVAL)
    for step in range(2, 6):
        rank.take(step)
        assert content(memory, rank.page)[1] == 1
    assert layout.slot_dir(memory, 0, 2).exists()  # the third, now that it is needed
    rank.page.saved = 1
    rank.take(6)
    assert 1 not in content(memory, rank.page)


def test_with_no_slot_free_it_waits_for_the_saver(memory: Path, rank: Rank) -> None:
    rank.take(1)
    rank.page.reading = 1
    rank.take(2, Why.INTERVAL)
    rank.take(3)
    waiting = threading.Thread(target=rank.take, args=(4,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    rank.page.reading = NONE
    waiting.join(60)
    assert content(memory, rank.page) == {2: 2, 3: 3, 4: 4}


def test_files_of_a_step_can_be_had_to_save_them(rank: Rank) -> None:
    rank.page.consumed = 640
    rank.take(3, Why.STOP)
    files, common = rank.snapshots.slot_files(3)
    chunks, _, _ = tensor_file.read_header(files["opt"])
    assert [chunk.name for chunk in chunks] == ["value.tensor"]
    assert b'"step":3,"consumed_samples":640' in common
    with pytest.raises(LookupError, match="snapshot of step 4"):
        rank.snapshots.slot_files(4)


def test_nothing_is_overwritten_before_every_rank_has_the_newer_one(memory: Path, pair: list[Rank]) -> None:
    fast, slow = pair
    fast.take(1)
    slow.take(1)
    fast.take(2)  # slow has step 1: fast may write its second slot
    ahead = threading.Thread(target=fast.take, args=(3,))
    ahead.start()
    ahead.join(0.1)
    assert ahead.is_alive()  # for 3, fast would have to give up 1, the newest step both have
    assert content(memory, fast.page) == {1: 1, 2: 2}
    slow.take(2)
    ahead.join(60)
    assert not ahead.is_alive()
    assert content(memory, fast.page) == {2: 2, 3: 3}
    assert content(memory, slow.page, 1) == {1: 1, 2: 2}


def test_waiting_for_a_rank_ends_when_told_to_leave(pair: list[Rank]) -> None:
    pair[0].take(1)
    waiting = threading.Thread(target=pair[0].take, args=(2,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    pair[0].page.leave = True
    waiting.join(60)
    assert not waiting.is_alive()
    assert pair[0].snapshots.newest == 1


def test_a_rank_told_to_leave_still_takes_what_nobody_must_wait_for(memory: Path, pair: list[Rank]) -> None:
    """Its step is done, and nothing else would keep it."""
    for rank in pair:
        rank.take(1)
    pair[0].page.leave = True
    assert pair[0].take(2)
    assert content(memory, pair[0].page) == {1: 1, 2: 2}
    assert not pair[0].take(3)  # the other rank has not taken 2


# --- lives ------------------------------------------------------------------------------------------------


def test_a_new_attempt_keeps_the_step_it_restored_and_no_other_word(memory: Path, rank: Rank) -> None:
    for step in (1, 2, 3):
        rank.take(step)
    inodes = {p: p.stat().st_ino for p in memory.glob("slot_*/*.safetensors")}
    again = Rank(memory, 0, 1, attempt=1, base=2)
    assert content(memory, again.page) == {2: 2}
    assert again.snapshots.newest == 2
    files, common = again.snapshots.slot_files(2)  # told to stop before the first step
    assert os.fstat(files["opt"]).st_ino in inodes.values()
    assert b'"step":2,' in common
    again.state.restore_rng()
    again.take(3)
    assert content(memory, again.page) == {2: 2, 3: 3}
    again.close()


def test_files_laid_out_alike_are_taken_over(memory: Path, rank: Rank) -> None:
    for step in (1, 2):
        rank.take(step)
    inodes = {p: p.stat().st_ino for p in memory.glob("slot_*/*.safetensors")}
    again = Rank(memory, 0, 1, attempt=1)
    assert content(memory, again.page) == {}
    for step in (1, 2):
        again.take(step)
    assert {p: p.stat().st_ino for p in memory.glob("slot_*/*.safetensors")} == inodes
    again.value.tensor = torch.zeros(9)  # another shape: laid out anew
    for step in (3, 4):
        again.take(step)
    assert content(memory, again.page) == {3: 3, 4: 4}
    changed = [p for p in memory.glob("slot_*/opt.safetensors") if p.stat().st_ino != inodes[p]]
    assert len(changed) == 2
    again.close()


def test_words_of_a_peer_s_earlier_life_do_not_count(memory: Path, pair: list[Rank]) -> None:
    for step in (1, 2):
        for rank in pair:
            rank.take(step)
    again = Rank(memory, 0, 2, attempt=1, base=2)  # the peer's page still says 1 and 2
    waiting = threading.Thread(target=again.take, args=(3,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    peer = Rank(memory, 1, 2, attempt=1, base=2)
    waiting.join(60)
    assert not waiting.is_alive()
    for rank in (again, peer):
        rank.close()


def test_a_slot_that_is_not_what_its_page_says_is_refused(memory: Path, rank: Rank) -> None:
    rank.take(1)
    rank.take(2)
    slots = rank.page.slot_steps()
    with pytest.raises(tensor_file.Damaged, match="of rank 0 is of step 1, not 2"):
        MemoryReader(memory, 2, 1, {0: slots.index(1)})
    directory = layout.slot_dir(memory, 0, slots.index(2))
    os.truncate(directory / "opt.safetensors", 80)
    with pytest.raises(tensor_file.Damaged, match="cut short"):
        MemoryReader(memory, 2, 1, {0: slots.index(2)})
    (directory / "common.json").write_text('{"step": 2, "consu')
    with pytest.raises(tensor_file.Damaged, match="snapshot of rank 0 cannot be read"):
        MemoryReader(memory, 2, 1, {0: slots.index(2)})


def test_a_tensor_with_a_part_missing_is_refused(memory: Path, pair: list[Rank]) -> None:
    for rank in pair:
        rank.take(1)
    slot = layout.slot_dir(memory, 0, pair[0].page.slot_steps().index(1)) / "opt.safetensors"
    half = tensor_file.Chunk("value.tensor", "F32", (2,), "value.tensor", (2,), (4,))
    header, _ = tensor_file.build_header([half])
    slot.write_bytes(header + bytes(8))
    slots = {r: pair[r].page.slot_steps().index(1) for r in (0, 1)}
    with pytest.raises(tensor_file.Damaged, match=r"of the tensor value\.tensor 8 bytes are there, not 16"):
        MemoryReader(memory, 1, 2, slots)


# --- a thread that writes -----------------------------------------------------------------------------------


class Writer:
    """Writes to a tensor in the middle of a copy, the first few times."""

    def __init__(self, rank: Rank, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rank, self.left = rank, times
        copy = Copies.run

        def run(copies: Copies) -> None:
            copy(copies)
            if copies.sources and self.left:
                self.left -= 1
                rank.value.tensor.add_(100)

        monkeypatch.setattr(Copies, "run", run)


def test_a_tensor_that_is_written_to_while_it_is_copied_is_copied_again(
    memory: Path, rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Taken out: without versions the snapshot has what the tensor held before."""
    writer = Writer(rank, 2, monkeypatch)
    rank.take(1)
    assert writer.left == 0
    assert content(memory, rank.page) == {1: 201.0}
    assert capsys.readouterr().out == ""


def test_one_that_is_written_to_at_every_try_is_told_once(
    memory: Path, rank: Rank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Writer(rank, 100, monkeypatch)
    for step in range(1, 4):
        rank.take(step)
    assert sorted(content(memory, rank.page)) == [2, 3]
    said = capsys.readouterr()
    assert (said.out + said.err).count("a thread writes to `value.tensor` while a snapshot copies it") == 1
