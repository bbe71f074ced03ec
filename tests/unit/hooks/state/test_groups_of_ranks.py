"""Tensors that some of the ranks share out among them, under a name that other ranks use for another one.

Two models that are sharded over half of the ranks each, or the stages of a pipeline. Tried: without the ranks in the
key, ranks 2 and 3 went on with the values of ranks 0 and 1, and nothing was said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.support.nodes import WORLD, process_group
from tests.support.snapshots import Box, write_slot

from ftlaunch_contract.checkpoint import layout, verify, writer
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.node_ranks import NodeRanks, one_node
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.dcp_reader import CheckpointStorageReader
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader, SavedTensors

STEP = 3
PAIRS = [[0, 1], [2, 3]]


@contextmanager
def state_of(
    rank: int, box: Box, ranks: list[int], value: float, world: int = WORLD, node: NodeRanks | None = None
) -> Iterator[RankState]:
    """The state of a rank which shares `box.content["w"]` out with `ranks`."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    with process_group(rank, world):
        local = torch.full((2, 2), float(value))
        mesh = DeviceMesh("cpu", ranks)
        box.content = {"w": DTensor.from_local(local, mesh, [Shard(0)], run_check=False)}
        yield RankState({"box": box}, (), rank, world, (), None, node or one_node(world))


@pytest.fixture(params=["memory", "a checkpoint", "the memory of two nodes"])
def saved(request: pytest.FixtureRequest, memory: Path) -> Callable[[bool], Callable[[int], SavedTensors]]:
    """rank -> what it reads of what four ranks have saved, pair by pair."""

    def save(alike: bool) -> Callable[[int], SavedTensors]:
        slots = []
        for rank in range(WORLD):
            node = NodeRanks(rank // 2 * 2, 2, WORLD) if request.param == "the memory of two nodes" else None
            with state_of(rank, Box(), PAIRS[rank // 2], rank % 2 if alike else rank, node=node) as state:
                slots.append(write_slot(state, memory, STEP))
        if request.param == "memory":
            return lambda _: MemoryReader(memory, STEP, WORLD, dict.fromkeys(range(WORLD), 0))
        if request.param == "the memory of two nodes":
            return lambda rank: MemoryReader(memory, STEP, WORLD, dict.fromkeys(PAIRS[rank // 2], 0))
        target = writer.SaveTarget(memory / "checkpoints", STEP, "interval", "net", WORLD)
        writer.prepare(target)
        for rank, slot in enumerate(slots):
            writer.write_shard_of(target, rank, slot)
        directory, _ = writer.commit(target)
        verify.verify(directory)
        return lambda _: CheckpointReader(directory)

    return save


def restored(reader: Callable[[int], SavedTensors], rank: int, ranks: list[int], world: int = WORLD) -> Any:
    box = Box()
    node = NodeRanks(rank // 2 * 2, 2, world) if reader(rank).partial else None
    with state_of(rank, box, ranks, -1.0, world, node) as state:
        state.restore(reader(rank))
        return box.content["w"].to_local()


@pytest.mark.parametrize("rank", range(WORLD))
def test_each_group_goes_on_with_its_own(saved: Any, rank: int) -> None:
    assert restored(saved(alike=False), rank, PAIRS[rank // 2]).tolist() == [[rank] * 2] * 2


@pytest.mark.parametrize("rank", range(WORLD))
def test_other_groups_are_refused_where_they_differ(saved: Any, rank: int) -> None:
    reader = saved(alike=False)
    with pytest.raises(StateError, match=r"cannot restore `box\.w`: groups of ranks \((0-1|2-3|0-1, 2-3)\) have saved"):
        restored(reader, rank, [rank, (rank + 2) % WORLD])


@pytest.mark.parametrize("saved", ["memory", "a checkpoint"], indirect=True)
@pytest.mark.parametrize(("rank", "world"), [(0, 2), (1, 2), (5, 6)])
def test_another_number_of_ranks_takes_what_all_groups_had_alike(saved: Any, rank: int, world: int) -> None:
    reader = saved(alike=True)
    pair = [rank // 2 * 2, rank // 2 * 2 + 1]
    assert restored(reader, rank, pair, world).tolist() == [[rank % 2] * 2] * 2


@pytest.mark.parametrize("saved", ["memory", "a checkpoint"], indirect=True)
@pytest.mark.parametrize(("rank", "world"), [(0, 2), (1, 2), (5, 6)])
def test_another_number_of_ranks_is_refused_where_they_differ(saved: Any, rank: int, world: int) -> None:
    reader = saved(alike=False)
    with pytest.raises(StateError, match=r"groups of ranks \(0-1, 2-3\) have saved a tensor of this name each"):
        restored(reader, rank, [rank // 2 * 2, rank // 2 * 2 + 1], world)


def test_a_group_that_has_saved_nothing_is_missed(memory: Path) -> None:
    """Taken out: with another group's tensor of that name there, nothing was missed."""
    target = writer.SaveTarget(memory / "checkpoints", STEP, "interval", "net", WORLD)
    writer.prepare(target)
    for rank in range(WORLD):
        with state_of(rank, Box(), PAIRS[rank // 2], rank) as state:
            slot = write_slot(state, memory, STEP)
        if rank > 1:
            _remove_tensors(slot)
        writer.write_shard_of(target, rank, slot)
    with pytest.raises(Damaged, match=r"the state of rank 2 names the tensor box\.w, which no rank has saved"):
        writer.commit(target)


def test_a_rank_with_a_tensor_of_its_own_beside_a_group(memory: Path) -> None:
    """Rank 0 has one under the same name, whole: no other rank takes it for its group's.

    Taken out: with the plain key before the groups, ranks that were in another group than before got rank 0's.
    """
    for rank in range(WORLD):
        box = Box()
        with state_of(rank, box, PAIRS[rank // 2], rank) as state:
            if rank == 0:
                box.content = {"w": torch.full((4, 2), 7.0)}
            if rank != 1:
                write_slot(state, memory, STEP)
    own = dict.fromkeys((0, 2, 3), 0)
    reader = MemoryReader(memory, STEP, WORLD, own)
    reader.partial = False
    assert restored(lambda _: reader, 3, PAIRS[1]).tolist() == [[3.0] * 2] * 2
    for rank, ranks, world in ((3, [1, 3], WORLD), (0, PAIRS[0], 2)):
        with pytest.raises(StateError, match=r"groups of ranks \(0, 2-3\) have saved a tensor of this name each"):
            restored(lambda _: reader, rank, ranks, world)


@pytest.mark.parametrize("rank", range(WORLD))
def test_ranks_outside_the_mesh_of_a_tensor_name_it_and_have_nothing_of_it(memory: Path, rank: int) -> None:
    """Tried: without `outside` in common.json no checkpoint of such a job was committed."""
    target = writer.SaveTarget(memory / "checkpoints", STEP, "interval", "net", WORLD)
    writer.prepare(target)
    for saving in range(WORLD):
        with state_of(saving, Box(), PAIRS[0], saving) as state:
            assert list(state.collect().outside) == ([] if saving in PAIRS[0] else ["box.w"])
            writer.write_shard_of(target, saving, write_slot(state, memory, STEP))
    directory, _ = writer.commit(target)
    verify.verify(directory)
    alone = {"box.w": torch.empty(4, 2)}
    dcp.load(alone, storage_reader=CheckpointStorageReader(directory), no_dist=True)
    assert alone["box.w"].tolist() == [[0.0] * 2] * 2 + [[1.0] * 2] * 2, "by the name that the script knows"
    local = restored(lambda _: CheckpointReader(directory), rank, PAIRS[0])
    assert local.tolist() == ([[rank] * 2] * 2 if rank in PAIRS[0] else [])


def test_what_only_others_have_must_be_saved_by_them(memory: Path) -> None:
    target = writer.SaveTarget(memory / "checkpoints", STEP, "interval", "net", WORLD)
    writer.prepare(target)
    for rank in range(WORLD):
        with state_of(rank, Box(), PAIRS[0], rank) as state:
            slot = write_slot(state, memory, STEP)
        _remove_tensors(slot)
        writer.write_shard_of(target, rank, slot)
    with pytest.raises(Damaged, match=r"names the tensor box\.w, which no rank has saved"):
        writer.commit(target)


def _remove_tensors(slot: Path) -> None:
    from tests.support.checkpoints import image

    for group in layout.GROUPS:
        layout.slot_file(slot, group).unlink()
        image(layout.slot_file(slot, group), {})


@pytest.mark.parametrize(
    ("ranks", "is_whole", "is_compared"),
    [([0, 1, 2, 3], True, True), ([0, 1, 2, 3], False, False), ([0, 1], True, False)],
)
def test_a_dtensor_is_compared_where_every_rank_holds_it_whole(
    ranks: list[int], is_whole: bool, is_compared: bool
) -> None:
    """The supervisor compares digests of what has the key of a replica (replica_digests.py)."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    with process_group(0, WORLD):
        placement = Replicate() if is_whole else Shard(0)
        weight = DTensor.from_local(torch.ones(2, 2), DeviceMesh("cpu", ranks), [placement], run_check=False)
        state = RankState({"box": Box(w=weight)}, (), 0, WORLD, (), None, one_node(WORLD))
        [item] = [item for item in state.collect().items if item.whole]
        assert item.replica == ("box.w" if is_compared else "")
