"""A DataLoader whose position nobody saves is told of once, before anything is lost; one for evaluation is not.

Tried: each fails where DataOrder leaves out what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from ftlaunch_contract.pages.page import Page
from ftlaunch_contract.protocol import Phase
from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler
from ftlaunch_hooks.observe.unsaved.unsaved_state import UnsavedState
from ftlaunch_hooks.passes.kept_loader import KeptLoader
from ftlaunch_hooks.state.state import Choices, RankState

WORDS = "the order of the data of a DataLoader"


@pytest.fixture
def said(page: Page, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """What is told while iterators of a loader are made."""
    watches: list[UnsavedState] = []

    def run(loader: Any, *, attempt: int = 0, rank: int = 0, phase: Phase = Phase.STARTUP, **objects: Any) -> str:
        page.begin(attempt, 1, 1)
        page.phase = phase
        watches.append(UnsavedState(objects, page, rank, RankState({}, (), rank, 1), Choices((), (), {}, "")))
        for _ in range(2):
            next(iter(loader))
        return capfd.readouterr().err

    sampler()  # the first one changes how iterators are made, once
    make = DataLoader.__iter__
    yield run
    for watch in reversed(watches):
        watch.close()
    assert DataLoader.__iter__ is make


def sampler() -> Any:
    return ResumableBatchSampler(16, 4, rank=0, world_size=1, endless=True)


def test_a_loader_of_torch_is_told_of_once_in_a_run(said: Callable[..., str]) -> None:
    found = said(DataLoader(range(16), shuffle=True))
    assert found.count(WORDS) == 1
    assert "(RandomSampler)" in found
    assert WORDS in said(DataLoader(range(16), shuffle=True), attempt=1)


def test_of_all_ranks_the_first_one_speaks(said: Callable[..., str]) -> None:
    assert said(DataLoader(range(16), shuffle=True), rank=1) == ""


def test_a_sampler_that_keeps_a_position_must_be_attached(said: Callable[..., str]) -> None:
    ours = sampler()
    assert WORDS in said(DataLoader(range(16), batch_sampler=ours))
    assert said(DataLoader(range(16), batch_sampler=ours), sampler=ours) == ""


def test_what_is_attached_may_be_anything_in_the_loader(said: Callable[..., str]) -> None:
    order = RandomSampler(range(16))
    loader = DataLoader(range(16), batch_sampler=BatchSampler(order, 4, drop_last=True))
    assert said(loader, order=order) == ""


def test_batches_that_the_script_has_listed_are_its_own(said: Callable[..., str]) -> None:
    assert said(DataLoader(range(16), batch_sampler=[[3], [4]])) == ""


def test_a_stream_is_told_of(said: Callable[..., str]) -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(16))

    assert "(Stream)" in said(DataLoader(Stream()))


@pytest.mark.parametrize("phase", [Phase.EVAL, Phase.CHECKPOINT, Phase.TEARDOWN])
def test_what_the_script_does_beside_training_is_none_of_it(said: Callable[..., str], phase: Phase) -> None:
    assert said(DataLoader(range(16), shuffle=True), phase=phase) == ""
    assert WORDS in said(DataLoader(range(16), shuffle=True), phase=Phase.TRAIN)


def test_without_gradients_nothing_is_trained(said: Callable[..., str]) -> None:
    with torch.no_grad():
        assert said(DataLoader(range(16), shuffle=True)) == ""


def test_torchdatas_loader_too_unless_it_is_attached(said: Callable[..., str]) -> None:
    """Its `__iter__` is its own. Tried: it fails where torch's alone is looked at."""
    loader = StatefulDataLoader(list(range(16)), batch_size=2)
    assert WORDS in said(loader)
    assert said(loader, data=loader) == ""


class Stream(IterableDataset[int]):
    """Says where it is."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(16))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("workers", [0, 1])
def test_an_attached_stream_that_moves_in_workers_is_told_of(said: Callable[..., str], workers: int) -> None:
    """The copy in the worker moves, and the one that is saved does not."""
    stream = Stream()
    found = said(DataLoader(stream, num_workers=workers), stream=stream)
    assert ("the position of an attached data set (Stream) moves in the workers" in found) == bool(workers)
    assert WORDS not in found


def test_of_a_loader_under_batches_nothing_is_told(said: Callable[..., str], capfd: pytest.CaptureFixture[str]) -> None:
    said([[1], [2]])
    KeptLoader(DataLoader(range(16), shuffle=True), 0).begin(1, None)
    assert capfd.readouterr().err == ""
