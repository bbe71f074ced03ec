"""Every word of the page has the place it always had, whichever room writes it."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlaunch_contract.pages import exit_futex, loss_record, replica_record, words
from ftlaunch_contract.pages.loss_record import Bad, LossFault
from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_contract.pages.replica_record import ReplicaDigest
from ftlaunch_contract.pages.words import TABLE, Lifetime, Words, Writer, check
from ftlaunch_hooks.snapshots.interval import AdaptiveInterval
from ftlaunch_hooks.snapshots.memory_budget import MemoryBudget
from ftlaunch_hooks.snapshots.step_schedule import StepSchedule


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    create_page(tmp_path / "page")
    page = Page(tmp_path / "page")
    page.begin(0, 1, 1)
    yield page
    page.close()


def word(page: Page, index: int, form: str = "<q") -> Any:
    """What the file holds at a word, read without any of the rooms under test."""
    return struct.unpack_from(form, page.path.read_bytes(), index * 8)[0]


# Changing an offset changes the protocol: raise protocol.VERSION, and say so in docs and CHANGELOG.
OFFSETS = {
    "magic": 0, "version": 1, "pid": 2, "start_time": 3, "attempt": 4, "phase": 5, "step": 6, "beat_ns": 7,
    "consumed": 8, "step_ns": 9, "loss": 10, "flags": 11, "save_step": 12, "save_why": 13, "resumed_step": 14,
    "resumed_from": 15, "stop_wanted": 16, "want_save": 17, "shard_step": 18, "seen_steps": 19,
    "saves_asked": 20, "save_every": 21, "save_every_ns": 22, "save_keep": 23,
    "slot_steps": (32, 36), "need": 40, "held": 41, "sized": 42, "asked": 43, "newest_snapshot": 44, "missed": 45,
    "agreed": 46, "agreed_slots": 47, "agreed_base": 48, "intent": 49, "wanted": 50, "preparing": 51,
    "memory": (52, 55), "schedule": (64, 127),
    "replicas": (128, 193), "losses": (200, 215), "digests": (216, 231), "own_steps": 232, "own_ns": 233,
    "exit_futex": (240, 247), "proof": (248, 255),
    "stop_at": 256, "deadline_ns": 257, "leave": 258, "resume_kind": 259, "resume_step": 260, "persist_at": 261,
    "saved": 262, "reading": 263, "granted": 264, "every": 265, "every_from": 266, "sending": 267, "peer_every": 268,
}  # fmt: skip


def test_every_row_of_the_table_has_its_place() -> None:
    found = {row.name: int(row) if row.count == 1 else (int(row), row.end - 1) for row in TABLE}
    assert found == OFFSETS
    assert {row.name for row in TABLE if row.writer is Writer.SUPERVISOR} == {
        n for n, at in OFFSETS.items() if at in range(256, 512)
    }


def test_every_row_has_a_constant_and_a_meaning() -> None:
    constants = {id(value) for value in vars(words).values() if isinstance(value, Words)}
    assert constants == {id(row) for row in TABLE}
    assert all(row.meaning.endswith(".") for row in TABLE)


def planted(name: str, offset: int, count: int = 1, writer: Writer = Writer.RANK) -> Words:
    return Words(name, offset, "Planted.", count, writer, Lifetime.PAGE, 0)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (planted("new", 6), "overlap"),
        (planted("new", 127), "schedule (words 64 to 127) and new (words 127 to 127) overlap"),
        (planted("new", 60, 10), "new (words 60 to 69) and schedule (words 64 to 127) overlap"),
        (planted("new", 252, 8), "new (words 252 to 259) must lie in the words 0 to 255 of the rank"),
        (planted("new", 509, 4, Writer.SUPERVISOR), "must lie in the words 256 to 511 of the supervisor"),
        (planted("new", -1), "must lie in the words 0 to 255 of the rank"),
        (planted("step", 234), "two rows are called step"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row: Words, complaint: str) -> None:
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        check([*TABLE, row])
    assert row.name in str(caught.value)


def test_two_rows_that_overlap_are_an_error_at_import() -> None:
    source = Path(words.__file__).read_text()
    clashing = source.replace('"step", 6,', '"step", 7,')
    assert clashing != source
    with pytest.raises(ValueError, match=r"step \(words 7 to 7\) and beat_ns \(words 7 to 7\) overlap"):
        exec(compile(clashing, "words.py", "exec"), {"__name__": "planted"})


@pytest.mark.parametrize("row", [row for row in TABLE if row.lifetime is Lifetime.PROCESS], ids=lambda row: row.name)
def test_a_new_process_finds_its_words_empty(page: Page, row: Words) -> None:
    for index in range(row, row.end):
        page.q[index] = 7
    page.begin(1, 2, 3)
    assert {word(page, index) for index in range(row, row.end)} == {row.empty}


@pytest.mark.parametrize(("fault", "first"), [(LossFault.NAN, 200), (LossFault.SPIKE, 208)])
def test_a_loss_record_has_its_place(page: Page, fault: LossFault, first: int) -> None:
    loss_record.write_losses(page, Bad(fault, 41, 2.5, 160, 176, 1.5, 3, 44))
    assert [word(page, first), word(page, first + 2), word(page, first + 3)] == [41, 160, 176]
    assert [word(page, first + 1, "<d"), word(page, first + 4, "<d")] == [2.5, 1.5]
    assert [word(page, first + 5), word(page, first + 6)] == [3, 44]


@pytest.mark.parametrize(("number", "first"), [(0, 216), (7, 230), (8, 216)])
def test_a_digest_has_its_place(page: Page, number: int, first: int) -> None:
    told = ReplicaDigest(12, 3, 99, 77)
    replica_record.write_digest(page, number, told)
    assert [word(page, first), word(page, first + 1)] == [12 << 32 | 3 << 20 | 99, 77]


def test_the_exit_futex_has_its_place(page: Page) -> None:
    exit_futex.word(page.path).value = 123
    assert word(page, 240, "<I") == 123


@pytest.mark.parametrize(("step", "index"), [(1, 65), (63, 127), (64, 64)])
def test_the_schedule_has_its_place(page: Page, tmp_path: Path, step: int, index: int) -> None:
    page.beat(64, 0)
    pages = [page, page]  # two ranks, as a rank by itself writes when it reads
    StepSchedule(0, pages, page, AdaptiveInterval(1, auto=False), MemoryBudget(0, pages, tmp_path)).write(step)
    assert word(page, index) == step << 32 | 1


def test_what_the_ranks_agree_on_has_its_place(page: Page, tmp_path: Path) -> None:
    budget = MemoryBudget(0, [page], tmp_path)
    budget.progress.took(7)
    budget.progress.missed(8)
    budget.progress.found_no_room()
    assert [word(page, 44), word(page, 45), word(page, 43)] == [8, 9, 2]
    assert budget.agree(5, 1000, 200) == -1
    assert [word(page, index) for index in (40, 41, 42, 43, 46, 48)] == [1000, 200, 6, 0, 6, 0]
    assert word(page, 47) == budget.slots
