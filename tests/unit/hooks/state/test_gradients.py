"""Gradients that are there at a boundary are put back bit for bit; those that are not there are not invented."""

from __future__ import annotations

from pathlib import Path

import torch
from tests.support.snapshots import Box, equal, net, save
from torch import nn

from ftlaunch_hooks.state.state import RankState


def state_of(model: nn.Module) -> RankState:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return RankState({"model": model, "optimizer": optimizer}, (), 0, 1)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def test_what_is_there_is_put_back(memory: Path) -> None:
    """Tried: it fails where `collect` leaves gradients out."""
    model, other = net(), net(1)
    model(torch.randn(8, 4)).square().mean().backward()
    saved = save(state_of(model), memory)
    state_of(other).restore(saved)
    assert equal(gradients(other), gradients(model))


def test_what_is_not_there_is_taken_away(memory: Path) -> None:
    model, other = net(), net(1)
    other(torch.randn(8, 4)).square().mean().backward()
    saved = save(state_of(model), memory)
    state_of(other).restore(saved)
    assert gradients(other) == [None] * 6


def test_some_are_there_and_the_layout_of_the_slot_stays(memory: Path) -> None:
    """As of experts that no token of a batch has reached."""
    model = net()
    state = state_of(model)
    model(torch.randn(8, 4)).square().mean().backward()
    keys = {item.key for item in state.collect().items}
    model[0].weight.grad = None
    assert {item.key for item in state.collect().items} == keys
    other = net(1)
    state_of(other).restore(save(state, memory))
    assert other[0].weight.grad is None
    assert equal(other[2].weight.grad, model[2].weight.grad)


def test_sparse_ones(memory: Path) -> None:
    model, other = nn.Embedding(50, 3, sparse=True), nn.Embedding(50, 3, sparse=True)
    for rows in ([1, 2, 2], [7]):
        model(torch.tensor(rows)).sum().backward()
    assert model.weight.grad is not None
    saved = save(state_of(model), memory)
    state_of(other).restore(saved)
    assert other.weight.grad is not None
    assert other.weight.grad.is_coalesced() == model.weight.grad.is_coalesced()
    assert equal(other.weight.grad._indices(), model.weight.grad._indices())
    assert equal(other.weight.grad._values(), model.weight.grad._values())


def test_of_parameters_of_no_module_and_in_another_memory_format(memory: Path) -> None:
    def make() -> tuple[nn.Parameter, nn.Module, RankState]:
        loose, image = nn.Parameter(torch.zeros(3)), nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD([loose, *image.parameters()], lr=0.1)
        return loose, image, RankState({"model": image, "optimizer": optimizer}, (), 0, 1)

    loose, image, state = make()
    (loose.sum() * image(torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)).sum()).backward()
    other, other_image, other_state = make()
    other_state.restore(save(state, memory))
    assert equal(other.grad, loose.grad)
    assert equal(gradients(other_image), gradients(image))


def test_values_of_parameters_of_no_module_are_put_back(memory: Path) -> None:
    """Tried: it fails where only those of attached modules are saved."""
    made = [torch.full((3,), float(value), requires_grad=True) for value in range(2)]
    states = [RankState({"optimizer": torch.optim.SGD([loose], lr=0.1)}, (), 0, 1) for loose in made]
    states[1].restore(save(states[0], memory))
    assert equal(made[1].detach(), torch.zeros(3))


def test_values_that_an_attached_object_brings_are_not_saved_twice() -> None:
    loose = torch.zeros(3, requires_grad=True)
    objects = {"box": Box(weight=loose), "optimizer": torch.optim.SGD([loose], lr=0.1)}
    collected = RankState(objects, (), 0, 1).collect()
    assert [item.key for item in collected.items if not item.key.startswith("rng.")] == ["box.weight"]
