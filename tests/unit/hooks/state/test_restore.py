"""Restoring a rank's state, one process: bit for bit, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.snapshots import Box, equal, net, save, train
from torch import nn

from ftlaunch_hooks.state.state import RankState, StateError

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "plain sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True),
    "adamw": torch.optim.AdamW,
    "adamw capturable": lambda p: torch.optim.AdamW(p, foreach=False, lr=torch.tensor(1e-2)),
    "adafactor": torch.optim.Adafactor,
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "lbfgs": lambda p: torch.optim.LBFGS(p, max_iter=3),
}
SCHEDULERS = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 2, 5]),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "onecycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50),
    "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, 3, cycle_momentum=False),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: 1 / (n + 1)),
    "sequence": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o,
        [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
        milestones=[3],
    ),
    "chained": lambda o: torch.optim.lr_scheduler.ChainedScheduler([torch.optim.lr_scheduler.ConstantLR(o)]),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
}


@pytest.mark.parametrize("into", ["fresh", "filled"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_bit_for_bit(name: str, into: str, tmp_path: Path) -> None:
    model = net()
    optimizer = OPTIMIZERS[name](model.parameters())
    state = RankState({"model": model, "optimizer": optimizer}, (), 0, 1)
    state.restore_rng()
    train(model, optimizer)
    optimizer.param_groups[0]["weight_decay"] = 0.25
    reader = save(state, tmp_path)
    losses = train(model, optimizer)

    other = net(seed=1)
    second = OPTIMIZERS[name](other.parameters())
    if into == "filled":
        train(other, second, steps=5)
    parameters = list(other.parameters())
    resumed = RankState({"model": other, "optimizer": second}, (), 0, 1)
    resumed.restore(reader)
    resumed.sample_restored()
    assert resumed.find_restored_otherwise() == []
    resumed.restore_rng()
    assert second.param_groups[0]["weight_decay"] == 0.25
    assert train(other, second) == losses
    assert equal(dict(model.state_dict()), dict(other.state_dict()))
    assert equal(optimizer.state_dict(), second.state_dict())
    assert all(a is b for a, b in zip(parameters, other.parameters(), strict=True))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on(name: str, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](optimizer)
    state = RankState({"scheduler": scheduler, "optimizer": optimizer, "model": model}, (), 0, 1)
    state.restore_rng()
    train(model, optimizer, scheduler, 4)
    reader = save(state, tmp_path)
    losses = train(model, optimizer, scheduler, 4)

    other = net(seed=1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    scheduler = SCHEDULERS[name](second)
    resumed = RankState({"scheduler": scheduler, "optimizer": second, "model": other}, (), 0, 1)
    resumed.restore(reader)
    resumed.restore_rng()
    assert train(other, second, scheduler, 4) == losses
    assert second.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


def test_state_of_another_dtype_than_its_parameter_comes_back_exact(tmp_path: Path) -> None:
    model = net().to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model[0].weight] = {
        "master": torch.randn(6, 4),
        "scale": torch.arange(5, dtype=torch.uint8),
    }
    reader = save(RankState({"m": model, "o": optimizer}, (), 0, 1), tmp_path)

    other = net(seed=1).to(torch.bfloat16)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    RankState({"m": other, "o": second}, (), 0, 1).restore(reader)
    assert equal(optimizer.state_dict(), second.state_dict())


def test_what_is_restored_again_lies_in_memory_as_it_did(tmp_path: Path) -> None:
    """State that the script has replaced after attach() is put back with its strides: kernels add up by them."""

    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        model = net(seed)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    model, optimizer = make(0)
    weight = model[0].weight
    optimizer.state[weight] = {"momentum_buffer": torch.randn(4, 6).t(), "other": torch.randn(6, 8)[:, ::2]}
    strides = [tensor.stride() for tensor in optimizer.state[weight].values()]
    reader = save(RankState({"m": model, "o": optimizer}, (), 0, 1), tmp_path)
    other, second = make(1)
    state = RankState({"m": other, "o": second}, (), 0, 1)
    state.restore(reader)
    assert [tensor.stride() for tensor in second.state[other[0].weight].values()] == strides
    second.state[other[0].weight] = {"momentum_buffer": torch.zeros(6, 4), "other": torch.zeros(6, 4)}
    state.restore_once_more(reader)
    assert equal(optimizer.state_dict(), second.state_dict())
    assert [tensor.stride() for tensor in second.state[other[0].weight].values()] == strides


def test_memory_format_of_optimizer_state_follows_the_parameter(tmp_path: Path) -> None:
    def make(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    model, optimizer = make(0)
    model(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    reader = save(RankState({"m": model, "o": optimizer}, (), 0, 1), tmp_path)
    other, second = make(1)
    RankState({"m": other, "o": second}, (), 0, 1).restore(reader)
    [buffer, _] = [entry["momentum_buffer"] for entry in second.state.values()]
    assert buffer.is_contiguous(memory_format=torch.channels_last)
    assert equal(optimizer.state_dict(), second.state_dict())
    assert equal(dict(model.state_dict()), dict(other.state_dict()))


@pytest.mark.parametrize("change", ["order", "wrapper"])
def test_parameters_are_found_by_name(change: str, tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    reader = save(RankState({"m": model, "o": optimizer}, (), 0, 1), tmp_path)
    other = net(seed=1)
    parameters = list(other.parameters())
    second = torch.optim.AdamW(reversed(parameters) if change == "order" else parameters)
    attached = nn.DataParallel(other) if change == "wrapper" else other
    RankState({"m": attached, "o": second}, (), 0, 1).restore(reader)
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert equal(optimizer.state[a], second.state[b])


TENSORS = {
    "bf16": torch.randn(3, 5).to(torch.bfloat16),
    "int8": torch.arange(-5, 5, dtype=torch.int8),
    "e4m3": torch.randn(7).to(torch.float8_e4m3fn),
    "e5m2": torch.randn(7).to(torch.float8_e5m2),
    "bool": torch.tensor([True, False, True]),
    "nothing": torch.zeros(0, 4),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "transposed": torch.randn(3, 4, 5).permute(2, 0, 1),
    "expanded": torch.randn(3, 1).expand(3, 4),
    "nan": torch.tensor([float("nan"), -0.0, float("inf")]),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "complex64": torch.tensor([1 + 2j], dtype=torch.complex64),
    "parameter": nn.Parameter(torch.randn(2)),
}


def test_tensors_of_every_kind_come_back(tmp_path: Path) -> None:
    box = Box(**TENSORS, array=np.arange(3), nested={"x": (torch.ones(1), [None, 1.5])})
    reader = save(RankState({"box": box}, (), 0, 1), tmp_path)
    other = Box()
    RankState({"box": other}, (), 0, 1).restore(reader)
    for name, tensor in TENSORS.items():
        assert equal(tensor.detach(), other.content[name]), name
    assert (other.content["array"] == np.arange(3)).all()
    assert equal(other.content["nested"], {"x": (torch.ones(1), [None, 1.5])})
    [piece] = reader.pieces("box.bf16")
    assert other.content["bf16"].data_ptr() != piece.tensor().data_ptr()  # its own, the file may change


def test_scaler_and_average_go_on(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        return {"scaler": scaler, "ema": torch.optim.swa_utils.AveragedModel(net(), multi_avg_fn=None)}

    objects = make()
    objects["scaler"].scale(torch.zeros(1))
    objects["scaler"].update(4.0)
    objects["ema"].update_parameters(net(seed=5))
    state = RankState(objects, (), 0, 1)
    assert not any(item.settled for item in state.collect().items)  # no optimizer steps an average
    reader = save(state, tmp_path)
    others = make()
    RankState(others, (), 0, 1).restore(reader)
    for name, target in objects.items():
        assert equal(dict(target.state_dict()), dict(others[name].state_dict())), name


def test_extra_state_and_frozen_parameters(tmp_path: Path) -> None:
    class Counting(nn.Linear):
        calls = (0,)

        def get_extra_state(self) -> Any:
            return {"calls": self.calls}

        def set_extra_state(self, state: Any) -> None:
            self.calls = state["calls"]

    model = Counting(2, 2).requires_grad_(False)
    model.calls = (7,)
    reader = save(RankState({"m": model}, (), 0, 1), tmp_path)
    other = Counting(2, 2).requires_grad_(False)
    RankState({"m": other}, (), 0, 1).restore(reader)
    assert other.calls == (7,)
    assert other.weight.equal(model.weight)
    assert not other.weight.requires_grad


def test_frozen_objects_are_neither_saved_nor_restored(tmp_path: Path) -> None:
    state = RankState({"box": Box(x=1), "teacher": Box(x=object())}, ("teacher",), 0, 1)
    reader = save(state, tmp_path)
    box, teacher = Box(x=0), Box(x=0)
    RankState({"box": box, "teacher": teacher}, ("teacher",), 0, 1).restore(reader)
    assert (box.content["x"], teacher.content["x"]) == (1, 0)


# --- what does not fit ------------------------------------------------------------------------------------


class Renamed(nn.Sequential):
    pass


def other_shape() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (
            lambda: {"model": other_shape()},
            r"`model.2.weight`: it is F32 of shape \(3, 6\), F32 of shape \(2, 6\)",
        ),
        (lambda: {"model": net().double()}, r"`model.0.weight`: it is F64 of .* F32 of"),
        (lambda: {"model": net()[:2]}, "module `model`: `2.bias`, `2.weight` saved, but not there now"),
        (
            lambda: {"model": nn.Sequential(*net(), nn.Linear(2, 2))},
            "`3.bias`, `3.weight` not in what was saved",
        ),
        (lambda: {"model": net(), "ema": Box()}, "`ema`: attached now, but not when the state was saved"),
        (dict, "`model` saved, but not attached now"),
        (lambda: {"model": Box()}, "`model`: other now, module when saved"),
    ],
)
def test_what_does_not_fit_changes_nothing(now: Any, words: str, tmp_path: Path) -> None:
    box = Box(x=1)
    reader = save(RankState({"box": box, "model": net()}, (), 0, 1), tmp_path)
    objects = {"box": Box(x=2), **now()}
    before = {
        name: {key: tensor.clone() for key, tensor in module.state_dict().items()}
        for name, module in objects.items()
        if isinstance(module, nn.Module)
    }
    with pytest.raises(StateError, match=f"cannot restore.*{words}"):
        RankState(objects, (), 0, 1).restore(reader)
    assert objects["box"].content == {"x": 2}
    for name, tensors in before.items():
        assert equal(tensors, dict(objects[name].state_dict()))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (
            lambda m: [{"params": m[0].parameters()}, {"params": m[2].parameters()}],
            "it has 2 parameter groups, 1 were",
        ),
        (
            lambda m: m[0].parameters(),
            "group 0 of optimizer `o`: `m.1.bias`, `m.1.weight`, `m.2.bias` and 1 more saved",
        ),
    ],
)
def test_other_parameter_groups_are_refused(groups: Any, words: str, tmp_path: Path) -> None:
    model = net()
    state = RankState({"m": model, "o": torch.optim.SGD(model.parameters(), lr=0.1)}, (), 0, 1)
    reader = save(state, tmp_path)
    other = net(seed=1)
    weight = other[0].weight.detach().clone()
    with pytest.raises(StateError, match=words):
        RankState({"m": other, "o": torch.optim.SGD(groups(other), lr=0.1)}, (), 0, 1).restore(reader)
    assert other[0].weight.equal(weight)


@pytest.mark.parametrize("kept", ["conjugate", "negative"])
def test_a_parameter_that_is_kept_as_another_value_comes_back(memory: Path, kept: str) -> None:
    """Its memory does not hold its values, so that what is saved cannot be read into that memory as it is."""

    def made(value: complex) -> nn.Module:
        conjugate = torch.full((3,), value, dtype=torch.complex64).conj()
        model = nn.Module()
        model.register_parameter("weight", nn.Parameter(conjugate if kept == "conjugate" else conjugate.imag))
        assert (model.weight.is_conj(), model.weight.is_neg()) == (kept == "conjugate", kept == "negative")
        return model

    saved = save(RankState({"model": made(1 + 2j)}, (), 0, 1), memory)
    fresh = made(5 - 7j)
    RankState({"model": fresh}, (), 0, 1).restore(saved)
    assert torch.equal(fresh.weight.detach(), made(1 + 2j).weight.detach())
