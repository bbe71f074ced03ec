"""A data-parallel job that is killed goes on from its snapshots, and from a checkpoint, bit for bit."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.support.ranks import on_ranks
from tests.support.snapshots import make_pages
from tests.support.waiting import wait_for
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ftlaunch_contract.checkpoint import layout, tensor_file, verify, writer
from ftlaunch_contract.pages.page import NONE, Page, open_pages
from ftlaunch_contract.protocol import Flag, process_start_time
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader

STEPS, KILLED_AT = 10, 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class Job:
    """Data-parallel training of a net whose every kind of state matters: dropout, batch norm, a schedule."""

    def __init__(self, rank: int, world_size: int, seed: int, wrapped: bool, pages: Sequence[Page] = ()) -> None:
        torch.manual_seed(seed)
        self.net = Net()
        self.replica = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        objects = {
            "model": self.replica if wrapped else self.net,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }
        self.state = RankState(objects, (), rank, world_size, pages)
        torch.manual_seed(seed + rank)

    def step(self) -> str:
        loss = self.replica(torch.randn(8, 16) * random.random()).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss.item().hex()

    def weights(self) -> dict[str, torch.Tensor]:
        return {key: tensor.clone() for key, tensor in self.net.state_dict().items()}


def undisturbed(rank: int) -> tuple[list[str], dict[str, torch.Tensor]]:
    random.seed(rank)
    job = Job(rank, 2, seed=1, wrapped=False)
    return [job.step() for _ in range(STEPS)], job.weights()


def killed(rank: int, memory: Path, checkpoints: Path) -> None:
    random.seed(rank)
    pages = open_pages(memory, 2)
    pages[rank].begin(0, os.getpid(), process_start_time(os.getpid()))
    job = Job(rank, 2, seed=1, wrapped=False, pages=pages)
    assert job.state.agree(0)
    snapshots = Snapshotter(job.state, pages[rank], pages, memory, rank, {"torch": torch.__version__})
    snapshots.capture(0)
    pages[rank].raise_flag(Flag.ATTACHED)
    job.state.restore_rng()
    for step in range(1, STEPS):
        if step == KILLED_AT and rank == 1:
            # torch ends the other rank then: it must have the snapshot before
            wait_for(lambda: KILLED_AT - 1 in pages[0].slot_steps(), "the other rank's snapshot")
            os.kill(os.getpid(), signal.SIGKILL)
        job.step()
        assert job.state.agree(step)
        snapshots.capture(step)
        if step == 3:
            target = writer.SaveTarget(checkpoints, 3, "interval", "net", 2)
            if rank == 0:
                writer.prepare(target)
            dist.barrier()
            writer.write_shard(target, rank, *snapshots.slot_files(3))
            dist.barrier()
            if rank == 0:
                writer.commit(target)


def resumed(rank: int, memory: Path, checkpoints: Path) -> list[tuple[list[str], dict[str, torch.Tensor]]]:
    pages = open_pages(memory, 2)
    newest = max(set(pages[0].slot_steps()) & set(pages[1].slot_steps()))
    slots = {r: page.slot_steps().index(newest) for r, page in enumerate(pages)}
    results = []
    for reader in (
        MemoryReader(memory, newest, 2, slots),
        CheckpointReader(layout.iteration_dir(checkpoints, 3)),
    ):
        random.seed(77)
        job = Job(rank, 2, seed=9, wrapped=True)
        job.state.restore(reader)
        torch.rand(3)
        job.state.restore_rng()
        results.append(([job.step() for _ in range(reader.step, STEPS)], job.weights()))
    return results


@pytest.mark.long
def test_a_killed_job_goes_on_bit_for_bit_from_memory_and_from_storage(memory: Path, tmp_path: Path) -> None:
    expected = on_ranks(2, undisturbed)
    make_pages(memory, 2)
    # the other rank fails over the dead one, and may be seen first
    with pytest.raises((mp.ProcessExitedException, mp.ProcessRaisedException)):
        on_ranks(2, killed, memory, tmp_path)
    pages = open_pages(memory, 2)
    assert set(pages[1].slot_steps()) == {KILLED_AT - 2, KILLED_AT - 1, NONE}
    verify.verify(layout.iteration_dir(tmp_path, 3))
    for rank, results in enumerate(on_ranks(2, resumed, memory, tmp_path)):
        losses, weights = expected[rank]
        for (found, after), begin in zip(results, (KILLED_AT - 1, 3), strict=True):
            assert found == losses[begin:]
            assert all(after[key].equal(weights[key]) for key in weights)
    one, other = (
        {chunk.key for chunk in tensor_file.read_header(os.open(path, os.O_RDONLY))[0]}
        for path in sorted(tmp_path.glob("iteration_0000003/*-model-*"))
    )
    assert one.isdisjoint(other)  # replicated: each parameter saved once
    assert len(one & {"model.layers.0.weight", "model.layers.3.weight"}) == 1
