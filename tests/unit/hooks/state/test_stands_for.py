"""On another number of ranks: a rank that stands for one of those that saved takes what that one had as its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.snapshots import Box, equal, net, train, write_slot

from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.saved_tensors import MemoryReader


def saved_apart(directory: Path) -> MemoryReader:
    """Two ranks with weights, momentum and random numbers of their own."""
    for rank in range(2):
        model = net(seed=rank)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        state = RankState({"model": model, "optimizer": optimizer, "box": Box(rank=rank)}, (), rank, 2)
        torch.manual_seed(rank)
        state.restore_rng()
        train(model, optimizer)
        write_slot(state, directory, 3)
    return MemoryReader(directory, 3, 2, {0: 0, 1: 0})


@pytest.mark.parametrize("rank", range(3))
@pytest.mark.parametrize("stands_for", range(2))
def test_a_rank_takes_what_another_had_as_its_own(rank: int, stands_for: int, tmp_path: Path) -> None:
    """Taken out: with the rank's own number in Lookup, weights and momentum are those of rank 0."""
    reader = saved_apart(tmp_path)
    found = []
    for number, ranks, stands in ((stands_for, 2, None), (rank, 3, stands_for)):
        model, box = net(seed=7), Box()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        objects = {"model": model, "optimizer": optimizer, "box": box}
        state = RankState(objects, (), number, ranks, stands_for=stands)
        state.restore(reader)
        state.restore_rng()
        found.append((box.content, model.state_dict(), optimizer.state_dict(), torch.rand(3)))
    assert equal(*found)


def test_a_rank_that_stands_for_none_is_refused(tmp_path: Path) -> None:
    state = RankState({"box": Box()}, (), 0, 3, stands_for=2)
    with pytest.raises(StateError, match="cannot restore as rank 2: 2 ranks have saved, and it is none of them"):
        state.restore(saved_apart(tmp_path))


def test_where_as_many_have_saved_each_rank_has_its_own(tmp_path: Path) -> None:
    reader = saved_apart(tmp_path)
    model, box = net(seed=7), Box()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    RankState({"model": model, "optimizer": optimizer, "box": box}, (), 1, 2, stands_for=0).restore(reader)
    assert box.content == {"rank": 1}
