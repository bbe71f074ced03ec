"""Buffers that a state_dict leaves out are put back where they change; constants that cannot be saved do no harm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.snapshots import equal, save
from torch import Tensor, nn

from ftlaunch_hooks.state.buffers import SMALL
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.json_codec import StateError

LARGE = SMALL // 4 + 1


class Held(nn.Module):
    def __init__(self, buffer: Tensor | None) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.inner.register_buffer("held", buffer, persistent=False)


def state_of(model: nn.Module) -> RankState:
    return RankState({"model": model}, (), 0, 1)


def keys(state: RankState) -> list[str]:
    return [item.key for item in state.collect().items if item.key.startswith("model.") and "held" in item.key]


def test_a_small_one_is_put_back_however_it_was_written(memory: Path) -> None:
    """Tried: it fails where `collect` leaves out those that the state_dict leaves out."""
    model, other = Held(torch.zeros(3)), Held(torch.ones(3))
    state = state_of(model)
    state.collect()
    model.inner.held.data.fill_(7)
    saved, address = save(state, memory), other.inner.held.data_ptr()
    state_of(other).restore(saved)
    assert equal(other.inner.held, torch.full((3,), 7.0))
    assert other.inner.held.data_ptr() == address


def test_a_large_one_is_saved_from_its_first_change_on(memory: Path) -> None:
    model, other = Held(torch.zeros(LARGE)), Held(torch.ones(LARGE))
    state = state_of(model)
    assert keys(state) == []
    model.inner.held.add_(2)
    assert keys(state) == keys(state) == ["model.inner.held:nonpersistent"]
    resumed = state_of(other)
    resumed.restore(save(state, memory))
    assert equal(other.inner.held, model.inner.held)
    assert keys(resumed) == ["model.inner.held:nonpersistent"]


def test_one_that_was_replaced_or_is_not_there_yet_is_made_anew(memory: Path) -> None:
    model, other, bare = Held(torch.zeros(3)), Held(torch.ones(3)), Held(None)
    state = state_of(model)
    state.collect()
    model.inner.held = torch.arange(5)
    saved = save(state, memory)
    for target in (other, bare):
        state_of(target).restore(saved)
        assert equal(target.inner.held, torch.arange(5))
        assert "inner.held" not in target.state_dict()


def test_a_constant_that_cannot_be_saved_is_left_alone_until_it_changes() -> None:
    model = Held(torch.eye(3).to_sparse())
    state = state_of(model)
    assert keys(state) == []
    model.inner.held = torch.eye(3).to_sparse()
    with pytest.raises(StateError, match="a tensor of layout"):
        state.collect()


def test_a_persistent_buffer_is_given_back_in_the_shape_it_has_got(memory: Path) -> None:
    """As observers of quantization do it: they learn the number of channels in the first forward pass."""
    models = [nn.BatchNorm1d(4) for _ in range(2)]
    for model in models:
        model.register_buffer("seen", torch.zeros(1))
    state = state_of(models[0])
    state.hold_structure()
    models[0].seen.resize_(3).copy_(torch.arange(3.0))
    saved = save(state, memory)
    resumed = state_of(models[1])
    resumed.restore(saved)
    assert equal(models[1].seen, torch.arange(3.0))
    second = nn.BatchNorm1d(4)
    second.register_buffer("seen", torch.zeros(1))
    state_of(second).restore(save(resumed, memory))
    assert equal(second.seen, torch.arange(3.0))


def test_a_buffer_that_the_script_has_in_another_shape_is_refused(memory: Path) -> None:
    models = [nn.BatchNorm1d(4) for _ in range(2)]
    for size, model in enumerate(models, 1):
        model.register_buffer("table", torch.zeros(size))
    saved = save(state_of(models[0]), memory)
    with pytest.raises(StateError, match=r"cannot restore `model\.table`"):
        state_of(models[1]).restore(saved)


@pytest.mark.parametrize("place", [0, LARGE - 1])
def test_a_large_one_that_is_written_through_data_is_saved(memory: Path, place: int) -> None:
    """Tried: it fails where `_has_changed` compares versions alone."""
    model, other = Held(torch.zeros(LARGE)), Held(torch.zeros(LARGE))
    state = state_of(model)
    assert keys(state) == []
    model.inner.held.data[place] = 7.0
    state_of(other).restore(save(state, memory))
    assert equal(other.inner.held, model.inner.held)
