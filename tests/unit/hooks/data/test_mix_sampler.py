"""A mix of data sets: exact ratios, every sample of each once an epoch, and on from any position."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from torch.utils.data import ConcatDataset, DataLoader

from ftlaunch_hooks.data.mix_sampler import ResumableMixSampler, spread

LENGTHS, RATIO = [30, 7, 12], [5, 2, 1]


def mixes(batch_size: int, world_size: int, ratio: list[int] = RATIO, **options: object) -> list[ResumableMixSampler]:
    return [
        ResumableMixSampler(LENGTHS, ratio, batch_size, rank=rank, world_size=world_size, **options)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


def samples(ranks: list[ResumableMixSampler], steps: int) -> list[int]:
    """What all ranks see in the next steps, which are made."""
    streams = [iter(rank) for rank in ranks]
    seen = [index for _ in range(steps) for stream in streams for index in next(stream)]
    for rank in ranks:
        for _ in range(steps):
            rank.advance()
    return seen


def set_of(index: int) -> int:
    return (index >= 30) + (index >= 37)


def assert_once_an_epoch(seen: list[int]) -> None:
    for number, length in enumerate(LENGTHS):
        mine = [index for index in seen if set_of(index) == number]
        assert len(mine) > length, "more than one epoch was looked at"
        for begin in range(0, len(mine), length):
            epoch = mine[begin : begin + length]
            assert len(set(epoch)) == len(epoch)


@pytest.mark.parametrize("ratio", [[1], [1, 1], [2, 1], [7, 2, 1], [3, 3, 1, 5]])
def test_a_cycle_has_the_ratio_and_is_spread_evenly(ratio: list[int]) -> None:
    cycle = spread(ratio)
    assert Counter(cycle) == dict(enumerate(ratio))
    for end in range(1, len(cycle) + 1):
        for number, share in enumerate(ratio):
            assert abs(cycle[:end].count(number) - end * share / sum(ratio)) < len(ratio) / 2


def test_every_cycle_has_the_exact_ratio_and_every_sample_comes_once_an_epoch() -> None:
    ranks = mixes(4, 2)
    seen = samples(ranks, 40)
    for begin in range(0, len(seen), 8):
        assert Counter(map(set_of, seen[begin : begin + 8])) == {0: 5, 1: 2, 2: 1}
    assert_once_an_epoch(seen)
    assert [rank.consumed_of for rank in ranks] == [[200, 80, 40]] * 2
    assert ranks[0].consumed == 320


def test_the_order_is_that_of_the_seed_and_no_two_sets_share_one() -> None:
    assert samples(mixes(6, 1), 20) == samples(mixes(3, 2), 20) == samples(mixes(2, 3), 20)
    assert samples(mixes(6, 1), 20) != samples(mixes(6, 1, seed=1), 20)
    twins = ResumableMixSampler([50, 50], [1, 1], 100, rank=0, world_size=1)
    batch = next(iter(twins))
    assert [index for index in batch if index < 50] != [index - 50 for index in batch if index >= 50]
    plain = next(iter(ResumableMixSampler([9, 9], [2, 1], 6, rank=0, world_size=1, shuffle=False)))
    assert plain == [0, 9, 1, 2, 10, 3]


@pytest.mark.parametrize("steps", [0, 1, 3, 17])
def test_a_position_is_gone_on_from_by_any_number_of_ranks(steps: int) -> None:
    """12 samples a step, in every way of sharing them out: the mix is one and the same."""
    expected = samples(mixes(12, 1), steps + 24)
    ranks = mixes(6, 2)
    seen = samples(ranks, steps)
    for batch_size, world_size in ((4, 3), (12, 1), (3, 4)):
        resumed = mixes(batch_size, world_size)
        for rank in resumed:
            rank.load_state_dict(ranks[-1].state_dict())
        seen += samples(resumed, 8)
        ranks = resumed
    assert seen == expected
    assert_once_an_epoch(seen)


def test_with_another_ratio_every_set_goes_on_where_it_was() -> None:
    first = mixes(5, 1)
    seen = samples(first, 7)  # 35 samples: in mid-cycle
    (second,) = mixes(5, 1, [1, 1, 2])
    second.load_state_dict(first[0].state_dict())
    assert (second.consumed, second.consumed_of) == (35, first[0].consumed_of)
    more = samples([second], 16)
    assert Counter(map(set_of, more)) == {0: 20, 1: 20, 2: 40}
    assert_once_an_epoch(seen + more)
    (third,) = mixes(5, 1, [1, 1, 2])
    third.load_state_dict(second.state_dict())
    assert samples([third], 5) == samples([second], 5)


def test_with_a_loader_that_reads_ahead() -> None:
    dataset = ConcatDataset([range(100, 130), range(200, 207), range(300, 312)])  # type: ignore[list-item]
    (sampler,) = mixes(4, 1)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=1, prefetch_factor=3)
    got = [batch.tolist() for batch in itertools.islice(loader, 2)]
    sampler.advance()
    assert sampler.consumed == 4
    (fresh,) = mixes(4, 1)
    assert got == [[dataset[index] for index in batch] for batch in itertools.islice(fresh, 2)]
    with pytest.raises(ValueError, match="make the DataLoader's iterator after attach"):
        sampler.load_state_dict(fresh.state_dict())


@pytest.mark.parametrize(
    ("lengths", "ratio"),
    [([], []), ([3], [1, 1]), ([3, 0], [1, 1]), ([3, 3], [1, 0]), ([3, 3], [0.5, 0.5]), ([3, 3], [1.5, 1])],
)
def test_impossible_mixes_are_refused(lengths: list[int], ratio: list[int]) -> None:
    with pytest.raises(ValueError, match=r"cannot mix: lengths .* whole number of 1 or more"):
        ResumableMixSampler(lengths, ratio, 2, rank=0, world_size=1)


def test_other_data_sets_are_refused() -> None:
    (sampler,) = mixes(4, 1)
    other = ResumableMixSampler([30, 8, 12], RATIO, 4, rank=0, world_size=1)
    with pytest.raises(ValueError, match=r"lengths is \[30, 7, 12\], \[30, 8, 12\] when it was saved"):
        sampler.load_state_dict(other.state_dict())
