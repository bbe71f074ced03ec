"""Ranks that are to make different numbers of steps would wait for each other without end: that is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.snapshots import make_pages

from ftlaunch_contract.pages.page import Page, open_pages
from ftlaunch_hooks.snapshots.peer_progress import PeerProgress
from ftlaunch_hooks.tensors.json_codec import StateError


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
    one.check_intents()  # the other rank is not in its loop yet
    other.intend(17)
    for progress, said in ((one, "20 steps and rank 1 17"), (other, "17 steps and rank 0 20")):
        with pytest.raises(StateError, match=said):
            progress.check_intents()


def test_a_rank_in_another_loop_is_not_compared(pages: list[Page]) -> None:
    one, other = (PeerProgress(rank, pages) for rank in range(2))
    one.intend(10)
    other.intend(10)
    one.check_intents()
    one.intend(20)
    one.check_intents()
    other.check_intents()
    other.intend(20)
    one.check_intents()
    other.check_intents()


def test_an_earlier_attempt_is_not_compared(pages: list[Page]) -> None:
    one, other = (PeerProgress(rank, pages) for rank in range(2))
    other.intend(10)
    pages[0].begin(1, 1, 1)
    one.intend(20)
    one.check_intents()


def test_a_rank_by_itself_compares_nothing(memory: Path) -> None:
    make_pages(memory, 1)
    (page,) = open_pages(memory, 1)
    page.begin(0, 1, 1)
    progress = PeerProgress(0, [page])
    progress.intend(1 << 60)
    progress.check_intents()
    page.close()
