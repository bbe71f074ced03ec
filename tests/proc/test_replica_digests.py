"""Replicas on two ranks digest the same, buffers aside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from tests.support.ranks import on_ranks
from tests.support.snapshots import make_pages
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ftlaunch_contract.pages.page import open_pages
from ftlaunch_contract.protocol import process_start_time
from ftlaunch_hooks.observe.replica_digests import DigestPlan
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.tensors.replicated import replicated_parameters


def _told_by_a_rank(rank: int, directory: str) -> list[tuple[str, ...]]:
    torch.manual_seed(rank)
    wrapped = DistributedDataParallel(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), broadcast_buffers=False)
    optimizer = torch.optim.Adam(wrapped.parameters())
    pages = open_pages(Path(directory), 2)
    pages[rank].begin(0, os.getpid(), process_start_time(os.getpid()))
    state = RankState({"model": wrapped, "optimizer": optimizer}, (), rank, 2, pages)
    wrapped(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    assert state.agree(1)
    plan = DigestPlan(state.collect().items)
    return [(plan.names[index], str(plan.digest(index))) for index in range(len(plan.parts))]


@pytest.mark.long
def test_parameters_and_their_optimizer_state_are_equal_and_buffers_are_not_looked_at(tmp_path: Path) -> None:
    make_pages(tmp_path, 2)
    first, second = on_ranks(2, _told_by_a_rank, str(tmp_path))
    assert first == second
    names = " ".join(name for name, _ in first)
    assert "model.0.weight" in names
    assert "exp_avg" in names
    assert "running_mean" not in names


def _replicas_with_a_hook(rank: int, directory: str) -> list[str]:
    found = []
    for hook in (fp16_compress_hook, post_localSGD_hook):
        wrapped = DistributedDataParallel(nn.Linear(4, 4))
        wrapped.register_comm_hook(None, hook)
        if len(replicated_parameters(rank, 2)) == 2:
            found.append(hook.__name__)
        del wrapped
    return found


@pytest.mark.long
def test_parameters_that_a_communication_hook_may_let_drift_apart_are_each_ranks_own(tmp_path: Path) -> None:
    assert on_ranks(2, _replicas_with_a_hook, str(tmp_path)) == [["fp16_compress_hook"]] * 2
