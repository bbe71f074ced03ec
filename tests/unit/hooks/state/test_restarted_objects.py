"""Objects that begin anew in a run that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from ftlaunch_hooks.data.batch_sampler import PositionedSampler, ResumableBatchSampler
from ftlaunch_hooks.data.mix_sampler import ResumableMixSampler
from ftlaunch_hooks.state.restarted_objects import RestartedObjects
from ftlaunch_hooks.tensors.json_codec import StateError


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"samplr": "2"}, "anew names `samplr`, which no saved object is attached as"),
        ({"model": ""}, "anew gives `model` no word, as in anew={'model': 'part 2'}"),
        ({"model": 2}, "anew gives `model` no word"),
    ],
)
def test_what_is_no_word_of_an_object_is_refused(words: dict[str, Any], why: str) -> None:
    with pytest.raises(StateError, match=why):
        RestartedObjects(words, {"model": nn.Linear(1, 1)})


def test_an_object_begins_anew_once_for_each_word() -> None:
    restarted = RestartedObjects({"box": "part 2"}, {"box": object(), "other": object()})
    assert restarted.names({"box": {"kind": "other"}, "other": {}}) == {"box"}
    assert restarted.names({"box": restarted.mark("box", {}), "other": {}}) == set()
    assert restarted.names({"box": {"anew": "part 1"}}) == {"box"}
    assert restarted.names({}) == {"box"}, "it was not attached before"
    assert restarted.mark("other", {"kind": "other"}) == {"kind": "other"}


SCHEDULES: dict[str, Any] = {
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50),
    "one cycle": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=50),
    "lambda": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "warm-up": lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ],
        [5],
    ),
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_is_where_it_would_be_had_it_been_the_first_one(kind: str) -> None:
    """Whatever the restored optimizer has left in its groups."""
    first, second = (torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9) for _ in range(2))
    expected, new = SCHEDULES[kind](first), SCHEDULES[kind](second)
    for _ in range(12):
        expected.step()
    [move] = RestartedObjects({"schedule": "2"}, {"schedule": new}).plan(
        {"schedule": {"state": {"last_epoch": 12}}}, 0, 0, should_log=False
    )
    second.param_groups[0].update(lr=7.0, initial_lr=9.0)
    move()
    for _ in range(8):
        assert second.param_groups[0] | {"params": 0} == first.param_groups[0] | {"params": 0}
        expected.step()
        new.step()


def scheduler_of(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    ("batch", "step", "begins", "told"),
    [
        (4, 12, 12, "at position 12: from here"),
        (8, 12, 6, "at position 6 (12 steps of 4 samples are as many of 8): from here"),
        (3, 12, 16, "at position 16 (12 steps of 4 samples are as many of 3): from here"),
        (8, 60, 12, "at position 12, which is not rescaled, as it does not count the 60 steps of the job: from here"),
    ],
    ids=["as before", "larger", "smaller", "counts epochs"],
)
def test_a_position_is_rescaled_where_a_step_takes_other_samples(
    batch: int, step: int, begins: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    new = scheduler_of(optimizer)
    sampler = ResumableBatchSampler(100, batch, rank=0, world_size=1, endless=True)
    state: dict[str, Any] = {
        "schedule": {"state": {"last_epoch": 12}},
        "sampler": {"state": ResumableBatchSampler(100, 4, rank=0, world_size=1, endless=True).state_dict()},
    }
    restarted = RestartedObjects({"schedule": "2"}, {"schedule": new, "sampler": sampler})
    [move] = restarted.plan(state, step, 4 * step, should_log=True)
    move()
    assert new.last_epoch == begins
    assert optimizer.param_groups[0]["lr"] == 0.5**begins
    assert f"`schedule` begins anew (2), {told}" in capsys.readouterr().err


def test_samplers_that_changed_otherwise_rescale_no_position(capsys: pytest.CaptureFixture[str]) -> None:
    """No position is rescaled if the samplers disagree on the rate, and the terminal says so."""
    new = scheduler_of(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))
    before = {"state": ResumableBatchSampler(100, 4, rank=0, world_size=1, endless=True).state_dict()}
    objects = {
        name: ResumableBatchSampler(100, batch, rank=0, world_size=1, endless=True)
        for name, batch in (("a", 8), ("b", 4))
    }
    restarted = RestartedObjects({"schedule": "2"}, {"schedule": new, **objects})
    restarted.plan({"schedule": {"state": {"last_epoch": 12}}, "a": before, "b": before}, 12, 48, should_log=True)
    assert "at position 12, which is not rescaled, as the samplers do not tell of one" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["ReduceLROnPlateau", "ChainedScheduler"])
def test_a_schedule_without_a_position_is_refused(kind: str) -> None:
    """Taken out: a ChainedScheduler is stepped without end."""
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    make = getattr(torch.optim.lr_scheduler, kind)
    new = make([torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)] if kind == "ChainedScheduler" else optimizer)
    restarted = RestartedObjects({"schedule": "2"}, {"schedule": new})
    with pytest.raises(StateError, match=f"a {kind} cannot be moved to a position"):
        restarted.plan({"schedule": {"state": {"last_epoch": 12}}}, 0, 0, should_log=False)
    with pytest.raises(StateError, match="what was saved of it says no position"):
        restarted.plan({"schedule": {"state": {}}}, 0, 0, should_log=False)


def batches_of(length: int) -> ResumableBatchSampler:
    return ResumableBatchSampler(length, 4, rank=0, world_size=1, tail="carry", endless=True)


def mixed(length: int) -> ResumableMixSampler:
    return ResumableMixSampler([length, 6], [2, 1], 4, rank=0, world_size=1)


@pytest.mark.parametrize("make", [batches_of, mixed])
def test_samples_of_new_data_have_numbers_of_their_own(make: Callable[[int], PositionedSampler]) -> None:
    sampler, plain = make(10), iter(make(10))
    sampler.count_on(100)
    assert sampler.consumed == 100
    batches = iter(sampler)
    assert [next(batches) for _ in range(9)] == [next(plain) for _ in range(9)], "the order is the new data's own"
    for _ in range(9):
        sampler.advance()
    resumed = make(10)
    resumed.load_state_dict(sampler.state_dict())
    assert sampler.consumed == resumed.consumed == 136
    assert next(iter(resumed)) == next(batches)
    with pytest.raises(ValueError, match="an iterator was made before"):
        sampler.count_on(200)
