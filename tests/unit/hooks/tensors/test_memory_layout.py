"""Tensors that shared memory share it again after a restore, and lie as they lay; values alone would not tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.snapshots import Box, save
from torch import Tensor, nn

from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors import memory_layout
from ftlaunch_hooks.tensors.memory_layout import contiguous_strides, overlaps_itself


def resumed(before: dict[str, Any], after: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """What `before` holds is saved, and restored into `after`, which is returned."""
    reader = save(RankState(before, (), 0, 1), tmp_path)
    RankState(after, (), 0, 1).restore(reader)
    return after


def restored_box(content: dict[str, Any], tmp_path: Path, live: dict[str, Any] | None = None) -> Any:
    return resumed({"box": Box(**content)}, {"box": Box(**(live or {}))}, tmp_path)["box"].content


def test_a_plain_state_is_described_by_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    tree = RankState({"model": model, "optimizer": optimizer}, (), 0, 1).collect().state[memory_layout.NAME]
    assert tree == {"strides": {}, "regions": []}


def test_views_of_one_tensor_change_together_again(tmp_path: Path) -> None:
    """Taken out: without regions each is a tensor by itself."""
    whole = torch.arange(12.0)
    found = restored_box({"part": whole[4:8], "whole": whole, "matrix": whole.view(3, 4).t()}, tmp_path)
    assert torch.equal(found["whole"], torch.arange(12.0))
    found["whole"].mul_(2)
    assert found["part"].tolist() == [8.0, 10.0, 12.0, 14.0]
    assert found["matrix"][1].tolist() == [2.0, 10.0, 18.0]


def test_one_tensor_under_two_names_is_one_again(tmp_path: Path) -> None:
    one = torch.ones(3)
    found = restored_box({"first": one, "list": [one, torch.ones(3)]}, tmp_path)
    found["first"].zero_()
    assert found["list"][0].tolist() == [0.0] * 3
    assert found["list"][1].tolist() == [1.0] * 3


def test_views_of_another_type_share_bytes_again(tmp_path: Path) -> None:
    numbers = torch.ones(4)
    found = restored_box({"numbers": numbers, "bits": numbers.view(torch.int32)[1:]}, tmp_path)
    found["bits"].zero_()
    assert found["numbers"].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_arrays_over_the_same_memory_share_it_again(tmp_path: Path) -> None:
    whole = np.arange(6.0)
    found = restored_box({"whole": whole, "half": whole[3:], "alone": np.arange(4)[::2]}, tmp_path)
    found["whole"][:] = 7
    assert found["half"].tolist() == [7.0] * 3
    assert found["alone"].tolist() == [0, 2]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 5).t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(10)[::3],
        torch.randn(3, 1).expand(3, 4),
        torch.arange(6.0).unfold(0, 3, 1),
        torch.randn(2, 1, 1, 1).to(memory_format=torch.channels_last),
    ],
)
def test_a_tensor_lies_as_it_lay(tensor: Tensor, tmp_path: Path) -> None:
    found = restored_box({"tensor": tensor}, tmp_path)["tensor"]
    assert torch.equal(found, tensor)
    assert found.stride() == tensor.stride()


def test_the_memory_that_an_object_refers_to_is_filled(tmp_path: Path) -> None:
    """A flat tensor that is in no state: its views are."""
    flat, live = torch.arange(8.0), torch.zeros(8)
    found = restored_box({"a": flat[:3], "b": flat[3:]}, tmp_path, {"a": live[:3], "b": live[3:]})
    assert live.tolist() == flat.tolist()
    live.mul_(2)
    assert found["b"].tolist() == [6.0, 8.0, 10.0, 12.0, 14.0]


def test_a_view_that_was_elsewhere_leaves_the_memory_alone_where_it_is_now(tmp_path: Path) -> None:
    """The best row of a table was its seventh, and is its first in a script that begins."""
    table, live = torch.arange(20.0).view(10, 2), torch.zeros(10, 2)
    found = restored_box({"best": table[7]}, tmp_path, {"best": live[0]})
    assert found["best"].tolist() == [14.0, 15.0]
    assert not live.any()


class Flat(torch.optim.Optimizer):
    """Its momenta are views of one tensor, and its step counts are one tensor."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        held = self.param_groups[0]["params"]
        self.flat, count = torch.zeros(sum(p.numel() for p in held)), torch.zeros(())
        for p, piece in zip(held, self.flat.split([p.numel() for p in held]), strict=True):
            self.state[p] = {"momentum": piece.view_as(p), "count": count, "transposed": torch.zeros(p.shape[::-1]).t()}


def test_an_optimizer_goes_on_in_its_flat_memory(tmp_path: Path) -> None:
    models = [nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)) for _ in range(2)]
    first, second = (Flat(model.parameters()) for model in models)
    first.flat.copy_(torch.arange(first.flat.numel()))
    first.state[models[0][0].weight]["count"].fill_(5)
    resumed({"m": models[0], "o": first}, {"m": models[1], "o": second}, tmp_path)
    assert torch.equal(second.flat, first.flat)
    second.flat.neg_()
    slots = [second.state[p] for p in models[1].parameters()]
    assert slots[1]["momentum"].tolist() == [-6.0, -7.0]
    slots[0]["count"].add_(1)
    assert [one["count"].item() for one in slots] == [6.0] * 4
    assert slots[0]["transposed"].stride() == (1, 2)


def test_an_average_that_is_the_parameter_itself_is_the_parameter_again(tmp_path: Path) -> None:
    models = [nn.Linear(3, 2) for _ in range(2)]
    boxes = [Box(shadow=model.weight.detach()) for model in models]
    after = resumed({"m": models[0], "b": boxes[0]}, {"m": models[1], "b": Box()}, tmp_path)
    with torch.no_grad():
        models[1].weight.fill_(9)
    assert after["b"].content["shadow"].eq(9).all()


def test_parameters_that_were_tied_by_their_data_are_tied_again(tmp_path: Path) -> None:
    """Taken out: without arrange() the two are written and trained as two."""
    before, after = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
    before[1].weight.data = before[0].weight.data.t()
    wanted = before[1].weight.tolist()
    resumed({"m": before}, {"m": after}, tmp_path)
    assert after[1].weight.tolist() == wanted
    with torch.no_grad():
        after[0].weight.fill_(3)
    assert after[1].weight.eq(3).all()


def test_parameters_that_were_untied_are_two_again(tmp_path: Path) -> None:
    """Taken out: the one that is read last overwrites the other."""
    before, after = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
    after[1].weight.data = after[0].weight.data
    wanted = [layer.weight.tolist() for layer in before]
    resumed({"m": before}, {"m": after}, tmp_path)
    assert [layer.weight.tolist() for layer in after] == wanted


def test_a_parameter_that_was_laid_out_anew_lies_so_again(tmp_path: Path) -> None:
    before, after = nn.Conv2d(3, 4, 2), nn.Conv2d(3, 4, 2)
    before.to(memory_format=torch.channels_last)
    weight = after.weight
    resumed({"m": before}, {"m": after}, tmp_path)
    assert after.weight is weight
    assert after.weight.stride() == before.weight.stride()
    assert torch.equal(after.weight, before.weight)


def test_a_parameter_of_views_keeps_its_memory(tmp_path: Path) -> None:
    """A view begins where the whole does: the whole is read all the same."""

    class FlatModule(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Parameter(torch.randn(10))
            self.register_buffer("head", self.flat.detach()[:4])

    before, after = FlatModule(), FlatModule()
    resumed({"m": before}, {"m": after}, tmp_path)
    assert torch.equal(before.flat, after.flat)
    with torch.no_grad():
        after.flat.fill_(2)
    assert after.head.tolist() == [2.0] * 4  # type: ignore[operator]


def test_strides_of_shapes() -> None:
    for shape in ((), (3,), (2, 3, 4), (0, 5), (1, 1)):
        assert contiguous_strides(shape) == torch.empty(shape).stride()
    assert overlaps_itself((3, 4), (1, 0))
    assert overlaps_itself((4, 3), (1, 1))
    assert not overlaps_itself((3, 4), (1, 3))
    assert not overlaps_itself((1, 4), (0, 1))
