"""Every word of the page has the place it always had, whichever room writes it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ftlaunch_contract.pages import exit_futex, loss_record, replica_record
from ftlaunch_contract.pages.loss_record import Bad, LossFault
from ftlaunch_contract.pages.page import Page, create_page
from ftlaunch_contract.pages.replica_record import Told
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


@pytest.mark.parametrize(("fault", "first"), [(LossFault.NAN, 200), (LossFault.SPIKE, 208)])
def test_a_loss_record_has_its_place(page: Page, fault: LossFault, first: int) -> None:
    loss_record.tell(page, Bad(fault, 41, 2.5, 160, 176, 1.5, 3, 44))
    assert [word(page, first), word(page, first + 2), word(page, first + 3)] == [41, 160, 176]
    assert [word(page, first + 1, "<d"), word(page, first + 4, "<d")] == [2.5, 1.5]
    assert [word(page, first + 5), word(page, first + 6)] == [3, 44]


@pytest.mark.parametrize(("number", "first"), [(0, 216), (7, 230), (8, 216)])
def test_a_digest_has_its_place(page: Page, number: int, first: int) -> None:
    told = Told(12, 3, 99, 77)
    replica_record.tell(page, number, told)
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
    budget.took(7)
    budget.missed(8)
    budget.failed()
    assert [word(page, 44), word(page, 45), word(page, 43)] == [8, 9, 2]
    assert budget.meet(5, 1000, 200) == -1
    assert [word(page, index) for index in (40, 41, 42, 43, 46, 48)] == [1000, 200, 6, 0, 6, 0]
    assert word(page, 47) == budget.slots
