"""A tensor file of a slot is changed at its end where sizes change, and is a whole tensor file each time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.checkpoint.tensor_file import read_header
from ftlaunch_hooks.snapshots.slot import Slot
from ftlaunch_hooks.state.collector import TensorItem


def item(key: str, tensor: Tensor) -> TensorItem:
    return TensorItem(key, tensor, (0,) * tensor.dim(), tuple(tensor.shape), owned=True)


class Taken:
    """Takes the snapshots of tensors into one slot."""

    def __init__(self, directory: Path) -> None:
        self.slot = Slot(directory, 0, 0)
        self.path = layout.slot_file(self.slot.directory, "opt")

    def take(self, **tensors: Tensor) -> int:
        """Returns the number of the file's inode; all tensors are in the file, and nothing else."""
        self.slot.lay_out([item(key, tensor) for key, tensor in tensors.items()])
        self.slot.host.run()
        found = load_file(self.path)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())
        fd = os.open(self.path, os.O_RDONLY)
        assert read_header(fd)[2] == os.fstat(fd).st_size
        os.close(fd)
        return self.path.stat().st_ino

    def address_of(self, tensor: Tensor) -> int:
        """Where the slot has its copy of a tensor."""
        [copy] = [
            target
            for source, target in zip(self.slot.host.sources, self.slot.host.targets, strict=True)
            if source is tensor
        ]
        return copy.data_ptr()


def test_a_file_stays_where_one_tensor_changes_its_size_at_every_step(tmp_path: Path) -> None:
    """Taken out: a file with all tensors is made anew each time."""
    taken, large = Taken(tmp_path), torch.randn(100_000)
    first = taken.take(large=large, rows=torch.randn(1, 4))
    second = taken.take(large=large, rows=torch.randn(2, 4))
    assert second != first, "nobody knew which would change"
    memory = taken.address_of(large)
    for count in (3, 40, 4000, 5, 0, 6):
        assert taken.take(large=large, rows=torch.randn(count, 4)) == second
        assert taken.address_of(large) == memory


def test_tensors_come_and_go_behind_the_others(tmp_path: Path) -> None:
    taken, large = Taken(tmp_path), torch.randn(1000)
    taken.take(large=large)
    rows: dict[str, Tensor] = {}
    inodes = []
    for step in range(300):
        rows[f"row{step}"] = torch.randn(step % 7)
        if step > 20:
            del rows[f"row{step - 20}"]
        inodes.append(taken.take(large=large, **rows))
    assert len(set(inodes)) < 6, "a header that had no room for more names was made anew, with more room"


@pytest.mark.parametrize("wide", [torch.float32, torch.float64])
def test_a_file_stays_where_small_tensors_would_bring_the_end_out_of_alignment(
    tmp_path: Path, wide: torch.dtype
) -> None:
    """Taken out: four bytes of a step in front of float64 have the whole file made anew each time."""
    taken, large = Taken(tmp_path), torch.randn(100_000)
    odd = torch.zeros(3, dtype=torch.uint8)
    steps = {f"step{number}": torch.ones(()) for number in range(3)}

    def take(count: int) -> int:
        return taken.take(large=large, odd=odd, **steps, rows=torch.randn(count, dtype=wide))

    take(1)
    second = take(2)
    memory = taken.address_of(large)
    for count in (3, 40, 4000, 5, 0, 6):
        assert take(count) == second
        assert taken.address_of(large) == memory
        assert all(copy.data_ptr() % copy.itemsize == 0 for copy in taken.slot.host.targets)


def test_a_wider_tensor_that_comes_later_has_the_file_made_anew_once(tmp_path: Path) -> None:
    taken, step = Taken(tmp_path), torch.ones(())
    taken.take(step=step, rows=torch.randn(1))
    before = taken.take(step=step, rows=torch.randn(2))
    after = taken.take(step=step, rows=torch.randn(2), wide=torch.randn(1, dtype=torch.float64))
    assert after != before
    for count in range(1, 5):
        assert taken.take(step=step, rows=torch.randn(2), wide=torch.randn(count, dtype=torch.float64)) == after


ALSO = pytest.mark.parametrize("also", [{}, {"other": torch.ones(2)}])


@ALSO
def test_a_tensor_that_was_thought_constant_and_goes_has_the_file_made_anew(
    tmp_path: Path, also: dict[str, Tensor]
) -> None:
    taken = Taken(tmp_path)
    taken.take(one=torch.ones(4), rows=torch.ones(1))
    before = taken.take(one=torch.ones(4), rows=torch.ones(2))
    after = taken.take(rows=torch.ones(3), **also)
    assert after != before
    assert taken.take(rows=torch.ones(4), **also) == after


@ALSO
def test_a_tensor_that_was_thought_constant_and_changes_may_go_after_that(
    tmp_path: Path, also: dict[str, Tensor]
) -> None:
    """The change has the file made anew, with the tensor among those whose sizes change."""
    taken = Taken(tmp_path)
    taken.take(one=torch.ones(4), rows=torch.ones(1))
    before = taken.take(one=torch.ones(4), rows=torch.ones(2))
    after = taken.take(one=torch.ones(8), rows=torch.ones(3))
    assert after != before
    for count in (3, 4):
        assert taken.take(rows=torch.ones(count), **also) == after
