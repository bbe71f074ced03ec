"""Samples that are left out, and nothing else."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from ftlaunch_contract.checkpoint import skipped_samples
from ftlaunch_hooks.data.batch_sampler import PositionedSampler, ResumableBatchSampler
from ftlaunch_hooks.data.mix_sampler import ResumableMixSampler
from ftlaunch_hooks.data.positions import Positions
from ftlaunch_hooks.tensors.json_codec import StateError


def batches(sampler: PositionedSampler, count: int) -> list[list[int]]:
    return list(itertools.islice(iter(sampler), count))


def plain(world_size: int = 1, rank: int = 0, tail: str = "drop", length: int = 22) -> ResumableBatchSampler:
    return ResumableBatchSampler(length, 4, rank=rank, world_size=world_size, tail=tail, endless=True)  # type: ignore[arg-type]


def mix(world_size: int = 1, rank: int = 0) -> ResumableMixSampler:
    return ResumableMixSampler([11, 7], [2, 1], 4, rank=rank, world_size=world_size)


@pytest.mark.parametrize("make", [plain, mix])
def test_the_batches_are_the_others(make: type) -> None:
    """Also over an epoch's end."""
    all_of_them = batches(make(), 12)
    sampler = make()
    sampler.skip([(8, 12), (20, 28)])
    assert batches(sampler, 9) == [all_of_them[n] for n in (0, 1, 3, 4, 7, 8, 9, 10, 11)]


@pytest.mark.parametrize("make", [plain, mix])
def test_the_position_jumps(make: type) -> None:
    sampler = make()
    sampler.skip([(8, 12)])
    seen = []
    for _ in range(4):
        sampler.advance()
        seen.append(sampler.consumed)
    assert seen == [4, 8, 16, 20]
    again = make()
    again.load_state_dict(sampler.state_dict())
    again.skip([(8, 12)])
    assert batches(again, 3) == batches(make(), 8)[5:]


@pytest.mark.parametrize("tail", ["drop", "carry", "keep"])
def test_every_other_sample_comes_once(tail: str) -> None:
    samples = []
    for rank in range(2):
        sampler = plain(2, rank, tail, length=48)
        sampler.skip([(16, 24)])
        samples += list(itertools.chain(*batches(sampler, 5)))
    assert len(set(samples)) == len(samples) == 40


def test_another_batch_size_skips_no_less() -> None:
    sampler = ResumableBatchSampler(60, 3, rank=0, world_size=1, shuffle=False, endless=True)
    sampler.skip([(9, 16)])
    assert list(itertools.chain(*batches(sampler, 5))) == [*range(9), *range(18, 24)]


def test_batches_that_were_read_cannot_be_skipped() -> None:
    sampler = plain()
    batches(sampler, 1)
    positions = Positions({"sampler": sampler}, ())
    positions.skip([])
    with pytest.raises(StateError, match="make the DataLoader's iterator after attach"):
        positions.skip([(0, 4)])


def test_with_several_samplers_nothing_is_skipped() -> None:
    positions = Positions({"a": plain(), "b": plain()}, ())
    assert not positions.skippable
    positions.skip([(0, 4)])


# --- the file -------------------------------------------------------------------------------------------------


def test_the_file(tmp_path: Path) -> None:
    assert skipped_samples.read(tmp_path) == []
    assert skipped_samples.add(tmp_path, 88, 96) == (88, 96)
    assert skipped_samples.add(tmp_path, 8, 16) == (8, 16)
    assert skipped_samples.read(tmp_path) == [(8, 16), (88, 96)]


def test_where_skipping_has_not_helped_the_samples_before_go_too(tmp_path: Path) -> None:
    """The step after what is skipped begins, as its rank counts, where the skipped began."""
    skipped_samples.add(tmp_path, 88, 96)
    assert skipped_samples.add(tmp_path, 88, 104) == (80, 104)
    assert skipped_samples.read(tmp_path) == [(80, 104)]


@pytest.mark.parametrize("text", ["{}", "[1]", "[[1]]", "[[1, -2]]", "[[1, 2.5]]", "nonsense"])
def test_what_is_no_such_list_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / skipped_samples.NAME).write_text(text)
    with pytest.raises(ValueError, match=r".+"):
        skipped_samples.read(tmp_path)
