"""Only torch's own optimizers are known to update every parameter on the rank that makes the step."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from ftlaunch_hooks.tensors.json_codec import StateError
from ftlaunch_hooks.tensors.replicated import replicated_parameters, updates_all_parameters


def optimizer(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    more: dict[str, Any] = {"lr": 0.1}
    return kind([nn.Parameter(torch.ones(2, 2))], **more)


OWN = [
    kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
]


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: str(kind.__name__))
def test_torchs_own_do_with_a_scheduler_too(kind: type[torch.optim.Optimizer]) -> None:
    made = optimizer(kind)
    assert updates_all_parameters(made)
    torch.optim.lr_scheduler.StepLR(made, 1)
    assert updates_all_parameters(made)


class Muon(torch.optim.SGD):
    """May do anything."""


def test_others_are_not_known_to() -> None:
    assert not updates_all_parameters(optimizer(Muon))
    replaced = optimizer(torch.optim.SGD)
    step = replaced.step

    @functools.wraps(step)
    def on_some_ranks(*args: Any) -> Any:
        return step(*args)

    replaced.step = on_some_ranks  # type: ignore[method-assign]
    assert not updates_all_parameters(replaced)


def test_what_the_script_says_is_replicated_counts_as_it() -> None:
    model = nn.Linear(2, 2)
    objects = {"model": model, "optimizer": optimizer(Muon), "sampler": object()}
    assert replicated_parameters(0, 2, objects, ()) == {}
    found = replicated_parameters(0, 2, objects, ("model", "optimizer"))
    assert {id(parameter) for parameter in model.parameters()} == set(found)
    assert replicated_parameters(0, 1, objects, ("model",)) == {}
    with pytest.raises(StateError, match="replicated names 'sampler', which is no module and no optimizer"):
        replicated_parameters(0, 2, objects, ("sampler",))


def test_the_script_says_which_ranks_keep_a_parameter_equal() -> None:
    """Those of one rank alone are no replicas, those of all ranks are not named."""
    model, master = nn.Linear(2, 2), torch.ones(2)
    groups = {id(model.weight): [2, 0], id(model.bias): [0], id(master): range(4)}
    objects = {"model": model, "optimizer": torch.optim.SGD([master])}
    found = replicated_parameters(0, 4, objects, dict.fromkeys(objects, lambda parameter: groups[id(parameter)]))
    assert {key: one.group for key, one in found.items()} == {id(model.weight): (0, 2), id(master): ()}


@pytest.mark.parametrize("ranks", [[1, 2], [0, 4], [-1, 0], []])
def test_ranks_that_cannot_be_a_group_are_refused(ranks: list[int]) -> None:
    said = {"model": lambda _: ranks}
    with pytest.raises(StateError, match=r"rank 0 must be one of them, and the job has 4 ranks"):
        replicated_parameters(0, 4, {"model": nn.Linear(2, 2)}, said)
