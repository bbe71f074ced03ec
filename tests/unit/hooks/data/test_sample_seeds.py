"""Random numbers in workers depend on seed and sample; making an iterator moves no generator."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import worker

from ftlaunch_hooks.data.batch_sampler import PositionedSampler, ResumableBatchSampler
from ftlaunch_hooks.data.mix_sampler import ResumableMixSampler
from ftlaunch_hooks.data.sample_seeds import SeededBatch, mixed


@pytest.fixture(autouse=True)
def kept_generators() -> Iterator[None]:
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(cpu)


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), torch.rand(1).item()


@pytest.fixture
def in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_worker_info", SimpleNamespace(id=0))


def numbers(sampler: PositionedSampler, batches: int) -> list[tuple[int, tuple[float, float, float]]]:
    stream = iter(sampler)
    return [(index, draw()) for _ in range(batches) for index in pickle.loads(pickle.dumps(next(stream)))]


def sampler(rank: int = 0, world_size: int = 1, batch_size: int = 4, seed: int = 0) -> ResumableBatchSampler:
    return ResumableBatchSampler(12, batch_size, rank=rank, world_size=world_size, seed=seed, endless=True)


@pytest.mark.usefixtures("in_a_worker")
def test_a_sample_has_the_same_numbers_wherever_the_iterator_begins_and_others_in_the_next_epoch() -> None:
    whole = numbers(sampler(), 6)
    later = sampler()
    later.advance()
    later.advance()
    assert numbers(later, 4) == whole[8:]
    assert len({drawn for _, drawn in whole}) == 24
    assert {drawn for _, drawn in numbers(sampler(seed=1), 6)}.isdisjoint(drawn for _, drawn in whole)
    ranks = [numbers(sampler(rank, 2, 2), 6) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == sorted(whole), "on any number of ranks"


@pytest.mark.usefixtures("in_a_worker")
def test_a_mix_has_the_same_numbers_wherever_the_iterator_begins() -> None:
    def mix() -> ResumableMixSampler:
        return ResumableMixSampler([8, 5], [2, 1], 4, rank=0, world_size=1)

    whole, later = numbers(mix(), 5), mix()
    later.advance()
    state = later.state_dict()
    assert numbers(later, 4) == whole[4:]
    resumed = mix()
    resumed.load_state_dict(state)
    assert numbers(resumed, 4) == whole[4:]


def test_in_the_training_loops_process_nothing_is_seeded() -> None:
    before = random.getstate(), torch.get_rng_state()
    assert list(SeededBatch([3, 1], 0, 7)) == [3, 1]
    assert SeededBatch([3, 1], 0, 7) == [3, 1]
    assert random.getstate() == before[0]
    assert torch.get_rng_state().equal(before[1])


def test_close_seeds_and_numbers_give_other_low_and_high_halves() -> None:
    found = [mixed(seed, number) for seed in range(-20, 20) for number in range(200)]
    assert len({one & 0xFFFFFFFF for one in found}) == len({one >> 32 for one in found}) == len(found)


@pytest.mark.parametrize("own", [None, torch.Generator().manual_seed(3)], ids=["global", "own"])
def test_making_an_iterator_moves_no_generator_and_seeds_workers_by_position(own: torch.Generator | None) -> None:
    batches = sampler()
    loader = DataLoader(range(12), batch_sampler=batches, generator=own)  # type: ignore[arg-type]
    generator = torch.default_generator if own is None else own
    before = generator.get_state()
    first, again = iter(loader)._base_seed, iter(loader)._base_seed
    batches.advance()
    assert first == again != iter(loader)._base_seed
    assert generator.get_state().equal(before)
    iter(DataLoader(range(12), sampler=sampler(), batch_size=None, generator=own))  # type: ignore[arg-type, call-overload]
    assert generator.get_state().equal(before)
    iter(DataLoader(range(12), generator=own))  # type: ignore[arg-type]
    assert not generator.get_state().equal(before), "another loader's iterator draws as ever"


@pytest.mark.parametrize(("tail", "batches"), [("drop", 3), ("carry", 4), ("keep", 4)])
def test_the_length_is_that_of_an_epoch_at_every_position(tail: str, batches: int) -> None:
    long = ResumableBatchSampler(13, 2, rank=0, world_size=2, tail=tail, endless=True)  # type: ignore[arg-type]
    for _ in range(9):
        assert len(long) == len(DataLoader(range(13), batch_sampler=long)) == batches  # type: ignore[arg-type]
        long.advance()
    assert len(ResumableBatchSampler(12, 2, rank=0, world_size=2, tail=tail, endless=True)) == 3  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        len(ResumableMixSampler([8, 5], [2, 1], 4, rank=0, world_size=1))  # type: ignore[arg-type]
