"""Another number of ranks goes on from what all ranks had alike, and from nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.support.snapshots import net, write_slot
from torch import nn

from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.saved_tensors import MemoryReader

Change = Callable[[nn.Module, torch.optim.Optimizer], object]


def saved_by_two(directory: Path, change: Change) -> MemoryReader:
    """Two ranks that have trained alike, each for itself; `change` is what rank 1 does otherwise."""
    for rank in range(2):
        state, model, optimizer = make(rank, 2)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        if rank:
            change(model, optimizer)
        write_slot(state, directory, 3)
    return MemoryReader(directory, 3, 2, {0: 0, 1: 0})


def make(rank: int, world_size: int) -> tuple[RankState, nn.Module, torch.optim.Optimizer]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return RankState({"model": model, "optimizer": optimizer}, (), rank, world_size), model, optimizer


def momentum(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.state[model.get_parameter("0.weight")]["momentum_buffer"].add_(1)


def less(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    del optimizer.state[model.get_parameter("2.bias")]


def weight(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.get_parameter("0.weight").data.add_(1)


def buffer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.get_buffer("1.running_mean").add_(1)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("change", [momentum, less, weight])
def test_what_ranks_had_apart_is_refused_on_another_number_of_ranks(change: Change, ranks: int, tmp_path: Path) -> None:
    reader = saved_by_two(tmp_path, change)
    for rank in range(2):
        make(rank, 2)[0].restore(reader)
    with pytest.raises(StateError, match=rf"cannot restore .* on {ranks} ranks: .*; start with 2 ranks"):
        make(0, ranks)[0].restore(reader)


@pytest.mark.parametrize("change", [lambda *_: None, buffer])
def test_what_all_ranks_had_alike_goes_on_on_any(change: Change, tmp_path: Path) -> None:
    reader = saved_by_two(tmp_path, change)
    for rank in range(3):
        state, model, _ = make(rank, 3)
        state.restore(reader)
        assert not model.get_parameter("0.weight").equal(net().get_parameter("0.weight"))
