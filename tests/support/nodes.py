"""Two nodes of a job of four ranks in one process: a memory directory for each node, and a thread for each rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import debug
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from ftlaunch_contract.checkpoint import layout
from ftlaunch_contract.node_ranks import NodeRanks
from ftlaunch_contract.pages.page import create_page, open_pages, page_path
from ftlaunch_contract.protocol import Why, process_start_time
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import MemoryReader
from tests.support.snapshots import Box, net, train

WORLD = 4
Answer = TypeVar("Answer")


@contextmanager
def process_group(rank: int = 0, world_size: int = WORLD) -> Iterator[None]:
    """Join a process group of `world_size` ranks in which this rank is alone: its collectives change nothing."""
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
        _forget_meshes()


def _forget_meshes() -> None:
    """Clear DTensor's caches, which hold results of another rank for equal meshes."""
    if hasattr(debug, "_clear_sharding_prop_cache"):
        debug._clear_sharding_prop_cache()
    else:  # torch 2.10
        debug._clear_python_sharding_prop_cache()
        debug._clear_fast_path_sharding_prop_cache()


class NodeRank:
    """A rank with a replicated model and optimizer, and with state of its own."""

    def __init__(self, directory: Path, node: NodeRanks, rank: int, seed: int = 0) -> None:
        """Open the node's pages, and build model, optimizer and snapshots of one rank."""
        self.rank = rank
        self.pages = open_pages(directory, node.count, node.first)
        self.page = self.pages[node.place(rank)]
        self.page.begin(0, os.getpid(), process_start_time(os.getpid()))
        self.model = DistributedDataParallel(net(seed))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.own = Box(number=rank, tensor=torch.zeros(3))
        objects: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "own": self.own}
        self.state = RankState(
            objects=objects,
            frozen=(),
            rank=rank,
            world_size=node.world_size,
            peers=self.pages,
            node=node,
        )
        self.snapshots = Snapshotter(
            state=self.state,
            page=self.page,
            peers=self.pages,
            directory=directory,
            rank=rank,
            versions={},
        )

    def train(self) -> None:
        """Make three steps, equal on all ranks but for the buffers and the rank's own state."""
        torch.manual_seed(7)
        train(self.model.module, self.optimizer)  # this group reduces nothing
        self.optimizer.zero_grad()
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.fill_(self.rank)  # type: ignore[union-attr, operator]
        self.own.content = {"number": 10 * self.rank, "tensor": torch.full((3,), float(self.rank))}

    def content(self) -> list[Any]:
        """Return everything that is saved."""
        return [self.model.state_dict(), self.optimizer.state_dict(), self.own.content]

    def snapshot(self, step: int, hold: Why | None = None) -> None:
        """Agree on the state, take a snapshot, and wait for its end, as a step boundary does."""
        assert self.state.agree(step)
        assert self.snapshots.capture(step, hold)
        self.snapshots.settle()

    def close(self) -> None:
        self.snapshots.close()
        for page in self.pages:
            page.close()


class Node:
    """The ranks of one node."""

    def __init__(self, directory: Path, ranks: NodeRanks) -> None:
        self.directory = directory
        self.node = ranks
        directory.mkdir()
        for rank in ranks.ranks:
            create_page(page_path(directory, rank))
        self.ranks = [NodeRank(directory, ranks, rank) for rank in ranks.ranks]

    def together(self, act: Callable[[NodeRank], Answer]) -> list[Answer]:
        """Call `act` for each rank in a thread of its own; return the results."""
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return list(pool.map(act, self.ranks, timeout=60.0))

    def slots(self, step: int) -> dict[int, int]:
        """Return for each rank the slot that holds `step`."""
        return {rank.rank: rank.page.slot_steps().index(step) for rank in self.ranks}

    def slot_dirs(self, step: int) -> dict[str, str]:
        """Return for each rank the directory of the slot that holds `step`, as a saver takes them."""
        return {str(r): str(layout.slot_dir(self.directory, r, slot)) for r, slot in self.slots(step).items()}

    def reader(self, step: int) -> MemoryReader:
        """Return the reader that a rank of this node uses when it resumes."""
        return MemoryReader(self.directory, step, self.node.world_size, self.slots(step))

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()
