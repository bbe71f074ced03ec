"""What a module is besides its tensors: its training mode is put back, and a graph that it carries on is told of."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.snapshots import Box, net, save
from torch import nn

from ftlaunch_hooks.state.state import RankState


def state_of(model: nn.Module) -> RankState:
    return RankState({"model": model}, (), 0, 1)


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_what_was_put_into_evaluation_mode_is_in_it_again(memory: Path) -> None:
    """Tried: it fails where `collect` leaves the modes out."""
    model, other = net(), net(1)
    state = state_of(model)
    state.collect()
    model[1].eval()
    other[2].eval()
    state_of(other).restore(save(state, memory))
    assert modes(other) == modes(model) == [True, True, False, True]


@pytest.mark.parametrize("evaluating", ["wrapper", "wrapped"])
def test_a_wrapper_and_what_it_wraps_have_modes_of_their_own(evaluating: str, memory: Path) -> None:
    """They have one name. Taken out: without `wrappers_evaluating` both are put into evaluation mode."""
    model, other = nn.DataParallel(net()), nn.DataParallel(net(1))
    one = model if evaluating == "wrapper" else model.module
    one.training = False
    state_of(other).restore(save(state_of(model), memory))
    assert modes(other) == modes(model)
    assert modes(other).count(False) == 1


def test_weights_that_a_new_run_begins_with_bring_no_mode(memory: Path) -> None:
    model, other = net().eval(), net(1)
    state_of(other).restore_weights(save(state_of(model), memory))
    assert modes(other) == [True] * 4


def test_a_graph_that_goes_on_over_a_boundary_is_told_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    box = Box(hidden=torch.zeros(2))
    state = RankState({"box": box}, (), 0, 1)
    state.collect()
    assert capfd.readouterr().err == ""
    for _ in range(2):
        box.content = {"hidden": torch.ones(2, requires_grad=True) * 2}
        state.collect()
    assert capfd.readouterr().err.count("`box.hidden` belongs to an autograd graph") == 1
