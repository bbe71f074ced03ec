"""Our checkpoints through torch.distributed.checkpoint: sharded state, other numbers of ranks, no pickle."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from tests.support.ranks import on_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial

from ftlaunch_contract.checkpoint import layout, tensor_file, verify, writer
from ftlaunch_contract.pages.page import create_page, open_pages, page_path
from ftlaunch_contract.protocol import Flag, process_start_time
from ftlaunch_hooks.snapshots.snapshotter import Snapshotter
from ftlaunch_hooks.state.state import RankState
from ftlaunch_hooks.storage.dcp_reader import CheckpointStorageReader
from ftlaunch_hooks.storage.dcp_writer import CheckpointStorageWriter
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, MemoryReader, SavedTensors

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def content(step: int = 0) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((3, 4), step, dtype=torch.bfloat16), "empty": torch.zeros(0, 2)},
        "optimizer": {"state": {"m": torch.full((5,), step + 0.5)}, "lr": 0.1 * step},
        "note": (step, {"x": math.inf}, None),
    }


def save(checkpoints: Path, step: int) -> Path:
    dcp.save(content(step), storage_writer=CheckpointStorageWriter(checkpoints, step, consumed_samples=9))
    return layout.iteration_dir(checkpoints, step)


def test_one_process_saves_and_loads(tmp_path: Path) -> None:
    directory = save(tmp_path, 7)
    metadata = verify.verify(directory)
    assert (metadata["step"], metadata["world_size"]) == (7, 1)
    assert sorted(metadata["files"]) == [
        "common.json",
        "dcp-model-0000000-0000001.safetensors",
        "dcp-opt-0000000-0000001.safetensors",
    ]
    assert (tmp_path / layout.TRACKER).read_text() == "7\n"
    loaded = content()
    dcp.load(loaded, storage_reader=CheckpointStorageReader(directory))
    expected = content(7)
    assert loaded["model"]["weight"].equal(expected["model"]["weight"])
    assert loaded["optimizer"]["state"]["m"].equal(expected["optimizer"]["state"]["m"])
    assert loaded["optimizer"]["lr"] == expected["optimizer"]["lr"]
    assert loaded["note"] == expected["note"]


def test_nothing_in_it_is_pickled(tmp_path: Path) -> None:
    for path in save(tmp_path, 7).iterdir():
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.name == layout.MARK:
            assert path.read_bytes() == b""
        else:
            assert load_file(path)


def test_a_new_save_of_the_same_step_replaces_the_old_and_keeps_it(tmp_path: Path) -> None:
    save(tmp_path, 7)
    verify.verify(save(tmp_path, 7))
    assert (tmp_path / "quarantine" / "iteration_0000007" / "metadata.json").exists()


def test_a_value_that_json_cannot_hold_is_refused_and_nothing_is_committed(tmp_path: Path) -> None:
    with pytest.raises(dcp.api.CheckpointException, match="cannot save `bad`: it is of type set"):
        dcp.save({"bad": {1}}, storage_writer=CheckpointStorageWriter(tmp_path, 1))
    assert layout.list_iterations(tmp_path) == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"model": {"other": torch.zeros(2)}}, "Missing key in checkpoint state_dict: model.other"),
        ({"model": {"weight": torch.zeros(2, 2)}}, "Size mismatch"),
    ],
)
def test_what_is_not_there_is_refused(wanted: dict[str, Any], words: str, tmp_path: Path) -> None:
    directory = save(tmp_path, 7)
    with pytest.raises(dcp.api.CheckpointException, match=words):
        dcp.load(wanted, storage_reader=CheckpointStorageReader(directory))


def test_a_reader_refuses_what_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(tensor_file.Damaged, match=r"metadata\.json is missing"):
        CheckpointStorageReader(tmp_path)


# --- FSDP2 ------------------------------------------------------------------------------------------------


def make(seed: int, sharded: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 33), nn.LayerNorm(33), nn.Linear(33, 1))  # odd: uneven and empty shards
    if sharded:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(rank: int, model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[str]:
    losses = []
    for step in steps:
        inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step)).chunk(2)[rank]
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
    return losses


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    return {key: (t.full_tensor() if isinstance(t, DTensor) else t).clone() for key, t in model.state_dict().items()}


def sharded_job(rank: int, memory: Path, checkpoints: Path) -> dict[str, Any]:
    """Train, snapshot at step 5, save it in both ways, go on; then go on again from each of the three."""
    model, optimizer = make(1, sharded=True)
    state = RankState({"model": model, "optimizer": optimizer}, (), rank, 2)
    pages = open_pages(memory, 2)
    pages[rank].begin(0, os.getpid(), process_start_time(os.getpid()))
    snapshots = Snapshotter(state, pages[rank], pages, memory, rank, {})
    snapshots.capture(0)
    pages[rank].raise_flag(Flag.ATTACHED)
    train(rank, model, optimizer, range(1, 6))
    snapshots.capture(5)
    dist.barrier()
    target = writer.SaveTarget(checkpoints, 5, "interval", "net", 2)
    if rank == 0:
        writer.prepare(target)
    dist.barrier()
    writer.write_shard(target, rank, *snapshots.slot_files(5))
    dist.barrier()
    if rank == 0:
        writer.commit(target)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save(
        {"model": model_state, "optim": optimizer_state},
        storage_writer=CheckpointStorageWriter(checkpoints, 6),
    )
    at = whole(model)
    losses = train(rank, model, optimizer, range(6, 10))

    found = {}
    slots = {r: page.slot_steps().index(5) for r, page in enumerate(pages)}
    readers: dict[str, SavedTensors] = {
        "memory": MemoryReader(memory, 5, 2, slots),
        "storage": CheckpointReader(layout.iteration_dir(checkpoints, 5)),
    }
    for name, reader in readers.items():
        other, second = make(2, sharded=True)
        RankState({"model": other, "optimizer": second}, (), rank, 2).restore(reader)
        found[name] = (train(rank, other, second, range(6, 10)), whole(other))
    other, second = make(3, sharded=True)
    model_state, optimizer_state = get_state_dict(other, second)
    wanted = {"model": model_state, "optim": optimizer_state}
    dcp.load(wanted, storage_reader=CheckpointStorageReader(layout.iteration_dir(checkpoints, 6)))
    set_state_dict(other, second, model_state_dict=wanted["model"], optim_state_dict=wanted["optim"])
    found["dcp"] = (train(rank, other, second, range(6, 10)), whole(other))
    snapshots.close()
    return {"at": at, "losses": losses, "weights": whole(model), "found": found}


@pytest.mark.long
def test_sharded_state_goes_on_bit_for_bit_and_loads_on_one_rank(memory: Path, tmp_path: Path) -> None:
    for rank in range(2):
        create_page(page_path(memory, rank))
    results = on_ranks(2, sharded_job, memory, tmp_path)
    for result in results:
        for name, (losses, weights) in result["found"].items():
            assert losses == result["losses"], name
            assert all(weights[key].equal(tensor) for key, tensor in result["weights"].items()), name
    verify.verify(layout.iteration_dir(tmp_path, 5))
    verify.verify(layout.iteration_dir(tmp_path, 6))

    # and here, one process without a process group, with a plain model
    pages = open_pages(memory, 2)
    slots = {rank: page.slot_steps().index(5) for rank, page in enumerate(pages)}
    optimizers = []
    for reader in (
        MemoryReader(memory, 5, 2, slots),
        CheckpointReader(layout.iteration_dir(tmp_path, 5)),
    ):
        model, optimizer = make(4, sharded=False)
        RankState({"model": model, "optimizer": optimizer}, (), 0, 1).restore(reader)
        assert all(model.state_dict()[key].equal(tensor) for key, tensor in results[0]["at"].items())
        assert all(entry["exp_avg"].shape == p.shape for p, entry in optimizer.state.items())
        optimizers.append([entry["exp_avg"] for entry in optimizer.state.values()])
    assert all(a.equal(b) and a.any() for a, b in zip(*optimizers, strict=True))
    loaded = {"model": make(5, sharded=False)[0].state_dict()}
    dcp.load(loaded, storage_reader=CheckpointStorageReader(layout.iteration_dir(tmp_path, 6)))
    assert all(loaded["model"][key].equal(tensor) for key, tensor in results[0]["at"].items())


def sharded_kinds(rank: int) -> dict[str, Any]:
    """Which rank saves what of a two-dimensional mesh, and what is refused."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards"))
    tensors = {
        "copied": distribute_tensor(torch.arange(6.0), mesh, [Replicate(), Shard(0)]),
        "shared": distribute_tensor(torch.arange(6.0), mesh, [Shard(0), Replicate()]),
        "short": distribute_tensor(torch.arange(1.0), mesh, [Shard(0), Replicate()]),
        "pending": DTensor.from_local(torch.ones(2), mesh, [Partial(), Replicate()]),
    }

    class Box:
        def __init__(self, names: list[str]) -> None:
            self.names = names

        def state_dict(self) -> dict[str, Any]:
            return {name: tensors[name] for name in self.names}

        def load_state_dict(self, state: dict[str, Any]) -> None: ...

    items = RankState({"box": Box(["copied", "shared", "short"])}, (), rank, 2).collect().items
    try:
        RankState({"box": Box(["pending"])}, (), rank, 2).collect()
    except TypeError as refusal:
        message = str(refusal)
    return {
        "items": {i.key: (tuple(i.tensor.shape), i.offset, i.whole, i.owned) for i in items},
        "message": message,
    }


@pytest.mark.long
def test_each_shard_is_saved_once() -> None:
    first, second = on_ranks(2, sharded_kinds)
    assert first["items"] == {
        "box.copied": ((6,), (0,), (6,), True),
        "box.shared": ((3,), (0,), (6,), True),
        "box.short": ((1,), (0,), (1,), True),
    }
    assert second["items"] == {
        "box.copied": ((6,), (0,), (6,), False),
        "box.shared": ((3,), (3,), (6,), True),
    }
    assert "cannot save `box.pending`: a DTensor with the placement" in first["message"]
