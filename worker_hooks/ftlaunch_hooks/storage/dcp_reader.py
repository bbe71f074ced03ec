"""A StorageReader of torch.distributed.checkpoint that reads our checkpoints and snapshots.

Whatever its planners can shard and reshard (DTensor, FSDP2, tensor parallel, another number of ranks) works
without any resharding of our own. Values that are not tensors are saved as JSON (`json_codec.py`), not pickled.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
)
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from ftlaunch_contract.progress import Advance, ignore
from ftlaunch_contract.shared_keys import plain_names
from ftlaunch_hooks.storage.saved_tensors import CheckpointReader, SavedTensors
from ftlaunch_hooks.tensors.json_codec import Json, StateError, decode

VALUES = "dcp"  # in common.json's state: what is not a tensor, by key


class ShardsStorageReader(StorageReader):
    """Gives torch.distributed.checkpoint what SavedTensors hold."""

    def __init__(self, shards: SavedTensors, advance: Advance = ignore) -> None:
        """advance: told of bytes that are read."""
        self._shards, self._advance = shards, advance
        self._keys: dict[str, str] = {}  # other names of tensors, by which they are asked for, too

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageReader."""

    def _values(self) -> dict[str, Json]:
        values: dict[str, Json] = {}
        for rank in range(self._shards.world_size):
            values |= self._shards.state(rank).get(VALUES, {})
        return values

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """See StorageReader."""
        metadata = self.tensor_metadata(self._shards.keys())
        metadata.state_dict_metadata.update({key: BytesStorageMetadata() for key in self._values()})
        return metadata

    def tensor_metadata(self, keys: Iterable[str]) -> Metadata:
        """Metadata of these tensors only. Raises KeyError."""
        return Metadata({key: self._tensor_metadata(key) for key in keys})

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
                self._advance(target.nbytes)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _part(self, item: ReadItem) -> Tensor:
        """The block of a saved chunk that a read is about."""
        pieces = self._shards.pieces(self._keys.get(item.storage_index.fqn, item.storage_index.fqn))
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
    """Reads a committed checkpoint: `dcp.load(state_dict, storage_reader=CheckpointStorageReader(path))`.

    A tensor that only one group of ranks has saved (a stage of a pipeline) is there by its plain name, too; where
    several groups have saved one of a name, `name@0-3` is that of the ranks 0 to 3.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """directory: `<checkpoint-dir>/iteration_<step>`. Raises OSError, or Damaged."""
        super().__init__(CheckpointReader(Path(directory)))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """See StorageReader."""
        if checkpoint_id is not None:
            self._shards = CheckpointReader(Path(checkpoint_id))

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """See StorageReader."""
        metadata = super().read_metadata(*args, **kwargs)
        self._keys = plain_names(self._shards.keys())
        told = metadata.state_dict_metadata
        told.update({name: told[key] for name, key in self._keys.items()})
        return metadata


def read_planned(shards: SavedTensors, wanted: dict[str, Tensor], advance: Advance = ignore) -> None:
    """Fill plain tensors and DTensors from shards of whatever shape. Every rank reads for itself."""
    reader, planner = ShardsStorageReader(shards, advance), DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(dict(wanted), reader.tensor_metadata(wanted), is_coordinator=True)
    [plan] = planner.create_global_plan([planner.create_local_plan()])
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _no_tensor(key: str, device: str) -> Tensor:
    raise StateError(f"cannot restore `{key}`: a tensor among values that are not tensors")
