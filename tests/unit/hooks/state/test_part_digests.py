"""What was not put back as it was saved is found right behind the restore.

Taken out: with `RankState.find_restored_otherwise` returning nothing, each test that alters something fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.snapshots import Box, net, save, train
from torch import Tensor, nn

from ftlaunch_contract.checkpoint import layout
from ftlaunch_hooks.state.part_digests import PartDigests, find_differing
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import MemoryReader


class Forgetful(Box):
    """Its load_state_dict() leaves something out."""

    def load_state_dict(self, state: Any) -> None:
        self.content = {**state, "count": 0}


def attached(box: Box, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer, RankState]:
    model = net(seed)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, RankState({"model": model, "optimizer": optimizer, "box": box}, (), 0, 1)


def first_life(directory: Path) -> MemoryReader:
    model, optimizer, state = attached(Box(count=3, shadow=torch.arange(8.0)))
    state.restore_rng()
    train(model, optimizer)
    return save(state, directory)


def test_what_comes_back_as_it_was_is_not_spoken_of(tmp_path: Path) -> None:
    reader = first_life(tmp_path)
    _, _, resumed = attached(Box(count=0, shadow=torch.zeros(8)), seed=1)
    resumed.restore(reader)
    resumed.sample_restored()
    assert resumed.find_restored_otherwise() == []


ALTERED: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Tensor]] = {
    "model": lambda model, optimizer: model[1].running_var,  # type: ignore[index]
    "optimizer": lambda model, optimizer: optimizer.state[model[0].weight]["exp_avg_sq"],  # type: ignore[index]
}


@pytest.mark.parametrize("name", ALTERED)
def test_one_value_that_is_another_one_is_found(name: str, tmp_path: Path) -> None:
    reader = first_life(tmp_path)
    model, optimizer, resumed = attached(Box(count=0, shadow=torch.zeros(8)))
    resumed.restore(reader)
    with torch.no_grad():
        ALTERED[name](model, optimizer).view(-1)[-1] += 0.5
    resumed.sample_restored()
    assert resumed.find_restored_otherwise() == [name]


def test_a_setting_that_is_another_one_is_found(tmp_path: Path) -> None:
    reader = first_life(tmp_path)
    _, optimizer, resumed = attached(Box(count=0, shadow=torch.zeros(8)))
    resumed.restore(reader)
    optimizer.param_groups[0]["eps"] = 1e-6
    resumed.sample_restored()
    assert resumed.find_restored_otherwise() == ["optimizer"]


def test_an_object_that_does_not_take_back_all_that_it_said_is_found(tmp_path: Path) -> None:
    reader = first_life(tmp_path)
    _, _, resumed = attached(Forgetful(count=0, shadow=torch.zeros(8)))
    resumed.restore(reader)
    resumed.sample_restored()
    assert resumed.find_restored_otherwise() == ["box"]


def test_what_changes_behind_the_restore_is_found(tmp_path: Path) -> None:
    reader = first_life(tmp_path)
    _, optimizer, resumed = attached(Box(count=0, shadow=torch.zeros(8)))
    resumed.restore(reader)
    resumed.sample_restored()
    assert resumed.find_changed() == []
    optimizer.param_groups[0]["lr"] *= 0.5
    assert resumed.find_changed() == ["optimizer"]


def test_a_file_that_was_altered_is_found(tmp_path: Path) -> None:
    first_life(tmp_path)
    path = layout.slot_dir(tmp_path, 0, 0) / layout.COMMON
    common = json.loads(path.read_bytes())
    common["state"]["box"]["state"]["count"] = 4
    path.write_text(json.dumps(common))
    _, _, resumed = attached(Box(count=0, shadow=torch.zeros(8)))
    resumed.restore(MemoryReader(tmp_path, 3, 1, {0: 0}))
    resumed.sample_restored()
    assert resumed.find_restored_otherwise() == ["box"]


def test_a_parameter_that_only_an_optimizer_has_is_compared(tmp_path: Path) -> None:
    lives = []
    for _ in range(2):
        weight = nn.Parameter(torch.ones(3))
        lives.append((weight, RankState({"optimizer": torch.optim.SGD([weight], lr=0.1)}, (), 0, 1)))
    reader = save(lives[0][1], tmp_path)
    weight, resumed = lives[1]
    resumed.restore(reader)
    with torch.no_grad():
        weight[1] = 2.0
    resumed.sample_restored()
    assert resumed.find_restored_otherwise() == ["optimizer"]


def test_gradients_that_were_there_when_it_was_saved_say_nothing_of_the_objects(tmp_path: Path) -> None:
    """Taken out: where the number of all tensors decides how many values of each are read, other values are."""
    lives = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 64))
        lives.append((model, RankState({"model": model}, (), 0, 1)))
    model = lives[0][0]
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    reader = save(lives[0][1], tmp_path)
    lives[1][1].restore(reader)
    for parameter in lives[1][0].parameters():
        parameter.grad = None
    lives[1][1].sample_restored()
    assert lives[1][1].find_restored_otherwise() == []


def test_of_large_tensors_some_values_are_read() -> None:
    large = torch.zeros(1 << 18)
    digests = PartDigests(["a", "a.b"])
    found = [("a.x", large), ("a.b.x", torch.zeros(3))]
    trees: dict[str, Any] = {"a": {}, "a.b": {}}
    before = digests.digest(found, trees)
    large[:] = 1.0
    now = digests.digest(found, trees)
    assert before["a"] != now["a"]
    assert before["a.b"] == now["a.b"]


def test_what_small_tensors_leave_is_for_large_ones() -> None:
    """Taken out (equal shares): one altered value of a buffer of 32,768 beside small ones was not seen."""
    large = torch.zeros(4096, 8)
    digests = PartDigests(["a", "b", "c"])
    found = [("a.large", large), *((f"a.{number}", torch.zeros(8)) for number in range(20))]
    trees: dict[str, Any] = {"a": {}, "b": {}, "c": {}}
    before = digests.digest(found, trees)
    for place in (1, 777, 32767):
        large.view(-1)[place] = 1.0
        now = digests.digest(found, trees)
        assert now["a"] != before["a"]
        before = now


def test_other_shards_of_a_module_are_not_compared() -> None:
    """Taken out (the shapes): a job of two ranks that goes on as two other ones is called different."""
    lives = [PartDigests(["net", "box"], ["net"]) for _ in range(2)]
    found: list[list[tuple[str, Tensor]]] = [
        [("net.weight", torch.zeros(4, 2)), ("box.x", torch.zeros(1))],
        [("net.weight", torch.zeros(2, 2)), ("box.x", torch.ones(1))],
    ]
    trees: dict[str, Any] = {"net": {}, "box": {}}
    before = lives[0].digest(found[0], trees)
    assert find_differing(before, lives[1].digest(found[1], trees)) == []
    found[1][0] = found[0][0]
    assert find_differing(before, lives[1].digest(list(found[1]), trees)) == ["box"]
