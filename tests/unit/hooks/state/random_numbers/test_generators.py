"""Generators that a script has made go on where they were, given to attach() or found."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.snapshots import Box, save
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from ftlaunch_hooks.passes.held_generators import HeldGenerators
from ftlaunch_hooks.state.random_numbers.generators import OwnGenerators, find
from ftlaunch_hooks.state.state import RankState, StateError

Draw = Callable[[Any], Any]

KINDS: dict[str, tuple[Callable[[], Any], Draw]] = {
    "random": (lambda: random.Random(3), lambda g: (g.random(), g.gauss(0, 1))),
    "pcg": (lambda: np.random.default_rng(3), lambda g: g.standard_normal(3).tolist()),
    "philox": (lambda: np.random.Generator(np.random.Philox(3)), lambda g: g.integers(0, 99, 3).tolist()),
    "mt": (lambda: np.random.Generator(np.random.MT19937(3)), lambda g: g.random(3).tolist()),
    "sfc": (lambda: np.random.Generator(np.random.SFC64(3)), lambda g: g.random(3).tolist()),
    "numpy": (lambda: np.random.RandomState(3), lambda g: g.randn(3).tolist()),
    "torch": (lambda: torch.Generator().manual_seed(3), lambda g: torch.rand(3, generator=g).tolist()),
}


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "found"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_goes_on(kind: str, attached: bool, tmp_path: Path) -> None:
    make, draw = KINDS[kind]

    def state_with(generator: Any) -> RankState:
        objects = {"rng": generator} if attached else {"box": Box()}
        return RankState(objects, (), 0, 1, (), {} if attached else {"rng": generator})

    first = make()
    state = state_with(first)
    state.restore_rng()
    draw(first)
    items = state.collect().items
    draw(first)
    assert state.collect().items is items, "drawing numbers makes no new tensors"
    reader = save(state, tmp_path)
    expected = draw(first), draw(first)

    second = make()
    resumed = state_with(second)
    resumed.restore(reader)
    draw(second)
    resumed.restore_rng()
    assert (draw(second), draw(second)) == expected


def test_generators_within_reach_are_found_under_the_name_that_leads_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    data = TensorDataset(torch.zeros(4))
    data.rng = np.random.default_rng(1)  # type: ignore[attr-defined]
    local, shuffling = random.Random(1), torch.Generator()
    loader = DataLoader(data, sampler=RandomSampler(data, generator=shuffling), generator=torch.Generator())
    box, given, alias = Box(), np.random.default_rng(), local
    box.noise = np.random.RandomState(2)  # type: ignore[attr-defined]
    monkeypatch.setattr(sys.modules["__main__"], "of_the_script", random.Random(4), raising=False)
    own, standard = random._inst, torch.default_generator  # type: ignore[attr-defined]
    found = find(sys._getframe(), {"box": box, "given": given})
    assert alias is local
    assert own is not standard
    names = {name for name in found if name not in vars(sys.modules["__main__"])} | {"of_the_script"} & set(found)
    assert names == {
        "given", "box.noise", "local", "shuffling", "loader.generator", "loader.dataset.rng", "of_the_script",
    }  # fmt: skip
    assert found["loader.generator"] is loader.generator


def test_what_cannot_be_put_back_is_refused_or_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = RankState({"box": Box()}, (), 0, 1, (), {"rng": random.Random(1), "gone": random.Random(2)})
    state.restore_rng()
    reader = save(state, tmp_path)
    resumed = RankState({"box": Box()}, (), 0, 1, (), {"rng": np.random.default_rng(), "new": random.Random(2)})
    resumed.restore(reader)
    resumed.restore_rng()
    resumed.restore_rng()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert "`new`, `rng` was not saved" in said[0]
    assert "`gone` was saved, and is not there" in said[1]
    with pytest.raises(StateError, match="cannot restore `more`: attached now, but not when"):
        RankState({"box": Box(), "more": random.Random()}, (), 0, 1).restore(reader)


def test_frozen_generators_are_left_alone() -> None:
    given = random.Random(1)
    state = RankState({"box": Box(), "rng": given}, ("rng",), 0, 1, (), {"rng": given})
    state.restore_rng()
    assert "own" not in state.collect().state["rng"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here: run on a machine with CUDA")
def test_the_generators_of_all_gpus_go_on(tmp_path: Path) -> None:
    def draws() -> list[float]:
        return [torch.rand(1, device=f"cuda:{gpu}").item() for gpu in range(torch.cuda.device_count())]

    state = RankState({"box": Box()}, (), 0, 1)
    state.restore_rng()
    draws()
    reader = save(state, tmp_path)
    expected = draws()
    resumed = RankState({"box": Box()}, (), 0, 1)
    resumed.restore(reader)
    resumed.restore_rng()
    assert draws() == expected


class Masks:
    """A collator, or a data set, that makes its generator when it needs it first."""

    def __init__(self, kind: str) -> None:
        self.kind, self.numbers = kind, None

    def __call__(self, rows: list[int]) -> float:
        if self.numbers is None:
            self.numbers = {"python": random.Random, "numpy": np.random.default_rng}[self.kind](3)
        return self.numbers.random()

    def collate(self, rows: list[int]) -> float:
        return self(rows)


@pytest.mark.parametrize("kind", ["python", "numpy"])
@pytest.mark.parametrize("method", [True, False])
def test_one_that_a_collator_makes_later_goes_on(kind: str, method: bool) -> None:
    """Taken out: without `_later` nothing is saved of it, and it begins anew."""

    def made() -> tuple[Masks, OwnGenerators]:
        masks = Masks(kind)
        loader = DataLoader([1], collate_fn=masks.collate if method else masks)
        frame = sys._getframe()
        assert isinstance(loader, DataLoader)
        return masks, OwnGenerators({}, find(frame, {}))

    masks, own = made()
    masks([])
    saved = own.state()
    expected = [masks([]), masks([])]
    again, own = made()
    own.check(saved)
    own.put_back(saved)
    assert [again([]), again([])] == expected


def test_one_that_was_made_here_is_taken_away_where_its_holder_had_none() -> None:
    """As a pass begins that is read again: the collator makes it in its first batch."""
    masks = Masks("python")
    held = HeldGenerators(DataLoader([1], collate_fn=masks))
    before = held.states()
    numbers = [masks([]), masks([])]
    later = held.states()
    masks.numbers = None  # as in another process
    held.put_back(later)
    assert masks.numbers is not None
    held.put_back(before)
    assert [masks([]), masks([])] == numbers
