"""The memory page: its layout is a contract, frozen here."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlaunch_contract.pages.memory_state import Memory
from ftlaunch_contract.pages.page import MAGIC, NONE, SIZE, Page, create_page, open_pages, page_path
from ftlaunch_contract.pages.waiting import wait_until
from ftlaunch_contract.pages.words import AGREED_BASE, DIGESTS, LOSSES, NEED, SCHEDULE
from ftlaunch_contract.protocol import SLOTS, VERSION, Flag, Phase, Resume
from ftlaunch_contract.saving_request import SavingRequest


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    create_page(page_path(tmp_path, 0))
    page = Page(page_path(tmp_path, 0))
    yield page
    page.close()


def word(page: Page, index: int, form: str = "<q") -> Any:
    """What the file holds, read without any of page.py."""
    return struct.unpack_from(form, page.path.read_bytes(), index * 8)[0]


# Changing any row changes the protocol: raise protocol.VERSION, and say so in docs and CHANGELOG.
FROZEN = [
    # word, how it is set, what stands there
    (2, lambda p: p.begin(4, 123, 456), 123),  # pid
    (3, lambda p: p.begin(4, 123, 456), 456),  # start time of the process
    (4, lambda p: p.begin(4, 123, 456), 4),  # attempt
    (5, lambda p: setattr(p, "phase", Phase.EVAL), 2),
    (6, lambda p: p.beat(77, 88), 77),  # step
    (7, lambda p: p.beat(77, 88), 88),  # time of the beat, ns
    (8, lambda p: setattr(p, "consumed", 99), 99),
    (9, lambda p: setattr(p, "step_seconds", 0.25), 250_000_000),
    (11, lambda p: p.raise_flag(Flag.STACKS | Flag.STOPPED), 10),
    (12, lambda p: p.hold_for_saver(5, 3), 5),
    (13, lambda p: p.hold_for_saver(5, 3), 3),
    (14, lambda p: p.set_resumed(Resume.STORAGE, 6), 6),
    (15, lambda p: p.set_resumed(Resume.STORAGE, 6), 4),
    (16, lambda p: setattr(p, "stop_wanted", 15), 15),
    (17, lambda p: setattr(p, "want_save", 7), 7),
    (18, lambda p: setattr(p, "shard_step", 8), 8),
    (19, lambda p: p.observe(9, 1, 2), 9),
    (232, lambda p: p.note_own(5), 1),
    (233, lambda p: p.note_own(5), 5),
    (32, lambda p: p.set_slot(0, 9), 9),
    (33, lambda p: p.set_slot(1, 9), 9),
    (34, lambda p: p.set_slot(2, 9), 9),
    (35, lambda p: p.set_slot(3, 9), 9),
    (52, lambda p: setattr(p, "memory", Memory(2, 5, 600, 700)), 2),
    (53, lambda p: setattr(p, "memory", Memory(2, 5, 600, 700)), 5),
    (54, lambda p: setattr(p, "memory", Memory(2, 5, 600, 700)), 600),
    (55, lambda p: setattr(p, "memory", Memory(2, 5, 600, 700)), 700),
    (20, lambda p: p.ask_saves(7, SavingRequest(steps=5, seconds=2.0, keep=3)), 8),
    (21, lambda p: p.ask_saves(7, SavingRequest(steps=5, seconds=2.0, keep=3)), 5),
    (22, lambda p: p.ask_saves(7, SavingRequest(steps=5, seconds=2.0, keep=3)), 2_000_000_000),
    (23, lambda p: p.ask_saves(7, SavingRequest(steps=5, seconds=2.0, keep=3)), 3),
    (256, lambda p: setattr(p, "stop_at", 11), 11),
    (257, lambda p: setattr(p, "deadline_ns", 12), 12),
    (258, lambda p: setattr(p, "leave", True), 1),
    (259, lambda p: p.decide_resume(Resume.MEMORY, 13), 2),
    (260, lambda p: p.decide_resume(Resume.MEMORY, 13), 13),
    (261, lambda p: setattr(p, "persist_at", 14), 14),
    (262, lambda p: setattr(p, "saved", 15), 15),
    (263, lambda p: setattr(p, "reading", 16), 16),
    (264, lambda p: setattr(p, "granted", 17), 17),
]


@pytest.mark.parametrize(("index", "change", "value"), FROZEN)
def test_every_word_has_its_place(page: Page, index: int, change: Any, value: int) -> None:
    assert word(page, index) != value
    change(page)
    assert word(page, index) == value


def test_head_loss_and_size_have_their_places(page: Page) -> None:
    assert (SIZE, SLOTS, VERSION) == (4096, 5, 3)
    assert page.path.stat().st_size == 4096
    assert page.path.stat().st_mode & 0o777 == 0o600
    assert page.path.read_bytes()[:8] == b"FTCHPAGE"
    assert word(page, 1) == VERSION
    page.loss = 1.5
    assert word(page, 10, "<d") == 1.5


def test_numbers_of_the_protocol_are_frozen() -> None:
    assert {phase.name: phase.value for phase in Phase} == {
        "STARTUP": 0, "TRAIN": 1, "EVAL": 2, "CHECKPOINT": 3, "TEARDOWN": 4,
    }  # fmt: skip
    assert [resume.name for resume in sorted(Resume)] == [
        "UNDECIDED", "FRESH", "MEMORY", "PEER", "STORAGE", "REFUSED", "LOADED", "WEIGHTS",
    ]  # fmt: skip
    assert {flag.name: flag.value for flag in Flag} == {
        "ATTACHED": 1, "STACKS": 2, "LOOP_LEFT": 4, "STOPPED": 8, "MAPPED": 16, "OBSERVED": 32, "FINAL": 64,
        "ENDED_WELL": 128, "STEPS_UNKNOWN": 256,
    }  # fmt: skip


def test_a_new_page_says_nothing(page: Page) -> None:
    assert page.valid
    assert (page.attempt, page.step, page.save_step, page.want_save, page.shard_step) == (NONE,) * 5
    assert (page.stop_at, page.persist_at, page.saved, page.reading, page.granted) == (NONE,) * 5
    assert page.slot_steps() == (NONE,) * SLOTS
    assert page.resumed == page.resume == (Resume.UNDECIDED, NONE)
    assert (page.flags, page.leave, page.deadline_ns, page.pid) == (Flag(0), False, 0, 0)


def test_where_a_rank_resumed_is_told_once_the_step_is_there(page: Page) -> None:
    """Taken out (the order): the supervisor may read the kind of the resume with the step of before."""
    written: dict[int, int] = {}
    words_of_page, page.q = page.q, written  # type: ignore[assignment]
    page.set_resumed(Resume.STORAGE, 6)
    page.q = words_of_page
    assert list(written.values()) == [6, Resume.STORAGE]


def test_a_new_process_keeps_the_slots_and_the_orders_and_nothing_else(page: Page) -> None:
    page.begin(0, 1, 2)
    page.beat(50, 1)
    page.loss, page.consumed, page.want_save = 2.0, 3, 4
    page.raise_flag(Flag.ATTACHED)
    page.set_resumed(Resume.FRESH, 0)
    page.hold_for_saver(50, 1)
    page.set_slot(1, 50)
    page.decide_resume(Resume.MEMORY, 50)
    page.stop_at = 60
    before = time.monotonic_ns()
    page.begin(1, 3, 4)
    assert (page.attempt, page.pid, page.start_time, page.phase) == (1, 3, 4, Phase.STARTUP)
    assert (page.step, page.save_step, page.want_save, page.consumed) == (NONE, NONE, NONE, 0)
    assert (page.flags, page.resumed) == (Flag(0), (Resume.UNDECIDED, NONE))
    assert math.isnan(page.loss)
    assert page.beat_ns >= before
    assert (page.slot_steps(), page.resume, page.stop_at) == ((NONE, 50, NONE, NONE, NONE), (Resume.MEMORY, 50), 60)


def test_an_attempt_begins_without_old_requests_and_without_a_speaker(page: Page) -> None:
    page.begin(0, 1, 2)
    page.stop_at, page.leave, page.persist_at, page.reading = 5, True, 6, 7
    page.decide_resume(Resume.FRESH, 0)
    page.vacate()
    page.clear_requests()
    assert (page.stop_at, page.leave, page.persist_at, page.resume[0]) == (NONE, False, NONE, Resume.UNDECIDED)
    assert page.reading == 7  # the saver may be at it, across attempts
    assert page.attempt == NONE


def test_flags_are_raised_and_lowered_one_by_one(page: Page) -> None:
    page.raise_flag(Flag.ATTACHED)
    page.raise_flag(Flag.LOOP_LEFT)
    page.lower_flag(Flag.ATTACHED)
    assert page.flags == Flag.LOOP_LEFT


def test_what_is_no_page_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Page(tmp_path / "none")
    (tmp_path / "short").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="not a page"):
        Page(tmp_path / "short")
    (tmp_path / "zeros").write_bytes(bytes(SIZE))
    zeros = Page(tmp_path / "zeros")
    assert not zeros.valid
    zeros.q[0] = MAGIC
    assert not zeros.valid  # of another version
    zeros.close()


def test_a_page_is_made_once(page: Page, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        create_page(page.path)
    with pytest.raises(FileNotFoundError):
        open_pages(tmp_path, 2)
    (only,) = open_pages(tmp_path, 1)
    only.close()


def test_wait_until() -> None:
    assert wait_until(lambda: True, 0.0)
    assert not wait_until(lambda: False, time.monotonic() + 0.01)
    answers = iter([False, False, True])
    assert wait_until(lambda: next(answers), time.monotonic() + 60)


def test_what_the_ranks_agree_on_is_forgotten_when_a_process_begins(page: Page) -> None:
    page.memory = Memory(2, 5, 600, 700)
    words = [index for row in (NEED, AGREED_BASE, SCHEDULE, LOSSES, DIGESTS) for index in (row, row.end - 1)]
    for index in words:
        page.q[index] = 1
    page.begin(1, 123, 456)
    assert page.memory == Memory(0, 0, 0, 0)
    assert not any(word(page, index) for index in words)
