"""Our checkpoints as torch.distributed.checkpoint's storage: `dcp.save` and `dcp.load` read and write them.

Whatever its planners can shard and reshard (DTensor, FSDP2, tensor parallel, another number of ranks) works
without any resharding of our own. Values that are not tensors are saved as JSON (`encode.py`), not pickled.
"""

from __future__ import annotations

import io
import json
import mmap
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    LoadPlan,
    LoadPlanner,
    Metadata,
    SavePlan,
    SavePlanner,
    StorageReader,
    StorageWriter,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, ReadItem, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ftlaunch_hooks import atomic, layout, persist
from ftlaunch_hooks.encode import Json, Path as StatePath, StateError, decode, encode, show
from ftlaunch_hooks.items import DTYPES
from ftlaunch_hooks.layout import Chunk
from ftlaunch_hooks.protocol import Why
from ftlaunch_hooks.shards import CheckpointReader, Shards, tensor_over

_VALUES = "dcp"  # in common.json's state: what is not a tensor, by key
_OPTIMIZERS = ("opt", "optim", "optimizer")  # first part of the keys that go to the `opt` files


# --- reading ----------------------------------------------------------------------------------------------


class ShardsStorageReader(StorageReader):
    """Gives torch.distributed.checkpoint what `Shards` hold."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageReader."""

    def _values(self) -> dict[str, Json]:
        values: dict[str, Json] = {}
        for rank in range(self._shards.world_size):
            values |= self._shards.state(rank).get(_VALUES, {})
        return values

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """See StorageReader."""
        entries: dict[str, Any] = {key: BytesStorageMetadata() for key in self._values()}
        entries |= {key: self._tensor_metadata(key) for key in self._shards.keys()}
        return Metadata(entries)

    def _tensor_metadata(self, key: str) -> TensorStorageMetadata:
        dtype, whole = self._shards.info(key)
        chunks = [
            ChunkStorageMetadata(torch.Size(piece.chunk.offset), torch.Size(piece.chunk.shape))
            for piece in self._shards.pieces(key)
        ]
        return TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(whole), chunks)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """See StorageReader."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """See StorageReader."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """See StorageReader."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """See StorageReader."""
        values = self._values()
        for item in plan.items:
            if item.type is LoadItemType.BYTE_IO:
                value = io.BytesIO()  # only in memory: what the planner's load_bytes takes
                torch.save(decode(values[item.storage_index.fqn], _no_tensor), value)
                value.seek(0)
                planner.load_bytes(item, value)
            else:
                target = planner.resolve_tensor(item).detach()
                target.copy_(self._part(item))
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _part(self, item: ReadItem) -> Tensor:
        """The block of a saved chunk that a read is about."""
        pieces = self._shards.pieces(item.storage_index.fqn)
        offset = item.storage_index.offset
        part = next(p for p in pieces if offset is None or p.chunk.offset == tuple(offset)).tensor()
        for dim, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(dim, start, length)
        return part

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """See StorageReader."""
        return Path(checkpoint_id).is_dir()


class CheckpointStorageReader(ShardsStorageReader):
    """Reads a committed checkpoint: `dcp.load(state_dict, storage_reader=CheckpointStorageReader(path))`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """directory: `<checkpoint-dir>/iteration_<step>`. Raises OSError, or layout.Damaged."""
        super().__init__(CheckpointReader(Path(directory)))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageReader."""
        if checkpoint_id is not None:
            self._shards = CheckpointReader(Path(checkpoint_id))


def read_planned(shards: Shards, wanted: dict[str, Tensor]) -> None:
    """Fill plain tensors and DTensors from shards of whatever shape. Every rank reads for itself."""
    reader, planner = ShardsStorageReader(shards), DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(wanted), reader.read_metadata(), is_coordinator=True)
    [plan] = planner.create_global_plan([planner.create_local_plan()])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _no_tensor(key: str, device: str) -> Tensor:
    raise StateError(f"cannot restore `{key}`: a tensor among values that are not tensors")


# --- writing ----------------------------------------------------------------------------------------------


class CheckpointStorageWriter(StorageWriter):
    """Writes and commits a checkpoint: `dcp.save(state_dict, storage_writer=CheckpointStorageWriter(path, 120))`."""

    def __init__(
        self,
        checkpoint_dir: str | os.PathLike[str],
        step: int,
        *,
        prefix: str = "dcp",
        consumed_samples: int = 0,
    ) -> None:
        """prefix: of the files' names. consumed_samples: over all ranks, for who resumes from it."""
        self._target = persist.Target(Path(checkpoint_dir), step, Why.REQUEST.name.lower(), prefix, 1)
        self._consumed = consumed_samples

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageWriter."""
        if checkpoint_id is not None:
            self._retarget(checkpoint_dir=Path(checkpoint_id))
