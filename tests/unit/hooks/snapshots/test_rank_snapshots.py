"""The order in which any framework's snapshot is taken, on which the other ranks, the saver and the supervisor rely."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.snapshots import make_pages

from ftlaunch_contract.checkpoint import health_mark, layout
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import NONE, Page, page_path
from ftlaunch_contract.protocol import STAGED, Flag, Why
from ftlaunch_hooks.snapshots.rank_snapshots import RankSnapshots, Snapshot
from ftlaunch_hooks.snapshots.slot_directory import NoRoomError, SlotDirectory


class NumberSlot(SlotDirectory):
    """A slot that holds one number."""

    def __init__(self, directory: Path, rank: int, number: int, storage: Path | None = None) -> None:
        super().__init__(directory, rank, number, storage)
        self.number = number

    def write(self, number: int) -> None:
        self.open_directory()
        for group in layout.GROUPS:
            layout.slot_file(self.directory, group).write_text(str(number))

    def read(self) -> int:
        return int(layout.slot_file(self.directory, "model").read_text())

    def _find_not_finite(self) -> str:
        return ""


class Numbers(RankSnapshots[NumberSlot, int]):
    """A framework whose state is one number. It notes what the page says while a snapshot is written."""

    def __init__(self, page: Page, directory: Path) -> None:
        super().__init__(
            NumberSlot,
            page=page,
            peers=[page],
            directory=directory,
            rank=0,
            node=NodeRanks(0, 1, 1),
            base=NONE,
            storage=None,
        )
        self.page = page
        self.number = 0
        self.full: set[int] = set()
        """slots for which there is no room"""
        self.seen: list[tuple[str, int, int]] = []
        """what was written, the slot's step in the page then, and the step that is held then"""

    def _measure(self, step: int) -> int:
        return 1

    def _collect(self, step: int) -> int:
        return self.number

    def _note(self, what: str, slot: int) -> None:
        self.seen.append((what, self.page.slot_steps()[slot], self.page.save_step))

    def _copy(self, number: int, new: Snapshot[int]) -> None:
        self._note("tensors", number)
        if number in self.full:
            raise NoRoomError(f"no room in slot {number}")
        self.slots[number].write(new.state)
        self.commit(number, new)

    def _common_json(self, slot: NumberSlot, new: Snapshot[int]) -> bytes:
        self._note("common", slot.number)
        assert slot.read() == new.state, "the tensors come before common.json"
        health = slot.health(new.trouble, checks_parameters=new.hold is not None)
        return json.dumps({"step": new.step, "health": health}).encode()


@pytest.fixture
def page(memory: Path) -> Iterator[Page]:
    make_pages(memory, 1)
    page = Page(page_path(memory, 0))
    page.begin(0, os.getpid(), 0)
    page.raise_flag(Flag.ATTACHED)
    yield page
    page.close()


@pytest.fixture
def numbers(memory: Path, page: Page) -> Iterator[Numbers]:
    numbers = Numbers(page, memory)
    numbers.fit(0)
    yield numbers
    numbers.close()


def test_a_step_is_withdrawn_then_written_then_named_then_held(numbers: Numbers, page: Page) -> None:
    """Taken out: each of the four, one after the other, in RankSnapshots and Slots."""
    for step in (1, 2):
        assert numbers.capture(step)
    numbers.seen.clear()
    numbers.number = 7
    assert numbers.capture(3, Why.INTERVAL)
    assert numbers.seen == [("tensors", NONE, NONE), ("common", NONE, NONE)], "neither named nor held so early"
    assert (page.save_step, page.save_why) == (3, Why.INTERVAL)
    files, common = numbers.slot_files(3)
    assert json.loads(common) == {"step": 3, "health": health_mark.mark(health_mark.NORMAL)}
    assert os.pread(files["model"], 9, 0) == b"7"


def test_what_is_to_be_trusted_is_asked_as_the_snapshot_is_taken(numbers: Numbers) -> None:
    numbers.find_trouble = lambda: "the loss was nan at step 4"
    assert numbers.capture(4)
    _, common = numbers.slot_files(4)
    assert json.loads(common)["health"] == health_mark.mark(health_mark.ABNORMAL, "the loss was nan at step 4")


def test_a_held_snapshot_without_room_in_memory_goes_to_storage(numbers: Numbers, page: Page) -> None:
    numbers.full = set(range(STAGED))
    assert not numbers.capture(1), "nobody needs it"
    assert numbers.budget.progress.any_lacks_room(), "the ranks are to agree on less"
    numbers.fit(2)
    assert numbers.capture(2, Why.REQUEST)
    assert page.slot_steps()[STAGED] == 2
    assert (page.save_step, page.missed_step) == (2, NONE)


def test_a_held_snapshot_without_any_room_is_missed(numbers: Numbers, page: Page) -> None:
    numbers.full = {*range(STAGED), STAGED}
    assert not numbers.capture(5, Why.INTERVAL)
    assert (page.missed_step, page.save_step) == (5, NONE), "nobody waits for it, and nobody reads it"
