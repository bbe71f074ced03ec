"""Collecting a rank's state, one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.snapshots import Box, make_pages, net, save, train
from torch import nn

from ftlaunch_contract.pages.page import open_pages
from ftlaunch_hooks.devices import device_port
from ftlaunch_hooks.state.collector import Owner, TensorItem, owner_of_slot, share_out
from ftlaunch_hooks.state.state import RankState, StateError


def keys(state: RankState) -> dict[str, TensorItem]:
    return {item.key: item for item in state.collect().items}


def test_keys_name_objects_parameters_and_slots() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    found = keys(RankState({"optimizer": optimizer, "model": model}, (), 0, 1))
    assert found["model.0.weight"].group == "model"
    assert found["model.0.weight"].tensor.data_ptr() == model[0].weight.data_ptr()
    assert found["optimizer.state.model.0.weight.exp_avg"].group == "opt"
    assert found["optimizer.state.model.0.weight.step"].whole == ()
    assert "model.1.running_mean" in found


def test_only_what_the_optimizer_changes_may_be_copied_late() -> None:
    model = net()
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([model[0].weight], lr=0.1, momentum=0.9)
    train(model, optimizer)
    settled = {key for key, item in keys(RankState({"m": model, "o": optimizer}, (), 0, 1)).items() if item.settled}
    assert settled == {"m.0.weight", "o.state.m.0.weight.momentum_buffer"}


def test_a_parameter_that_no_attached_module_has_goes_by_position() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    assert "o.state.3.momentum_buffer" in keys(RankState({"o": optimizer}, (), 0, 1))


def test_ranks_have_their_own_under_their_own_keys() -> None:
    found = keys(RankState({"model": net(), "box": Box(x=torch.zeros(2))}, (), 3, 8))
    assert "model.0.weight@3" in found
    assert "box.x@3" in found
    assert all(item.owned for item in found.values())


def test_an_at_sign_in_a_name_is_not_a_rank() -> None:
    found = keys(RankState({"box": Box(**{"x@1": torch.zeros(2), "x": torch.zeros(2)})}, (), 1, 2))
    assert set(found) == {"box.x@@1@1", "box.x@1"}


def test_wrappers_leave_no_trace_in_names() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)  # a name like DistributedDataParallel's, but the user's

    model = Inner()
    plain = set(keys(RankState({"m": model}, (), 0, 1)))
    assert plain == {"m.module.weight", "m.module.bias"}
    assert set(keys(RankState({"m": nn.DataParallel(model)}, (), 0, 1))) == plain
    assert set(keys(RankState({"m": torch.compile(model)}, (), 0, 1))) == plain


def test_nothing_new_costs_no_new_items() -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    state = RankState({"m": model, "o": optimizer}, (), 0, 1)
    state.restore_rng()
    fresh = state.collect().items
    assert state.collect().items is fresh
    train(model, optimizer)
    optimizer.zero_grad()
    stepped = state.collect().items
    assert len(stepped) == len(fresh) + 3 * 6
    train(model, optimizer)
    optimizer.zero_grad()
    assert state.collect().items is stepped


def test_what_was_collected_to_agree_on_is_of_its_boundary_alone(memory: Path) -> None:
    """A boundary that took no snapshot leaves it behind: a later snapshot must not have its values."""
    make_pages(memory, 2)
    pages = open_pages(memory, 2)
    for page in pages:
        page.begin(0, 1, 0)
    box = Box(epoch=3)
    state = RankState({"box": box}, (), 0, 2, pages)
    assert state.agree(3)
    box.content = {"epoch": 4}
    assert state.collect(4).state["box"]["state"] == {"epoch": 4}
    for page in pages:
        page.close()


class Offloaded:
    """An object whose state a device still writes, and whose state_dict() has a device write a copy of more."""

    def __init__(self, queue: list[Callable[[], object]]) -> None:
        self.queue = queue
        self.here = torch.zeros(2)
        queue.append(lambda: self.here.fill_(7.0))

    def state_dict(self) -> dict[str, torch.Tensor]:
        fetched = torch.zeros(2)
        self.queue.append(lambda: fetched.fill_(8.0))
        return {"here": self.here.clone(), "fetched": fetched}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        raise AssertionError("nothing is restored here")


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_is_queued_on_devices_is_done_before_state_is_read_and_compared(
    memory: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Taken out (the wait before, or the one after): zeros are saved, and replicas may be taken for apart."""
    queue: list[Callable[[], object]] = []

    def wait() -> None:
        while queue:
            queue.pop(0)()

    monkeypatch.setattr(device_port, "wait_for_devices", wait)
    make_pages(memory, ranks)
    pages = open_pages(memory, ranks)
    for page in pages:
        page.begin(0, 1, 0)
    state = RankState({"box": Offloaded(queue)}, (), 0, ranks, pages)
    assert state.agree(3)
    found = {item.key.partition("@")[0]: item.tensor.tolist() for item in state.collect(3).items}
    assert not queue, "nothing is queued while values are compared"
    assert found["box.here"] == [7.0, 7.0]
    assert found["box.fetched"] == [8.0, 8.0]
    for page in pages:
        page.close()


@pytest.mark.parametrize("way", ["data", "parameter", "buffer", "state"])
def test_a_replaced_tensor_is_noticed(way: str) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    state = RankState({"m": model, "o": optimizer}, (), 0, 1)
    before = state.collect().items
    if way == "data":
        model[0].weight.data = torch.full((6, 4), 7.0)
    elif way == "parameter":
        model[0].weight = nn.Parameter(torch.full((6, 4), 7.0))
    elif way == "buffer":
        model[1].running_mean = torch.full((6,), 7.0)
    else:
        optimizer.state[model[0].weight]["momentum_buffer"] = torch.full((6, 4), 7.0)
    after = state.collect().items
    assert after is not before
    assert sum(bool((item.tensor == 7).all()) for item in after) == 1


def test_tied_weights_are_saved_under_both_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = RankState({"m": model, "o": optimizer}, (), 0, 1)
    assert set(keys(state)) == {"m.0.weight", "m.1.weight"}
    reader, was = save(state, tmp_path), model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.zero_()
    state.restore(reader)
    assert model[0].weight.equal(was)
    assert model[1].weight is model[0].weight


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(2, dtype=torch.complex128), "a tensor of dtype torch.complex128"),
        (torch.zeros(2, device="meta"), "a tensor on the meta device"),
        (torch.zeros(2, 2).to_sparse(), "a tensor of layout torch.sparse_coo"),
    ],
    ids=["complex128", "meta", "sparse"],
)
def test_refuses_tensors_it_cannot_save(tensor: torch.Tensor, words: str) -> None:
    state = RankState({"box": Box(inner={"x": tensor})}, (), 0, 1)
    with pytest.raises(StateError, match=f"cannot save `box.inner.x`: {words}"):
        state.collect()


def test_refuses_what_is_not_there_yet_and_what_is_there_twice() -> None:
    with pytest.raises(StateError, match="a parameter that has no values yet"):
        RankState({"m": nn.LazyLinear(3)}, (), 0, 1).collect()
    twice = Box(**{"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})
    with pytest.raises(StateError, match=r"another tensor with the key 'box\.a\.b'"):
        RankState({"box": twice}, (), 0, 1).collect()


@pytest.mark.parametrize(
    ("objects", "frozen", "words"),
    [
        ({"scheduler": 3}, (), "argument `scheduler` has no state_dict.. and load_state_dict.."),
        ({"ema": None}, (), "argument `ema` has no state_dict"),
        ({"rng": Box()}, (), "`rng` is the name of the random numbers"),
        ({"o": type("ZeroRedundancyOptimizer", (Box,), {})()}, (), "argument `o` is a ZeroRedundancyOptimizer, whose"),
        ({"a": Box()}, ("b",), "frozen names `b`"),
    ],
)
def test_refuses_what_cannot_be_attached(objects: dict[str, Any], frozen: tuple[str], words: str) -> None:
    with pytest.raises(StateError, match=f"cannot attach: {words}"):
        RankState(objects, frozen, 0, 1)


# --- sharing out ------------------------------------------------------------------------------------------


def test_replicated_parameters_are_shared_out_evenly_and_alike() -> None:
    sizes = {f"p{i}": (i * 7919) % 1000 + 1 for i in range(200)}
    owners = share_out(sizes, dict.fromkeys(sizes, range(8)))
    assert owners == share_out(dict(reversed(sizes.items())), dict.fromkeys(sizes, range(8)))
    load = [sum(sizes[key] for key, owner in owners.items() if owner == rank) for rank in range(8)]
    assert max(load) - min(load) <= max(sizes.values())


def test_what_another_group_holds_changes_no_owner() -> None:
    """Taken out: with one load for all groups, ranks that know of different experts choose different owners."""
    sizes, dense = {"a": 8, "b": 8}, [0, 1, 2, 3]
    owners = [
        share_out({**sizes, "expert": 9}, {**dict.fromkeys(sizes, dense), "expert": experts})
        for experts in ([0, 2], [1, 3])
    ]
    assert [one.pop("expert") for one in owners] == [0, 1]
    assert owners[0] == owners[1] == {"a": 0, "b": 1}


def test_a_slot_has_one_owner_whatever_else_there_is() -> None:
    assert len({owner_of_slot(Owner(0), slot, range(8)) for slot in ("exp_avg", "exp_avg_sq", "step")}) > 1
    assert all(owner_of_slot(Owner(place, (0, 5)), "exp_avg", (1, 3)).place in (1, 3) for place in (1, 3))
