"""Slots are laid out in a thread before snapshots need them; what is half laid out is nobody's snapshot."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.snapshots import Rank, content, make_pages
from tests.support.waiting import wait_for

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.pages.page import NONE, Page, open_pages
from ftlaunch_contract.pages.words import PREPARING
from ftlaunch_contract.protocol import Why
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.slot_file import SlotFile
from ftlaunch_hooks.snapshots.step_schedule import StepSchedule

LARGE = 12 << 20  # elements of float32, 48 MiB: above the size from which slots are prepared
THREAD = "ftlaunch-prepare"


class Gate:
    """Stops preparing threads after their first piece until it is opened, and counts the pieces."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        self.error: OSError | None = None
        """what a piece in the thread ends with, once the gate is open"""
        self.pieces: list[tuple[str, int]] = []  # the thread's name, and where the piece begins
        reserve = os.posix_fallocate

        def reserve_counted(fd: int, begin: int, size: int) -> None:
            name = threading.current_thread().name
            if name == THREAD and begin:
                self.reached.set()
                assert self.opened.wait(90)
                if self.error is not None:
                    raise self.error
            self.pieces.append((name, begin))
            reserve(fd, begin, size)

        monkeypatch.setattr(os, "posix_fallocate", reserve_counted)


@pytest.fixture
def rank(memory: Path) -> Iterator[Rank]:
    make_pages(memory, 1)
    rank = Rank(memory, 0, 1)
    rank.value.tensor = torch.zeros(LARGE)
    rank.snapshots.prepares_slots = True
    yield rank
    rank.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def temporary(memory: Path, number: int = 0) -> Path:
    path = layout.slot_file(layout.slot_dir(memory, 0, number), "opt")
    return path.with_name(path.name + ".tmp")


def wait_until_prepared(rank: Rank) -> None:
    wait_for(lambda: not rank.page.q[PREPARING], "the slot to be prepared")


def test_the_first_snapshot_of_each_slot_finds_its_file_prepared(memory: Path, rank: Rank, gate: Gate) -> None:
    """Taken out: the preparation in `fit`, and that in `commit`."""
    gate.opened.set()
    rank.snapshots.fit(0)
    for number in range(2):
        wait_until_prepared(rank)
        inode = temporary(memory, number).stat().st_ino
        gate.pieces.clear()
        rank.take(number)
        assert layout.slot_file(layout.slot_dir(memory, 0, number), "opt").stat().st_ino == inode
        assert all(name == THREAD for name, _ in gate.pieces), "nothing was reserved in the loop's way"
    assert content(memory, rank.page) == {0: 0, 1: 1}
    wait_until_prepared(rank)
    assert not layout.slot_dir(memory, 0, 2).exists(), "nothing needs a third slot"
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD]


def test_a_slot_for_what_the_saver_leaves_is_prepared(memory: Path, rank: Rank) -> None:
    rank.snapshots.fit(0)
    rank.take(0)
    rank.take(1, Why.INTERVAL)
    rank.take(2)  # the older slot; now the saver has the other one
    wait_until_prepared(rank)
    assert temporary(memory, 2).exists()
    rank.take(3)
    assert content(memory, rank.page) == {1: 1, 2: 2, 3: 3}


def test_what_is_half_prepared_is_no_snapshot_and_no_file_of_a_slot(memory: Path, rank: Rank, gate: Gate) -> None:
    """Taken out: the temporary name; deleting what the attempt before has left; the lower priority of the thread."""
    rank.snapshots.fit(0)
    assert gate.reached.wait(90)
    assert set(rank.page.slot_steps()) == {NONE}
    assert sorted(path.name for path in temporary(memory).parent.iterdir()) == [
        "common.json",
        "model.safetensors.tmp",
        "opt.safetensors.tmp",
    ]
    [thread] = [thread for thread in threading.enumerate() if thread.name == THREAD]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == min(own + 10, 19)
    again = Rank(memory, 0, 1, attempt=1)  # as if this rank had died here
    assert not temporary(memory).exists()
    again.take(4)
    assert content(memory, again.page) == {4: 4}
    again.close()


def test_the_snapshot_before_stays_whole_while_its_slot_is_prepared(memory: Path, rank: Rank, gate: Gate) -> None:
    """Taken out: `is_ahead` deletes the file of a step that the page names."""
    rank.value.tensor = torch.zeros(4)
    rank.snapshots.fit(0)
    rank.take(0)
    rank.value.tensor = torch.zeros(LARGE)
    rank.snapshots.fit(1)
    gate.opened.set()
    rank.take(1)
    wait_until_prepared(rank)
    assert temporary(memory, 0).exists()
    assert content(memory, rank.page) == {0: 0, 1: 1}
    gate.pieces.clear()
    rank.take(2)
    assert all(name == THREAD for name, _ in gate.pieces)
    assert content(memory, rank.page) == {1: 1, 2: 2}


def test_a_snapshot_that_comes_too_early_goes_on_where_the_thread_was(memory: Path, rank: Rank, gate: Gate) -> None:
    """Taken out: `end` does not wait for the thread, or the files are made anew."""
    rank.snapshots.fit(0)
    assert gate.reached.wait(90)
    inode = temporary(memory).stat().st_ino
    opener = threading.Thread(target=gate.opened.set)
    opener.start()
    rank.take(0)
    opener.join()
    assert layout.slot_file(layout.slot_dir(memory, 0, 0), "opt").stat().st_ino == inode
    assert content(memory, rank.page) == {0: 0}


def test_a_file_is_prepared_in_parts_and_no_part_twice(tmp_path: Path, gate: Gate) -> None:
    gate.opened.set()
    chunk = Chunk("large", "F32", (LARGE,), "large", (LARGE,), (0,))
    path = tmp_path / "opt.safetensors"
    path.write_bytes(b"in use")
    file = SlotFile(path, [chunk], is_ahead=True)
    total = file.missing
    assert total > LARGE * 4
    assert not file.prepare(lambda: len(gate.pieces) == 2)
    assert path.read_bytes() == b"in use"
    assert file.missing == total - 2 * (16 << 20)
    file.take_place()
    assert [begin for _, begin in gate.pieces] == [0, 16 << 20, 32 << 20]
    assert path.stat().st_size == total
    assert list(tmp_path.iterdir()) == [path]
    file.close()


@pytest.mark.parametrize("size", [LARGE + (1 << 20), LARGE // 2, 4])
def test_a_state_that_has_changed_meanwhile_is_laid_out_as_ever(memory: Path, rank: Rank, size: int) -> None:
    """Taken out: `fits`; a file of another layout is taken for the snapshot."""
    rank.snapshots.fit(0)
    wait_until_prepared(rank)
    rank.value.tensor = torch.zeros(size)
    rank.take(0)
    assert content(memory, rank.page) == {0: 0}
    assert not temporary(memory).exists()


def test_no_room_in_the_thread_gives_the_memory_back_and_the_snapshot_tries_again(
    memory: Path, rank: Rank, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    """Taken out: closing the files in the thread; lowering the word, for which rank 0 waits."""
    gate.error = OSError(errno.ENOSPC, "no room")
    gate.opened.set()
    rank.snapshots.fit(0)
    wait_until_prepared(rank)
    assert not temporary(memory).exists()
    rank.take(0)
    assert content(memory, rank.page) == {0: 0}
    assert capsys.readouterr().out == ""


def test_nothing_is_prepared_without_an_interval_or_for_a_small_state(memory: Path, rank: Rank) -> None:
    """Taken out: `prepares_slots`, and the least size."""
    rank.snapshots.prepares_slots = False
    rank.snapshots.fit(0)
    assert not layout.slot_dir(memory, 0, 0).exists()
    rank.take(0)
    assert not layout.slot_dir(memory, 0, 1).exists()
    rank.snapshots.prepares_slots = True
    rank.value.tensor = torch.zeros(4)
    rank.take(1)
    assert not temporary(memory, 0).exists(), "for the step after, whose slot has a large file"
    rank.take(2)
    assert not rank.page.q[PREPARING]
    assert not layout.slot_dir(memory, 0, 2).exists()


def test_what_the_ranks_have_agreed_on_bounds_what_is_prepared(memory: Path, rank: Rank) -> None:
    """Taken out: `has_room`. With two slots, a file beside the one in use would be a third slot."""
    rank.snapshots.fit(0)
    rank.take(0)
    rank.take(1)
    rank.snapshots.budget.slots = 2
    rank.value.tensor = torch.zeros(LARGE + (1 << 20))
    rank.take(2)
    assert not temporary(memory, 1).exists()
    assert content(memory, rank.page) == {1: 1, 2: 2}


def test_what_is_prepared_counts_as_memory_that_the_rank_holds(memory: Path, rank: Rank) -> None:
    """Taken out: a prepared file that lies outside the slot's directory."""
    rank.snapshots.fit(0)
    wait_until_prepared(rank)
    assert rank.snapshots.slots.memory >= LARGE * 4
    rank.snapshots.fit(1)
    assert not rank.page.q[PREPARING], "all is prepared already"
    assert rank.snapshots.slots.memory >= LARGE * 4


def test_the_state_is_looked_at_again_after_the_first_step(rank: Rank) -> None:
    """An optimizer has no state before its first step. Taken out: asking for an agreement after the first one."""
    rank.snapshots.fit(0)
    assert rank.snapshots.budget.progress.wanted()
    rank.snapshots.fit(1)
    assert not rank.snapshots.budget.progress.wanted()


def test_closing_ends_the_thread_and_leaves_no_half_prepared_file(memory: Path, rank: Rank, gate: Gate) -> None:
    """Taken out: dropping what is prepared in Slot.close."""
    rank.snapshots.fit(0)
    assert gate.reached.wait(90)
    gate.opened.set()
    rank.snapshots.close()
    assert not [thread for thread in threading.enumerate() if thread.name == THREAD]
    assert not list(memory.glob("slot_*/*.tmp"))


@pytest.fixture
def leader(memory: Path) -> Iterator[Page]:
    make_pages(memory, 2)
    pages = open_pages(memory, 2)
    pages[0].begin(0, 1, 1)
    pages[0].beat(0, 0)
    pages[1].begin(0, 1, 1)
    pages[1].beat(0, 0)
    yield pages[0]
    for page in pages:
        page.close()


@pytest.mark.parametrize(
    ("auto", "common", "postpones"), [(True, False, True), (False, False, False), (True, True, False)]
)
def test_snapshots_wait_for_every_rank_s_preparation_where_the_interval_is_ours(
    memory: Path, leader: Page, monkeypatch: pytest.MonkeyPatch, auto: bool, common: bool, postpones: bool
) -> None:
    """Taken out: the postponement; its exceptions; the end of a minute."""
    pages = open_pages(memory, 2)
    budget = MemoryBudget(0, pages, memory)
    schedule = StepSchedule(0, pages, pages[0], AdaptiveInterval(1, auto=auto), budget, common=common)
    pages[1].q[PREPARING] = 1

    def is_due(step: int) -> bool:
        pages[0].beat(step, 0)
        pages[1].beat(step, 0)
        schedule.write(step)
        return schedule.read(step).snapshot

    assert is_due(1) is not postpones
    pages[1].q[PREPARING] = 0
    assert is_due(2)
    pages[1].q[PREPARING] = 1
    assert is_due(3) is not postpones
    later = time.monotonic_ns() + 61_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: later)
    assert is_due(4), "a thread that does not get on costs no more than a minute of steps"
    for page in pages:
        page.close()
