"""Sampling: every sample once an epoch, and on from any position."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader

from ftlaunch_hooks.data.batch_sampler import ResumableBatchSampler, Tail


def samplers(length: int, batch_size: int, world_size: int, **options: object) -> list[ResumableBatchSampler]:
    return [
        ResumableBatchSampler(length, batch_size, rank=rank, world_size=world_size, **options, endless=True)  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


def global_batches(ranks: list[ResumableBatchSampler], count: int) -> list[list[int]]:
    """What the ranks see, `count` steps long: each step's samples, rank by rank."""
    streams: list[Iterator[list[int]]] = [iter(rank) for rank in ranks]
    return [list(itertools.chain(*(next(stream) for stream in streams))) for _ in range(count)]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_sample_comes_once_an_epoch_over_all_ranks(world_size: int) -> None:
    batch_size = 12 // world_size
    batches = global_batches(samplers(96, batch_size, world_size), 16)
    for epoch in (batches[:8], batches[8:]):
        assert sorted(itertools.chain(*epoch)) == list(range(96))
    assert batches[:8] != batches[8:]
    assert batches == global_batches(samplers(96, 12, 1), 16)  # the order does not depend on the ranks


def test_what_does_not_fill_a_batch_is_dropped() -> None:
    batches = global_batches(samplers(10, 2, 2), 4)
    for epoch in (batches[:2], batches[2:]):
        assert len(set(itertools.chain(*epoch))) == 8


def test_a_tail_that_is_carried_goes_on_into_the_next_epoch() -> None:
    batches = global_batches(samplers(10, 2, 2, tail="carry"), 5)
    samples = list(itertools.chain(*batches))
    assert sorted(samples[:10]) == sorted(samples[10:]) == list(range(10))
    small = next(iter(ResumableBatchSampler(3, 8, rank=0, world_size=1, tail="carry", endless=True)))
    assert sorted(small[:3]) == sorted(small[3:6]) == [0, 1, 2]


def test_a_tail_that_is_kept_is_a_smaller_batch() -> None:
    ranks = samplers(11, 2, 2, tail="keep")
    batches = global_batches(ranks, 6)
    assert [len(batch) for batch in batches] == [4, 4, 3, 4, 4, 3]
    for epoch in (batches[:3], batches[3:]):
        assert sorted(itertools.chain(*epoch)) == list(range(11))
    assert [len(next(itertools.islice(iter(rank), 2, None))) for rank in ranks] == [1, 2]
    ranks[0].advance()
    ranks[0].advance()
    ranks[0].advance()
    assert (ranks[0].consumed, ranks[0].epoch) == (11, 1)


def test_a_kept_tail_with_fewer_samples_than_ranks_is_carried() -> None:
    """No rank is left without a sample, and none is lost."""
    batches = global_batches(samplers(9, 2, 2, tail="keep"), 4)
    assert [len(batch) for batch in batches] == [4, 4, 4, 4]
    samples = list(itertools.chain(*batches))
    assert sorted(samples[:9]) == list(range(9))
    assert len(set(samples[9:])) == 7


def test_seeds_and_epochs_differ_and_shuffling_can_be_off() -> None:
    def first(seed: int) -> list[int]:
        return next(iter(ResumableBatchSampler(64, 64, rank=0, world_size=1, seed=seed, endless=True)))

    assert first(1) == first(1)
    assert first(1) != first(2)
    [one, two] = global_batches(samplers(64, 64, 1, seed=1), 2)
    assert two not in (one, first(2))
    [plain] = global_batches(samplers(6, 3, 2, shuffle=False), 1)
    assert plain == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("tail", ["drop", "carry", "keep"])
@pytest.mark.parametrize("steps", [0, 1, 4, 5, 6, 9, 23])
def test_a_position_is_gone_on_from(steps: int, tail: str) -> None:
    expected = global_batches(samplers(22, 2, 2, tail=tail), steps + 8)
    ranks = samplers(22, 2, 2, tail=tail)
    for rank in ranks:
        for _ in range(steps):
            rank.advance()
        assert rank.consumed == sum(map(len, expected[:steps]))
    resumed = samplers(22, 2, 2, tail=tail)
    for rank, other in zip(ranks, resumed, strict=True):
        other.load_state_dict(rank.state_dict())
        assert (other.consumed, other.epoch) == (rank.consumed, rank.epoch)
    assert global_batches(resumed, 8) == expected[steps:]


def test_another_number_of_ranks_reads_the_rest_of_the_epoch() -> None:
    before = samplers(24, 3, 4)
    seen = list(itertools.chain(*global_batches(before, 1)))
    before[0].advance()
    after = samplers(24, 3, 2)
    for rank in after:
        rank.load_state_dict(before[0].state_dict())
    seen += itertools.chain(*global_batches(after, 2))
    assert sorted(seen) == list(range(24))


@pytest.mark.parametrize("tail", ["carry", "keep"])
def test_whatever_the_number_of_ranks_does_every_sample_comes_once_an_epoch(tail: str) -> None:
    """Ranks come and go in mid-epoch; batches of 3 a rank out of 50 samples never fit."""
    seen: list[int] = []
    state = samplers(50, 3, 1, tail=tail)[0].state_dict()
    for world_size in (2, 1, 3, 4, 1, 2, 3, 3, 1, 4):
        ranks = samplers(50, 3, world_size, tail=tail)
        for rank in ranks:
            rank.load_state_dict(state)
        seen += itertools.chain(*global_batches(ranks, 2))
        ranks[-1].advance()
        ranks[-1].advance()
        state = ranks[-1].state_dict()
        assert state["consumed"] == len(seen)
    assert len(seen) > 100
    for begin in range(0, len(seen), 50):
        epoch = seen[begin : begin + 50]
        assert len(set(epoch)) == len(epoch)


def test_what_a_loader_reads_ahead_does_not_move_the_position() -> None:
    sampler = ResumableBatchSampler(40, 4, rank=0, world_size=1, seed=3, endless=True)
    loader = DataLoader(range(40), batch_sampler=sampler, num_workers=1, prefetch_factor=3)  # type: ignore[arg-type]
    expected = global_batches([sampler], 5)
    got = []
    for step, batch in zip(range(2), loader, strict=False):
        got.append(batch.tolist())
        sampler.advance()
        assert sampler.consumed == 4 * (step + 1)
    resumed = ResumableBatchSampler(40, 4, rank=0, world_size=1, seed=3, endless=True)
    resumed.load_state_dict(sampler.state_dict())
    assert got + global_batches([resumed], 3) == expected


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"length": 41}, "length is 41, 40 when it was saved"),
        ({"seed": 4}, "seed is 4, 0 when"),
        ({"shuffle": False}, "shuffle is False, True"),
        ({"tail": "carry"}, "tail is carry, drop when"),
    ],
)
def test_another_order_or_dataset_is_refused(other: dict[str, object], words: str) -> None:
    options = {"length": 40, **other}
    sampler = ResumableBatchSampler(batch_size=4, rank=0, world_size=1, **options, endless=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"cannot resume sampling: {words}"):
        sampler.load_state_dict(ResumableBatchSampler(40, 4, rank=0, world_size=1, endless=True).state_dict())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 1, 0, 1), "length 0"),
        ((4, 0, 0, 1), "batch_size 0"),
        ((4, 1, 2, 2), "rank 2 of 2"),
        ((7, 4, 0, 2), "7 samples do not fill a batch of 4 on 2 ranks"),
    ],
)
def test_impossible_sizes_are_refused(arguments: tuple[int, int, int, int], words: str) -> None:
    length, batch_size, rank, world_size = arguments
    with pytest.raises(ValueError, match=f"cannot sample: .*{words}"):
        ResumableBatchSampler(length, batch_size, rank=rank, world_size=world_size, endless=True)


def test_an_unknown_tail_is_refused() -> None:
    with pytest.raises(ValueError, match="tail is 'short'; allowed are 'drop', 'carry', 'keep'"):
        ResumableBatchSampler(8, 2, rank=0, world_size=1, tail="short", endless=True)  # type: ignore[arg-type]


def test_an_iterator_that_has_read_ahead_is_an_error_at_resume() -> None:
    sampler = ResumableBatchSampler(8, 2, rank=0, world_size=1, endless=True)
    state = sampler.state_dict()
    next(iter(sampler))
    with pytest.raises(ValueError, match="make the DataLoader's iterator after attach"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize(("tail", "lengths"), [("drop", [4, 4, 4]), ("keep", [5, 5, 5]), ("carry", [5, 4, 5])])
def test_a_pass_ends_with_its_epoch(tail: Tail, lengths: list[int]) -> None:
    """Where the tail is carried, a batch belongs to the epoch in which it begins. Taken out: a pass has no end."""
    sampler = ResumableBatchSampler(18, 4, rank=0, world_size=1, tail=tail)
    endless = iter(ResumableBatchSampler(18, 4, rank=0, world_size=1, tail=tail, endless=True))
    for length in lengths:
        batches = list(sampler)
        assert len(batches) == length
        assert batches == [next(endless) for _ in batches]
        for _ in batches:
            sampler.advance()


def test_a_pass_that_is_gone_on_with_ends_with_its_epoch() -> None:
    sampler = ResumableBatchSampler(16, 4, rank=0, world_size=1)
    for _ in range(3):
        sampler.advance()
    assert len(list(sampler)) == 1
