"""What a resumed script could not be given back is refused when it happens; what it can be given back is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.snapshots import equal, net, save, train
from torch import nn

from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.json_codec import StateError


class Attached:
    """A script that has just attached: its optimizer has the head of its model."""

    def __init__(self, seed: int = 0) -> None:
        self.model = net(seed)
        self.model[0].requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model[2].parameters(), lr=0.1)
        self.state = RankState({"model": self.model, "optimizer": self.optimizer}, (), 0, 1)

    def thaw(self) -> None:
        self.model[0].requires_grad_(True)
        self.optimizer.add_param_group({"params": list(self.model[0].parameters()), "lr": 0.5, "weight_decay": 0.25})


def resized(attached: Attached) -> None:
    attached.model[2].bias.data = torch.zeros(5)


REFUSED: dict[str, tuple[Callable[[Attached], Any], str]] = {
    "a module more": (lambda a: a.model.append(nn.Linear(2, 2)), "new since attach"),
    "a buffer more": (
        lambda a: a.model.register_buffer("seen", torch.zeros(2)),
        "cannot save `model.seen`, which is new",
    ),
    "a module less": (lambda a: a.model.pop(1), "which was there at attach"),
    "another shape": (resized, r"whose shape has changed \(\(2,\) at attach\(\), \(5,\) now\)"),
    "a group of nobody's": (
        lambda a: a.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]}),
        "no attached module",
    ),
    "a parameter more": (
        lambda a: a.optimizer.param_groups[0]["params"].append(a.model[0].weight),
        "has other parameters than at attach",
    ),
    "parameters in another order": (lambda a: a.optimizer.param_groups[0]["params"].reverse(), "has other parameters"),
}


@pytest.mark.parametrize("change", REFUSED)
def test_what_cannot_be_given_back_is_refused_at_once(change: str) -> None:
    """Tried: without the check all of these are collected, and fail at the resume."""
    attached = Attached()
    attached.state.hold_structure()
    attached.state.collect()
    happen, words = REFUSED[change]
    happen(attached)
    with pytest.raises(StateError, match=words):
        attached.state.collect()


def test_a_group_that_was_added_is_added_again(memory: Path) -> None:
    attached, resumed = Attached(), Attached(1)
    attached.state.hold_structure()
    train(attached.model, attached.optimizer)
    attached.thaw()
    train(attached.model, attached.optimizer)
    saved = save(attached.state, memory)
    resumed.state.restore(saved)
    assert equal(resumed.optimizer.state_dict(), attached.optimizer.state_dict())
    assert resumed.optimizer.param_groups[1]["params"] == list(resumed.model[0].parameters())
    assert all(parameter.requires_grad for parameter in resumed.model.parameters())
    resumed.state.hold_structure()
    for one in (attached, resumed):
        torch.manual_seed(9)
        train(one.model, one.optimizer)
    assert equal(resumed.model.state_dict(), attached.model.state_dict())


def test_what_was_frozen_in_mid_run_is_frozen_again(memory: Path) -> None:
    attached, resumed = Attached(), Attached(1)
    attached.state.collect()
    attached.model[0].requires_grad_(True)
    attached.model[2].bias.requires_grad_(False)
    resumed.state.restore(save(attached.state, memory))
    wanted = {name: parameter.requires_grad for name, parameter in attached.model.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in resumed.model.named_parameters()} == wanted
