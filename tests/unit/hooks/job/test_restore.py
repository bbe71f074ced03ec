"""What peek() reads of one rank of the job that saved."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.support.snapshots import Box, write_slot

from ftlaunch_hooks.job.restore import saved_object
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.saved_tensors import MemoryReader

HERE: Any = SimpleNamespace(rank=0, world_size=5)


def saved_by(ranks: int, directory: Path, read: int | None = None) -> MemoryReader:
    for rank in range(ranks):
        box = Box(rank=rank, tensor=torch.full((2,), float(rank)))
        write_slot(RankState({"box": box}, (), rank, ranks), directory, 3)
    return MemoryReader(directory, 3, ranks, dict.fromkeys(range(read or ranks), 0))


def test_another_rank_than_this_one_is_asked(tmp_path: Path) -> None:
    reader = saved_by(3, tmp_path)
    for rank in range(3):
        found = saved_object("box", reader, HERE, rank)
        assert found["rank"] == rank
        assert found["tensor"].tolist() == [rank, rank]


def test_without_values_no_tensor_is_read(tmp_path: Path) -> None:
    found = saved_object("box", saved_by(2, tmp_path), HERE, 1, values=False)
    assert found["rank"] == 1
    assert (found["tensor"].is_meta, found["tensor"].dtype, tuple(found["tensor"].shape)) == (True, torch.float32, (2,))


def test_a_rank_that_has_not_saved_is_refused(tmp_path: Path) -> None:
    """Taken out: without the question what the first rank had saved is taken for the other one's."""
    with pytest.raises(StateError, match="of step 3 nothing of rank 2 is here; it was saved by 2 ranks"):
        saved_object("box", saved_by(2, tmp_path), HERE, 2)


def test_a_rank_of_another_node_is_refused(tmp_path: Path) -> None:
    reader = saved_by(3, tmp_path, read=2)
    with pytest.raises(StateError, match="nothing of rank 2 is here; it was saved by 3 ranks, some of them on other"):
        saved_object("box", reader, HERE, 2)
