"""Ranks that are to make different numbers of steps would wait for each other without end: that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.snapshots import make_pages

from ftlaunch_contract.pages.page import Page, open_pages
from ftlaunch_hooks.snapshots.peer_progress import PeerProgress


@pytest.fixture
def pages(memory: Path) -> Iterator[list[Page]]:
    make_pages(memory, 2)
    pages = open_pages(memory, 2)
    for page in pages:
        page.begin(0, 1, 1)
    yield pages
    for page in pages:
        page.close()


def test_other_numbers_of_steps_are_refused_by_both(pages: list[Page]) -> None:
    one, other = (PeerProgress(rank, pages) for rank in range(2))
    one.intend(20)
    assert one.other_intent() is None  # the other rank is not in its loop yet
    other.intend(17)
    for progress, said in ((one, "20 steps and rank 1 17"), (other, "17 steps and rank 0 20")):
        assert said in (progress.other_intent() or "")


def test_a_rank_in_another_loop_is_not_compared(pages: list[Page]) -> None:
    one, other = (PeerProgress(rank, pages) for rank in range(2))
    one.intend(10)
    other.intend(10)
    assert one.other_intent() is None
    one.intend(20)
    assert one.other_intent() is None
    assert other.other_intent() is None
    other.intend(20)
    assert one.other_intent() is None
    assert other.other_intent() is None


def test_an_earlier_attempt_is_not_compared(pages: list[Page]) -> None:
    one, other = (PeerProgress(rank, pages) for rank in range(2))
    other.intend(10)
    pages[0].begin(1, 1, 1)
    one.intend(20)
    assert one.other_intent() is None


def test_a_rank_by_itself_compares_nothing(memory: Path) -> None:
    make_pages(memory, 1)
    (page,) = open_pages(memory, 1)
    page.begin(0, 1, 1)
    progress = PeerProgress(0, [page])
    progress.intend(1 << 60)
    assert progress.other_intent() is None
    page.close()
