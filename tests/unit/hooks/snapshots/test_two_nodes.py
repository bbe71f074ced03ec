"""The ranks of a node agree among themselves: its memory holds all that its ranks need, and can be restored alone.

Tried: with shares for the ranks of the whole job, a node lacks what the other node's ranks were to save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.support.checkpoints import image
from tests.support.nodes import WORLD, Node, NodeRank, process_group
from tests.support.snapshots import Box, equal, write_slot

from ftlaunch_contract.checkpoint import layout, verify, writer
from ftlaunch_contract.checkpoint.tensor_file import Chunk
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.reading import Lookup
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader

STEP = 3


@pytest.fixture(params=[(2, 2), (1, 3)], ids=str)
def nodes(request: pytest.FixtureRequest, memory: Path) -> Iterator[list[Node]]:
    """Both have trained three steps, and have taken the snapshot of the last."""
    one, other = request.param
    with process_group():
        found = [
            Node(memory / "one", NodeRanks(0, one, WORLD)),
            Node(memory / "other", NodeRanks(one, other, WORLD)),
        ]
        for node in found:
            for rank in node.ranks:
                rank.train()
            node.together(lambda rank: rank.snapshot(STEP))
        yield found
        for node in found:
            node.close()


def test_each_node_has_all_that_is_replicated_once_and_what_is_its_ranks_own(nodes: list[Node]) -> None:
    for node in nodes:
        keys = Counter(item.key for rank in node.ranks for item in rank.state.collect().items if item.owned)
        replicated = {item.key for item in node.ranks[0].state.collect().items if item.replica}
        assert "model.0.weight" in replicated
        assert "optimizer.state.model.0.weight.exp_avg" in replicated
        assert {keys[key] for key in replicated} == {1}
        owns = {f"own.tensor@{rank}" if rank else "own.tensor" for rank in node.node.ranks}
        assert {key for key in keys if key.startswith("own.tensor")} == owns
        shares = [sum(i.tensor.nbytes for i in rank.state.collect().items if i.owned) for rank in node.ranks]
        assert max(shares) < 2 * min(shares), "they share it out"


def test_each_rank_is_restored_bit_for_bit_from_the_memory_of_its_node_alone(nodes: list[Node]) -> None:
    for node in nodes:
        reader = node.reader(STEP)
        for rank in node.ranks:
            fresh = NodeRank(node.directory, node.node, rank.rank, seed=1)
            assert not equal(fresh.content(), rank.content())
            fresh.state.restore(reader)
            assert equal(fresh.content(), rank.content())
            assert fresh.own.content["number"] == 10 * rank.rank
            fresh.close()


def test_a_node_goes_on_with_what_it_has_agreed_on(nodes: list[Node]) -> None:
    for node in nodes:
        for step in (STEP + 1, STEP + 2):
            for rank in node.ranks:
                rank.own.content["tensor"].fill_(step)
            node.together(lambda rank, step=step: rank.snapshot(step))  # type: ignore[misc]
        for rank in node.ranks:
            lookup = Lookup(node.reader(STEP + 2), rank.rank, WORLD)
            assert lookup.get("own.tensor", "cpu").tolist() == [STEP + 2] * 3


def test_what_no_rank_of_the_node_has_saved_is_refused_and_nothing_has_changed(nodes: list[Node]) -> None:
    node = nodes[1]
    first = node.node.first
    lacking = MemoryReader(node.directory, STEP, WORLD, {first: node.slots(STEP)[first]})
    fresh = NodeRank(node.directory, node.node, first, seed=1)
    before = [value.clone() for value in fresh.model.state_dict().values()]
    with pytest.raises(StateError, match=r"cannot restore `model.*: it is not in what was saved"):
        fresh.state.restore(lacking)
    assert equal(list(fresh.model.state_dict().values()), before)
    fresh.close()


def make_slot(directory: Path, rank: int, chunk: Chunk) -> None:
    where = layout.slot_dir(directory, rank, 0)
    where.mkdir()
    data = torch.arange(chunk.nbytes // 4, dtype=torch.float32).numpy().tobytes()
    for group, chunks in (("model", {chunk: data}), ("opt", {})):
        image(layout.slot_file(where, group), chunks)
    (where / layout.COMMON).write_text(f'{{"step": {STEP}, "consumed_samples": 0, "state": {{}}}}')


@pytest.mark.parametrize("rows", [1, 2], ids=["a piece that would be repeated", "a piece that ends too early"])
def test_a_tensor_of_which_other_nodes_have_the_rest_is_refused(memory: Path, rows: int) -> None:
    make_slot(memory, 2, Chunk("w", "F32", (rows, 2), "w", (2, 0), (8, 2)))
    make_slot(memory, 3, Chunk("w", "F32", (4, 2), "w", (4, 0), (8, 2)))
    lookup = Lookup(MemoryReader(memory, STEP, WORLD, {2: 0, 3: 0}), 2, WORLD)
    with pytest.raises(StateError, match=rf"of its 16 values {2 * rows + 8} are in what was saved here"):
        lookup.get("w", "cpu")


@pytest.mark.parametrize("rank", range(WORLD))
def test_a_shard_that_lies_on_this_node_is_read_though_others_do_not(memory: Path, rank: int) -> None:
    """fully_shard over all nodes, and the like: each rank needs its own shard alone."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    here = [rank // 2 * 2, rank // 2 * 2 + 1]
    for one in here:
        make_slot(memory, one, Chunk("w", "F32", (2, 2), "w", (2 * one, 0), (8, 2)))
    with process_group(rank):
        mesh = init_device_mesh("cpu", (WORLD,))
        target = DTensor.from_local(torch.full((2, 2), -1.0), mesh, [Shard(0)], run_check=False)
        Lookup(MemoryReader(memory, STEP, WORLD, dict.fromkeys(here, 0)), rank, WORLD).fill({"w": target})
        assert target.to_local().tolist() == [[0.0, 1.0], [2.0, 3.0]]
        for one in here:
            slots = dict.fromkeys([other for other in here if other != one], 0)
            if one == rank:
                with pytest.raises(StateError, match="of its 4 values 0 are"):
                    Lookup(MemoryReader(memory, STEP, WORLD, slots), rank, WORLD).fill({"w": target})


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_a_tensor_of_fewer_rows_than_ranks_is_restored_on_a_node_that_has_none_of_it(memory: Path, rows: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    nodes = [NodeRanks(first, 2, WORLD) for first in (0, 2)]
    slots: list[Path] = []

    def state_of(rank: int, box: Box, value: float) -> RankState:
        mesh = init_device_mesh("cpu", (WORLD,))
        size = -(-rows // WORLD)
        held = torch.full((max(min(size, rows - size * rank), 0), 2), value)
        box.content = {"w": DTensor.from_local(held, mesh, [Shard(0)], run_check=False, shape=(rows, 2), stride=(2, 1))}
        return RankState({"box": box}, (), rank, WORLD, (), None, nodes[rank // 2])

    for rank in range(WORLD):
        with process_group(rank):
            slots.append(write_slot(state_of(rank, Box(), rank + 1.0), memory, STEP))
    for rank in range(WORLD):
        with process_group(rank):
            box = Box()
            state = state_of(rank, box, -1.0)
            state.restore(MemoryReader(memory, STEP, WORLD, dict.fromkeys(nodes[rank // 2].ranks, 0)))
            local = box.content["w"].to_local()
            assert local.tolist() == [[rank + 1.0] * 2] * local.shape[0]
    target = writer.SaveTarget(memory / "checkpoints", STEP, "interval", "net", WORLD)
    writer.prepare(target)
    for rank, slot in enumerate(slots):
        writer.write_shard_of(target, rank, slot)
    directory, _ = writer.commit(target)
    verify.verify(directory)
    whole = Lookup(CheckpointReader(directory), 0, WORLD).get("box.w", "cpu")
    assert whole.tolist() == [[1.0 + row // -(-rows // WORLD)] * 2 for row in range(rows)]


@pytest.mark.parametrize(
    ("count", "first"), [(4, [0, 1]), (2, [0, 1, 2, 3]), (1, [0, 1, 2, 3])], ids=["one node", "two", "four"]
)
def test_of_equal_shards_each_node_saves_one(count: int, first: list[int]) -> None:
    """Hybrid sharding: shards within a pair of ranks, the pairs are replicas of each other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    saving = []
    for rank in range(WORLD):
        with process_group(rank):
            mesh = init_device_mesh("cpu", (2, 2))
            whole = DTensor.from_local(torch.ones(2, 2), mesh, [Replicate(), Shard(0)], run_check=False)
            node = NodeRanks(rank // count * count, count, WORLD)
            state = RankState({"box": Box(w=whole)}, (), rank, WORLD, (), None, node)
            [item] = state.collect().items
            assert item.offset == (2 * (rank % 2), 0)
            saving += [rank] if item.owned else []
    assert saving == first
