"""Samples of parameters see every parameter, wherever it lies, and read nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ftlaunch_hooks.observe.proof.parameter_samples import ParameterSamples


def gather(samples: ParameterSamples, step: int) -> bytes:
    memory = bytearray(samples.bytes_needed)
    assert samples.gather(step, memoryview(memory), 0)
    return bytes(memory)


def model_of(layers: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(layers)))


@pytest.mark.parametrize("layers", [1, 3, 16, 40])
def test_each_parameter_that_changes_is_found_within_its_turn(layers: int) -> None:
    model = model_of(layers)
    samples = ParameterSamples({"model": model})
    turns = 1 if samples.is_one_turn else -(-len(samples.names) // 32)
    before = [gather(samples, step) for step in range(turns)]
    for index, (name, parameter) in enumerate(model.named_parameters()):
        with torch.no_grad():
            parameter.add_(1.0)
        found = [samples.first_difference(step, before[step], gather(samples, step)) for step in range(turns)]
        named = [one for one in found if one is not None]
        assert len(named) == 1
        assert named[0][0] == index
        assert samples.names[index] == f"model.{name}"
        assert named[0][2] == pytest.approx(named[0][1] + 1.0)
        with torch.no_grad():
            parameter.sub_(1.0)
        before = [gather(samples, step) for step in range(turns)]


def test_several_dtypes_lie_side_by_side() -> None:
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4).double(), nn.Linear(4, 4).bfloat16()])
    samples = ParameterSamples({"model": model})
    before = gather(samples, 0)
    assert samples.first_difference(0, before, before) is None
    with torch.no_grad():
        model[2].bias.add_(1.0)
    found = samples.first_difference(0, before, gather(samples, 0))
    assert found is not None
    assert samples.names[found[0]] == "model.2.bias"
    assert samples.is_half


def test_a_parameter_that_was_given_other_memory_is_followed() -> None:
    model = model_of(2)
    samples = ParameterSamples({"model": model})
    before = gather(samples, 0)
    model[1].weight.data = model[1].weight.data + 1.0
    found = samples.first_difference(0, before, gather(samples, 0))
    assert found is not None
    assert samples.names[found[0]] == "model.1.weight"


def test_a_parameter_that_has_lost_its_memory_is_not_read() -> None:
    model = model_of(2)
    samples = ParameterSamples({"model": model})
    model[0].weight.data = torch.empty(0)
    assert not samples.gather(0, memoryview(bytearray(samples.bytes_needed)), 0)


def test_what_an_optimizer_steps_without_a_module_is_sampled_once() -> None:
    model = model_of(1)
    loose = torch.zeros(5, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), loose], lr=0.1)
    samples = ParameterSamples({"model": model, "optimizer": optimizer})
    assert samples.names == ["model.0.weight", "model.0.bias", "optimizer.2"]


def test_frozen_empty_and_strided_parameters() -> None:
    model = model_of(1)
    model[0].bias.requires_grad_(requires_grad=False)
    model.register_parameter("empty", nn.Parameter(torch.empty(0)))
    model.register_parameter("strided", nn.Parameter(torch.arange(12.0).reshape(3, 4).t()))
    samples = ParameterSamples({"model": model})
    assert samples.names == ["model.strided", "model.0.weight"]
    before = gather(samples, 0)
    with torch.no_grad():
        model.strided.mul_(2.0)
    found = samples.first_difference(0, before, gather(samples, 0))
    assert found is not None
    assert samples.names[found[0]] == "model.strided"


def test_without_parameters_nothing_is_sampled() -> None:
    samples = ParameterSamples({})
    assert samples.bytes_needed == 0
    assert not samples.gather(0, memoryview(bytearray(8)), 0)


def test_the_distance_of_two_samples() -> None:
    model = nn.Linear(2, 1, bias=False)
    samples = ParameterSamples({"model": model})
    with torch.no_grad():
        model.weight.zero_()
        before = gather(samples, 0)
        model.weight.copy_(torch.tensor([[3.0, 4.0]]))
    assert samples.distance(0, before, gather(samples, 0)) == pytest.approx(5.0)
