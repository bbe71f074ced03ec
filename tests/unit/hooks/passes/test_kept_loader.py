"""A pass over a loader is brought back to a batch: the batches that follow are those of an undisturbed pass."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler

from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler
from ftlaunch_hooks.passes.kept_loader import NO_BATCH, KeptLoader, LoaderPass, attributes_of, is_kept
from ftlaunch_hooks.state.packed import pack, unpack
from ftlaunch_hooks.state.random_numbers import shared
from ftlaunch_hooks.tensors.json_codec import StateError, decode, encode


class Rows(Dataset[Any]):
    """Draws from all generators."""

    def __init__(self, length: int = 22) -> None:
        self.length, self.rng, self.loaded = length, np.random.default_rng(2), list[int]()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loaded.append(index)
        return torch.tensor([index, random.random(), torch.rand(()).item(), self.rng.random()])


class Stream(IterableDataset[Any]):
    """With a buffer that is shuffled."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        buffer = list[int]()
        for number in range(23):
            buffer.append(number)
            if len(buffer) > 5:
                yield torch.tensor([buffer.pop(random.randrange(5)), random.random()])


class Buckets:
    """Draws in the middle of a pass."""

    def __len__(self) -> int:
        return 6

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(6):
            yield random.sample(range(22), 3)


class Counting:
    """Counts its passes itself, and holds the generator that it draws from."""

    def __init__(self) -> None:
        self.epoch, self.rng = 0, random.Random(9)

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        order = list(range(22))
        random.Random(self.epoch).shuffle(order)
        self.rng.shuffle(order)
        return iter(order)


class InPlace:
    """Shuffles what it holds: the order of each pass depends on all before."""

    def __init__(self) -> None:
        self.order = list(range(22))

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        random.shuffle(self.order)
        return iter(self.order)


class Unseeded:
    """Draws from a generator that the system has seeded."""

    def __len__(self) -> int:
        return 22

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng().permutation(22).tolist())


class Transformed(Rows):
    """Has transforms in a list, one a function that encloses its generator."""

    def __init__(self) -> None:
        super().__init__()
        first, second = random.Random(1), torch.Generator().manual_seed(1)
        self.transforms = [_Noise(first), lambda row: row + torch.rand((), generator=second)]

    def __getitem__(self, index: int) -> torch.Tensor:
        row = torch.tensor([float(index)])
        for transform in self.transforms:
            row = transform(row)
        return row


class _Noise:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def __call__(self, row: torch.Tensor) -> torch.Tensor:
        return row + self.rng.random()


LOADERS: dict[str, Callable[[], DataLoader[Any]]] = {
    "shuffled": lambda: DataLoader(Rows(), 4, shuffle=True),
    "generator": lambda: DataLoader(Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(4)),
    "weighted": lambda: DataLoader(Rows(), 4, sampler=WeightedRandomSampler([1.0] * 22, 22)),
    "buckets": lambda: DataLoader(Rows(), batch_sampler=Buckets()),  # type: ignore[arg-type]
    "counting": lambda: DataLoader(Rows(), 4, sampler=Counting()),
    "transformed": lambda: DataLoader(Transformed(), 4, shuffle=True),
    "single": lambda: DataLoader(Rows(6), batch_size=None, shuffle=True),
    "stream": lambda: DataLoader(Stream(), 4),
}


def read(one: LoaderPass, count: int = 99) -> list[Any]:
    """Go on with a pass, and draw in between as training does."""
    found = []
    for _ in range(count):
        batch = one.fetch()
        if batch is NO_BATCH:
            break
        found.append(batch.tolist())
        random.random(), torch.rand(()), np.random.rand()
        one.has_more()
    return found


def saved(one: LoaderPass) -> Any:
    """The state of a pass, through the codec by which it is saved."""
    tensors: dict[str, torch.Tensor] = {}

    def put(path: Any, tensor: torch.Tensor) -> str:
        tensors[".".join(map(str, path))] = tensor.clone()
        return ".".join(map(str, path))

    words = json.dumps(encode(pack(one.state()), ("pass",), put))
    assert not tensors, "the layout of snapshots changes with the passes"
    return unpack(decode(json.loads(words), lambda key, device: tensors[key]))


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("had", [0, 1, 4])
def test_a_pass_goes_on_where_it_was(kind: str, had: int) -> None:
    """Taken out: without the generators' put back the order is another one."""
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    kept = KeptLoader(LOADERS[kind](), 0)
    calm = kept.begin(7, None)
    read(calm, had)
    state, numbers = saved(calm), shared.read_raw()
    rest = read(calm)
    torch.manual_seed(6), random.seed(6), np.random.seed(6)  # another process
    other = KeptLoader(LOADERS[kind](), 0)
    again = other.begin(0, state)
    shared.put_back_raw(numbers)
    assert again.had == had
    assert read(again) == rest
    assert not again.has_more()


def test_what_was_had_is_not_loaded_again() -> None:
    calm = KeptLoader(LOADERS["shuffled"](), 0).begin(7, None)
    read(calm, 3)
    loader = LOADERS["shuffled"]()
    again = KeptLoader(loader, 0).begin(0, saved(calm))
    assert not loader.dataset.loaded  # type: ignore[attr-defined]
    again.fetch()
    assert len(loader.dataset.loaded) == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", LOADERS)
def test_the_last_batch_is_known_before_another_one_is_asked_for(kind: str) -> None:
    one = KeptLoader(LOADERS[kind](), 0).begin(7, None)
    more = []
    while one.fetch() is not NO_BATCH:
        more.append(one.has_more())
    assert more == [True] * (len(more) - 1) + [False]


def test_another_order_of_the_data_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    calm = KeptLoader(LOADERS["shuffled"](), 0).begin(7, None)
    read(calm, 3)
    KeptLoader(DataLoader(Rows(), 4), 0).begin(0, saved(calm))
    assert "are not those that it had here before" in capfd.readouterr().err


def test_data_that_are_gone_are_refused() -> None:
    calm = KeptLoader(LOADERS["shuffled"](), 0).begin(7, None)
    read(calm, 4)
    with pytest.raises(StateError, match="4 batches of a pass were had, and the DataLoader has 2 now"):
        KeptLoader(DataLoader(Rows(8), 4, shuffle=True), 0).begin(0, saved(calm))


def test_batches_in_any_order_are_refused() -> None:
    loader: DataLoader[Any] = DataLoader(Rows(), 4, num_workers=2)
    loader.in_order = False
    with pytest.raises(StateError, match="in_order=False"):
        KeptLoader(loader, 0)


def test_the_loader_is_as_it_was_beside_its_passes() -> None:
    loader = LOADERS["shuffled"]()
    before = dict(vars(loader))
    kept = KeptLoader(loader, 0)
    list(read(kept.begin(7, None)))
    assert vars(loader) == before
    assert len(list(loader)) == 6
    assert not is_kept(loader)


def test_a_sampler_with_a_position_is_not_skipped() -> None:
    """It begins where it is itself; the pass ends with its epoch."""
    sampler = ResumableBatchSampler(22, 4, rank=0, world_size=1)
    for _ in range(2):
        sampler.advance()
    calm = KeptLoader(DataLoader(Rows(), batch_sampler=sampler), 0).begin(7, None)
    assert len(read(calm)) == 3


@pytest.mark.parametrize("sampler", [InPlace, Unseeded])
def test_a_sampler_that_cannot_be_asked_again_is_told_at_the_first_batch(
    sampler: type[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    kept = KeptLoader(DataLoader(Rows(), 4, sampler=sampler()), 0)
    kept.begin(7, None)
    assert f"a sampler ({sampler.__name__}) gives another order" in capfd.readouterr().err
    kept.begin(8, None)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("kind", LOADERS)
def test_a_sampler_that_can_is_not_told(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    read(KeptLoader(LOADERS[kind](), 0).begin(7, None))
    assert not capfd.readouterr().err


@pytest.mark.parametrize("kind", LOADERS)
def test_the_pass_after_the_next_begins_as_it_would_have(kind: str) -> None:
    """Of a job that resumes between two passes."""
    kept = KeptLoader(LOADERS[kind](), 0)
    read(kept.begin(7, None))
    between, numbers = kept.between_passes(), shared.read_raw()
    rest = read(kept.begin(8, None))
    random.seed(6)
    loader = LOADERS[kind]()
    first = attributes_of(loader)
    other = KeptLoader(loader, 0)
    shared.put_back_raw(numbers)
    other.begin_from(between, first)
    assert read(other.begin(8, None)) == rest


class MultiEpochs(DataLoader[Any]):
    """Makes one iterator, of which it hands out parts."""

    def __init__(self) -> None:
        super().__init__(Rows(), 4)
        self.one = super().__iter__()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter([next(self.one), next(self.one)])


def test_a_loader_with_an_order_of_its_own_is_refused_at_its_first_batch() -> None:
    one = KeptLoader(MultiEpochs(), 0).begin(7, None)
    with pytest.raises(StateError, match="cannot take batches from a MultiEpochs: it takes the order"):
        one.fetch()
