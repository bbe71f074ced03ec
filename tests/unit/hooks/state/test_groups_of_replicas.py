"""Parameters that a group of the job's ranks holds alike: one rank of the group saves them, and each group its own.

Four ranks: pairs (0, 2) and (1, 3) hold the halves of a model alike, as data-parallel ranks beside tensor parallelism
do; `everywhere` is the same on all. The optimizer steps FP32 copies that belong to no module.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.checkpoints import image
from tests.support.snapshots import write_slot
from torch import nn

from ftlaunch_contract.checkpoint import layout, verify, writer
from ftlaunch_contract.checkpoint.tensor_file import Damaged
from ftlaunch_contract.node_ranks import NodeRanks, one_node
from ftlaunch_contract.pages.page import create_page, open_pages, page_path
from ftlaunch_contract.protocol import process_start_time
from ftlaunch_hooks.state.state import RankState, StateError
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader, SavedTensors

WORLD, STEP = 4, 3
PAIRS = [(0, 2), (1, 3), (0, 2), (1, 3)]


class OneRank:
    """A rank whose model and FP32 copies hold `value`."""

    def __init__(self, rank: int, value: float, node: NodeRanks, directory: Path, world: int = WORLD) -> None:
        self.rank = rank
        self.model = nn.ParameterDict({"share": torch.full((4,), value), "everywhere": torch.full((3,), 9.0)})
        self.master = torch.full((4,), value + 0.5)
        self.optimizer = torch.optim.Adam([self.master])
        self.master.grad = torch.ones(4)
        self.optimizer.step()
        self.optimizer.zero_grad()
        pages = open_pages(directory, node.count, node.first)
        pages[node.place(rank)].begin(0, os.getpid(), process_start_time(os.getpid()))
        said: dict[str, Callable[[Any], Any]] = {"model": self._ranks_of, "optimizer": lambda _: PAIRS[rank]}
        objects = {"model": self.model, "optimizer": self.optimizer}
        self.state = RankState(objects, (), rank, world, pages, None, node, said if world == WORLD else ())

    def _ranks_of(self, parameter: Any) -> Any:
        return range(WORLD) if parameter is self.model["everywhere"] else PAIRS[self.rank]

    def held(self) -> list[float]:
        """The value of the half, of its FP32 copy, and of that copy's state."""
        slots = self.optimizer.state[self.master]
        return [self.model["share"][0].item(), self.master[0].item(), slots["exp_avg"][0].item(), slots["step"].item()]


def make_ranks(directory: Path, nodes: str) -> list[OneRank]:
    """All ranks of the job, each node in a directory of its own, after they have agreed at a boundary."""
    ranks = []
    for rank in range(WORLD):
        node = one_node(WORLD) if nodes == "one node" else NodeRanks(rank // 2 * 2, 2, WORLD)
        home = directory / str(node.first)
        home.mkdir(exist_ok=True)
        if not page_path(home, rank).exists():
            create_page(page_path(home, rank))
    for rank in range(WORLD):
        node = one_node(WORLD) if nodes == "one node" else NodeRanks(rank // 2 * 2, 2, WORLD)
        ranks.append(OneRank(rank, float(PAIRS[rank][0]), node, directory / str(node.first)))
    with ThreadPoolExecutor(WORLD) as pool:
        assert all(pool.map(lambda one: one.state.agree(STEP), ranks, timeout=60.0))
    return ranks


def keys_of(slot: Path) -> set[str]:
    """The keys of the tensors that a snapshot holds."""
    found = set()
    for group in layout.GROUPS:
        with layout.slot_file(slot, group).open("rb") as file:
            found |= json.loads(file.read(int.from_bytes(file.read(8), "little"))).keys()
    return found - {"__metadata__"}


SHARE, MASTER, MOMENT = "model.share", "grad.optimizer.0:value", "optimizer.state.0.exp_avg"


def test_each_tensor_is_in_one_snapshot_of_its_group(tmp_path: Path) -> None:
    """Taken out: with each rank's own, all of these are in four snapshots."""
    slots = [keys_of(write_slot(one.state, tmp_path / "0", STEP)) for one in make_ranks(tmp_path, "one node")]
    for name in (SHARE, MASTER, MOMENT):
        for pair, key in (((0, 2), f"{name}@0-2:2"), ((1, 3), f"{name}@1-3:2")):
            assert [rank for rank in range(WORLD) if key in slots[rank]] in [[rank] for rank in pair], key
        assert not any(f"{name}@{rank}" in slot for rank, slot in enumerate(slots))
    assert sum("model.everywhere" in slot for slot in slots) == 1


def test_each_node_holds_what_its_groups_have(tmp_path: Path) -> None:
    """Of a pair one rank is on each node, so both nodes hold both halves under one key: no copy is needed."""
    ranks = make_ranks(tmp_path, "two nodes")
    slots = [keys_of(write_slot(one.state, tmp_path / str(one.rank // 2 * 2), STEP)) for one in ranks]
    on_nodes = [slots[0] | slots[1], slots[2] | slots[3]]
    for name in (SHARE, MASTER, MOMENT):
        assert all({f"{name}@0-2:2", f"{name}@1-3:2"} <= keys for keys in on_nodes)


@pytest.fixture(params=["memory", "a checkpoint", "the memory of two nodes"])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], SavedTensors]:
    """rank -> what it reads of what all have saved."""
    ranks = make_ranks(tmp_path, "two nodes" if "nodes" in request.param else "one node")
    homes = [tmp_path / str(one.rank // 2 * 2 if "nodes" in request.param else 0) for one in ranks]
    slots = [write_slot(one.state, home, STEP) for one, home in zip(ranks, homes, strict=True)]
    if request.param == "memory":
        return lambda _: MemoryReader(homes[0], STEP, WORLD, dict.fromkeys(range(WORLD), 0))
    if request.param == "the memory of two nodes":
        return lambda rank: MemoryReader(homes[rank], STEP, WORLD, dict.fromkeys((rank // 2 * 2, rank // 2 * 2 + 1), 0))
    directory = committed(tmp_path, slots)
    verify.verify(directory)
    return lambda _: CheckpointReader(directory)


def committed(home: Path, slots: list[Path]) -> Path:
    target = writer.SaveTarget(home / "checkpoints", STEP, "interval", "net", WORLD)
    writer.prepare(target)
    for rank, slot in enumerate(slots):
        writer.write_shard_of(target, rank, slot)
    directory, _ = writer.commit(target)
    return directory


@pytest.mark.parametrize("rank", range(WORLD))
def test_each_rank_goes_on_with_what_its_group_had(
    saved: Callable[[int], SavedTensors], rank: int, tmp_path: Path
) -> None:
    reader = saved(rank)
    node = NodeRanks(rank // 2 * 2, 2, WORLD) if reader.partial else one_node(WORLD)
    expected = OneRank(rank, float(PAIRS[rank][0]), node, tmp_path / str(node.first)).held()
    other = OneRank(rank, -1.0, node, tmp_path / str(node.first))
    assert other.held() != expected
    other.state.restore(reader)
    assert other.held() == expected


@pytest.mark.parametrize("saved", ["memory", "a checkpoint"], indirect=True)
def test_another_number_of_ranks_is_refused_where_groups_differ(
    saved: Callable[[int], SavedTensors], tmp_path: Path
) -> None:
    """Taken out: without the ranks in the key all would go on with the share of ranks 0 and 2."""
    other = OneRank(0, -1.0, one_node(WORLD), tmp_path / "0", world=2)
    with pytest.raises(StateError, match="each of the 4 ranks that saved it had a state of its own"):
        other.state.restore(saved(0))


def test_a_group_whose_tensor_nobody_has_saved_is_missed(tmp_path: Path) -> None:
    slots = [write_slot(one.state, tmp_path / "0", STEP) for one in make_ranks(tmp_path, "one node")]
    for rank in (1, 3):
        for group in layout.GROUPS:
            layout.slot_file(slots[rank], group).unlink()
            image(layout.slot_file(slots[rank], group), {})
    with pytest.raises(Damaged, match=r"the state of rank [013] names the tensor .*, which no rank has saved"):
        committed(tmp_path, slots)
