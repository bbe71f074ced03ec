"""What is known to be the same is not looked at again; whatever may have changed is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ftlaunch_hooks.state import module
from ftlaunch_hooks.state.state import Collected, RankState


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 4)
        self.register_buffer("mask", torch.ones(4))


class Trained:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters())
        self.train()

    def train(self) -> None:
        self.net.head(self.net.body(torch.randn(3, 4))).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> RankState:
        return RankState({"net": self.net, "optimizer": self.optimizer}, (), 0, 1)

    def slot(self, name: str = "exp_avg") -> dict[str, Any]:
        slots: dict[str, Any] = self.optimizer.state[self.net.head.weight]
        return slots


def described(collected: Collected) -> tuple[dict[str, Any], str]:
    """Where every tensor's bytes are, and what is not a tensor."""

    def where(tensor: Tensor) -> tuple[Any, ...]:
        return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype

    tensors = {
        item.key: (where(item.tensor), item.group, item.settled, item.owned)
        for item in collected.items
        if not item.key.startswith(("rng.", "grad."))
    }
    trees = {name: tree for name, tree in collected.state.items() if name not in ("rng", "grad")}
    return tensors, json.dumps(trees, sort_keys=True)


def _set(target: Any, name: str, value: Any) -> None:
    setattr(target, name, value)


HOOKED = torch.ones(1)
CHANGES: dict[str, Callable[[Trained], Any]] = {
    "nothing": lambda t: None,
    "a step": lambda t: t.train(),
    "data": lambda t: _set(t.net.head.weight, "data", torch.zeros(4, 4)),
    "data, transposed": lambda t: _set(t.net.head.weight, "data", t.net.head.weight.data.t()),
    "data, fewer rows": lambda t: _set(t.net.head.bias, "data", t.net.head.bias.data[:2]),
    "a parameter": lambda t: _set(t.net.head, "weight", nn.Parameter(torch.zeros(4, 4))),
    "a buffer": lambda t: _set(t.net, "mask", torch.zeros(4)),
    "a buffer more": lambda t: t.net.register_buffer("more", torch.zeros(2)),
    "a buffer less": lambda t: delattr(t.net, "mask"),
    "a buffer not kept": lambda t: t.net.register_buffer("mask", t.net.mask, persistent=False),
    "a module": lambda t: _set(t.net, "head", nn.Linear(4, 4)),
    "a module more": lambda t: t.net.body.append(nn.Linear(2, 2)),
    "a module less": lambda t: t.net.body.pop(1),
    "modules swapped": lambda t: (_set(t.net, "other", t.net.head), delattr(t.net, "head")),
    "weights tied": lambda t: _set(t.net.head, "weight", t.net.body[0].weight),
    "a hook": lambda t: t.net.register_state_dict_post_hook(
        lambda module, state, prefix, local: state.update({"hooked": HOOKED})
    ),
    "a group more": lambda t: t.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))], "lr": 2.0}),
    "a group's parameters": lambda t: t.optimizer.state.pop(t.optimizer.param_groups[0]["params"].pop()),
    "a learning rate": lambda t: t.optimizer.param_groups[0].update(lr=0.5),
    "a learning rate that is a tensor": lambda t: t.optimizer.param_groups[0].update(lr=torch.tensor(0.5)),
    "state forgotten": lambda t: t.optimizer.state.clear(),
    "state of one forgotten": lambda t: t.optimizer.state.pop(t.net.head.weight),
    "a slot": lambda t: t.slot().update(exp_avg=torch.ones(4, 4)),
    "a slot more": lambda t: t.slot().update(more=torch.ones(2)),
    "a slot that is a number": lambda t: t.slot().update(step=7),
    "a slot that is a list": lambda t: t.slot().update(history=[1, 2]),
    "state loaded": lambda t: t.optimizer.load_state_dict(t.optimizer.state_dict()),
    "other state loaded": lambda t: t.optimizer.load_state_dict(Trained().optimizer.state_dict()),
    "no state loaded": lambda t: t.optimizer.load_state_dict(torch.optim.AdamW(t.net.parameters()).state_dict()),
    "a module's parameters": lambda t: _set(
        t.net.head, "_parameters", {"weight": nn.Parameter(torch.ones(4, 4)), "bias": None}
    ),
    "an optimizer's hook": lambda t: t.optimizer.register_state_dict_post_hook(
        lambda optimizer, state: state.update(hooked=1)
    ),
    "parameters of no optimizer": lambda t: (
        t.optimizer.state.clear(),
        t.optimizer.param_groups[0].update(params=[t.net.head.weight]),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_is_seen(change: str) -> None:
    trained = Trained()
    state = trained.state()
    state.collect()
    state.collect()
    CHANGES[change](trained)
    for _ in range(2):
        assert described(state.collect()) == described(trained.state().collect())
    for slots in trained.optimizer.state.values():
        slots.get("history", []).append(3)  # in place
    trained.optimizer.param_groups[0]["lr"] = 0.25
    assert described(state.collect()) == described(trained.state().collect())


def test_state_loaded_where_there_was_none_is_seen() -> None:
    """A process that resumes: what load_state_dict() brings lies in new containers."""
    trained, other = Trained(), Trained()
    other.optimizer = torch.optim.AdamW(other.net.parameters())
    state = other.state()
    state.collect()
    other.optimizer.load_state_dict(trained.optimizer.state_dict())
    assert described(state.collect()) == described(other.state().collect())
    assert len(state.collect().items) == len(trained.state().collect().items)


def test_what_is_the_same_is_not_taken_apart_again(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = Trained()
    state = trained.state()
    items = state.collect().items
    monkeypatch.setattr(module.ModulePart, "tensors", None)
    monkeypatch.setattr(trained.optimizer, "state_dict", None, raising=False)
    trained.train()
    assert state.collect().items is items


class Told(nn.Linear):
    """Has a say in its state."""

    told = 0

    def get_extra_state(self) -> Any:
        return {"told": self.told}

    def set_extra_state(self, state: Any) -> None:
        self.told = state["told"]


def test_a_module_with_a_say_is_asked_every_time() -> None:
    module = Told(2, 2)
    state = RankState({"module": module}, (), 0, 1)
    for told in range(3):
        module.told = told
        assert f'"told": {told}' in json.dumps(state.collect().state["module"])


def test_two_tensors_of_one_key_are_refused_whichever_came_first() -> None:
    inner, outer = nn.Module(), nn.Linear(2, 2)
    state = RankState({"a": outer, "a.b": inner}, (), 0, 1)
    inner.register_buffer("weight", torch.zeros(1))
    state.collect()
    outer.b = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"there is another tensor with the key 'a.b.weight'"):
        state.collect()
