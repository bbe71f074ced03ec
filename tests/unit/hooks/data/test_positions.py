"""Who has a position in the data, and who moves it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.snapshots import save
from torch.utils.data import DataLoader

from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler
from ftlaunch_hooks.data.held_samplers import samplers_saved_by
from ftlaunch_hooks.data.mix_sampler import ResumableMixSampler
from ftlaunch_hooks.data.positions import Positions
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.json_codec import StateError


def sampler() -> ResumableBatchSampler:
    return ResumableBatchSampler(20, 4, rank=0, world_size=1, endless=True)


def test_all_samplers_advance_but_frozen_ones() -> None:
    mix = ResumableMixSampler([5, 5], [1, 1], 2, rank=0, world_size=1)
    objects = {"first": sampler(), "mix": mix, "model": object(), "still": sampler()}
    positions = Positions(objects, ["still"])
    assert positions.any
    assert positions.advance() == 4 + 2
    assert positions.advance() == 8 + 4
    assert [objects["first"].consumed, mix.consumed, objects["still"].consumed] == [8, 4, 0]  # type: ignore[attr-defined]
    assert not Positions({"model": object()}, []).any


class Progress:
    """Holds two samplers, and saves one of them."""

    def __init__(self) -> None:
        self.saved, self.other = sampler(), sampler()

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.saved.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.saved.load_state_dict(state["position"])


def test_a_sampler_that_another_object_saves_is_counted_and_moved_on_by_the_script() -> None:
    progress, frozen = Progress(), Progress()
    assert samplers_saved_by([progress, object(), sampler()]) == [progress.saved], "not that of an equal state"
    positions = Positions({"progress": progress, "frozen": frozen}, ["frozen"])
    assert positions.any
    assert not positions.skippable
    assert positions.advance() == 0
    progress.saved.advance()
    frozen.saved.advance()
    assert positions.advance() == 4
    both = Positions({"progress": progress, "sampler": progress.saved}, [])
    assert both.advance() == 8, "attached by itself as well: moved on here, and counted once"
    assert "state_dict" not in vars(progress.saved)


@pytest.mark.parametrize("name", ["batch_sampler", "sampler"])
def test_a_loader_over_a_sampler_with_a_position_is_refused(name: str) -> None:
    """torchdata's loader would keep a second one, and its own idea of when to move on."""
    loader_class = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed (pip install torchdata)"
    ).StatefulDataLoader
    loader = loader_class(range(20), **{name: sampler()})
    with pytest.raises(StateError, match="cannot attach: `loader` takes its batches from a sampler that keeps"):
        Positions({"loader": loader}, [])
    Positions({"loader": loader}, ["loader"])


def test_a_loader_of_its_own_position_needs_the_same_number_of_ranks() -> None:
    positions = Positions({"loader": DataLoader(range(20), batch_size=2)}, [])  # type: ignore[arg-type]
    positions.check_ranks(2, 2)
    with pytest.raises(StateError, match="`loader`: it was saved by 3 ranks, now there are 2"):
        positions.check_ranks(3, 2)
    Positions({"sampler": sampler()}, []).check_ranks(3, 2)


def test_loaders_with_workers_are_named() -> None:
    """What is drawn in those after a resume is said to differ."""
    loaders = {name: DataLoader(range(20), num_workers=count) for name, count in (("few", 0), ("many", 2))}  # type: ignore[arg-type]
    assert Positions(loaders, []).with_workers() == ["many"]
    assert Positions(loaders, ["many"]).with_workers() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_goes_on_where_it_was(tmp_path: Path, workers: int) -> None:
    """Its state is saved and restored as it is; what the workers have read ahead is read again."""
    loader_class = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed (pip install torchdata)"
    ).StatefulDataLoader

    def loader(seed: int) -> object:
        torch.manual_seed(seed)
        return loader_class(range(40), batch_size=4, shuffle=True, num_workers=workers)

    first = loader(1)
    state = RankState({"loader": first}, [], 0, 1)
    batches = iter(first)  # type: ignore[call-overload]
    seen = [next(batches).tolist() for _ in range(3)]
    saved = save(state, tmp_path)
    rest = [batch.tolist() for batch in batches]
    second = loader(2)
    RankState({"loader": second}, [], 0, 1).restore(saved)
    assert [batch.tolist() for batch in second] == rest  # type: ignore[attr-defined]
    assert sorted(index for batch in seen + rest for index in batch) == list(range(40))


def test_an_iterator_from_before_attach_cannot_be_brought_back() -> None:
    """One that only its loader holds, of a first look at the data, is in nobody's way."""
    loader_class = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed (pip install torchdata)"
    ).StatefulDataLoader
    loader = loader_class(range(20), batch_size=5)
    next(iter(loader))
    Positions({"loader": loader}, []).check_not_read()
    early = iter(loader)
    positions = Positions({"loader": loader}, [])
    assert positions.read_early == ["loader"]
    with pytest.raises(StateError, match="cannot resume: the script holds an iterator of `loader`"):
        positions.check_not_read()
    assert next(early).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("batches", "at_end"), [(3, []), (4, ["loader"]), (5, [])])
def test_a_loader_whose_next_pass_has_no_batch_is_known(batches: int, at_end: list[str]) -> None:
    """The fifth batch is asked for in vain: the pass has ended then, and the next one begins."""
    loader_class = pytest.importorskip(
        "torchdata.stateful_dataloader", reason="torchdata is not installed (pip install torchdata)"
    ).StatefulDataLoader
    loader = loader_class(range(20), batch_size=5)
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator, None)
    other = loader_class(range(20), batch_size=5)
    other.load_state_dict(loader.state_dict())
    assert Positions({"loader": other}, []).at_end() == at_end
