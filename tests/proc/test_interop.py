"""Our checkpoints read by scripts that know nothing of us: torch's own readers, and safetensors'."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from tests.support.ranks import on_ranks
from tests.support.snapshots import equal, make_pages, write_slot
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from ftlaunch_contract.checkpoint import layout, verify
from ftlaunch_contract.checkpoint import writer as persist
from ftlaunch_contract.pages.page import open_pages
from ftlaunch_contract.protocol import process_start_time
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.dcp_writer import CheckpointStorageWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:.*HuggingFace")


def net(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 1))


def save(rank: int, world_size: int, memory: Path, checkpoints: Path, step: int, objects: dict[str, Any]) -> None:
    """What snapshot and saver do between them, for the objects of this rank."""
    pages = open_pages(memory, world_size)
    pages[rank].begin(0, os.getpid(), process_start_time(os.getpid()))
    state = RankState(objects, (), rank, world_size, pages)
    assert state.agree(step)
    slot = write_slot(state, memory, step)
    target = persist.SaveTarget(checkpoints, step, "interval", "net", world_size)
    if rank == 0:
        persist.prepare(target)
    dist.barrier()
    persist.write_shard_of(target, rank, slot)
    dist.barrier()
    if rank == 0:
        persist.commit(target)
    dist.barrier()


def whole(tensor: Any) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def two_ranks(rank: int, memory: Path, checkpoints: Path) -> dict[str, Any]:
    """Save a replicated and a sharded model as step 1 and 2, and a sharded one by dcp.save as step 3."""
    found = {}
    for step, kind in ((1, "ddp"), (2, "fsdp")):
        model: nn.Module = net(step)
        if kind == "ddp":
            model = DistributedDataParallel(model)
        else:
            mesh = init_device_mesh("cpu", (2,))
            fully_shard(model[0], mesh=mesh)
            fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        model(torch.randn(4, 5)).sum().backward()
        optimizer.step()
        save(rank, 2, memory, checkpoints, step, {"model": model, "optimizer": optimizer})
        tensors = {name.removeprefix("module."): whole(t) for name, t in model.state_dict().items()}
        moments = [whole(optimizer.state[p]["exp_avg"]) for p in model.parameters()]
        found[step] = (tensors, moments)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    writer = CheckpointStorageWriter(checkpoints, 3)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, storage_writer=writer)
    found[3] = found[2]
    return found


@pytest.mark.long
def test_scripts_that_know_nothing_of_us_load_our_checkpoints(memory: Path, tmp_path: Path) -> None:
    """By `dcp.load` into one process, and by safetensors: no key of ours but the attached object's name in front."""
    make_pages(memory, 2)
    saved = on_ranks(2, two_ranks, memory, tmp_path)[0]
    for step, (tensors, moments) in saved.items():
        directory = layout.iteration_dir(tmp_path, step)
        verify.verify(directory)
        reader = HuggingFaceStorageReader(str(directory))
        model = net(9)
        wanted = {"model": model.state_dict()}
        dcp.load(wanted, storage_reader=reader)
        for name, tensor in tensors.items():
            assert wanted["model"][name].equal(tensor), (step, name)
            assert dict(model.state_dict())[name].equal(tensor)  # in place
        prefix = "" if step == 3 else "model."  # ours go by the parameter's own key, object name included
        names = [name for name, _ in model.named_parameters()]
        state = {f"{prefix}{n}": {"exp_avg": torch.zeros_like(p)} for n, p in model.named_parameters()}
        dcp.load({"optimizer": {"state": state}}, storage_reader=reader)
        assert all(state[prefix + n]["exp_avg"].equal(m) for n, m in zip(names, moments, strict=True))
    replicated_files(layout.iteration_dir(tmp_path, 1), saved[1][0])


def replicated_files(directory: Path, saved: dict[str, torch.Tensor]) -> None:
    """The files of a replicated model hold it whole, and buffers of the other ranks under names of their own."""
    found: dict[str, torch.Tensor] = {}
    for path in directory.glob("*-model-*.safetensors"):
        found |= load_file(path)
    names = {key.removeprefix("model.") for key in found}
    assert names - set(saved) == {f"1.{buffer}@1" for buffer in ("num_batches_tracked", "running_mean", "running_var")}
    model = net(9)
    model.load_state_dict({name: found[f"model.{name}"] for name in saved})
    assert all(model.state_dict()[name].equal(tensor) for name, tensor in saved.items())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3),
        torch.tensor(2.5),
        torch.tensor([True, False]),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.tensor([1 + 2j], dtype=torch.complex64),
        torch.arange(4, dtype=torch.bfloat16),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_odd_tensors_are_read_too(tensor: torch.Tensor, tmp_path: Path) -> None:
    dcp.save({"model": {"x": tensor}}, storage_writer=CheckpointStorageWriter(tmp_path, 1))
    wanted = {"model": {"x": torch.full_like(tensor, 0)}}
    dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(layout.iteration_dir(tmp_path, 1))))
    assert equal(wanted["model"]["x"], tensor)


def test_an_asynchronous_save_is_committed(tmp_path: Path) -> None:
    tensors = {"model": {"x": torch.arange(5.0)}}
    dcp.async_save(tensors, storage_writer=CheckpointStorageWriter(tmp_path, 4)).result()
    assert verify.verify(layout.iteration_dir(tmp_path, 4))["step"] == 4
